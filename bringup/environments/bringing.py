"""Interpreters that were carried here, brought to hosts that have none as the locks want, before environments are
planned: the digest of an environment holds the interpreter's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from bringup.base.errors import BringupError, InputError
from bringup.base.results import Result, Status
from bringup.environments.planned import HostFacts, Prepared, to_bring
from bringup.environments.supplies import CarriedPython, Supplies
from bringup.run.actions import Call, Fleet


class Work(Protocol):
    """The pass over the fleet that environments are built in."""

    fleet: Fleet
    facts: dict[str, HostFacts]
    supplies: dict[str, Supplies]
    prepared: dict[str, Prepared]
    of_host: dict[str, list[str]]


def bring_interpreters(work: Work, task: str) -> dict[str, Result]:
    """Bring what is needed and add it to the hosts' facts. Returns the results of hosts for which it went wrong."""
    wrong: dict[str, Result] = {}
    rounds: list[dict[str, CarriedPython]] = []
    for host, supplies in work.supplies.items():
        if host not in work.facts:
            continue
        hardware = hardware_of(work.fleet.variables(host))
        try:
            needed = {found.name: found for name in work.of_host[host]
                      if (found := to_bring(work.prepared[name], work.facts[host], hardware, supplies)) is not None}
        except InputError:
            raise
        except BringupError as error:
            wrong[host] = Result(host, task, Status.FAILED, message=error.what, expected=error.expected,
                                 found=error.found, next=error.next, module=task)
            continue
        for number, one in enumerate(needed.values()):
            if number == len(rounds):
                rounds.append({})
            rounds[number][host] = one
    for wanted in rounds:
        wrong.update(_round(work, task, wanted))
    return wrong


def _round(work: Work, task: str, wanted: Mapping[str, CarriedPython]) -> dict[str, Result]:
    calls = {host: Call("python_env", {"action": "bring", "archive": {
        "digest": one.blob.digest, "name": one.name, "version": one.version}},
        become=become_of(work.fleet.variables(host)), timeout=600.0, blobs=(one.blob,)) for host, one in wanted.items()}
    wrong = {}
    for host, result in work.fleet.call(calls).items():
        if result.bad:
            wrong[host] = replace(result, task=task)
            continue
        one = wanted[host]
        seen: Mapping[str, Any] = result.data.get("interpreter") or _foreseen(work, host, one)
        work.facts[host] = replace(work.facts[host], interpreters=(*work.facts[host].interpreters, seen))
    return wrong


def _foreseen(work: Work, host: str, one: CarriedPython) -> dict[str, str]:
    """What the interpreter will say of itself once it is there: for a run that changes nothing."""
    minor = ".".join(one.version.split(".")[:2])
    path = work.fleet.paths(host).root / "pythons" / one.name / "bin" / f"python{minor}"
    return {"path": str(path), "version": one.version, "implementation": "CPython",
            "tag": f"cpython-{minor.replace('.', '')}", "abi": one.soabi}


def become_of(variables: Mapping[str, Any]) -> str | None:
    """The account that builds: root, or None (the connecting one) where `bringup_privileged` is off."""
    value = variables.get("bringup_privileged", True)
    return None if str(value).strip().lower() in ("false", "no", "off", "0") else "root"


def hardware_of(variables: Mapping[str, Any]) -> str | None:
    """`hardware` of a host's deployment."""
    deployment = variables.get("deployment")
    return str(deployment["hardware"]) if isinstance(deployment, Mapping) and deployment.get("hardware") else None
