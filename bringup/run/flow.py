"""The way of one host through a play: a coroutine that sends tasks ahead and waits where it must.

Blocks, rescue, handlers, retries and meeting points live here; what is sent and what comes back live in `engine`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from bringup.base.errors import BringupError
from bringup.playbook.jinja import StillToCome
from bringup.playbook.model import Block, Node, Task, walk
from bringup.playbook.templating import TemplateFailure
from bringup.playbook.values import looks_templated
from bringup.run.actions import Call, ModuleSpec
from bringup.run.hosts import HostState, Step, Unit, Visit
from bringup.run.joint import Frame, Joint
from bringup.run.outcome import raw_error
from bringup.run.prepare import Prepared, flag, name_of, prepare
from bringup.run.waiting import EndHost, HostDown, HostFailed, Meeting, Steps, Wait

if TYPE_CHECKING:
    from bringup.run.batch import Batch
    from bringup.run.engine import Engine as RunEngine

T = TypeVar("T")

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_EFFECTS_HERE = frozenset({"set_fact", "include_vars", "fetch"})


class Flow(Joint):
    """One host in one batch of a play. `steps` is the running coroutine."""

    def __init__(self, run: RunEngine, batch: Batch, host: HostState) -> None:
        self.run = run
        self.batch = batch
        self.host = host
        self.steps: Steps = self._main()
        self.wait: Wait | None = None
        self.done = False
        self.meeting: Meeting | None = None
        self.flushing: dict[int, Task] | None = None
        self.visits: dict[int, int] = {}
        self.prefix: tuple[int, ...] = (0,)

    # the way through the play

    def _main(self) -> Steps:
        try:
            yield from self._play()
            yield from self.drain()
        except HostFailed:
            self.host.failed = True
            yield from self._forced_handlers()
        except HostDown:
            self.host.gone = True
        except EndHost:
            pass
        finally:
            self.done = True
            self.batch.ended(self)

    def _play(self) -> Steps:
        play = self.batch.play
        frame = Frame()
        if self.batch.gather is not None:
            yield from self._task(self.batch.gather, frame)
            if self.batch.lockstep:
                yield from self.drain()
        for number, section in enumerate(play.sections):
            self.prefix = (2 * number + 1,)
            yield from self._nodes(section, frame)
            self.prefix = (2 * number + 2,)
            yield from self.flush_handlers(frame)

    def _forced_handlers(self) -> Steps:
        play = self.batch.play
        owed = list(self.host.notified)
        if not owed or self.host.down:
            return
        if not flag(self.run.templates, play.force_handlers, self._scope(None, Frame())):
            self.run.note(f"handlers that were notified and did not run: {', '.join(owed)}", self.host.name)
            return
        try:
            yield from self.flush_handlers(Frame())
        except HostFailed:
            return

    def _nodes(self, nodes: Sequence[Node], frame: Frame) -> Steps:
        for node in nodes:
            if isinstance(node, Block):
                yield from self._block(node, frame)
            else:
                yield from self._task(node, frame)

    def _block(self, block: Block, frame: Frame) -> Steps:
        if not block.guarded:
            yield from self._nodes(block.body, frame)
            return
        yield from self.drain()
        failed: HostFailed | None = None
        try:
            yield from self._nodes(block.body, replace(frame, rescuable=frame.rescuable or block.has_rescue))
            yield from self.drain()
            tasks = walk(block.body)
            if self.batch.lockstep and tasks:
                # where all fall together they fall here, inside the block, and its rescue takes them
                yield from self.meet(self.batch.visit(tasks[-1], (*self.prefix, tasks[-1].index, 1 << 30)))
        except HostFailed as error:
            failed = error
        if failed is not None and block.has_rescue:
            failed = yield from self._rescue(block, frame, failed)
        if block.always:
            yield from self._nodes(block.always, frame)
            yield from self.drain()
        if failed is not None:
            raise failed

    def _rescue(self, block: Block, frame: Frame, failed: HostFailed) -> Steps:
        unit = failed.unit
        if unit is not None:
            self.host.recap["rescued"] += 1
            self.host.values["ansible_failed_task"] = {"name": unit.name, "action": unit.task.action}
            self.host.values["ansible_failed_result"] = unit.raw or {}
        try:
            yield from self._nodes(block.rescue, frame)
            yield from self.drain()
        except HostFailed as again:
            return again
        return None

    # handlers

    def flush_handlers(self, frame: Frame) -> Steps:
        """Run the handlers that were notified, once each, in the order in which they are written.

        Names are looked up now, so that of two handlers with one name the one defined last runs.
        """
        yield from self.drain()
        names, self.host.notified = self.host.notified, {}
        if not names:
            return
        self.flushing = {id(task): task for name in names for task in self._handlers(name)}
        try:
            for handler in walk(self.batch.play.all_handlers):
                if self.flushing.pop(id(handler), None) is None:
                    continue
                yield from self._task(handler, replace(frame, handler=True))
                if handler.keywords.notify:
                    yield from self.drain()
            yield from self.drain()
        finally:
            # one that was notified by a later one waits for the next flush
            self.host.notified.update((task.name, None) for task in self.flushing.values())
            self.flushing = None

    def _handlers(self, name: str) -> list[Task]:
        """The handlers that a name reaches: the last one of that name, and every listener, of a name once."""
        handlers = list(reversed(walk(self.batch.play.all_handlers)))
        out = [task for task in handlers if name in (task.name, task.shown_name, self._handler_name(task))][:1]
        seen: set[str] = set()
        for task in handlers:
            if name in task.listen and task.name not in seen:
                seen.add(task.name)
                out.append(task)
        return out

    def _handler_name(self, task: Task) -> str:
        if not looks_templated(task.name):
            return task.name
        return name_of(self.run.templates, task, self._scope(task, Frame()))

    def notify(self, unit: Unit) -> None:
        """Remember the handlers that a changed task names. Raises TemplateFailure for a name that none has."""
        scope = unit.steps[0].scope
        for raw in unit.task.keywords.notify:
            name = str(self.run.templates.render(raw, scope)) if scope and looks_templated(raw) else str(raw)
            found = self._handlers(name)
            if not found:
                raise TemplateFailure(f"no handler `{name}` in this play", where=unit.task.origin)
            if self.flushing is None:
                self.host.notified[name] = None
            else:
                self.flushing.update((id(task), task) for task in found)

    # one task

    def _task(self, task: Task, frame: Frame) -> Steps:
        if not task.selected:
            return
        visit = self._visit(task)
        meeting: Meeting | None = None
        elsewhere = task.keywords.delegate_to not in (None, *LOCAL_NAMES)
        if self.batch.lockstep or elsewhere or (task.keywords.when and self.batch.reads_others(task)):
            meeting = yield from self.meet(visit)
        self.meeting = meeting
        if task.include is not None:
            yield from self._include(task, frame, visit)
        elif task.action == "meta":
            yield from self._meta(task, frame, visit)
        elif isinstance(task.module, ModuleSpec) and task.module.fleet_action is not None:
            yield from self._together(task, frame, visit)
        elif self._run_once(task, frame):
            yield from self._once(task, frame, visit)
        else:
            yield from self._own(task, frame, visit)
        if (elsewhere or task.keywords.any_errors_fatal not in (None, False)) and not self.batch.lockstep:
            yield from self.meet(self._visit(task))

    def _run_once(self, task: Task, frame: Frame) -> bool:
        value = task.keywords.run_once
        return value is True or (value is not None and flag(self.run.templates, value, self._scope(task, frame)))

    def _visit(self, task: Task) -> Visit:
        number = self.visits[id(task)] = self.visits.get(id(task), 0) + 1
        return self.batch.visit(task, (*self.prefix, task.index, number))

    def _own(self, task: Task, frame: Frame, visit: Visit) -> Steps:
        prepared = yield from self._resolve(lambda: self._prepare(task, frame), visit)
        if prepared.delegate is not None and prepared.delegate not in LOCAL_NAMES and self.meeting is None:
            self.meeting = yield from self.meet(visit)
            prepared = yield from self._resolve(lambda: self._prepare(task, frame), visit)
        unit = self._unit(task, frame, visit, prepared)
        yield from self._dispatch(unit, prepared)

    def _prepare(self, task: Task, frame: Frame) -> Prepared:
        return prepare(self.run.templates, task, self.host, self._scope(task, frame), self.run.settings)

    def _scope(self, task: Task | None, frame: Frame) -> Any:
        return self.run.variables.scope(self.host, self.batch.play, task, top=frame.layers)

    def _resolve(self, make: Callable[[], T], visit: Visit) -> Steps:
        """Try to render; wait for this host's results, then for the others, while a value is still to come."""
        while True:
            try:
                return make()
            except StillToCome as pending:
                if self.host.flight:
                    yield from self.drain()
                elif self.meeting is None:
                    self.meeting = yield from self.meet(visit)
                else:
                    raise TemplateFailure(f"`{pending.name}` is not known here", where=visit.task.origin) from None

    def _unit(self, task: Task, frame: Frame, visit: Visit, prepared: Prepared) -> Unit:
        return Unit(task=task, name=prepared.name, visit=visit, steps=prepared.steps, loop=prepared.loop,
                    ignore_errors=prepared.ignore_errors, ignore_unreachable=prepared.ignore_unreachable,
                    no_log=prepared.no_log, rescuable=frame.rescuable, check=prepared.check,
                    delegate=prepared.delegate)

    def _dispatch(self, unit: Unit, prepared: Prepared) -> Steps:
        """Send a unit, or wait for it where its outcome is needed before the next one."""
        task = unit.task
        if any(call is not None and call.changes and not call.check for call in prepared.calls):
            yield from self._gate(unit, prepared)
        sequential = (prepared.retries is not None or prepared.pause > 0
                      or (task.loop is not None and bool(task.loop.break_when)))
        if prepared.delegate is not None or sequential:
            yield from self.drain()
        link = self._link(prepared)
        if sequential and any(call is not None for call in prepared.calls):
            yield from self._one_by_one(unit, prepared, link)
            return
        self.run.send_unit(self, unit, prepared.calls, link)
        if (task.failed_when is not None or prepared.delegate is not None or task.action in _EFFECTS_HERE
                or prepared.failed_here):
            yield from self.drain()
        else:
            yield None
            if self.host.failing or self.host.gone:
                yield from self.drain()

    def _gate(self, unit: Unit, prepared: Prepared) -> Steps:
        """Nothing changes before every host of the run is locked."""
        if not self.run.lock.open:
            self.run.flush(self.host)
            self.run.lock.want()
            yield Wait(lambda: self.run.lock.open)
        if prepared.delegate is not None:
            yield from self.run.lock.later(self.run.state(prepared.delegate))
        error = self.run.lock_error_of(prepared.delegate or self.host.name)
        if error is not None:
            for index, call in enumerate(prepared.calls):
                if call is not None:
                    unit.steps[index].raw = raw_error(error)
                    unit.steps[index].error = error
                    prepared.calls[index] = None

    def _link(self, prepared: Prepared) -> HostState:
        if prepared.delegate is None:
            return self.host
        return self.run.state(prepared.delegate)

    def _one_by_one(self, unit: Unit, prepared: Prepared, link: HostState) -> Steps:
        """Retries, pauses and loops that may end early: a step at a time."""
        unit.hold = True
        self.host.flight.append(unit)
        loop = unit.task.loop
        for index, call in enumerate(prepared.calls):
            step = unit.steps[index]
            if index and prepared.pause:
                yield Wait(lambda: False, until=time.monotonic() + prepared.pause)
            if call is not None:
                yield from self._attempts(unit, step, call, prepared, link)
            if step.lost is not None:
                del unit.steps[index + 1:]
                break
            if loop is not None and loop.break_when and step.scope is not None and step.raw is not None:
                inner = self.run.taker.judging_scope(self, unit, step)
                if all(self.run.templates.condition(text, inner) for text in loop.break_when):
                    del unit.steps[index + 1:]
                    break
        unit.hold = False
        self.run.settle(self.host)
        yield from self.drain()

    def _attempts(self, unit: Unit, step: Step, call: Call, prepared: Prepared, link: HostState) -> Steps:
        total = 1 + max(0, prepared.retries or 0)
        for attempt in range(1, total + 1):
            step.raw = None
            self.run.send_step(self, unit, step, call, link, ignore_errors=True)
            self.run.flush(link)
            yield Wait(lambda: step.answered)
            if step.raw is None:
                return
            if prepared.retries is None:
                return
            step.raw["attempts"] = attempt
            self.run.taker.judge(self, unit, step)
            if self._good(unit, step):
                return
            if attempt < total:
                self.run.retrying(self.host.name, unit, attempt, total, prepared.delay)
                yield Wait(lambda: False, until=time.monotonic() + prepared.delay)
        step.raw = {**(step.raw or {}), "attempts": total - 1, "failed": True}

    def _good(self, unit: Unit, step: Step) -> bool:
        assert step.raw is not None
        if not unit.task.until:
            return not step.raw.get("failed")
        scope = self.run.taker.judging_scope(self, unit, step)
        try:
            return all(self.run.templates.condition(text, scope) for text in unit.task.until)
        except BringupError as error:
            step.raw.update(raw_error(error))
            step.error = error
            return True

    # waiting

    def drain(self) -> Steps:
        """Wait until everything sent has ended. Raises HostFailed, HostDown."""
        host = self.host
        if host.flight:
            self.run.flush(host)
            self.run.settle(host)
            if host.flight:
                yield Wait(lambda: not host.flight)
        host.segment = self.run.next_segment()
        host.failing = False
        if host.gone:
            raise HostDown
        failure, host.failure = host.failure, None
        if failure is not None:
            raise HostFailed(failure)
