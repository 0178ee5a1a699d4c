"""What a replica has to do and what it holds, for status: requests running and waiting, device memory of each node.

Two looks beside the survey, of processes that run alone; what is not told stays unknown and is no finding, but for a
tool of the devices that hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bringup.base.text import fold_hosts
from bringup.base.verdicts import Finding, Verdict
from bringup.releases.survey import Node, Survey
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.draining import queue_of
from bringup.serving.plan import ROUTER_ROLE
from bringup.serving.probing import where
from bringup.serving.vitals import Vitals, held

NONE = "-"


@dataclass(frozen=True)
class Glance:
    """Of one process: `memory` as `91.2 GB each` or `1.2 GB host`, `queue` as `3 run, 0 wait`; `-` where not told.
    `silent` says that the tool of the devices did not answer in time."""

    memory: str = NONE
    queue: str = NONE
    silent: bool = False


def glances(fleet: Fleet, survey: Survey, key: str | None) -> dict[str, Glance]:
    """Process name -> what was seen of it. Raises nothing for a host that does not answer."""
    found: dict[str, Glance] = {}
    waiting = [node for view in survey.replicas.values() for node in view.nodes.values()
               if node.state == "running" and node.role != ROUTER_ROLE]
    while waiting:
        turn: dict[str, Node] = {}
        for node in waiting:
            turn.setdefault(node.host, node)  # a host may hold several parts of a replica
        waiting = [node for node in waiting if turn[node.host] is not node]
        queues = _queues(fleet, survey, turn, key)
        results = calls.call_all(fleet, "engine_vitals", {host: {"name": node.name} for host, node in turn.items()},
                                 changes=False, timeout=30)
        for host, node in turn.items():
            result = results[host]
            vitals = None if result.bad else Vitals.read(result.data, node.ranks, 1)
            found[node.name] = Glance(held(vitals) if vitals else NONE, queues.get(host, NONE),
                                      bool(vitals and vitals.silent))
    return found


def _queues(fleet: Fleet, survey: Survey, nodes: Mapping[str, Node], key: str | None) -> dict[str, str]:
    """Host -> its queue, of processes that serve HTTP and tell it."""
    args = {}
    for host, node in nodes.items():
        store = survey.stores.get(host)
        document = (store.launches.get(node.release or "", {}) if store else {}).get(node.name)
        if document and document.get("http_port"):
            address, port = where(document)
            args[host] = {"host": address, "port": port, "api_key": key, "timeout": 3.0,
                          "requests": [{"id": "queue", "method": "GET", "path": "/metrics"}]}
    out: dict[str, str] = {}
    if not args:
        return out
    for host, result in calls.call_all(fleet, "http_exchange", args, changes=False, timeout=20).items():
        if result.bad:
            continue
        [answer] = result.data["responses"]
        told = queue_of(str(answer.get("body") or "")) if answer.get("status") == 200 else None
        if told is not None:
            out[host] = f"{told[0]} run, {told[1]} wait"
    return out


def silent(survey: Survey, seen: Mapping[str, Glance]) -> list[Finding]:
    """Hosts whose devices do not tell their memory: the tool hangs, which a device that fell off the bus does."""
    hosts = list(dict.fromkeys(node.host for view in survey.replicas.values() for node in view.nodes.values()
                               if seen.get(node.name, Glance()).silent))
    return [Finding("device.silent", fold_hosts(hosts), Verdict.WARN,
                    "the tool of the devices does not answer within 4 s", mend="invoke preflight")
            ] if hosts else []
