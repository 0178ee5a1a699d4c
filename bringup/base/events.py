"""What happens during a run, as a stream: the one path to screen, log, journal and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from bringup.base.origin import Origin
from bringup.base.results import Result
from bringup.base.verdicts import Finding


@dataclass(frozen=True)
class Event:
    """Base of all events. `at` is seconds since the run began."""

    at: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class RunStarted(Event):
    verb: str
    inventory: str
    run_id: str
    operator: str
    hosts: tuple[str, ...]
    check: bool = False
    headline: str = ""


@dataclass(frozen=True)
class PlayStarted(Event):
    """A play, or in our own playbooks a stage: `index` of `total`, both from 1."""

    name: str
    index: int
    total: int
    hosts: tuple[str, ...]
    origin: Origin | None = None


@dataclass(frozen=True)
class PlayEnded(Event):
    name: str
    index: int
    seconds: float


@dataclass(frozen=True)
class TaskStarted(Event):
    task: str
    origin: Origin | None
    hosts: tuple[str, ...]
    handler: bool = False


@dataclass(frozen=True)
class TaskEnded(Event):
    """A result of one host. Loop items come as their own events with `item` set, then the task's result."""

    result: Result


@dataclass(frozen=True)
class Line(Event):
    """A line that a running command printed on a host."""

    host: str
    task: str
    text: str
    stream: str = "stdout"


@dataclass(frozen=True)
class Progress(Event):
    """How far a step is, for the live view: one line a subject (host, replica, environment), replaced in place.

    `brief` is over within seconds: it is shown where it can be replaced, and not where lines stay.
    """

    subject: str
    text: str
    host: str | None = None
    done: bool = False
    brief: bool = False


@dataclass(frozen=True)
class StageSummary(Event):
    """What the stage came to, for its line on screen: subject `glm51-vllm`, text `built on gpu01, spread to 15`."""

    subject: str
    text: str


@dataclass(frozen=True)
class Note(Event):
    """Something a person should know that is no failure."""

    text: str
    host: str | None = None
    level: str = "note"  # note | warn


@dataclass(frozen=True)
class Findings(Event):
    """The findings of a preflight, status or contract, for the report."""

    title: str
    findings: tuple[Finding, ...]
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready(Event):
    """The endpoint serves: what the summary prints. `next` are lines with the commands that follow."""

    endpoints: tuple[str, ...]
    model: str
    release: str
    previous: str | None = None
    changes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunEnded(Event):
    status: int
    seconds: float
    recap: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    next: tuple[str, ...] = ()


NAMES = frozenset(item.name for kind in (RunStarted, PlayStarted, PlayEnded, TaskStarted, TaskEnded, Line, Progress,
                                         StageSummary, Note, Findings, Ready, RunEnded, Result, Finding)
                  for item in fields(kind)) | {"event", "time"}
"""Names of the fields of events and of what they carry: keys of journals and reports."""


class Sink(Protocol):
    """Takes events one after the other, from one thread at a time."""

    def __call__(self, event: Event, /) -> None: ...


class Discard:
    """A sink that drops everything."""

    def __call__(self, event: Event, /) -> None:
        return None


Tree = Mapping[str, Any]
