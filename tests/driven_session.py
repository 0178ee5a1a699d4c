"""A session driven by a test: requests in, messages out, with a limit on every wait."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Mapping
from typing import Any

from bringup.connection.gate import Gate
from bringup.connection.messages import (
    Closed,
    Connected,
    Finished,
    Lost,
    Message,
    NotRun,
    Request,
    Target,
    Unreachable,
)
from bringup.connection.session import Session

ENDS = (Closed, Lost, Unreachable)


class Driven:
    """One session of one host; everything that it said is in `seen`, in order."""

    def __init__(self, target: Target, *, run_id: str = "r1", operator: str = "ops@deploy1",
                 gate: Gate | None = None) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.session = Session(target, self.inbox, operator=operator, run_id=run_id, gate=gate)
        self.seen: list[Message] = []
        self.ids = itertools.count(1)
        self.segment = 1

    def __enter__(self) -> Driven:
        self.session.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not any(isinstance(message, ENDS) for message in self.seen):
            self.session.close()
            self.until(lambda message: isinstance(message, ENDS), 20)
        self.session.join(10)

    def request(self, module: str, args: Mapping[str, Any] | None = None, **more: Any) -> Request:
        more.setdefault("segment", self.segment)
        return Request(id=next(self.ids), module=module, args=args or {}, **more)

    def submit(self, *requests: Request) -> None:
        self.session.submit(requests)

    def until(self, wanted: Any, timeout: float = 15) -> Message:
        """The first message that `wanted` takes; what came before it is kept in `seen`."""
        end = time.monotonic() + timeout
        while True:
            message = self.inbox.get(timeout=max(0.01, end - time.monotonic()))
            self.seen.append(message)
            if wanted(message):
                return message
            if isinstance(message, ENDS):
                raise AssertionError(f"the session ended first: {message} {getattr(message, 'error', '')}")

    def connected(self, timeout: float = 15) -> Connected:
        message = self.until(lambda item: isinstance(item, Connected), timeout)
        assert isinstance(message, Connected)
        return message

    def answers(self, *requests: Request, timeout: float = 15) -> list[Finished | NotRun]:
        """Submit, and the answer of each in order."""
        self.submit(*requests)
        out: list[Finished | NotRun] = []
        for request in requests:
            answer = self.until(lambda item, number=request.id: isinstance(item, (Finished, NotRun))
                                and item.id == number, timeout)
            assert isinstance(answer, (Finished, NotRun))
            out.append(answer)
        return out

    def call(self, module: str, args: Mapping[str, Any] | None = None, timeout: float = 15,
             **more: Any) -> dict[str, Any]:
        """Run one request in a segment of its own and return its result."""
        self.segment += 1
        answer = self.answers(self.request(module, args, segment=self.segment, **more), timeout=timeout)[0]
        assert isinstance(answer, Finished), answer
        return dict(answer.result)

    def end(self, timeout: float = 30) -> Message:
        """How the session ends by itself."""
        return self.until(lambda message: isinstance(message, ENDS), timeout)
