"""Which hosts make which replica: as the inventory says, else cut from head and workers in inventory order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest, plural
from bringup.inventory.model import Inventory
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import Misfit

HEADS = ("head", "heads")
WORKERS = ("workers", "worker")


def host_groups(inventory: Inventory) -> tuple[list[str], list[str]]:
    """Heads and workers in inventory order; without such groups every host is a candidate for both."""
    heads = [host for host in inventory.hosts if _in(inventory, host, HEADS)]
    workers = [host for host in inventory.hosts if _in(inventory, host, WORKERS) and host not in heads]
    if not heads and not workers:
        return list(inventory.hosts), []
    return heads, workers


def _in(inventory: Inventory, host: str, names: Sequence[str]) -> bool:
    return any(name in names for name in inventory.group_names(host))


def cut_replicas(inventory: Inventory, deployment: Deployment, nodes: int
                 ) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Replicas of `nodes` hosts each (head first) and the hosts left over.

    Raises InputError when a named host is unknown or stands twice, or when there are too few hosts.
    """
    heads, workers = host_groups(inventory)
    every = [*heads, *workers]
    if deployment.replicas is not None:
        named = _named(inventory, deployment, nodes)
        used = {host for hosts in named.values() for host in hosts}
        return named, tuple(host for host in every if host not in used)
    if len(heads) > 1 and workers:
        replicas = _one_head_each(heads, workers, nodes)
    else:
        replicas = [tuple(every[start:start + nodes]) for start in range(0, len(every) - nodes + 1, nodes)]
    if not replicas:
        raise Misfit(
            f"a replica takes {plural(nodes, 'node')} and the inventory has {plural(len(every), 'host')}",
            where=deployment.where("nodes"), expected=plural(nodes, "host"), found=", ".join(every) or "none")
    used = {host for hosts in replicas for host in hosts}
    return ({f"r{number}": hosts for number, hosts in enumerate(replicas, 1)},
            tuple(host for host in every if host not in used))


def _one_head_each(heads: Sequence[str], workers: Sequence[str], nodes: int) -> list[tuple[str, ...]]:
    out = []
    rest = list(workers)
    for head in heads:
        if len(rest) < nodes - 1:
            break
        out.append((head, *rest[:nodes - 1]))
        rest = rest[nodes - 1:]
    return out


def _named(inventory: Inventory, deployment: Deployment, nodes: int) -> dict[str, tuple[str, ...]]:
    where = deployment.where("replicas")
    owner: dict[str, str] = {}
    for name, hosts in (deployment.replicas or {}).items():
        for host in hosts:
            if host not in inventory.hosts:
                near = nearest(host, inventory.hosts)
                raise InputError(f"the replica `{name}` names `{host}`, which is no host of the inventory", where=where,
                                 next=f"nearest: {near}" if near else None)
            if host in owner:
                raise InputError(f"`{host}` stands in replica `{owner[host]}` and in `{name}`", where=where)
            owner[host] = name
        if len(hosts) != nodes:
            raise InputError(f"the replica `{name}` has {plural(len(hosts), 'host')}, the plan needs {nodes}",
                             where=where, found=", ".join(hosts))
    return dict(deployment.replicas or {})


def with_spares(replicas: Mapping[str, tuple[str, ...]], spare: tuple[str, ...], given: Any
                ) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The replicas with spares in the place of nodes, as `bringup_replace` (node -> spare) says. Raises InputError."""
    if not given:
        return dict(replicas), spare
    if not isinstance(given, Mapping):
        raise InputError("`bringup_replace` maps a node to the spare in its place", found=str(given))
    replace = {str(old): str(new) for old, new in given.items()}
    used = [host for hosts in replicas.values() for host in hosts]
    for old, new in replace.items():
        if old not in used:
            near = nearest(old, used)
            raise InputError(f"`{old}` is a node of no replica: nothing can take its place",
                             expected=", ".join(used), next=f"nearest: {near}" if near else None)
        if new not in spare:
            where = f"`{new}` serves in a replica" if new in used else f"`{new}` is no spare of the inventory"
            raise InputError(f"{where}: it cannot take the place of {old}", expected=", ".join(spare) or "no spare")
    if len(set(replace.values())) < len(replace):
        raise InputError("one spare cannot take two places", found=", ".join(f"{a}={b}" for a, b in replace.items()))
    out = {name: tuple(replace.get(host, host) for host in hosts) for name, hosts in replicas.items()}
    return out, tuple(host for host in spare if host not in replace.values())
