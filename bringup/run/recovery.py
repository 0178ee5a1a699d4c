"""A connection that was cut in the middle of a task: connect again, ask the host's journal what became of the task.

A task that never began is sent again. One that ended is taken as it ended, when nothing but its state is needed. One
that is still under way is waited for, as long as its agent lets it go on. Everything else stays lost: its end is not
known, and nothing is done twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import BringupError, LockedError, UnreachableError
from bringup.connection import messages
from bringup.connection.messages import Request
from bringup.run.actions import Call
from bringup.run.engine import Engine
from bringup.run.hosts import CONNECTING, IDLE, LOST, UP, HostState, Step, Unit
from bringup.run.locking import LockKeeper

GRACE = 75.0
"""Seconds to wait for a task under way: its agent gives it 60 after the cut, and some to write that down."""

ASK_EVERY = 1.0
"""Seconds between two questions to the journal."""

RETRY_FOR = 30.0
"""Seconds in which a host that was lost is connected again; an attempt under way may end later."""

RETRY_EVERY = 2.0
"""Seconds between two attempts."""

TIMES = 3
"""Losses of one host in one run that are looked into."""


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
        self.tried: Counter[str] = Counter()

    def __call__(self, host: HostState, message: messages.Lost) -> bool:
        """True when the loss is being looked into; the host's requests stay open until then."""
        if self.run.stopped or isinstance(message.error, LockedError) or host.link is None or host.gone:
            return False
        if host.recovering is not None or self.tried[host.name] >= TIMES:
            return False
        self.tried[host.name] += 1
        cut = self._outstanding(host)
        host.recovering = message.error
        doing = "to ask what became of the task" if message.running is not None else "nothing was running there"
        self.run.note(f"{message.error.what}; connecting again, {doing}", host.name, "warn")
        self.run.background.append(self._recover(host, message, cut))
        return True

    def _outstanding(self, host: HostState) -> list[_Cut]:
        waiting = {request.id for request in host.outbox}
        return [_Cut(step.request, unit, step) for _, unit, step, link in self.run.outstanding_requests()
                if link is host and step.request is not None and step.request.id not in waiting]

    def _recover(self, host: HostState, message: messages.Lost, cut: list[_Cut]) -> Iterator[None]:
        error = message.error
        yield from self._connect(host)
        if host.recovering is None:
            return
        if host.state != UP:
            self._give_up(host, error)
            return
        running = next((one for one in cut if one.request.id == message.running), None)
        if running is not None:
            state: dict[str, Any] = {}
            yield from self._journal(host, running.request.digest, state)
            if host.recovering is None:
                return
            if not self._adopt(host, running, state):
                self._give_up(host, UnreachableError(
                    f"{error.what}; {_told(state)}", host=host.name, details=error.details, next=error.next))
                return
            if state.get("state") == "ended":
                cut = [one for one in cut if one is not running]
        if host.locked:
            host.locked = False
            yield from self._directly(host, self.lock.take(host, {}, wait=GRACE))
            if host.recovering is None:
                return
            if not host.locked:
                self._give_up(host, error)
                return
        host.recovering = None
        self.run.note("is back; the run goes on there", host.name)
        if host.link is not None and cut:
            host.link.submit([one.request for one in cut])
        self.run.flush(host)

    def _connect(self, host: HostState) -> Iterator[None]:
        """Connect again, as often as there is time for it; the host's state says whether it worked."""
        until = time.monotonic() + RETRY_FOR
        while True:
            host.state = CONNECTING
            try:
                host.link = self.run.linker(host.name)
                host.link.start()
            except BringupError:
                host.state = IDLE
            while host.state == CONNECTING:
                yield
            if host.state == UP or host.recovering is None or time.monotonic() > until:
                return
            yield from self._pause(RETRY_EVERY)

    def _pause(self, seconds: float) -> Iterator[None]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.run.wake_at(until)
            yield

    def _directly(self, host: HostState, steps: Iterator[None]) -> Iterator[None]:
        """Let what asks the host pass by what waits for it."""
        while True:
            kept, host.outbox = host.outbox, []
            try:
                next(steps)
            except StopIteration:
                return
            finally:
                direct, host.outbox = host.outbox, kept
                if direct and host.link is not None:
                    host.link.submit(direct)
            yield

    def _journal(self, host: HostState, digest: str, found: dict[str, Any]) -> Iterator[None]:
        until = time.monotonic() + GRACE
        while True:
            step = Step()
            yield from self._directly(host, self._ask(host, digest, step))
            found.clear()
            if step.raw is None:
                found["state"] = "lost"
                return
            found.update((step.raw.get("tasks") or {}).get(digest) or {"state": "unknown"})
            if not host.locked:
                found["state"] = "no journal"
            if found.get("state") != "running" or time.monotonic() > until:
                return
            yield from self._pause(ASK_EVERY)

    def _ask(self, host: HostState, digest: str, step: Step) -> Iterator[None]:
        call = Call("journal", {"run": self.run_id, "digests": [digest]}, become=host.lock_as, changes=False)
        self.run.send_step(None, None, step, call, host, ignore_errors=True)
        while not step.answered:
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
