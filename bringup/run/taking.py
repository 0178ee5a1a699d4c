"""Taking results in the order in which tasks were sent: judging, registering, counting, failing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.base.errors import BringupError, ExitStatus, LockedError, UnreachableError
from bringup.base.events import TaskEnded
from bringup.base.results import Result, Status
from bringup.playbook.model import Task
from bringup.playbook.templating import Layer, Pending, Scope
from bringup.run.hosts import LOST, HostState, Step, Unit
from bringup.run.outcome import combined, raw_error, result_of

if TYPE_CHECKING:
    from bringup.run.batch import Batch
    from bringup.run.engine import Engine
    from bringup.run.flow import Flow


class Taker:
    """What becomes of the units in a host's flight."""

    def __init__(self, run: Engine) -> None:
        self.run = run

    def settle(self, host: HostState) -> None:
        """Take what has ended from the front of a host's flight."""
        while host.flight:
            unit = host.flight[0]
            if host.failing or host.gone:
                if not self._drop_rest(host, unit):
                    break
                continue
            self._show_items(host, unit)
            if not unit.complete:
                break
            if any(step.dropped for step in unit.steps):
                # the host dropped the rest behind an item that failed there, whatever failed_when makes of it here
                if unit.loop and any(step.raw is not None for step in unit.steps):
                    self._send_again(host, unit)
                    break
                break  # the agent stops: what ends the session says why, and takes this with it
            host.flight.popleft()
            self._conclude(host, unit)

    def _drop_rest(self, host: HostState, unit: Unit) -> bool:
        """Behind a failure: a unit goes when nothing of it is under way any more."""
        waiting = {request.id for request in host.outbox}
        host.outbox = [request for request in host.outbox if request.id not in waiting]
        self.run.withdraw(waiting)
        for step in unit.steps:
            if step.request is None and not step.answered:
                step.dropped = True
        unit.hold = False
        if not unit.complete:
            return False
        host.flight.popleft()
        self._withdraw(host, unit)
        return True

    def _withdraw(self, host: HostState, unit: Unit) -> None:
        name = unit.task.register
        value = host.values.get(name) if name else None
        if name and isinstance(value, Pending):
            if isinstance(value.previous, Mapping):
                host.values[name] = value.previous
            else:
                del host.values[name]
        if unit.task.action == "setup":
            host.facts.gathering -= 1

    def _send_again(self, host: HostState, unit: Unit) -> None:
        """A failed item of a loop does not keep the others from being tried: those dropped behind it go out again."""
        segment = self.run.next_segment()
        for step in unit.steps:
            if step.dropped and step.call is not None:
                step.dropped = False
                flow = self.run.flows[host.name]
                self.run.send_step(flow, unit, step, step.call, self.run.state(step.link_host), ignore_errors=True,
                               segment=segment)
        self.run.flush(host)

    def _show_items(self, host: HostState, unit: Unit) -> None:
        if not unit.loop:
            return
        for step in unit.steps:
            if not step.answered or step.dropped or (unit.hold and step is unit.steps[-1]):
                break
            if step.shown:
                continue
            step.shown = True
            self.judge(self.run.flows[host.name], unit, step)
            self.run.tell_start(unit)
            raw = step.raw or {}
            item = "(hidden)" if unit.no_log else step.label
            self.run.emit(TaskEnded(result_of(host.name, unit, raw, step=step, item=item, seconds=step.seconds)))

    def judging_scope(self, flow: Flow, unit: Unit, step: Step) -> Scope:
        """What `changed_when`, `failed_when` and `until` see: the task's variables and its own result."""
        scope = step.scope or self.run.variables.scope(flow.host, flow.batch.play, unit.task)
        own = {unit.task.register: step.raw} if unit.task.register else {}
        facts = (step.raw or {}).get("ansible_facts")
        own.update(facts if isinstance(facts, dict) else {})
        return Scope(self.run.templates, (Layer(own, trusted=False), *scope.layers), search=scope.search, settled=True)

    def judge(self, flow: Flow, unit: Unit, step: Step) -> None:
        """Complete a raw result as Ansible does, then let `changed_when` and `failed_when` speak."""
        raw = step.raw
        if raw is None or step.judged:
            return
        step.judged = True
        if "failed" not in raw:
            raw["failed"] = raw.get("rc") not in (None, 0, "0")
        raw.setdefault("changed", False)
        for key in ("stdout", "stderr"):
            if isinstance(raw.get(key), str) and f"{key}_lines" not in raw:
                raw[f"{key}_lines"] = raw[key].splitlines()
        if raw.get("skipped") or step.error is not None:
            return
        task = unit.task
        if not task.changed_when and not task.failed_when:
            return
        scope = self.judging_scope(flow, unit, step)
        try:
            if task.changed_when:
                raw["changed"] = all(self.run.templates.condition(text, scope) for text in task.changed_when)
            if task.failed_when:
                failed = all(self.run.templates.condition(text, scope) for text in task.failed_when)
                raw["failed"] = raw["failed_when_result"] = failed
        except BringupError as error:
            raw.update(raw_error(error))
            step.error = error

    def _conclude(self, host: HostState, unit: Unit) -> None:
        flow = self.run.flows[host.name]
        unit.concluded = True
        for step in unit.steps:
            self.judge(flow, unit, step)
        first = unit.steps[0] if unit.steps else Step()
        lost = next((step for step in unit.steps if step.lost is not None), None)
        if unit.loop:
            raws = []
            for step in unit.steps:
                raws.append({**(step.raw or {}), **step.names})
            raw = combined(unit, raws)
            if any(step.raw and step.raw.get("failed") for step in unit.steps):
                first = next(step for step in unit.steps if step.raw and step.raw.get("failed"))
        else:
            raw = first.raw or {}
        if lost is not None:
            raw = {"changed": False, "unreachable": True, "msg": lost.lost.what if lost.lost else ""}
        unit.raw = raw
        self._take_effects(host, flow, unit)
        seconds = sum(step.seconds for step in unit.steps)
        shown = raw if lost is None else {}
        unit.result = result_of(host.name, unit, shown, step=lost or (first if not unit.loop else _only_error(first)),
                                seconds=seconds)
        self.run.units[host.name, id(unit.task)] = unit
        self.run.tell_start(unit)
        self.run.emit(TaskEnded(unit.result))
        self._count(host, unit)
        self._fail(host, flow, unit)

    def _take_effects(self, host: HostState, flow: Flow, unit: Unit) -> None:
        """Registered result, facts, notified handlers."""
        raw = unit.raw or {}
        task = unit.task
        if task.register:
            host.values[task.register] = raw
        if task.action == "setup":
            host.facts.gathering -= 1
        for step in unit.steps:
            facts = (step.raw or {}).get("ansible_facts")
            if isinstance(facts, Mapping) and not (step.raw or {}).get("failed"):
                target = host
                if task.keywords.delegate_facts is True and unit.delegate:
                    target = self.run.state(unit.delegate)
                self.take_facts(target, task, facts)
        if task.keywords.notify and raw.get("changed") and not raw.get("failed"):
            try:
                flow.notify(unit)
            except BringupError as error:
                raw.update(raw_error(error))
                unit.steps[0].error = error

    def take_facts(self, host: HostState, task: Task, facts: Mapping[str, Any]) -> None:
        """Facts that a task brought: those of set_fact go above play variables, the others are facts."""
        if task.action == "set_fact":
            host.values.update(facts)
        else:
            host.facts.update(facts)

    def _count(self, host: HostState, unit: Unit) -> None:
        result = unit.result
        assert result is not None
        recap = host.recap
        if result.status in (Status.UNREACHABLE, Status.LOST):
            if result.ignored:
                recap["skipped"] += 1
                recap["ignored"] += 1
            else:
                recap["unreachable"] += 1
        elif result.status is Status.SKIPPED:
            recap["skipped"] += 1
        elif result.status is Status.FAILED and not result.ignored:
            recap["failed"] += 0 if result.rescued else 1
        elif unit.task.include is not None and unit.task.include.what != "vars":
            recap["ok"] += sum(1 for step in unit.steps if step.raw and not step.raw.get("skipped"))
        else:
            recap["ok"] += 1
            recap["ignored"] += 1 if result.ignored else 0
            recap["changed"] += 1 if (unit.raw or {}).get("changed") else 0

    def _fail(self, host: HostState, flow: Flow, unit: Unit) -> None:
        result = unit.result
        assert result is not None
        if result.status in (Status.UNREACHABLE, Status.LOST):
            if not result.ignored:
                host.gone = True
                stopped = any(isinstance(step.lost, LockedError) for step in unit.steps)
                self.run.statuses.add(ExitStatus.LOCKED if stopped else ExitStatus.UNREACHABLE)
                flow.batch.failed(host.name, fatal=self._fatal(flow, unit), rescued=False)
        elif result.status is Status.FAILED and not result.ignored:
            host.failing = True
            host.failure = unit
            if not result.rescued:
                self.run.statuses.add(ExitStatus(int((unit.raw or {}).get("exit_status", ExitStatus.STEP))))
            flow.batch.failed(host.name, fatal=self._fatal(flow, unit), rescued=result.rescued)

    def lose_idle(self, host: HostState, batch: Batch) -> None:
        """Tell at the play's end of a host that was lost behind its last task: no task of it does."""
        if host.state != LOST or host.gone or self.run.halted is not None:
            return
        host.gone = True
        host.recap["unreachable"] += 1
        self.run.statuses.add(ExitStatus.UNREACHABLE)
        batch.failed(host.name, fatal=batch.any_errors_fatal, rescued=False)
        error = host.error or UnreachableError("the session has ended")
        self.run.emit(TaskEnded(Result(
            host.name, "", Status.LOST, message=f"{error.what}; its tasks of this play were done before",
            found=error.found, output=tuple(error.details), next=error.next)))

    def _fatal(self, flow: Flow, unit: Unit) -> bool:
        own = unit.task.keywords.any_errors_fatal
        return flow.batch.any_errors_fatal if own is None else bool(own)


def _only_error(step: Step) -> Step:
    """Of a failed item, what the result of the whole loop says: the error, not the output."""
    return Step(raw=step.raw, error=step.error)
