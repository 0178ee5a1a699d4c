"""Calls of the host modules that keep engine processes, as the account that the inventory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.results import Result, Status
from bringup.run.actions import Blob, Call, Fleet

ACCOUNT = "bringup"
"""The engines' own account, when the host has it (role engine_account)."""


def become_of(fleet: Fleet, host: str) -> str | None:
    """`root` where the inventory allows elevation, None where `bringup_privileged` is false."""
    return "root" if privileged(fleet.variables(host)) else None


def privileged(variables: Mapping[str, Any]) -> bool:
    """`bringup_privileged`, true unless said otherwise."""
    value = variables.get("bringup_privileged", True)
    return str(value).strip().lower() not in ("false", "no", "off", "0", "n", "f")


def call_of(fleet: Fleet, host: str, module: str, args: Mapping[str, Any], *, changes: bool, timeout: float = 120,
            blobs: Sequence[Blob] = ()) -> Call:
    """A call of one of our modules on one host."""
    return Call(module, dict(args), become=become_of(fleet, host), timeout=timeout, changes=changes, blobs=blobs)


def call_all(fleet: Fleet, module: str, args: Mapping[str, Mapping[str, Any]], *, changes: bool,
             timeout: float = 120) -> dict[str, Result]:
    """The same module on several hosts side by side, `args` per host."""
    return fleet.call({host: call_of(fleet, host, module, given, changes=changes, timeout=timeout)
                       for host, given in args.items()})


def account_args(fleet: Fleet, host: str) -> dict[str, Any]:
    """Who the engine runs as: `engine_account` of the inventory, then the connecting user."""
    variables = fleet.variables(host)
    user = variables.get("ansible_user")
    return {"account": str(variables.get("engine_account") or ACCOUNT), "user": str(user) if user else None}


CONTAINERS = ("docker", "podman")


def manager_for(document: Mapping[str, Any], wanted: str) -> str:
    """Who keeps the process of a launch document: a container engine exactly where the release has an image, else the
    `wanted` manager, or the one that the document was made for where a container engine is wanted."""
    box = document.get("container")
    if box:
        return str(box["client_kind"])
    if wanted not in CONTAINERS:
        return wanted
    made_for = str(document.get("manager") or "")
    return made_for if made_for and made_for not in CONTAINERS else "systemd"


def broken(results: Mapping[str, Result]) -> dict[str, Result]:
    """Those that did not do it."""
    return {host: result for host, result in results.items() if result.bad}


def gone(results: Mapping[str, Result]) -> list[str]:
    """Hosts that could not be reached or were lost."""
    return [host for host, result in results.items() if result.status in (Status.UNREACHABLE, Status.LOST)]


def first_line(result: Result) -> str:
    """The result's message in one line."""
    text = result.message or str(result.data.get("msg") or "") or result.status.value
    return text.splitlines()[0] if text else result.status.value


def names_of(launches: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """host -> name of its process."""
    return {host: str(document["name"]) for host, document in launches.items()}


def in_rank_order(launches: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """Hosts of a replica, head first, workers in rank order."""
    return sorted(launches, key=lambda host: int(launches[host]["node_rank"]))
