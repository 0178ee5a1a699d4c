"""nccl-tests for hosts that have neither them nor torch: built there by the recipe of kernels, as a job of the host."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from bringup.base.errors import BringupError
from bringup.base.events import Event, Note, StageSummary
from bringup.base.paths import HostPaths, Project
from bringup.base.results import Result
from bringup.base.text import fold_hosts
from bringup.inventory.model import Inventory
from bringup.run.actions import Call, Fleet

RECIPE = "nccl_tests"
"""The recipe under kernels/ that preflight builds its measure of collectives by."""


class _Some:
    """Some hosts of a fleet, as the building of kernels sees them: nobody is asked, and a look has no stages."""

    def __init__(self, fleet: Fleet, hosts: Sequence[str]) -> None:
        self._fleet = fleet
        self._hosts = tuple(hosts)
        self.outcome = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        return self._hosts

    @property
    def inventory(self) -> Inventory:
        return self._fleet.inventory

    @property
    def project(self) -> Project:
        return self._fleet.project

    @property
    def check(self) -> bool:
        return False

    @property
    def diff(self) -> bool:
        return False

    @property
    def yes(self) -> bool:
        return False

    @property
    def run_id(self) -> str:
        return self._fleet.run_id

    @property
    def operator(self) -> str:
        return self._fleet.operator

    @property
    def verb(self) -> str:
        return self._fleet.verb

    def variables(self, host: str) -> Mapping[str, Any]:
        """The host's variables; no system package is installed for a look."""
        return ChainMap({"bringup_kernel_packages": False}, cast("dict[str, Any]", self._fleet.variables(host)))

    def paths(self, host: str) -> HostPaths:
        """The host's paths."""
        return self._fleet.paths(host)

    def call(self, calls: Mapping[str, Call], *, on_line: Callable[[str, str], None] | None = None
             ) -> dict[str, Result]:
        """One call on each host side by side."""
        return self._fleet.call(calls, on_line=on_line)

    def connect(self, hosts: Sequence[str]) -> dict[str, Result]:
        """Connect these hosts if they are not."""
        return self._fleet.connect(hosts)

    def ask(self, question: str) -> bool | None:
        """No: a host that serves is not loaded for a look."""
        return False

    def emit(self, event: Event) -> None:
        """Tell the person. What the build came to is kept: a look has no stage of it."""
        if isinstance(event, StageSummary):
            self.outcome = f"{event.subject}: {event.text}"
        else:
            self._fleet.emit(event)


def build_nccl_tests(fleet: Fleet, hosts: Sequence[str]) -> dict[str, str]:
    """Build nccl-tests once per kind of these hosts, prove and spread them. Why a host has none now; "" where it has.

    The run holds no lock for a look: the job that builds holds the host's lock of jobs, and a build lies under a name
    of its own. Nothing is built with --check.
    """
    if fleet.check:
        return dict.fromkeys(hosts, f"--check builds nothing; {by_hand(fleet, hosts)} does")
    fleet.emit(Note("neither nccl-tests nor a Python with torch is here: where there is a CUDA toolkit nccl-tests are "
                    "built, once per kind of host (about half a minute; they stay under bringup_root/builds)",
                    host=fold_hosts(list(hosts))))
    from bringup.environments.kernels.build import build_kernels

    some = _Some(fleet, hosts)
    try:
        results = build_kernels(some, {"names": [RECIPE]})
    except BringupError as error:
        return dict.fromkeys(hosts, _reason(error.what, error.found, error.next, by_hand(fleet, hosts)))
    alike: dict[tuple[str, str | None, str | None], list[str]] = {}
    for host in hosts:
        if results[host].bad:
            alike.setdefault((results[host].message, results[host].found, results[host].next), []).append(host)
    if some.outcome and any(not results[host].bad for host in hosts):
        fleet.emit(Note(some.outcome))
    return {**dict.fromkeys(hosts, ""), **{host: _reason(*said, by_hand(fleet, group))
                                           for said, group in alike.items() for host in group}}


def by_hand(fleet: Fleet, hosts: Sequence[str]) -> str:
    """The command that builds them."""
    sources = fleet.inventory.shown_as.split(", ") if fleet.inventory.shown_as else []
    named = "".join(f" --inventory {source}" for source in sources)
    return f"invoke kernel.build --kernel {RECIPE}{named} --limit {','.join(hosts)}"


def _reason(what: str, found: str | None, then: str | None, command: str) -> str:
    text = what + (f" (found: {found})" if found else "") + (f": {then}" if then else "")
    return f"{text}; then {command}"
