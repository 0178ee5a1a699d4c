"""One single-threaded loop over the messages of all hosts: sends steps, takes results in order, wakes the flows."""

from __future__ import annotations

import json
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bringup.base.errors import BringupError, ExitStatus, LockedError, UnreachableError
from bringup.base.events import Event, Line, Note, TaskStarted
from bringup.connection import messages
from bringup.connection.messages import Request
from bringup.playbook.model import Task
from bringup.playbook.templating import Engine as Templates
from bringup.run.actions import Call, ModuleSpec
from bringup.run.batch import Batch
from bringup.run.hosts import CLOSED, CONNECTING, IDLE, LOST, UNREACHABLE, UP, HostState, Link, Step, Unit
from bringup.run.prepare import Settings, digest_of
from bringup.run.taking import Taker
from bringup.run.variables import Variables, put_pending
from bringup.run.waiting import Meeting

if TYPE_CHECKING:
    from bringup.run.flow import Flow
    from bringup.run.joint import Frame, Joint
    from bringup.run.locking import LockKeeper

Linker = Callable[[str], Link]


class Engine:
    """Drives flows. `linker` makes the session of a host; `emit` takes events."""

    variables: Variables
    lock: LockKeeper

    def __init__(self, templates: Templates, settings: Settings, linker: Linker, emit: Callable[[Event], None],
                 hosts: Sequence[str]) -> None:
        self.templates = templates
        self.settings = settings
        self.linker = linker
        self.inbox: queue.SimpleQueue[messages.Message] = queue.SimpleQueue()
        self.began = time.monotonic()
        self._emit = emit
        self.hosts: dict[str, HostState] = {name: HostState(name) for name in hosts}
        self.flows: dict[str, Flow] = {}
        self.batch: Batch | None = None
        self.background: list[Iterator[Any]] = []
        self.fleet_runner: Callable[[Joint, Task, Frame, Meeting], dict[str, dict[str, Any]]] | None = None
        self.recover: Callable[[HostState, messages.Lost], bool] = lambda host, message: False
        self.later_names: frozenset[str] | None = frozenset()
        self._requests: dict[int, tuple[HostState, Unit | None, Step, HostState]] = {}
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._ids = 0
        self._segments = 0
        self.units: dict[tuple[str, int], Unit] = {}
        self.statuses: set[ExitStatus] = set()
        self.taker = Taker(self)
        self.stopped = False
        self.alarm: float | None = None
        self.halted: LockedError | None = None

    # telling

    def emit(self, event: Event) -> None:
        """Pass an event on, with its time."""
        self._emit(replace(event, at=time.monotonic() - self.began))

    def note(self, text: str, host: str | None = None, level: str = "note") -> None:
        self.emit(Note(text, host=host, level=level))

    def retrying(self, host: str, unit: Unit, attempt: int, total: int, delay: float) -> None:
        """Say that a task is tried again."""
        self.tell_start(unit)
        self.emit(Line(host, unit.name, f"attempt {attempt} of {total} was not it; again in {delay:g} s", "retry"))

    def tell_start(self, unit: Unit) -> None:
        """Tell once that a task begins."""
        if not unit.visit.told:
            unit.visit.told = True
            hosts = tuple(self.batch.flows) if self.batch else ()
            self.emit(TaskStarted(unit.name, unit.task.origin, hosts, handler=unit.task.handler))

    # hosts

    def state(self, name: str) -> HostState:
        """The state of a host; one that is first seen now (a delegate, localhost) is added."""
        if name not in self.hosts:
            self.hosts[name] = HostState(name)
        return self.hosts[name]

    def wake_at(self, moment: float) -> None:
        """Look at the background work again at this monotonic time, whether messages come or not."""
        self.alarm = moment if self.alarm is None else min(self.alarm, moment)

    def connect(self, host: HostState) -> None:
        """Begin to connect, when that has not begun."""
        if host.state != IDLE or host.recovering is not None:
            return
        host.state = CONNECTING
        try:
            host.link = self.linker(host.name)
            host.link.start()
        except BringupError as error:
            self.down(host, UNREACHABLE, error)

    def next_segment(self) -> int:
        self._segments += 1
        return self._segments

    # sending

    def send_unit(self, flow: Joint, unit: Unit, calls: Sequence[Call | None], link: HostState) -> None:
        """Put a task in its place behind those sent before, and its calls on their way."""
        host = flow.host
        for step, call in zip(unit.steps, calls, strict=True):
            if step.answered:
                continue
            if host.failing or host.gone:
                step.dropped = True
            elif call is not None:
                self.send_step(flow, unit, step, call, link, ignore_errors=unit.ignore_errors)
        if unit.task.register:
            put_pending(host.values, unit.task.register)
        if unit.task.action == "setup":
            host.facts.gathering += 1
        host.flight.append(unit)
        self.settle(host)

    def send_step(self, flow: Joint | None, unit: Unit | None, step: Step, call: Call, link: HostState, *,
                  ignore_errors: bool, segment: int | None = None) -> int:
        """Queue one call for a host's session; it goes out with `flush`."""
        owner = flow.host if flow else link
        self.connect(link)
        self._ids += 1
        step.call, step.link_host = call, link.name
        if link.down or (self.halted is not None and unit is not None):
            self._lose(step, link)
            return self._ids
        own = owner is link
        request = Request(
            id=self._ids,
            # what does not belong to a flow has a segment of its own: a failure there drops nothing of it
            segment=segment if segment is not None else (
                owner.segment if own and flow is not None else self.next_segment()),
            module=call.module, args=call.args, become=call.become, environment=call.environment, timeout=call.timeout,
            check=bool(call.check), diff=bool(call.diff), ignore_errors=ignore_errors,
            no_log=call.no_log or (unit is not None and unit.no_log),
            digest=digest_of(unit.task, call, step.item) if unit is not None else "", blobs=call.blobs,
        )
        step.request = request
        self._requests[request.id] = (owner, unit, step, link)
        link.outbox.append(request)
        if not own:
            self.flush(link)
        return request.id

    def withdraw(self, numbers: set[int]) -> None:
        """Forget requests that never went out."""
        for number in numbers:
            self._requests.pop(number)[2].dropped = True

    def flush(self, host: HostState) -> None:
        """Hand what is queued for a host to its session; a host that is being recovered gets it afterwards."""
        if host.recovering is None and host.outbox and host.link is not None:
            requests, host.outbox = host.outbox, []
            host.link.submit(requests)

    # taking results is the taker's

    def settle(self, host: HostState) -> None:
        """Take what has ended from the front of a host's flight."""
        if not self.stopped:
            self.taker.settle(host)

    def last_unit(self, host: HostState, task: Task) -> Unit | None:
        """The unit of a task that ended last on a host."""
        return self.units.get((host.name, id(task)))

    def lock_error_of(self, name: str) -> BringupError | None:
        return self.state(name).lock_error

    def clear_host_errors(self) -> None:
        """`meta: clear_host_errors`: hosts that failed take part in the plays to come."""
        for host in self.hosts.values():
            host.failed = False
            if host.state not in (UNREACHABLE, LOST, CLOSED):
                host.gone = False

    # what sessions say

    def handle(self, message: messages.Message) -> None:
        """Take one message."""
        host = self.state(message.host)
        if isinstance(message, messages.Connected):
            host.state, host.info = UP, message.info
            for line in list(message.info.get("noise") or [])[:3]:
                self.note(f"the login printed: {line}", host.name)
        elif isinstance(message, messages.Unreachable):
            if host.recovering is not None:
                host.state = IDLE  # the recovery tries again, or gives up
            else:
                self.down(host, UNREACHABLE, message.error)
        elif isinstance(message, messages.Lost):
            if isinstance(message.error, LockedError):
                message.error.found = _operator(message.error.found)
                self.halt(message.error)
            if not self.recover(host, message):
                self.down(host, LOST, message.error)
        elif isinstance(message, messages.Closed):
            self.down(host, CLOSED, UnreachableError("the session was closed", host=host.name))
        elif isinstance(message, messages.Note):
            self.note(message.text, host.name)
        elif isinstance(message, (messages.Started, messages.Output, messages.Finished, messages.NotRun)):
            self._answer(message)

    def _answer(self, message: messages.Started | messages.Output | messages.Finished | messages.NotRun) -> None:
        found = self._requests.get(message.id)
        if found is None:
            return
        owner, unit, step, _ = found
        if isinstance(message, messages.Started):
            step.started = True
            if unit is not None and owner.flight and owner.flight[0] is unit:
                self.tell_start(unit)
            return
        if isinstance(message, messages.Output):
            self._line(owner, unit, step, message)
            return
        del self._requests[message.id]
        self._listeners.pop(message.id, None)
        if isinstance(message, messages.Finished):
            step.raw, step.seconds = _concluded(message.result, unit, step), step.seconds + message.seconds
        else:
            step.dropped = True
            if self.halted is not None and not owner.failing:
                self._lose(step, found[3])
        if unit is not None:
            self.settle(owner)

    def _line(self, owner: HostState, unit: Unit | None, step: Step, message: messages.Output) -> None:
        step.output.append(message.text)
        listener = self._listeners.get(message.id)
        if listener is not None:
            listener(message.text)
        elif unit is not None and not unit.no_log:
            self.tell_start(unit)
            self.emit(Line(owner.name, unit.name, message.text, message.stream))

    def listen(self, request: int, listener: Callable[[str], None]) -> None:
        """Lines of a request go to this listener instead of the screen."""
        self._listeners[request] = listener

    def down(self, host: HostState, state: str, error: BringupError) -> None:
        """A host is gone: what was under way there is lost."""
        host.state, host.error, host.recovering = state, error, None
        host.outbox.clear()
        for number, (owner, unit, step, link) in list(self._requests.items()):
            if link is host:
                del self._requests[number]
                self._lose(step, host)
                if unit is not None:
                    self.settle(owner)
        self._lose_dropped(host)

    def _lose_dropped(self, host: HostState) -> None:
        """Tasks that an agent which stops has answered as not run."""
        if host.failing or host.gone:
            return
        for unit in host.flight:
            for step in unit.steps:
                if step.dropped:
                    self._lose(step, host)
        self.settle(host)

    def halt(self, error: LockedError) -> None:
        """Another operator takes the run over: what runs may end, nothing begins any more, on any host."""
        if self.halted is not None:
            return
        self.halted = error
        for number, (_, _, step, link) in list(self._requests.items()):
            if not step.started and link.link is not None and not link.down:
                link.link.cancel(number)
        for host in self.hosts.values():
            if not host.down:
                self._lose_dropped(host)

    def _lose(self, step: Step, link: HostState) -> None:
        step.dropped = False
        step.lost = self.halted or link.error or UnreachableError("the session has ended", host=link.name)
        step.unreachable = link.state == UNREACHABLE

    # the loop

    def run_batch(self, batch: Batch, forks: int | None = None) -> None:
        """Take the flows of a batch to their ends, `forks` hosts at a time (None: all)."""
        self.batch = batch
        self.flows = dict(batch.flows)
        waiting = deque(batch.flows.values())
        active: list[Flow] = []
        while waiting or active:
            while waiting and (forks is None or len([flow for flow in active if not _meets(flow)]) < forks):
                active.append(waiting.popleft())
            moved = self._turn(active)
            active = [flow for flow in active if not flow.done]
            if moved or not (waiting or active):
                continue
            if not waiting and batch.release():
                continue
            self.receive(self._patience(active))
        self.pump(lambda: all(self.state(name).recovering is None for name in batch.flows))
        for name in batch.flows:
            self.taker.lose_idle(self.state(name), batch)
        batch.judge()
        self.batch = None

    def _turn(self, active: Sequence[Flow]) -> bool:
        """Let every flow that can go on do so once."""
        moved = False
        for flow in active:
            wait = flow.wait
            if flow.done or (wait is not None and not _over(wait)):
                continue
            moved = True
            try:
                flow.wait = next(flow.steps)
            except StopIteration:
                flow.wait = None
            if flow.wait is not None:
                self.flush(flow.host)
        for host in self.hosts.values():
            self.flush(host)
        self.receive(0.0)
        return moved

    def _patience(self, active: Sequence[Flow]) -> float | None:
        due = [flow.wait.until for flow in active if flow.wait is not None and flow.wait.until is not None]
        if self.alarm is not None:
            due.append(self.alarm)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def receive(self, patience: float | None) -> bool:
        """Take what has come; wait at most `patience` seconds for the first message (None: as long as it takes)."""
        took = False
        try:
            if patience is None:
                message = self.inbox.get(timeout=3600.0)
            else:
                message = self.inbox.get(timeout=patience) if patience > 0 else self.inbox.get_nowait()
            while True:
                took = True
                self.handle(message)
                message = self.inbox.get_nowait()
        except queue.Empty:
            pass
        self._advance_background()
        return took

    def _advance_background(self) -> None:
        if self.alarm is not None and time.monotonic() >= self.alarm:
            self.alarm = None
        for work in list(self.background):
            try:
                next(work)
            except StopIteration:
                self.background.remove(work)

    def pump(self, ready: Callable[[], bool], until: float | None = None) -> bool:
        """Take messages until `ready`, or the monotonic time `until`; True when ready. For work of the whole fleet."""
        while not ready():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            for host in self.hosts.values():
                self.flush(host)
            self.receive(min(left, 1.0) if left is not None else 1.0)
        return True

    def fleet(self, flow: Joint, task: Task, frame: Frame, meeting: Meeting) -> dict[str, dict[str, Any]]:
        """Run a fleet action for the hosts of a meeting; raw results by host."""
        assert self.fleet_runner is not None
        return self.fleet_runner(flow, task, frame, meeting)

    def outstanding_requests(self) -> list[tuple[HostState, Unit | None, Step, HostState]]:
        """Requests without an answer, in the order in which they were made: owner, unit, step, host."""
        return list(self._requests.values())

    @property
    def outstanding(self) -> int:
        """Requests without an answer."""
        return len(self._requests)


def _operator(found: str | None) -> str | None:
    """Who took a run over, from the record that its agent passes on."""
    try:
        record = json.loads(found or "")
    except ValueError:
        return found
    return f"{record.get('operator')} (run {record.get('run')})" if isinstance(record, dict) else found


def _over(wait: Any) -> bool:
    if wait.until is not None and time.monotonic() >= wait.until:
        return True
    return bool(wait.ready())


def _meets(flow: Flow) -> bool:
    return flow.wait is not None and flow.wait.meeting is not None


def _concluded(raw: Mapping[str, Any], unit: Unit | None, step: Step) -> dict[str, Any]:
    """The answer of a host, after what the module does here with it."""
    module = unit.task.module if unit is not None else None
    if not isinstance(module, ModuleSpec) or module.host_result is None or step.request is None or raw.get("failed"):
        return dict(raw)
    try:
        return dict(module.host_result(raw, step.request.args))
    except BringupError as error:
        step.error = error
        return {"failed": True, "changed": False, "msg": error.what}
