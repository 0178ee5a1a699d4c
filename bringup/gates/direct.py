"""Ask an endpoint from here: a stand-in on this machine, another deployment's address."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx2

from bringup.base.errors import FindingError
from bringup.serving.contract.request import Request, Response


class Direct:
    """An exchange over httpx2 to a base URL (http://HOST:PORT, without /v1). Never raises for what the network does."""

    def __init__(self, url: str, key: str | None = None, timeout: float = 120.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.timeout = timeout

    def __call__(self, requests: Sequence[Request], at_once: int = 4, /) -> list[Response]:
        limits = httpx2.Limits(max_connections=at_once)
        with httpx2.Client(timeout=self.timeout, limits=limits, trust_env=False) as client, \
                ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda request: self._one(client, request), requests))

    def _one(self, client: httpx2.Client, request: Request) -> Response:
        if request.wait:
            time.sleep(request.wait)
        began = time.monotonic()
        headers = {**self.headers, **request.headers}
        events: list[tuple[float, str]] = []
        status, body, error = 0, "", None
        try:
            method = "GET" if request.body is None else "POST"
            with client.stream(method, self.url + request.path, json=request.body, headers=headers) as answer:
                status = answer.status_code
                if "text/event-stream" in answer.headers.get("content-type", ""):
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            events.append((round(time.monotonic() - began, 4), line[5:].strip()))
                            if request.close_after and len(events) >= request.close_after:
                                break
                else:
                    body = answer.read().decode("utf-8", "replace")
        except httpx2.TimeoutException:
            status, error = 0, f"no answer within {self.timeout:g} s"
        except httpx2.HTTPError as problem:
            status, error = 0, str(problem) or type(problem).__name__
        return Response(request.id, status, body, tuple(events), error, round(time.monotonic() - began, 4))


def served_name(direct: Direct, url: str, mend: str, what: str = "the endpoint") -> str:
    """The first model that an endpoint serves. Raises FindingError, with what mends it, when it names none."""
    [answer] = direct([Request("models", "/v1/models")], 1)
    try:
        return str(json.loads(answer.body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise FindingError(f"{what} names no model", where=url, found=answer.problem() or answer.body[:120],
                           next=mend if answer.status else "an address that answers from here: http://HOST:PORT"
                           ) from None
