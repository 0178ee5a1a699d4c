"""A connection that was cut in the middle of a task: connect again, ask the host's journal what became of the task.

A task that never began is sent again. One that ended is taken as it ended, when nothing but its state is needed. One
that is still under way is waited for, as long as its agent lets it go on. Everything else stays lost: its end is not
known, and nothing is done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import BringupError, LockedError, UnreachableError
from bringup.connection import messages
from bringup.connection.messages import Request
from bringup.run.actions import Call
from bringup.run.engine import Engine
from bringup.run.hosts import CONNECTING, LOST, UP, HostState, Step, Unit
from bringup.run.locking import LockKeeper

GRACE = 75.0
"""Seconds to wait for a task under way: its agent gives it 60 after the cut, and some to write that down."""

ASK_EVERY = 1.0
"""Seconds between two questions to the journal."""


@dataclass
class _Cut:
    """What was outstanding when the connection went."""

    request: Request
    unit: Unit | None
    step: Step


class Recovery:
    """The `recover` of an engine."""

    def __init__(self, run: Engine, lock: LockKeeper, run_id: str) -> None:
        self.run = run
        self.lock = lock
        self.run_id = run_id
        self.tried: set[str] = set()

    def __call__(self, host: HostState, message: messages.Lost) -> bool:
        """True when the loss is being looked into; the host's requests stay open until then."""
        if self.run.stopped or host.name in self.tried or isinstance(message.error, LockedError) or host.link is None:
            return False
        cut = self._outstanding(host)
        if not cut:
            return False
        self.tried.add(host.name)
        host.recovering = message.error
        host.state = CONNECTING
        self.run.note(f"{message.error.what}; connecting again to ask what became of the task", host.name, "warn")
        self.run.background.append(self._recover(host, message, cut))
        return True

    def _outstanding(self, host: HostState) -> list[_Cut]:
        return [_Cut(step.request, unit, step) for _, unit, step, link in self.run.outstanding_requests()
                if link is host and step.request is not None]

    def _recover(self, host: HostState, message: messages.Lost, cut: list[_Cut]) -> Iterator[None]:
        error = message.error
        try:
            host.link = self.run.linker(host.name)
            host.link.start()
        except BringupError:
            self._give_up(host, error)
            return
        while host.state == CONNECTING:
            yield
        if host.state != UP:
            return
        running = next((one for one in cut if one.request.id == message.running), None)
        if running is not None:
            state: dict[str, Any] = {}
            yield from self._journal(host, running.request.digest, state)
            if not self._adopt(host, running, state):
                self._give_up(host, UnreachableError(
                    f"{error.what}; {_told(state)}", host=host.name, details=error.details, next=error.next))
                return
            if state.get("state") == "ended":
                cut = [one for one in cut if one is not running]
        if host.locked:
            host.locked = False
            unavailable: dict[str, list[str]] = {}
            yield from self.lock.take(host, unavailable, wait=GRACE)
            if not host.locked:
                self._give_up(host, error)
                return
        host.recovering = None
        self.run.note("is back; the run goes on there", host.name)
        if host.state == UP and host.link is not None and cut:
            host.link.submit([one.request for one in cut])

    def _journal(self, host: HostState, digest: str, found: dict[str, Any]) -> Iterator[None]:
        until = time.monotonic() + GRACE
        while True:
            step = Step()
            call = Call("journal", {"run": self.run_id, "digests": [digest]}, become=host.lock_as, changes=False)
            self.run.send_step(None, None, step, call, host, ignore_errors=True)
            self.run.flush(host)
            while not step.answered:
                yield
            found.clear()
            found.update(((step.raw or {}).get("tasks") or {}).get(digest) or {"state": "unknown"})
            if not host.locked:
                found["state"] = "no journal"
            if found.get("state") != "running" or time.monotonic() > until:
                return
            again = time.monotonic() + ASK_EVERY
            self.run.alarm = again
            while time.monotonic() < again:
                yield

    def _adopt(self, host: HostState, cut: _Cut, state: dict[str, Any]) -> bool:
        """Take what the journal says for the result; False when that is not enough."""
        if state.get("state") == "unknown":
            return True  # it never began: it goes out again
        if state.get("state") != "ended":
            return False
        task = cut.unit.task if cut.unit is not None else None
        if task is None or task.register or task.until or task.failed_when or task.changed_when or task.loop:
            return False
        result = str(state.get("result"))
        raw: dict[str, Any] = {"changed": result == "changed", "failed": result == "failed",
                               "msg": "as the host's journal says; the connection was cut meanwhile"}
        if result == "skipped":
            raw["skipped"] = True
        if "rc" in state:
            raw["rc"] = state["rc"]
        self.run.handle(messages.Finished(host.name, cut.request.id, raw, float(state.get("seconds") or 0.0)))
        return True

    def _give_up(self, host: HostState, error: BringupError) -> None:
        host.recovering = None
        if host.link is not None:
            host.link.close()
        self.run.down(host, LOST, error)


def _told(state: dict[str, Any]) -> str:
    kind = state.get("state")
    if kind == "ended":
        return f"the task ended there ({state.get('result')}), what it printed is not known"
    if kind == "running":
        return "the task is still under way there"
    if kind == "interrupted":
        return "the task was cut off there"
    return "what became of the task is not known"
