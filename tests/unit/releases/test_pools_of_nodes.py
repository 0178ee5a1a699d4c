"""Two pools of two nodes each, started for real with the lab's engines: order, ranks, a token through the router."""

from __future__ import annotations

import importlib.util
import json
import random
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.lab.processes import end, marked
from bringup.releases import pooled
from bringup.serving.plan_digest import launches, templates
from bringup.serving.planner import make_plan
from bringup.serving.planning.variables import rendered
from bringup.serving.start import Deadlines, ReplicaStart
from bringup.serving.stop import stop_processes

HOSTS = ("n1", "n2", "n3", "n4")


def local() -> Any:
    name = "local_fleet"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "serving" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Pools:
    """A plan of four hosts that are addresses of this machine, as launch documents, on a fleet that runs them here."""

    def __init__(self, base: Path, **more: Any) -> None:
        fleets = local()
        net = f"127.{random.randint(80, 250)}.{random.randint(1, 250)}"
        self.addresses = {host: f"{net}.{number}" for number, host in enumerate(HOSTS, 1)}
        self.engine = fleets.make_environment(base / "lab")
        model = fleets.make_model(base / "model")
        wanted = {"recipe": "zai-org/GLM-5.1-FP8", "hardware": "gb200", "strategy": "pd_cluster", "environment": "e",
                  "model_path": str(model), "served_name": "glm", "env": {"LAB_ENGINE_LOAD_SECONDS": "0.3"}, **more}
        (base / "site.yml").write_text(json.dumps({"all": {"vars": {"deployment": wanted}, "hosts": {
            host: {"cluster_address": address} for host, address in self.addresses.items()}}}))
        inventory = load_inventory([str(base / "site.yml")], Project(base))
        self.plan = make_plan(inventory, Project(base), rendered(inventory), lab=True)
        self.fleet = fleets.LocalFleet(base, HOSTS)
        self.documents = {part.name: self._documents(part) for part in self.plan.replicas}
        limits = Deadlines(rendezvous=90, load=90, token=60, grace=2)
        self.parts = [ReplicaStart(name, documents, "detached", limits) for name, documents in self.documents.items()]

    def _documents(self, part: Any) -> dict[str, dict[str, Any]]:
        roots = {host: str(self.fleet.paths(host).root) for host in HOSTS}
        shapes, values = templates(part, roots, dict.fromkeys(HOSTS, str(self.engine)))
        common = {"world_size": part.world_size, "served_name": "glm", "model_path": self.plan.model_path}
        return launches(part, shapes, values, "a" * 64, common)

    def stop(self) -> None:
        for part in reversed(self.parts):
            stop_processes(self.fleet, {host: str(d["name"]) for host, d in part.launches.items()}, "detached", 1.0)


def ask(endpoint: str) -> str:
    body = json.dumps({"model": "glm", "messages": [{"role": "user", "content": "ping"}]}).encode()
    request = urllib.request.Request(f"{endpoint}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as got:
        return str(json.load(got)["choices"][0]["message"]["content"])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Pools]]:
    kept: list[Pools] = []
    yield kept
    for pools in kept:
        try:
            pools.stop()
        finally:
            left = end(marked(pools.fleet.base / "hosts"))
        assert left == []


def test_both_pools_then_the_router_and_a_token_through_it(made: list[Pools], tmp_path: Path) -> None:
    made.append(pools := Pools(tmp_path))
    assert pools.plan.facts["nodes"] == 4
    begun, failed = pooled.start(pools.fleet, pools.parts)
    assert failed is None, failed
    started = [host for host, module, action in pools.fleet.calls if (module, action) == ("engine_process", "start")]
    assert started[:4] == ["n1", "n2", "n3", "n4"] and started[4:] == ["n1"], "pools, each head first, then the router"
    ranks = {one.replica.name: {host: len(ranks) for host, ranks in one.replica.wanted.items()} for one in begun}
    assert ranks == {"r1-prefill": {"n1": 4, "n2": 4}, "r1-decode": {"n3": 4, "n4": 4}, "r1-router": {"n1": 0}}
    assert "lab engine" in ask(pools.plan.replicas[-1].endpoint)
    with socket.socket() as taken, pytest.raises(OSError):
        taken.bind((pools.addresses["n3"], 8002))


def test_a_node_of_a_pool_that_fails_is_named(made: list[Pools], tmp_path: Path) -> None:
    fault = json.dumps({"name": "crash_loading", "role": "decode", "node_rank": 1})
    made.append(pools := Pools(tmp_path, env={"LAB_ENGINE_LOAD_SECONDS": "0.3", "LAB_ENGINE_FAULT": fault}))
    begun, failed = pooled.start(pools.fleet, pools.parts)
    assert failed is not None and failed[0].name == "r1-decode"
    assert failed[1].cause is not None and failed[1].cause.host == "n4"
    assert "r1-router" not in [one.replica.name for one in begun]
