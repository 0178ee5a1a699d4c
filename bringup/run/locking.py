"""The lock of a run: every host of it, in inventory order, before the first change anywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from bringup.base.errors import BringupError, LockedError, StepError
from bringup.base.text import fold_hosts
from bringup.inventory.model import LOCALHOST
from bringup.run.actions import Call
from bringup.run.engine import Engine
from bringup.run.holders import about, step_of, who
from bringup.run.hosts import UP, HostState, Step
from bringup.run.waiting import Wait

SILENT_AFTER = 20.0
"""Seconds: a living controller is heard every 5, and the record says so every 5."""

SILENT_ENDS = 75.0
"""Seconds in which an agent without a controller ends: 60 of silence, and some to end its task."""

TELL_AFTER = 1.0
"""Seconds of waiting for another run after which a person is told what is waited for."""

TAKE_OVER_WAIT = 120.0
"""Seconds that a run has to come to the end of its task when it is taken over."""


class LockKeeper:
    """Takes and gives up the locks. `open` is True when changes may begin; `refused` says who holds a host.

    `accounts` says as whom the lock of a host is taken (None: the connecting account). `take_over` is the id of a
    living run to be asked to stop. `identity` is the operator and machine, as records hold them.
    """

    def __init__(self, run: Engine, hosts: Sequence[str], *, verb: str, accounts: dict[str, str | None],
                 take_over: str | None = None, identity: tuple[str, str] = ("", ""), inventory: str = "") -> None:
        self.run = run
        self.hosts = tuple(hosts)
        self.verb = verb
        self.accounts = accounts
        self.take_over = take_over
        self.identity = identity
        self.inventory = inventory
        self.open = not hosts
        self.step = ""
        self.refused: BringupError | None = None
        self.previous: dict[str, list[str]] = {}
        self._begun = False

    def want(self) -> None:
        """Begin to take the locks, once."""
        if not self._begun and not self.open:
            self._begun = True
            self.run.background.append(self._take())

    def _take(self) -> Iterator[None]:
        states = [self.run.state(name) for name in self.hosts]
        for host in states:
            self.run.connect(host)
        unavailable: dict[str, list[str]] = {}
        for host in states:
            while host.state != UP and not host.down:
                yield
            if host.down:
                continue
            yield from self.take(host, unavailable)
            if self.refused is not None:
                raise Refused(self.refused)
        for reason, names in unavailable.items():
            self.run.note(f"no lock and no journal can be kept there: {reason}", fold_hosts(names))
        for text, names in self.previous.items():
            self.run.note(text, fold_hosts(names))
        self.open = True

    def later(self, host: HostState) -> Iterator[Wait]:
        """Lock a host that only showed up now: a task is delegated to it by a name worked out on the way."""
        if not self.hosts or host.name in self.hosts or host.name in LOCALHOST or host.locked:
            return
        self.run.connect(host)
        yield Wait(lambda: host.state == UP or host.down)
        unavailable: dict[str, list[str]] = {}
        taking = self.take(host, unavailable)
        while host.state == UP and next(taking, taking) is None:
            asked = self.run.outstanding
            yield Wait(lambda asked=asked: self.run.outstanding < asked)  # type: ignore[misc]
        self.hosts = (*self.hosts, host.name)
        if self.refused is not None:
            raise Refused(self.refused)

    def take(self, host: HostState, unavailable: dict[str, list[str]], wait: float = 0.0) -> Iterator[None]:
        """Lock one host, waiting at most `wait` seconds for a holder that is about to go."""
        module = "take_over" if self.take_over else "lock"
        args: dict[str, Any] = {"verb": self.verb, "step": self.step, "wait": wait, "inventory": self.inventory}
        if self.take_over:
            args.update(run=self.take_over, timeout=TAKE_OVER_WAIT)
        step = Step()
        self.run.send_step(None, None, step, Call(module, args, become=self.accounts.get(host.name), changes=False),
                           host, ignore_errors=True)
        self.run.flush(host)
        yield from self._answer(step, host.name)
        if step.lost is not None:
            return
        raw = step.raw or {}
        state = raw.get("state")
        host.lock_as = self.accounts.get(host.name)
        if module == "take_over" and raw.get("failed") and "is recorded here" in str(raw.get("msg")):
            yield from self._plain(host, unavailable)
        elif state == "locked":
            self._locked(host, raw)
        elif state == "unavailable":
            unavailable.setdefault(str(raw.get("reason")), []).append(host.name)
        elif state == "held" and not wait and self._is_own_and_cut_off(raw):
            run = (raw.get("record") or {}).get("run")
            self.run.note(f"your run {run} was cut off here; waiting for its agent to end, {SILENT_ENDS:.0f} s at most",
                          host.name, "warn")
            yield from self.take(host, unavailable, wait=SILENT_ENDS)
        elif state in ("held", "unfinished") or (module == "take_over" and raw.get("failed")):
            self.refused = self._held(host.name, raw)
        else:
            host.lock_error = StepError(str(raw.get("msg") or "the lock cannot be taken"), host=host.name,
                                        expected=raw.get("expected"), found=raw.get("found"), next=raw.get("next"))

    def _answer(self, step: Step, host: str) -> Iterator[None]:
        """Wait for the host; a run that is taken over may have a long task to end, and that is said."""
        tell_at = time.monotonic() + TELL_AFTER if self.take_over else None
        while not step.answered:
            if tell_at is not None and time.monotonic() >= tell_at:
                self.run.note(f"run {self.take_over} is asked to stop at the end of its task; waiting for that, "
                              f"{TAKE_OVER_WAIT:.0f} s at most", host)
                tell_at = None
            elif tell_at is not None:
                self.run.wake_at(tell_at)
            yield

    def _is_own_and_cut_off(self, raw: dict[str, Any]) -> bool:
        """True for a holder of this operator on this machine whose controller is gone, or was not heard for a while:
        by the host's own clock, which wrote down when."""
        record = raw.get("record") or {}
        heard, now = record.get("heard"), raw.get("now")
        silent = isinstance(heard, (int, float)) and isinstance(now, (int, float)) and now - heard > SILENT_AFTER
        return (record.get("operator"), record.get("machine")) == self.identity and (silent or "cut" in record)

    def _plain(self, host: HostState, unavailable: dict[str, list[str]]) -> Iterator[None]:
        """A host that the run to be taken over never reached is locked as usual."""
        taken, self.take_over = self.take_over, None
        yield from self.take(host, unavailable)
        self.take_over = taken

    def _locked(self, host: HostState, raw: dict[str, Any]) -> None:
        host.locked = True
        previous = raw.get("previous")
        if isinstance(previous, dict):
            jobs = "; its jobs go on" if raw.get("jobs") else ""
            text = f"goes on where run {previous.get('run')} stopped ({step_of(previous)}{jobs})"
            self.previous.setdefault(text, []).append(host.name)

    def _held(self, host: str, raw: dict[str, Any]) -> LockedError:
        record = raw.get("record") or {}
        if raw.get("state") == "unfinished":
            return LockedError(
                f"run {record.get('run')} of {who(record)} did not finish here ({step_of(record)})", host=host,
                details=["nothing was changed", "nobody is at it any more"],
                next=f"ask them, or clear it: invoke unlock --run {record.get('run')}")
        if raw.get("failed"):
            return LockedError(str(raw.get("msg")), host=host, found=raw.get("found"),
                               details=["nothing was changed"], next=raw.get("next"))
        return LockedError(
            f"is held by {who(record)} ({about(record, raw.get('now'))})", host=host, details=["nothing was changed"],
            next=f"follow it: invoke status --run {record.get('run')}")

    def at(self, step: str) -> None:
        """Note in the record of each locked host where the run is."""
        self.step = step
        for host in self.run.hosts.values():
            if host.locked and host.state == UP:
                self.run.send_step(None, None, Step(), Call("lock", {"verb": self.verb, "step": step},
                                                            become=host.lock_as, changes=False), host,
                                   ignore_errors=True)

    def release(self, seconds: float = 5.0, *, outcome: int | None = None) -> None:
        """Give up every lock that was taken; waits at most so long for the hosts to say so. `outcome` is the exit
        status, for the hosts' own record of runs."""
        steps = []
        for host in list(self.run.hosts.values()):
            if host.locked and host.state == UP:
                step = Step()
                self.run.send_step(None, None, step, Call("unlock", {"outcome": outcome}, become=host.lock_as,
                                                            changes=False), host,
                                   ignore_errors=True)
                host.locked = False
                steps.append(step)
        if steps and not self.run.pump(lambda: all(step.answered for step in steps), time.monotonic() + seconds):
            silent = [step.link_host for step in steps if not step.answered]
            self.run.note(f"no answer for {seconds:.0f} s when the lock was given up; its agent gives it up when it "
                          f"has not heard this run for a minute", fold_hosts(silent), "warn")


class Refused(Exception):
    """Carries the LockedError out of the loop."""

    def __init__(self, error: BringupError) -> None:
        super().__init__()
        self.error = error
