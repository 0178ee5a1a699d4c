"""What a fleet action is given: the hosts that meet, their variables, calls on them side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import missing

from bringup.base.errors import BringupError, UnreachableError
from bringup.base.events import Event
from bringup.base.paths import DEFAULT_ROOT, HostPaths, Project
from bringup.base.results import Result, Status
from bringup.inventory.model import Inventory
from bringup.playbook.model import Play, Task
from bringup.playbook.templating import Engine as Templates
from bringup.run.actions import Call, ModuleSpec
from bringup.run.engine import Engine
from bringup.run.hosts import UP, Step
from bringup.run.locking import Refused
from bringup.run.outcome import raw_error
from bringup.run.prepare import arguments, flag, variables_view
from bringup.run.waiting import Meeting


@dataclass(frozen=True)
class About:
    """What a fleet action may ask of the run."""

    project: Project
    inventory: Inventory
    run_id: str
    operator: str
    verb: str
    yes: bool
    ask: Callable[[str], bool | None]


class RunFleet:
    """The `bringup.run.actions.Fleet` of one meeting."""

    def __init__(self, run: Engine, about: About, play: Play, task: Task, hosts: Sequence[str], *, check: bool,
                 diff: bool) -> None:
        self._run = run
        self._about = about
        self._play = play
        self._task = task
        self._hosts = tuple(hosts)
        self._check = check
        self._diff = diff

    @property
    def hosts(self) -> tuple[str, ...]:
        return self._hosts

    @property
    def inventory(self) -> Inventory:
        return self._about.inventory

    @property
    def project(self) -> Project:
        return self._about.project

    @property
    def check(self) -> bool:
        return self._check

    @property
    def diff(self) -> bool:
        return self._diff

    @property
    def yes(self) -> bool:
        return self._about.yes

    @property
    def run_id(self) -> str:
        return self._about.run_id

    @property
    def operator(self) -> str:
        return self._about.operator

    @property
    def verb(self) -> str:
        return self._about.verb

    def variables(self, host: str) -> Mapping[str, Any]:
        """The host's variables as a task would see them, rendered on access; KeyError for one that is not defined."""
        return variables_view(self._run.variables.scope(self._run.state(host), self._play, self._task))

    def paths(self, host: str) -> HostPaths:
        """The host's paths under its `bringup_root`."""
        from pathlib import PurePosixPath

        found = self._run.variables.scope(self._run.state(host), self._play, self._task).find("bringup_root")
        root = DEFAULT_ROOT if found is missing or isinstance(found, Undefined) else str(found)
        return HostPaths(PurePosixPath(root))

    def call(self, calls: Mapping[str, Call], *, on_line: Callable[[str, str], None] | None = None
             ) -> dict[str, Result]:
        """One call on each host side by side; a Result for each, whatever happened."""
        if any(call.changes and not self._effective(call).check for call in calls.values()):
            self._gate()
        self.connect(list(calls))
        steps: dict[str, Step] = {}
        for host, call in calls.items():
            state = self._run.state(host)
            step = steps[host] = Step()
            error = state.lock_error if call.changes else None
            if error is not None:
                step.raw, step.error = raw_error(error), error
                continue
            number = self._run.send_step(None, None, step, self._effective(call), state, ignore_errors=True)
            if on_line is not None:
                self._run.listen(number, lambda text, host=host: on_line(host, text))  # type: ignore[misc]
        self._run.pump(lambda: all(step.answered for step in steps.values()))
        return {host: self._result(host, calls[host], step) for host, step in steps.items()}

    def _effective(self, call: Call) -> Call:
        check = (self._check and call.changes) if call.check is None else call.check
        return replace(call, check=check, diff=self._diff if call.diff is None else call.diff)

    def _gate(self) -> None:
        lock = self._run.lock
        if not lock.open:
            lock.want()
            self._run.pump(lambda: lock.open or lock.refused is not None)
            if lock.refused is not None:
                raise Refused(lock.refused)

    def _result(self, host: str, call: Call, step: Step) -> Result:
        raw = step.raw or {}
        if step.dropped:
            status = Status.LOST
        elif step.lost is not None:
            status = Status.UNREACHABLE if step.unreachable else Status.LOST
        elif raw.get("failed"):
            status = Status.FAILED
        elif raw.get("skipped"):
            status = Status.SKIPPED
        else:
            status = Status.CHANGED if raw.get("changed") else Status.OK
        error = step.lost or step.error
        output = raw.get("stdout") or raw.get("stderr") or "\n".join(step.output)
        return Result(
            host=host, task=self._task.name, status=status, origin=self._task.origin, seconds=step.seconds,
            message=error.what if error else "was not run" if step.dropped else str(raw.get("msg") or ""),
            expected=_text(raw.get("expected")),
            found=_text(raw.get("found")), next=_text(raw.get("next")) or (error.next if error else None),
            output=tuple(str(output).splitlines()[-20:]) if status is Status.FAILED else (),
            data={} if call.no_log else raw, no_log=call.no_log, module=call.module,
        )

    def connect(self, hosts: Sequence[str]) -> dict[str, Result]:
        """Connect these hosts if they are not; ok or unreachable for each."""
        states = [self._run.state(host) for host in hosts]
        for state in states:
            self._run.connect(state)
        self._run.pump(lambda: all(state.state == UP or state.down for state in states))
        out = {}
        for state in states:
            up = state.state == UP
            error = state.error or UnreachableError("is not connected", host=state.name)
            out[state.name] = Result(
                host=state.name, task=self._task.name, status=Status.OK if up else Status.UNREACHABLE,
                origin=self._task.origin, message="" if up else error.what, next=None if up else error.next,
                data=dict(state.info) if up else {})
        return out

    def ask(self, question: str) -> bool | None:
        """A yes-or-no question. True at once with --yes; None without a terminal."""
        return True if self._about.yes else self._about.ask(question)

    def emit(self, event: Event) -> None:
        """Tell the person something."""
        self._run.emit(event)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def runner(run: Engine, about: About, templates: Templates) -> Callable[..., dict[str, dict[str, Any]]]:
    """What the engine calls for a task whose module is a fleet action: raw results by host."""

    def act(flow: Any, task: Task, frame: Any, meeting: Meeting) -> dict[str, dict[str, Any]]:
        module = task.module
        assert isinstance(module, ModuleSpec) and module.fleet_action is not None
        order = list(flow.batch.flows)
        hosts = sorted(meeting.arrived, key=order.index)
        scope = run.variables.scope(flow.host, flow.batch.play, task, top=frame.layers)
        try:
            args = arguments(templates, task, module, scope)
            check = flag(templates, task.keywords.check_mode, scope, run.settings.check)
            diff = flag(templates, task.keywords.diff, scope, run.settings.diff)
            fleet = RunFleet(run, about, flow.batch.play, task, hosts, check=check, diff=diff)
            results = module.fleet_action(fleet, args)
        except BringupError as error:
            return {host: {**raw_error(error), "exit_status": int(error.status)} for host in hosts}
        return {host: _raw(results.get(host)) for host in hosts}

    return act


def _raw(result: Result | None) -> dict[str, Any]:
    """A Result of an action as a raw result, for `register` and the recap."""
    if result is None:
        return {"changed": False}
    out = {**result.data, "changed": result.status is Status.CHANGED}
    out["failed"] = result.status is Status.FAILED
    if result.status is Status.SKIPPED:
        out["skipped"] = True
    if result.status in (Status.UNREACHABLE, Status.LOST):
        out.update(unreachable=True, failed=False)
    for name, value in (("msg", result.message), ("expected", result.expected), ("found", result.found),
                        ("next", result.next)):
        if value:
            out[name] = value
    if result.output:
        out["stdout"] = "\n".join(result.output)
    if result.diff:
        out["diff"] = list(result.diff)
    return out
