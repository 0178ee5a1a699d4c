"""What tests of small runs share: what a run told, and an inventory of hosts on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bringup.base.errors import BringupError
from bringup.base.events import Event, Note, RunEnded, TaskEnded
from bringup.base.results import Result


class Seen:
    """What a run told, its exit status and the error that ended it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.status = -1
        self.error: BringupError | None = None

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)

    def ask(self, question: str) -> bool | None:
        return None

    def close(self) -> None:
        return None

    def results(self, host: str | None = None) -> list[Result]:
        return [event.result for event in self.events if isinstance(event, TaskEnded) and event.result.item is None
                and host in (None, event.result.host)]

    def result(self, task: str, host: str = "a") -> Result:
        return next(result for result in self.results(host) if result.task == task)

    def states(self, host: str = "a") -> list[tuple[str, str]]:
        return [(result.task, result.status.value) for result in self.results(host)]

    @property
    def notes(self) -> str:
        return "\n".join(f"{event.host or ''} {event.text}" for event in self.events if isinstance(event, Note))

    @property
    def ended(self) -> RunEnded:
        return next(event for event in self.events if isinstance(event, RunEnded))

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        return next({host: dict(counts) for host, counts in event.recap.items()} for event in self.events
                    if isinstance(event, RunEnded))


Start = Callable[..., Seen]


def inventory_text(folder: Path, names: str) -> str:
    hosts = "".join(f"    {name}: {{bringup_root: {folder}/{name}}}\n" for name in names.split(","))
    own = "" if os.geteuid() == 0 else ", bringup_privileged: false"  # an ordinary user may not become root here
    return f"all:\n  vars: {{ansible_connection: local, here: {folder}{own}}}\n  hosts:\n{hosts}"
