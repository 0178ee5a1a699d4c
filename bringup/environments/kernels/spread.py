"""From the hosts that hold a build to their likes: over the cluster network, else through the controller."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, size
from bringup.environments.kernels.planning import Need, become, runner
from bringup.run.actions import Blob, Call, Fleet

FAN = 4
"""Transfers that one host serves at a time; who has received serves in the next round."""
_SLICE = 4 << 20
_TRANSFER = 1800.0


@dataclass(frozen=True)
class _Offer:
    source: Need
    address: str
    port: int
    pid: int
    started: str
    size: int
    sha256: str
    keys: tuple[str, ...]


def cluster_address(fleet: Fleet, host: str) -> str:
    """Where other hosts reach this one: `cluster_address`, else what the inventory dials, else its name."""
    variables = fleet.variables(host)
    return str(variables.get("cluster_address") or variables.get("ansible_host") or host)


def spread(fleet: Fleet, holding: Sequence[Need], missing: Sequence[Need], tell: Callable[[str], None]
           ) -> dict[str, Result]:
    """Bring a build to the hosts that miss it, in rounds that double. A result for each of `missing`, with `build`
    (what lies there now) and `from`."""
    holders, waiting = list(holding), list(missing)
    out: dict[str, Result] = {}
    while waiting:
        turn = waiting[:FAN * len(holders)]
        waiting = waiting[len(turn):]
        tell(f"spreading to {fold_hosts([need.host for need in turn])}")
        results = _round(fleet, holders, turn)
        apart = [need for need in turn if results[need.host].data.get("peer_unreachable")]
        if apart:
            tell(f"through the controller to {fold_hosts([need.host for need in apart])}")
            results.update(_through_here(fleet, holders[0], apart))
        for need in turn:
            out[need.host] = results[need.host]
            if not results[need.host].bad:
                holders.append(need)
    return out


def _round(fleet: Fleet, holders: Sequence[Need], turn: Sequence[Need]) -> dict[str, Result]:
    """Each holder offers with a key for each taker; the takers fetch side by side; the offers end."""
    shares = {holder.host: [need for number, need in enumerate(turn) if number % len(holders) == place]
              for place, holder in enumerate(holders)}
    by_host = {holder.host: holder for holder in holders}
    keys = {need.host: secrets.token_hex(32) for need in turn}
    calls = {host: Call("kernel_share", {
        "action": "offer", "build": by_host[host].item(full=False), "address": cluster_address(fleet, host),
        "keys": [keys[need.host] for need in needs], "seconds": _TRANSFER}, become=become(fleet.variables(host)),
        timeout=600.0, no_log=False) for host, needs in shares.items() if needs}
    offers: dict[str, _Offer] = {}
    out: dict[str, Result] = {}
    for host, result in fleet.call(calls).items():
        for need in shares[host]:
            if result.bad:
                out[need.host] = replace(result, host=need.host, data={**result.data, "peer_unreachable": True})
                continue
            data = result.data
            offers[need.host] = _Offer(by_host[host], cluster_address(fleet, host), int(data["port"]),
                                       int(data["pid"]), str(data["started"]), int(data["size"]),
                                       str(data["sha256"]), tuple(keys[need.host] for need in shares[host]))
    takes = {need.host: _take(fleet, need, {
        "address": offers[need.host].address, "port": offers[need.host].port, "key": keys[need.host],
        "size": offers[need.host].size, "sha256": offers[need.host].sha256, "source": offers[need.host].source.host},
        ()) for need in turn if need.host in offers}
    out.update(fleet.call(takes))
    ends = {offer.source.host: Call("kernel_share", {"action": "end", "pid": offer.pid, "started": offer.started},
                                    become=become(fleet.variables(offer.source.host)), timeout=60.0, changes=False)
            for offer in offers.values()}
    fleet.call(ends)
    return out


def _take(fleet: Fleet, need: Need, more: Mapping[str, Any], blobs: Sequence[Blob]) -> Call:
    every = [runner(), *need.files().values(), *blobs]
    return Call("kernel_share", {"action": "take", "build": need.item(full=True), **more},
                become=become(fleet.variables(need.host)), timeout=_TRANSFER + need.recipe.proof.seconds,
                blobs=tuple({item.digest: item for item in every}.values()))


def _through_here(fleet: Fleet, holder: Need, needs: Sequence[Need]) -> dict[str, Result]:
    """Fetch the packed build to the controller and send it on, as files go."""
    folder = fleet.project.state / "cache" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f".{holder.digest[:20]}.{os.getpid()}"
    try:
        found = _fetched(fleet, holder, staged)
        if isinstance(found, Result):
            return {need.host: replace(found, host=need.host) for need in needs}
        more = {"blob": found.digest, "source": f"{holder.host} through here"}
        return fleet.call({need.host: _take(fleet, need, more, (found,)) for need in needs})
    finally:
        staged.unlink(missing_ok=True)


def _fetched(fleet: Fleet, holder: Need, staged: Path) -> Blob | Result:
    digest, offset = hashlib.sha256(), 0
    with open(staged, "wb") as file:
        while True:
            result = fleet.call({holder.host: Call("kernel_share", {
                "action": "slice", "build": holder.item(full=False), "offset": offset, "length": _SLICE},
                become=become(fleet.variables(holder.host)), timeout=600.0)})[holder.host]
            if result.bad:
                return result
            data = base64.b64decode(str(result.data["content"]))
            file.write(data)
            digest.update(data)
            offset += len(data)
            if offset >= int(result.data["size"]) or not data:
                break
    if digest.hexdigest() != result.data["sha256"]:
        return Result(holder.host, "build_kernels", Status.FAILED, module="kernel_share",
                      message=f"the build changed on {holder.host} while it was fetched ({size(offset)})")
    return Blob(digest.hexdigest(), offset, staged)
