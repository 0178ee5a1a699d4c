"""From the host that holds a build to its likes, as trees of files go; each proves it before it gets the name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bringup.base.results import Result
from bringup.base.text import fold_hosts, size
from bringup.environments.kernels.planning import Need, become, runner
from bringup.run.actions import Blob, Call, Fleet
from bringup.run.spreading import Spread
from bringup.run.spreading import spread as spread_tree

_PROOF = 600.0
"""Seconds for what a host does around the proof of a build that came."""


def spread(fleet: Fleet, holding: Sequence[Need], missing: Sequence[Need], tell: Callable[[str], None]
           ) -> dict[str, Result]:
    """Bring a build to the hosts that miss it. A result for each of `missing`, with `build` (what lies there now) and
    `from`."""
    holder = holding[0]
    tell(f"spreading to {fold_hosts([need.host for need in missing])}")
    listed = fleet.call({holder.host: Call("tree_transfer", {"action": "list", "path": _place(fleet, holder)},
                                           become=become(fleet.variables(holder.host)), timeout=300.0,
                                           changes=False)})[holder.host]
    if listed.bad:
        return {need.host: replace(listed, host=need.host) for need in missing}
    entries = [entry for entry in listed.data["entries"] if "__pycache__" not in entry["path"].split("/")]

    def told(host: str, state: Mapping[str, Any]) -> None:
        if host != holder.host and not state.get("complete"):
            tell(f"{size(int(state.get('bytes') or 0))} of {size(int(state.get('of') or 0))} on {host}")

    came = spread_tree(fleet, Spread(
        name=f"kernel-{holder.digest[:20]}", source=holder.host, takers=[need.host for need in missing],
        path={holder.host: _place(fleet, holder), **{need.host: _coming(fleet, need) for need in missing}},
        entries=entries), told)
    out = {need.host: came[need.host] for need in missing}
    arrived = [need for need in missing if not out[need.host].bad]
    tell(f"proving on {fold_hosts([need.host for need in arrived])}" if arrived else "not spread")
    out.update(fleet.call({need.host: _take(fleet, need, _way(holder.host, came[need.host])) for need in arrived}))
    return out


def _place(fleet: Fleet, need: Need) -> str:
    return f"{fleet.paths(need.host).root}/builds/{need.digest[:20]}"


def _coming(fleet: Fleet, need: Need) -> str:
    """Where a build is gathered on a host until it is proven there; kernel_share knows it as well."""
    return f"{fleet.paths(need.host).root}/builds/.{need.digest[:20]}.take/out"


def _way(source: str, result: Result) -> str:
    return f"{source} through here" if result.data.get("source") == "the controller" else source


def _take(fleet: Fleet, need: Need, way: str) -> Call:
    blobs: list[Blob] = [runner(), *need.files().values()]
    return Call("kernel_share", {"build": need.item(full=True), "source": way},
                become=become(fleet.variables(need.host)), timeout=_PROOF + need.recipe.proof.seconds,
                blobs=tuple({item.digest: item for item in blobs}.values()))
