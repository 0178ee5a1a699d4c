"""Whether a release is made for the replicas of a plan: as many nodes, the same parts. What goes back to another one.

A rollback starts replicas as the inventory cuts them. A release of another strategy has other ones: the inventory says
so first, then a provision finds the release again by its digest.
"""

from __future__ import annotations

from collections.abc import Iterable

from bringup.base.text import plural
from bringup.releases.document import Release
from bringup.serving.plan import POOL_ROLES, ReplicaPlan


def made_for(release: Release, replicas: Iterable[ReplicaPlan]) -> bool:
    """True when each of these replicas, or parts of one, could be started from the release."""
    return all(any(len(shape) == len(replica.hosts) and shape[0]["role"] == replica.head.role
                   for shape in release.identity["replicas"]) for replica in replicas)


def told(release: Release) -> str:
    """`multi_node_tp, replicas of 2 nodes`, `pd_cluster, two pools and a router`."""
    shapes = release.identity["replicas"]
    strategy = release.beside.get("strategy") or "a strategy"
    if any(shape[0]["role"] in POOL_ROLES for shape in shapes):
        return f"{strategy}, two pools and a router"
    return f"{strategy}, replicas of {' or '.join(plural(n, 'node') for n in sorted({len(s) for s in shapes}))}"


def by_provision(release: Release, label: str, named: str) -> str:
    """What goes back to a release that a rollback cannot start: `strategy: ... in the inventory, then ...`."""
    shapes = release.identity["replicas"]
    sizes = {len(shape) for shape in shapes}
    words = [f"{key}: {release.beside[key]}" for key in ("strategy", "variant") if release.beside.get(key)]
    if len(sizes) == 1 and not any(shape[0]["role"] in POOL_ROLES for shape in shapes):
        words.append(f"nodes: {sizes.pop()}")
    return f"{', '.join(words)} in the inventory, then invoke provision{named} (it finds {label} again)"
