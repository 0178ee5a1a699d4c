"""Controller halves of modules: what a task does before, beside or instead of its host half.

Two kinds. A `HostAction` turns a task's rendered arguments into a call of the agent's module on the same host
(copy and template: the file's content is added); it stays within the segment. A `FleetAction` takes all hosts of
the play at once and may call modules on any of them: it is a meeting point (preflight, env building, start order).
The command line hands the table of both to the run, so that nothing here imports from the right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bringup.base.events import Event
from bringup.base.paths import HostPaths, Project
from bringup.base.results import Result
from bringup.inventory.model import Inventory


@dataclass(frozen=True)
class Blob:
    """Content that a module on the host needs: named there by its SHA-256 (hex), sent only when it is missing.

    `source` is the bytes themselves or a file on the controller.
    """

    digest: str
    size: int
    source: bytes | Path


@dataclass(frozen=True)
class Call:
    """A call of a module on one host. `become` is the account to run as, None for the connecting one.

    `timeout` is seconds, kept on the host; None means no deadline. `changes` is False for a call that only reads:
    it runs in check mode too and needs no lock.
    """

    module: str
    args: Mapping[str, Any]
    become: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    check: bool | None = None
    diff: bool | None = None
    blobs: Sequence[Blob] = ()
    changes: bool = True
    no_log: bool = False


@dataclass(frozen=True)
class HostContext:
    """What a HostAction may know: the host's name, its rendered variables, where the task's files are looked up."""

    host: str
    variables: Mapping[str, Any]
    search: Sequence[Path]
    template: Callable[[str, Path], str]
    check: bool
    diff: bool


class HostAction(Protocol):
    """Arguments in, call out. Raises StepError when, say, a source file is missing."""

    def __call__(self, args: Mapping[str, Any], context: HostContext, /) -> Call: ...


class HostResult(Protocol):
    """What the host answered and the call's arguments in, the task's result out: for what is done here afterwards
    (fetch writes the file). Called for an answer that did not fail. Raises StepError."""

    def __call__(self, raw: Mapping[str, Any], args: Mapping[str, Any], /) -> Mapping[str, Any]: ...


class Fleet(Protocol):
    """All hosts of a play that are still in it, for a FleetAction. Calls block; hosts are served side by side."""

    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def inventory(self) -> Inventory: ...
    @property
    def project(self) -> Project: ...
    @property
    def check(self) -> bool: ...
    @property
    def diff(self) -> bool: ...
    @property
    def yes(self) -> bool: ...
    @property
    def run_id(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def verb(self) -> str: ...

    def variables(self, host: str) -> Mapping[str, Any]:
        """The host's variables as a task would see them, rendered on access."""
        ...

    def paths(self, host: str) -> HostPaths:
        """The host's paths under its `bringup_root`."""
        ...

    def call(self, calls: Mapping[str, Call], *, on_line: Callable[[str, str], None] | None = None
             ) -> dict[str, Result]:
        """Run one call on each named host side by side; returns when all have ended. Never raises for a host:
        a failed, unreachable or lost host has such a result. `on_line(host, text)` sees output as it comes."""
        ...

    def connect(self, hosts: Sequence[str]) -> dict[str, Result]:
        """Connect these hosts if they are not; the result of each (ok or unreachable)."""
        ...

    def ask(self, question: str) -> bool | None:
        """A yes-or-no question. True at once with --yes; None when there is no terminal to ask."""
        ...

    def emit(self, event: Event) -> None:
        """Tell the person something."""
        ...


class FleetAction(Protocol):
    """All hosts at once. Returns a result per host of `fleet.hosts` (missing ones count as ok, unchanged)."""

    def __call__(self, fleet: Fleet, args: Mapping[str, Any], /) -> Mapping[str, Result]: ...


@dataclass(frozen=True)
class ModuleSpec:
    """A module as the playbook sees it: its arguments, and where its halves are.

    `arguments` has the shape that `bringup.agent.modules` describes. `agent` is the module's name on the host, or
    None where all of it runs on the controller.
    """

    name: str
    arguments: Mapping[str, Mapping[str, Any]]
    agent: str | None = None
    free_form: str | None = None
    host_action: HostAction | None = None
    host_result: HostResult | None = None
    fleet_action: FleetAction | None = None
    aliases: Sequence[str] = ()
    reads_only: bool = False
    help: str = ""
