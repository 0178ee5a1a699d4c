"""Kernel builds that nothing uses: what a host says of each, held against the releases that stay there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bringup.releases import storing
from bringup.releases.history import HostStore
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls


def builds_on(fleet: Fleet) -> dict[str, dict[str, Mapping[str, Any]]]:
    """host -> digest (or path, of what is unfinished) -> name, path, bytes, keep. Raises when a host cannot say."""
    results = calls.call_all(fleet, "kernel_space", {host: {"action": "list"} for host in fleet.hosts}, changes=False,
                             timeout=300)
    storing.demand(results, "the kernel builds cannot be looked at")
    return {host: dict(result.data["builds"]) for host, result in results.items()}


def spare_builds(builds: Mapping[str, Mapping[str, Mapping[str, Any]]], stores: Mapping[str, HostStore],
                 going: set[str]) -> dict[str, list[str]]:
    """host -> builds that no release that stays there names, by the folder in its variables. Pure.

    None of a host where a release cannot be read: it may use any of them.
    """
    out: dict[str, list[str]] = {}
    for host, found in builds.items():
        store = stores.get(host)
        if store is not None and set(store.broken) - going:
            continue
        texts = [] if store is None else [
            json.dumps([dict(release.identity), store.launches.get(digest, {})], default=dict)
            for digest, release in store.releases.items() if digest not in going]
        spare = [key for key, item in found.items()
                 if not any(_named(str(item["path"])) in text for text in texts)]
        if spare:
            out[host] = spare
    return out


def _named(path: str) -> str:
    return "/builds/" + path.rstrip("/").rpartition("/")[2]
