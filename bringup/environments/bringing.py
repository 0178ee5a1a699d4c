"""Interpreters brought to hosts that have none as the locks want, before environments are planned: the digest of an
environment holds the interpreter's version. From the bundle where there is one, else python-build-standalone, fetched
here by uv, so that hosts need no way to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from bringup.base.errors import BringupError, InputError, StepError
from bringup.base.events import Note, Progress
from bringup.base.results import Result, Status
from bringup.environments.indexes import package_settings
from bringup.environments.interpreters import fetch_interpreter, newest_version, soabi_of
from bringup.environments.planned import HostFacts, Prepared, lacking_pythons
from bringup.environments.supplies import CarriedPython, Supplies, file_blob
from bringup.run.actions import Call, Fleet

_QUICK = {"UV_HTTP_CONNECT_TIMEOUT": "5", "UV_HTTP_RETRIES": "1"}
"""A site without a network is to learn it soon; its own settings come before."""
_SUBJECT = "interpreter"


class Work(Protocol):
    """The pass over the fleet that environments are built in."""

    fleet: Fleet
    facts: dict[str, HostFacts]
    supplies: dict[str, Supplies]
    prepared: dict[str, Prepared]
    of_host: dict[str, list[str]]


@dataclass
class _Fetched:
    """Interpreters fetched in this run by minor version and machine; in a run that changes nothing, their versions."""

    work: Work
    known: dict[tuple[str, str], CarriedPython] = field(default_factory=dict)

    def get(self, host: str, minor: str, machine: str) -> CarriedPython:
        """Raises StepError."""
        if (minor, machine) not in self.known:
            fleet = self.work.fleet
            settings = {**_QUICK, **package_settings(fleet.variables(host).get("bringup_packages"))}
            if fleet.check:
                version = newest_version(minor, machine, settings)
                made = CarriedPython(version, machine, soabi_of(version, machine), f"cpython-{version}-{machine}", None)
            else:
                fleet.emit(Progress(_SUBJECT, f"Python {minor} for {machine}"))
                try:
                    found = fetch_interpreter(minor, machine, fleet.project.state / "cache" / "bundle", settings)
                finally:
                    fleet.emit(Progress(_SUBJECT, f"Python {minor} for {machine}", done=True))
                blob = file_blob(found.path)
                made = CarriedPython(found.version, machine, found.soabi,
                                     f"cpython-{found.version}-{machine}-{blob.digest[:8]}", blob)
            self.known[minor, machine] = made
        return self.known[minor, machine]


def bring_interpreters(work: Work, task: str) -> dict[str, Result]:
    """Bring what is needed and add it to the hosts' facts. Returns the results of hosts for which it went wrong."""
    wrong: dict[str, Result] = {}
    rounds: list[dict[str, CarriedPython]] = []
    fetched = _Fetched(work)
    for host in list(work.facts):
        try:
            needed = _needed(work, host, fetched)
        except InputError:
            raise
        except BringupError as error:
            wrong[host] = Result(host, task, Status.FAILED, message=error.what, expected=error.expected,
                                 found=error.found, next=error.next, output=tuple(error.details), module=task)
            continue
        for number, one in enumerate(needed.values()):
            if number == len(rounds):
                rounds.append({})
            rounds[number][host] = one
    for wanted in rounds:
        wrong.update(_round(work, task, wanted))
    return wrong


def _needed(work: Work, host: str, fetched: _Fetched) -> dict[str, CarriedPython]:
    """The interpreters that a host is to get, by their name. Raises StepError."""
    variables, supplies, facts = work.fleet.variables(host), work.supplies.get(host), work.facts[host]
    if supplies is None and not brings(variables):
        return {}
    out: dict[str, CarriedPython] = {}
    for name in work.of_host[host]:
        wanted = lacking_pythons(work.prepared[name], facts, hardware_of(variables), supplies)
        if not wanted:
            continue
        if supplies is not None:
            one = supplies.interpreter(wanted, facts.machine)
        else:
            try:
                one = fetched.get(host, wanted[0], facts.machine)
            except StepError as error:
                raise _none(name, wanted, facts, error) from None
            work.fleet.emit(Note(f"no Python {' or '.join(wanted)} there: {one.version} "
                                 f"{'would be' if work.fleet.check else 'is'} brought", host=host))
        if one is not None:
            out[one.name] = one
    return out


def _none(name: str, wanted: list[str], facts: HostFacts, error: StepError) -> StepError:
    have = ", ".join(f"{one['path']} ({one['version']})" for one in facts.interpreters) or "none of them on PATH"
    return StepError(f"no Python for the environment {name} on this host, and none can be brought",
                     expected="CPython " + " or ".join(wanted), found=f"{have}; {error.what}: {error.found}",
                     details=error.details, next=f"apt-get install python{wanted[0]}, name one in "
                     "bringup_environment_python, or a mirror in UV_PYTHON_INSTALL_MIRROR")


def _round(work: Work, task: str, wanted: Mapping[str, CarriedPython]) -> dict[str, Result]:
    fleet = work.fleet
    arrived = partial(_arrived, work)
    calls = {}
    for host, one in wanted.items():
        if one.blob is None:
            arrived(host, _foreseen(work, host, one))
            continue
        calls[host] = Call("python_env", {"action": "bring", "archive": {
            "digest": one.blob.digest, "name": one.name, "version": one.version}},
            become=become_of(fleet.variables(host)), timeout=600.0, blobs=(one.blob,))
    wrong = {}
    for host, result in fleet.call(calls).items() if calls else ():
        if result.bad:
            wrong[host] = replace(result, task=task)
        else:
            arrived(host, result.data.get("interpreter") or _foreseen(work, host, wanted[host]))
    return wrong


def _arrived(work: Work, host: str, seen: Mapping[str, Any]) -> None:
    work.facts[host] = replace(work.facts[host], interpreters=(*work.facts[host].interpreters, seen))


def _foreseen(work: Work, host: str, one: CarriedPython) -> dict[str, str]:
    """What the interpreter will say of itself once it is there: for a run that changes nothing."""
    minor = ".".join(one.version.split(".")[:2])
    path = work.fleet.paths(host).root / "pythons" / one.name / "bin" / f"python{minor}"
    return {"path": str(path), "version": one.version, "implementation": "CPython",
            "tag": f"cpython-{minor.replace('.', '')}", "abi": one.soabi}


def brings(variables: Mapping[str, Any]) -> bool:
    """Whether an interpreter may be brought to a host: not where it names its own, or `bringup_interpreters: hosts`
    says that hosts have theirs. Raises InputError for another word."""
    value = str(variables.get("bringup_interpreters") or "bring")
    if value not in ("bring", "hosts"):
        raise InputError("`bringup_interpreters` is not understood", expected="bring or hosts", found=value)
    return value == "bring" and not variables.get("bringup_environment_python")


def become_of(variables: Mapping[str, Any]) -> str | None:
    """The account that builds: root, or None (the connecting one) where `bringup_privileged` is off."""
    value = variables.get("bringup_privileged", True)
    return None if str(value).strip().lower() in ("false", "no", "off", "0") else "root"


def hardware_of(variables: Mapping[str, Any]) -> str | None:
    """`hardware` of a host's deployment."""
    deployment = variables.get("deployment")
    return str(deployment["hardware"]) if isinstance(deployment, Mapping) and deployment.get("hardware") else None
