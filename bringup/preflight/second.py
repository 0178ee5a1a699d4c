"""The second look of the deep tier: counters of the cards after the load, and pings between the chips of NPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from bringup.preflight.answers import Answer, Answers
from bringup.preflight.between import RDMA
from bringup.preflight.checks.hccn import is_ub
from bringup.preflight.facts import Facts
from bringup.preflight.parsers import ascend, npu
from bringup.preflight.probes import BY_ID
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need
from bringup.preflight.unread import Unread
from bringup.run.actions import Call, Fleet

COUNTERS, PING = "rdma.counters_after", "hccn.ping"
PARTNERS = 2
"""Other hosts of its replica that each host's chips ping: its next ones, round the replica."""
_SCRIPT = """command -v hccn_tool >/dev/null 2>&1 || exit 127
while [ $# -ge 4 ]; do echo "== $1 $2 $3 $4"; hccn_tool -i "$1" -"$4" -g address "$3" 2>&1; shift 4; done
echo '== end'"""

Target = tuple[int, str, str, str]
"""A chip, the partner, the address of its chip, and hccn_tool's word for the ping."""


def look_again(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers],
               wanted: Collection[str] | None = None) -> dict[str, Answers]:
    """The hosts with `rdma.counters_after` and `hccn.ping`: in one call, or with the reason why there is none.

    `wanted` are the ids of the probes that are asked (both).
    """
    views = {host: View(Facts(found), needs[host]) for host, found in answers.items()}
    out = dict(answers)
    asked: dict[str, list[dict[str, Any]]] = {}
    for host, view in views.items():
        for probe, request in ((COUNTERS, _counters(view)), (PING, _pings(view, views))):
            if wanted is not None and probe not in wanted:
                continue
            if isinstance(request, str):
                out[host] = _with(out[host], Answer(probe, rc=None, skipped=request))
            else:
                asked.setdefault(host, []).append(request)
    calls = {host: Call("probe", {"probes": requests}, become="root" if _root(views[host]) else None,
                        timeout=sum(float(one["deadline"]) for one in requests) + 30, check=False, changes=False)
             for host, requests in asked.items()}
    for host, result in (fleet.call(calls) if calls else {}).items():
        if result.bad or "answers" not in result.data:
            why = f"the second look failed: {result.message or result.status.value}"
            found = [Answer(str(one["id"]), rc=1, stderr=why) for one in asked[host]]
        else:
            found = [Answer.from_host(raw) for raw in result.data["answers"]]
        for answer in found:
            out[host] = _with(out[host], answer)
    return out


def _root(view: View) -> bool:
    return view.need.privileged and not view.facts.answers.notes


def _with(answers: Answers, answer: Answer) -> Answers:
    return replace(answers, items={**answers.items, answer.probe: answer})


def _counters(view: View) -> dict[str, Any] | str:
    """The request for the counters; a text says why they are not read again."""
    measured = view.facts.answers.get(RDMA)
    if measured.missing or measured.skipped:
        return f"nothing was sent over RDMA: {measured.skipped or 'it was not measured'}"
    return {**BY_ID["rdma.counters"].request({}), "id": COUNTERS}


def _pings(view: View, views: Mapping[str, View]) -> dict[str, Any] | str:
    if view.platform != "ascend":
        return "no NPUs here"
    if not view.need.multi_node:
        return "no replica spans hosts"
    if is_ub(view):
        return "a 950 is pinged over UB: hccn_tool -t -ub_ping"
    goals = targets(view, views)
    if not goals:
        return "no chip of the other hosts has an address"
    words = [str(part) for goal in goals for part in goal]
    return {"id": PING, "argv": ["sh", "-c", _SCRIPT, "ping", *words], "deadline": 20.0 + 4.0 * len(goals)}


def targets(view: View, views: Mapping[str, View]) -> list[Target]:
    """Whom each chip of a host pings: the chip of its own number on the next hosts of the replica, by every network."""
    nodes = list(view.need.nodes)
    place = nodes.index(view.host)
    mates = [nodes[(place + step) % len(nodes)] for step in range(1, min(PARTNERS, len(nodes) - 1) + 1)]
    own = _addresses(view)
    return [(chip, mate, address, word) for mate in mates if mate in views
            for word, there in _addresses(views[mate]).items()
            for chip, address in sorted(there.items()) if chip in own.get(word, {})]


def _addresses(view: View) -> dict[str, dict[int, str]]:
    """The addresses of a host's chips by hccn_tool's word for the ping of that network; those that cannot be read are
    the business of their own checks."""
    out: dict[str, dict[int, str]] = {}
    try:
        out["ping"] = {chip: address for chip, text in view.facts.hccn("ip").items()
                       if (address := ascend.address(text))}
    except Unread:
        out["ping"] = {}
    if view.profile is not None and view.profile.name == "ascend-a3":
        try:
            out["hccs_ping"] = {chip: one.address for chip, text in view.facts.hccn("vnic").items()
                                if (one := npu.plane(text)).address}
        except Unread:
            out["hccs_ping"] = {}
    return out
