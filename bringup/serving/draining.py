"""Requests in flight, read from an engine's /metrics: how many, and waiting until none is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.text import duration
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.probing import where

_NUMBER = r"(?:\{[^}]*\})?\s+([0-9.eE+-]+)"
_IN_FLIGHT = re.compile(r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs)" + _NUMBER, re.M)
_RUNNING = re.compile(r"^(?:vllm:num_requests_running|sglang:num_running_reqs)" + _NUMBER, re.M)
_WAITING = re.compile(r"^(?:vllm:num_requests_waiting|sglang:num_queue_reqs)" + _NUMBER, re.M)
_FINISHED = re.compile(r"^(?:vllm:request_success_total|sglang:num_requests_total)" + _NUMBER, re.M)
QUIET = 2.0
"""Seconds without a request in flight or one that came and went between two looks: a load balancer that was told just
now may still send some."""
PAUSE = 0.5
"""Seconds between two looks."""


@dataclass(frozen=True)
class Load:
    """What an engine has to do: requests running or waiting, and how many it has finished (None: not told)."""

    in_flight: int
    finished: int | None = None


@dataclass(frozen=True)
class Drained:
    """How waiting ended: `left` requests still in flight after `seconds`, None where they could not be counted
    (`reason`)."""

    left: int | None
    seconds: float
    reason: str = ""

    @property
    def told(self) -> str:
        if self.left is None:
            return f"requests in flight cannot be counted ({self.reason}); they had {duration(self.seconds)}"
        if self.left:
            word = "request is" if self.left == 1 else "requests are"
            return f"{self.left} {word} still in flight after {duration(self.seconds)} and will be cut off"
        return f"no request in flight any more (after {duration(self.seconds)})"


def read_load(page: str) -> Load | None:
    """The load on a page of /metrics, over all of its series; None when the page does not say."""
    flying = [float(value) for value in _IN_FLIGHT.findall(page)]
    if not flying:
        return None
    done = [float(value) for value in _FINISHED.findall(page)]
    return Load(round(sum(flying)), round(sum(done)) if done else None)


def queue_of(page: str) -> tuple[int, int] | None:
    """Requests running and waiting on a page of /metrics, over all of its series; None when the page does not say."""
    running, waiting = _RUNNING.findall(page), _WAITING.findall(page)
    if not running and not waiting:
        return None
    return round(sum(map(float, running))), round(sum(map(float, waiting)))


def drain(fleet: Fleet, documents: Mapping[str, Mapping[str, Any]], key: str | None, deadline: float,
          say: Callable[[str], None]) -> Drained:
    """Wait until the serving processes (host -> launch document) have nothing in flight, `deadline` seconds at most.

    Where they do not tell, all of the deadline is waited. A process that does not answer any more has none.
    """
    began = time.monotonic()
    quiet_since: float | None = None
    before: int | None = None
    while True:
        loads, reason = _look(fleet, documents, key)
        now = time.monotonic()
        if loads is None:
            quiet_since = None
            say(f"{reason}: waiting {duration(max(0.0, deadline - (now - began)))} for requests in flight")
            if now - began >= deadline:
                return Drained(None, now - began, reason)
            continue
        flying = sum(load.in_flight for load in loads)
        finished = sum(load.finished or 0 for load in loads)
        if flying or (before is not None and finished != before):
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        before = finished
        if quiet_since is not None and now - quiet_since >= min(QUIET, deadline):
            return Drained(0, now - began)
        if now - began >= deadline:
            return Drained(flying, now - began)
        say(f"{flying} in flight" if flying else "nothing in flight, waiting for late ones")


def _look(fleet: Fleet, documents: Mapping[str, Mapping[str, Any]], key: str | None
          ) -> tuple[Sequence[Load] | None, str]:
    """What each process has to do, or None and why it is not known."""
    args = {}
    for host, document in documents.items():
        address, port = where(document)
        args[host] = {"host": address, "port": port, "api_key": key, "timeout": 5.0,
                      "requests": [{"id": "load", "method": "GET", "path": "/metrics", "wait": PAUSE}]}
    results = calls.call_all(fleet, "http_exchange", args, changes=False, timeout=30)
    loads = []
    for host, result in results.items():
        if result.bad:
            return None, f"{host}: {calls.first_line(result)}"
        [answer] = result.data["responses"]
        if "refused" in str(answer.get("error") or "").lower():
            loads.append(Load(0))
            continue
        load = read_load(str(answer.get("body") or "")) if answer.get("status") == 200 else None
        if load is None:
            told = answer.get("error") or (f"answers {answer['status']}" if answer.get("status") != 200
                                           else "tells no requests")
            return None, f"/metrics of {host} {told}"
        loads.append(load)
    return loads, ""
