"""The state of a host in a run: its session, what is in flight to it, what is known of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bringup.base.errors import BringupError
from bringup.base.results import Result
from bringup.connection.messages import Request
from bringup.playbook.model import Node, Task
from bringup.playbook.templating import Scope
from bringup.run.actions import Call
from bringup.run.variables import Facts

IDLE, CONNECTING, UP, UNREACHABLE, LOST, CLOSED = "idle", "connecting", "up", "unreachable", "lost", "closed"


class Link(Protocol):
    """What the run needs of a session; `bringup.connection.session.Session` is one."""

    def start(self) -> None: ...
    def submit(self, requests: list[Request], /) -> None: ...
    def cancel(self, request: int | None = None, /) -> None: ...
    def close(self) -> None: ...
    def join(self, timeout: float | None = None, /) -> bool: ...


@dataclass(eq=False)
class Step:
    """One call on a host, or an outcome that the controller worked out: a task without a loop has one."""

    request: Request | None = None
    raw: dict[str, Any] | None = None
    dropped: bool = False
    lost: BringupError | None = None
    unreachable: bool = False
    seconds: float = 0.0
    item: Any = None
    label: Any = None
    names: Mapping[str, Any] = field(default_factory=dict)
    scope: Scope | None = None
    error: BringupError | None = None
    output: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    link_host: str = ""
    call: Call | None = None
    nodes: Sequence[Node] = ()
    judged: bool = False
    started: bool = False
    shown: bool = False

    @property
    def answered(self) -> bool:
        return self.raw is not None or self.dropped or self.lost is not None


@dataclass(eq=False)
class Unit:
    """One task on one host, in its place among those sent to that host."""

    task: Task
    name: str
    visit: Visit
    steps: list[Step]
    loop: bool = False
    ignore_errors: bool = False
    ignore_unreachable: bool = False
    no_log: bool = False
    rescuable: bool = False
    hold: bool = False
    check: bool = False
    concluded: bool = False
    result: Result | None = None
    raw: dict[str, Any] | None = None
    delegate: str | None = None

    @property
    def complete(self) -> bool:
        return not self.hold and all(step.answered for step in self.steps)


@dataclass(eq=False)
class Visit:
    """A task as the play comes to it, for all hosts: its start is told once."""

    task: Task
    order: tuple[int, ...] = ()
    told: bool = False


@dataclass(eq=False)
class HostState:
    """Everything that the run knows of a host."""

    name: str
    link: Link | None = None
    state: str = IDLE
    error: BringupError | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    flight: deque[Unit] = field(default_factory=deque)
    outbox: list[Request] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    values: dict[str, Any] = field(default_factory=dict)
    included: dict[str, Any] = field(default_factory=dict)
    notified: dict[str, None] = field(default_factory=dict)
    segment: int = 0
    failing: bool = False
    failure: Unit | None = None
    failed: bool = False
    gone: bool = False
    recap: Counter[str] = field(default_factory=Counter)
    locked: bool = False
    lock_error: BringupError | None = None
    lock_as: str | None = None
    recovering: BringupError | None = None

    @property
    def down(self) -> bool:
        """True when nothing can be done there any more."""
        return self.state in (UNREACHABLE, LOST, CLOSED)

    @property
    def usable(self) -> bool:
        """True when later plays take this host."""
        return not (self.failed or self.gone)
