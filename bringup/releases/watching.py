"""Watchers on the nodes of a replica: set up once it serves, for the time in which no run looks."""

from __future__ import annotations

import hashlib
import io
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from bringup.agent import bootstrap
from bringup.agent.modules.release_store import canonical
from bringup.base.errors import StepError
from bringup.base.events import Note
from bringup.base.results import Result
from bringup.base.text import fold_hosts, plural
from bringup.releases.chosen import Chosen
from bringup.releases.planned import key_of, looked_at
from bringup.run.actions import Blob, Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan import POOL_ROLES
from bringup.serving.planning.deployment import read_deployment
from bringup.serving.planning.watch import WatchWishes
from bringup.serving.probing import where
from bringup.serving.start import Deadlines

_MAIN = "import sys\nfrom bringup.agent.watcher.main import main\nsys.exit(main(sys.argv[1:]))\n"
TOKEN_EVERY = 30.0
"""Seconds between the tokens that the head's watcher asks for."""


@lru_cache(maxsize=1)
def watcher_program() -> Blob:
    """The program that hosts run, packed: the same bytes for the same files."""
    texts = {"__main__.py": _MAIN, **{name.replace(".", "/") + ".py": "" for name in bootstrap.PACKAGES}}
    for name in sorted({*bootstrap.CORE, *bootstrap.needed_by("replica_watch")}):
        texts[f"bringup/agent/{name.replace('.', '/')}.py"] = bootstrap.source(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    data = packed.getvalue()
    return Blob(hashlib.sha256(data).hexdigest(), len(data), data)


def wishes_of(fleet: Fleet, host: str) -> WatchWishes | None:
    """What the inventory says of watchers, None where there shall be none."""
    value = fleet.variables(host).get("deployment")
    return read_deployment(value).watcher if value else None


def set_watchers(fleet: Fleet, chosen: Chosen) -> None:
    """Put a watcher on every node of every replica of the release that serves, in place of earlier ones; take away
    those that nobody asks for any more. What is as it should be is left alone. Raises StepError when one does not
    start.
    """
    plan, _ = looked_at(fleet)
    order = [replica.name for replica in plan.replicas]
    addresses: Mapping[str, str] = plan.facts.get("addresses", {})
    watched: set[str] = set()
    for layer in _layers(chosen.launches):
        watched |= _set_layer(fleet, chosen, layer, order, addresses)
    if watched:
        fleet.emit(Note(f"watched on {plural(len(watched), 'node')}: a replica that breaks starts again by itself"))


Launches = Mapping[str, Mapping[str, Any]]


def _layers(launches: Mapping[str, Launches]) -> list[dict[str, Launches]]:
    """The replicas in groups that share no host: one group, but for the parts of replicas with pools."""
    layers: list[dict[str, Launches]] = []
    for name, hosts in launches.items():
        free = next((layer for layer in layers if not any(set(hosts) & set(other) for other in layer.values())), None)
        if free is None:
            layers.append(free := {})
        free[name] = hosts
    return layers


def _set_layer(fleet: Fleet, chosen: Chosen, replicas: Mapping[str, Launches], order: Sequence[str],
               addresses: Mapping[str, str]) -> set[str]:
    """The hosts where a watcher was set up."""
    names = {host: str(document["name"]) for launches in replicas.values() for host, document in launches.items()}
    there = calls.call_all(fleet, "replica_watch", {
        host: {"action": "status", "name": name} for host, name in names.items()}, changes=False)
    sent: dict[str, dict[str, Any]] = {}
    for name, launches in replicas.items():
        wishes = wishes_of(fleet, chosen.replicas[name][0])
        if wishes is None:
            sent.update({host: {"action": "remove", "name": names[host]} for host in launches
                         if there[host].data.get("there")})
            continue
        port = wishes.port + (order.index(name) if name in order else 0)
        made = _of_replica(fleet, chosen, launches, wishes, port, addresses)
        if not _as_wanted(made, there):
            sent.update(made)
    return _send(fleet, sent) if sent else set()


def _as_wanted(made: Mapping[str, Mapping[str, Any]], there: Mapping[str, Result]) -> bool:
    """Whether all nodes have living watchers of one setting, with this very spec, and none that gave up."""
    return len({there[host].data.get("generation") for host in made}) == 1 and all(
        there[host].data.get("alive") and there[host].data.get("wanted") == args["spec"]["wanted"]
        and (there[host].data.get("report") or {}).get("phase") in (None, "watching")
        for host, args in made.items())


def _send(fleet: Fleet, sent: Mapping[str, Mapping[str, Any]]) -> set[str]:
    program = watcher_program()
    results = fleet.call({host: calls.call_of(
        fleet, host, "replica_watch", args, changes=True, blobs=(program,) if args["action"] == "set" else ())
        for host, args in sent.items()})
    bad = calls.broken(results)
    if bad:
        result = next(iter(bad.values()))
        raise StepError(f"the replica serves, its watcher does not start: {calls.first_line(result)}",
                        host=fold_hosts(list(bad)), found=str(result.data.get("stderr") or result.found or "") or None,
                        next=str(result.next or "invoke status"))
    return {host for host, args in sent.items() if args["action"] == "set"}


def _of_replica(fleet: Fleet, chosen: Chosen, launches: Mapping[str, Mapping[str, Any]], wishes: WatchWishes,
                port: int, addresses: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    generation, key = secrets.token_hex(8), secrets.token_hex(32)
    nodes = {host: {"node": host, "node_rank": int(document["node_rank"]), "address": addresses.get(host, host),
                    "port": port} for host, document in launches.items()}
    deadlines = Deadlines(**chosen.deadlines)
    out = {}
    for host, document in launches.items():
        spec: dict[str, Any] = {
            "replica": document["replica"], **nodes[host], "release": chosen.digest, "generation": generation,
            "key": key, "peers": [peer for other, peer in nodes.items() if other != host],
            "restarts": wishes.restarts, "silence": wishes.silence, "grace": deadlines.grace,
            "start_limit": deadlines.rendezvous + deadlines.load, "token_every": TOKEN_EVERY,
            "on_alert": wishes.on_alert, **calls.account_args(fleet, host)}
        if spec["node_rank"] == 0:
            address, http = where(document)
            spec["endpoint"] = {"address": address, "port": http, "model": str(document.get("served_name") or ""),
                                "key_variable": chosen.key_variable, "token": document.get("role") not in POOL_ROLES}
        manager = calls.manager_for(document, chosen.manager)
        secret = key_of(fleet, chosen.key_variable) if manager in calls.CONTAINERS else None
        if secret is not None:
            # a container's secrets leave no file; without them its restart would serve whoever asks
            spec["secrets"] = {secret[0]: secret[1]}
        # what may differ between two settings of the same watcher is left out
        lasting = {key: value for key, value in spec.items() if key not in ("generation", "key")}
        spec["wanted"] = hashlib.sha256(canonical([lasting, manager, watcher_program().digest])).hexdigest()
        out[host] = {"action": "set", "name": document["name"], "spec": spec, "manager": manager,
                     "program": watcher_program().digest}
    return out
