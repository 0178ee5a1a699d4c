"""The hosts of a play, or of one serial batch of it, on their way: meetings, limits of failure, who is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.playbook.model import Play, Task
from bringup.run.hosts import HostState, Visit
from bringup.run.waiting import Meeting

if TYPE_CHECKING:
    from bringup.run.engine import Engine
    from bringup.run.flow import Flow
    from bringup.run.joint import Joint


class Batch:
    """`lockstep`: every task is a meeting (strategy linear, any_errors_fatal, a limit of failures)."""

    def __init__(self, run: Engine, play: Play, hosts: Sequence[HostState], *, gather: Task | None,
                 any_errors_fatal: bool, max_fail_percentage: float | None, size: int) -> None:
        from bringup.run.flow import Flow

        self.play = play
        self.gather = gather
        self.any_errors_fatal = any_errors_fatal
        self.max_fail_percentage = max_fail_percentage
        self.lockstep = play.strategy == "linear" or any_errors_fatal or max_fail_percentage is not None
        self.aborted = False
        self.struck: set[str] = set()
        self.end_play = False
        self.size = size
        self.bad: set[str] = set()
        self._fatal: set[str] = set()
        self.flows: dict[str, Flow] = {host.name: Flow(run, self, host) for host in hosts}
        self._visits: dict[tuple[int, ...], Visit] = {}
        self._meetings: dict[tuple[int, ...], Meeting] = {}
        self._readers: dict[int, bool] = {}

    @property
    def live(self) -> list[Flow]:
        return [flow for flow in self.flows.values() if not flow.done]

    def visit(self, task: Task, order: tuple[int, ...]) -> Visit:
        """The same object for all hosts that come to a task at the same place of the play."""
        found = self._visits.get(order)
        if found is None:
            found = self._visits[order] = Visit(task, order)
        return found

    def arrive(self, flow: Joint, visit: Visit) -> Meeting:
        """A host is at a meeting. One that was released before lets late comers through."""
        meeting = self._meetings.get(visit.order)
        if meeting is None:
            meeting = self._meetings[visit.order] = Meeting(visit.task, visit.order)
        if flow.host.name not in meeting.arrived:
            meeting.arrived.append(flow.host.name)
        return meeting

    def first(self, meeting: Meeting) -> str:
        """The host that acts for all: the first one of the play's order that came."""
        order = {name: index for index, name in enumerate(self.flows)}
        if meeting.leader is None:
            meeting.leader = min(meeting.arrived, key=lambda name: order[name])
        return meeting.leader

    def release(self) -> bool:
        """When every host waits at a meeting, the earliest one begins. False when hosts are still on their way."""
        waiting = [flow.wait.meeting for flow in self.live if flow.wait is not None and flow.wait.meeting is not None]
        if not waiting or len(waiting) < len(self.live):
            return False
        earliest = min(waiting, key=lambda meeting: meeting.order)
        self.judge()
        earliest.released = True
        return True

    def failed(self, host: str, *, fatal: bool, rescued: bool) -> None:
        """A host failed or is gone. `fatal` takes all hosts along: to their rescue, or out of the play."""
        if not rescued:
            self.bad.add(host)
        if fatal:
            self._fatal.add(host)
            self.aborted = self.aborted or not rescued

    def judge(self) -> None:
        """Apply the limit of failures: more than so many percent of the batch end it, unreachable hosts counted."""
        limit = self.max_fail_percentage
        if limit is not None and self.size and 100.0 * len(self.bad) / self.size > limit and not self.aborted:
            self.aborted = True
            self._fatal |= self.bad
        if self._fatal:
            self.struck = set(self.flows) - self._fatal
            self._fatal = set()

    def ended(self, flow: Flow) -> None:
        """A host has come to its end, well or not."""
        if flow.host.failed or flow.host.gone:
            self.bad.add(flow.host.name)

    def reads_others(self, task: Task) -> bool:
        """True for a task whose own text names hostvars: all hosts meet there, so that all see the same moment."""
        found = self._readers.get(id(task))
        if found is None:
            found = self._readers[id(task)] = _mentions((task.args, task.keywords.when, task.keywords.vars,
                                                         task.loop.value if task.loop else None))
        return found


def _mentions(value: Any) -> bool:
    if isinstance(value, str):
        return "hostvars" in value
    if isinstance(value, dict):
        return any(_mentions(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_mentions(item) for item in value)


def batches(hosts: Sequence[str], serial: Any) -> list[list[str]]:
    """The hosts of a play cut by `serial`: numbers or percentages, the last one repeated; all at once for none."""
    sizes = serial if isinstance(serial, list) else [serial]
    sizes = [size for size in sizes if size not in (None, "", 0, "0")]
    if not sizes:
        return [list(hosts)] if hosts else []
    out: list[list[str]] = []
    left = list(hosts)
    index = 0
    while left:
        size = _size(sizes[min(index, len(sizes) - 1)], len(hosts))
        if size <= 0:
            size = len(left)
        out.append(left[:size])
        left = left[size:]
        index += 1
    return out


def _size(value: Any, total: int) -> int:
    text = str(value).strip()
    if text.endswith("%"):
        return max(1, int(float(text[:-1]) / 100.0 * total))
    return int(float(text))
