"""Parts of a host's way that need more than its own results: meetings, run_once, fleet actions, includes, meta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bringup.base.errors import BringupError
from bringup.playbook.model import Task
from bringup.playbook.templating import Layer
from bringup.run.hosts import HostState, Step, Unit, Visit
from bringup.run.outcome import raw_error
from bringup.run.prepare import Prepared, flag, name_of, skip_of
from bringup.run.waiting import EndHost, HostDown, HostFailed, Meeting, Steps, Wait

if TYPE_CHECKING:
    from bringup.run.batch import Batch
    from bringup.run.engine import Engine as RunEngine


@dataclass(frozen=True)
class Frame:
    """What surrounds a task beyond what it says itself: variables of include loops, the rescue around it."""

    layers: tuple[Layer, ...] = ()
    rescuable: bool = False
    handler: bool = False


class Joint:
    """The base of a flow; see `bringup.run.flow.Flow` for what is not here."""

    run: RunEngine
    batch: Batch
    host: HostState
    meeting: Meeting | None
    prefix: tuple[int, ...]

    if TYPE_CHECKING:
        def drain(self) -> Steps: ...
        def flush_handlers(self, frame: Frame) -> Steps: ...
        def _own(self, task: Task, frame: Frame, visit: Visit) -> Steps: ...
        def _nodes(self, nodes: Any, frame: Frame) -> Steps: ...
        def _resolve(self, make: Callable[[], Any], visit: Visit) -> Steps: ...
        def _prepare(self, task: Task, frame: Frame) -> Prepared: ...
        def _scope(self, task: Task | None, frame: Frame) -> Any: ...
        def _unit(self, task: Task, frame: Frame, visit: Visit, prepared: Prepared) -> Unit: ...

    # where hosts meet

    def meet(self, visit: Visit) -> Steps:
        """Wait until every other host is at this task, at a later one, or out."""
        yield from self.drain()
        meeting = self.batch.arrive(self, visit)
        if not meeting.released:
            yield Wait(lambda: meeting.released, meeting=meeting)
        self._check_abort()
        return meeting

    def _check_abort(self) -> None:
        """Raises HostFailed when another host's failure takes all of them along."""
        if self.host.name in self.batch.struck:
            self.batch.struck.discard(self.host.name)
            raise HostFailed(None)

    def _once(self, task: Task, frame: Frame, visit: Visit) -> Steps:
        """run_once: the first host that comes here runs it, the others take its result."""
        meeting = self.meeting or (yield from self.meet(visit))
        self.meeting = meeting
        if self.batch.first(meeting) == self.host.name:
            try:
                yield from self._own(task, frame, visit)
                yield from self.drain()
            except (HostFailed, HostDown) as error:
                meeting.error = error
                raise
            finally:
                meeting.unit = self.run.last_unit(self.host, task)
                meeting.done = True
            return
        yield Wait(lambda: meeting.done)
        unit = meeting.unit
        if unit is not None and unit.raw is not None:
            if task.register:
                self.host.values[task.register] = unit.raw
            facts = unit.raw.get("ansible_facts")
            if isinstance(facts, Mapping):
                self.run.taker.take_facts(self.host, task, facts)
        if meeting.error is not None and not (unit is not None and unit.ignore_errors):
            raise HostFailed(unit)

    def _together(self, task: Task, frame: Frame, visit: Visit) -> Steps:
        """A module that takes all hosts at once: the first host runs it when all are there."""
        skipped = yield from self._resolve(lambda: self._skip(task, frame), visit)
        if skipped is not None:
            yield from self._outcome(task, frame, visit, skipped)
            return
        yield from self.drain()
        self.run.connect(self.host)
        yield Wait(lambda: self.host.state == "up" or self.host.down)
        if self.host.down:
            yield from self._outcome(task, frame, visit, None)
        meeting = self.meeting or (yield from self.meet(visit))
        if self.batch.first(meeting) == self.host.name:
            try:
                meeting.results = self.run.fleet(self, task, frame, meeting)
            finally:
                meeting.done = True
        else:
            yield Wait(lambda: meeting.done)
        yield from self._outcome(task, frame, visit, meeting.results.get(self.host.name, {"changed": False}))

    def _skip(self, task: Task, frame: Frame) -> dict[str, Any] | None:
        try:
            return skip_of(self.run.templates, task, self._scope(task, frame))
        except BringupError as error:
            return raw_error(error)

    def _outcome(self, task: Task, frame: Frame, visit: Visit, raw: dict[str, Any] | None) -> Steps:
        """Record an outcome that was worked out elsewhere; None is that of a host that cannot be reached."""
        scope = self._scope(task, frame)
        step = Step(raw=raw, scope=scope)
        if raw is None:
            step.lost, step.unreachable = self.host.error, self.host.state == "unreachable"
        prepared = Prepared(name_of(self.run.templates, task, scope), scope, [step], [None])
        prepared.ignore_errors = flag(self.run.templates, task.keywords.ignore_errors, scope)
        prepared.no_log = flag(self.run.templates, task.keywords.no_log, scope)
        unit = self._unit(task, frame, visit, prepared)
        self.run.send_unit(self, unit, [None], self.host)
        yield from self.drain()

    # includes and meta

    def _include(self, task: Task, frame: Frame, visit: Visit) -> Steps:
        prepared = yield from self._resolve(lambda: self._prepare(task, frame), visit)
        if task.include is not None and task.include.what == "vars":
            yield from self._include_vars(task, frame, visit, prepared)
            return
        unit = self._unit(task, frame, visit, prepared)
        self.run.send_unit(self, unit, [None] * len(unit.steps), self.host)
        if prepared.failed_here:
            yield from self.drain()
        outer = self.prefix
        for number, step in enumerate(prepared.steps):
            if not step.nodes or (step.raw and step.raw.get("skipped")):
                continue
            layers = frame.layers
            if prepared.loop and step.scope is not None:
                layers = (step.scope.layers[0], *frame.layers)
            self.prefix = (*visit.order, number)
            yield from self._nodes(step.nodes, replace(frame, layers=layers))
        self.prefix = outer

    def _include_vars(self, task: Task, frame: Frame, visit: Visit, prepared: Prepared) -> Steps:
        unit = self._unit(task, frame, visit, prepared)
        yield from self.drain()
        self.run.send_unit(self, unit, [None] * len(unit.steps), self.host)
        yield from self.drain()
        for step in unit.steps:
            table = step.raw.get("ansible_included_vars") if step.raw else None
            if isinstance(table, Mapping):
                self.host.included.update(table)

    def _meta(self, task: Task, frame: Frame, visit: Visit) -> Steps:
        what = str(task.args.get("free_form"))
        if what == "flush_handlers":
            if (yield from self._wanted(task, frame, visit)):
                outer, self.prefix = self.prefix, visit.order
                yield from self.flush_handlers(frame)
                self.prefix = outer
        elif what == "end_host":
            yield from self.drain()
            if (yield from self._wanted(task, frame, visit)):
                raise EndHost
        elif what == "end_play":
            meeting = self.meeting or (yield from self.meet(visit))
            if self.batch.first(meeting) == self.host.name:
                try:
                    meeting.results["end"] = yield from self._wanted(task, frame, visit)
                finally:
                    meeting.done = True
            yield Wait(lambda: meeting.done)
            if meeting.results.get("end"):
                self.batch.end_play = True
                raise EndHost
        elif what == "clear_facts":
            yield from self.drain()
            self.host.facts.clear()
        elif what == "clear_host_errors":
            yield from self.drain()
            self.run.clear_host_errors()

    def _wanted(self, task: Task, frame: Frame, visit: Visit) -> Steps:
        skipped = yield from self._resolve(lambda: self._skip(task, frame), visit)
        if skipped is not None and skipped.get("failed"):
            yield from self._outcome(task, frame, visit, skipped)
        return skipped is None
