"""What a host's flow waits for, and where hosts meet."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from bringup.playbook.model import Task
from bringup.run.hosts import Unit


@dataclass(eq=False)
class Wait:
    """A flow goes on when `ready` says so, or at the monotonic time `until`."""

    ready: Callable[[], bool]
    until: float | None = None
    meeting: Meeting | None = None


Steps = Generator["Wait | None", None, Any]
"""A flow: yields what it waits for; None lets the others have a turn."""


@dataclass(eq=False)
class Meeting:
    """A task at which hosts meet. Released when every other flow waits at a later one or has ended."""

    task: Task
    order: tuple[int, ...]
    arrived: list[str] = field(default_factory=list)
    released: bool = False
    done: bool = False
    unit: Unit | None = None
    results: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    leader: str | None = None


class HostFailed(Exception):
    """A task failed on this host: the nearest rescue takes it, else the host is out. `unit` is None when the play was
    ended for all hosts because of another one."""

    def __init__(self, unit: Unit | None) -> None:
        super().__init__()
        self.unit = unit


class HostDown(Exception):
    """The host cannot be reached any more; no rescue takes that."""


class EndHost(Exception):
    """`meta: end_host` or `end_play`: nothing more here, and nothing is wrong."""
