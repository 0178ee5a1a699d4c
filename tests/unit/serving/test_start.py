"""Starts of a whole replica with the lab engine: order, ranks, readiness, and failures named by their first cause."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bringup.serving.start import Deadlines, Outcome, ReplicaStart, Starting
from bringup.serving.stop import stop_processes

spec = importlib.util.spec_from_file_location("local_fleet", Path(__file__).parent / "local_fleet.py")
assert spec is not None and spec.loader is not None
local = sys.modules.setdefault("local_fleet", importlib.util.module_from_spec(spec))
spec.loader.exec_module(local)

HOSTS = ("n1", "n2")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(local.make_environment(tmp_path_factory.mktemp("env") / "lab"))


class Rig:
    """Two hosts, a replica of four ranks, faults by the engine's own variable."""

    def __init__(self, base: Path, engine: Path) -> None:
        self.fleet = local.LocalFleet(base, HOSTS)
        self.engine = engine
        self.model = local.make_model(base / "model")
        self.port, self.meeting = free_port(), free_port()
        self.manager = "detached"

    def launches(self, fault: str = "", **more: Any) -> dict[str, dict[str, Any]]:
        out = {}
        for rank, host in enumerate(HOSTS):
            argv = [str(self.engine / "bin/vllm"), "serve", str(self.model), "--served-model-name", "glm",
                    "--tensor-parallel-size", "4", "--nnodes", "2", "--node-rank", str(rank), "--host", "127.0.0.1",
                    "--master-addr", "127.0.0.1", "--master-port", str(self.meeting), "--distributed-timeout-seconds",
                    "20"]
            argv += ["--port", str(self.port)] if rank == 0 else ["--headless"]
            env = {"LAB_ENGINE_LOAD_SECONDS": "0.4", **({"LAB_ENGINE_FAULT": fault} if fault else {})}
            out[host] = {
                "name": f"r1-{host}", "replica": "r1", "node": host, "node_rank": rank,
                "ranks": [2 * rank, 2 * rank + 1], "role": "head" if rank == 0 else "worker", "world_size": 4,
                "release": "a" * 64, "argv": argv, "env": env,
                "ports": [self.port, self.meeting] if rank == 0 else [], "addresses": ["127.0.0.1"],
                "http_port": self.port if rank == 0 else None, "served_name": "glm", "model_path": str(self.model),
                "endpoint": f"http://127.0.0.1:{self.port}/v1" if rank == 0 else None, "values": {}, **more}
        return out

    def replica(self, launches: dict[str, dict[str, Any]] | None = None, **deadlines: float) -> ReplicaStart:
        limits = {"rendezvous": 20.0, "load": 20.0, "token": 10.0, "grace": 2.0, **deadlines}
        return ReplicaStart("r1", launches or self.launches(), self.manager, Deadlines(**limits))

    def start(self, fault: str = "", **deadlines: float) -> Outcome:
        return Starting(self.fleet, self.replica(self.launches(fault), **deadlines)).start()

    def processes(self) -> dict[str, Any]:
        from bringup.serving.engine_calls import call_all

        results = call_all(self.fleet, "engine_process", {h: {"action": "status"} for h in HOSTS}, changes=False)
        return {h: r.data["processes"].get(f"r1-{h}") for h, r in results.items()}


@pytest.fixture
def rig(tmp_path: Path, engine: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, engine)
    yield made
    stop_processes(made.fleet, {host: f"r1-{host}" for host in HOSTS}, "detached", 1.0)


def test_head_then_workers_then_every_rank_and_a_token(rig: Rig) -> None:
    outcome = rig.start()
    assert outcome.ready, outcome.cause
    assert outcome.ranks == 4
    assert outcome.probe is not None and outcome.probe.serves
    started = [host for host, module, action in rig.fleet.calls if module == "engine_process" and action == "start"]
    assert started == ["n1", "n2"]
    seen = rig.processes()
    assert [seen[h]["note"]["ranks"] for h in HOSTS] == [[0, 1], [2, 3]]
    assert len(seen["n2"]["note"]["workers"]) == 2


@pytest.mark.parametrize(("fault", "key", "host"), [
    ("crash_loading:node_rank=1", "assertion", "n2"),
    ("out_of_memory:node_rank=1", "memory.device", "n2"),
    ("out_of_memory:node_rank=0", "memory.device", "n1"),
    ("wrong_rank:node_rank=1", None, "n2"),
])
def test_a_failure_is_named_on_the_node_where_it_began(rig: Rig, fault: str, key: str | None, host: str) -> None:
    outcome = rig.start(fault)
    assert not outcome.ready and outcome.cause is not None
    assert outcome.cause.host == host, outcome.cause
    if key:
        assert outcome.cause.key == key, outcome.cause
    assert outcome.seconds < 15


def test_a_node_that_never_joins_is_named_at_the_rendezvous_deadline(rig: Rig) -> None:
    outcome = rig.start("never_meet:node_rank=1", rendezvous=2.5)
    assert outcome.cause is not None
    assert outcome.cause.key == "rendezvous"
    assert "n2: ranks 2, 3 never joined" in outcome.cause.what
    assert 2.4 < outcome.seconds < 8


def test_a_load_without_progress_ends_at_its_deadline(rig: Rig) -> None:
    outcome = rig.start("hang_loading:node_rank=1", load=2.0)
    assert outcome.cause is not None and outcome.cause.key == "stall", outcome.cause
    assert outcome.cause.lies_in == "unknown"


def test_a_first_request_that_fails_behind_a_green_health_is_a_failed_start(rig: Rig) -> None:
    outcome = rig.start("first_request_fails")
    assert not outcome.ready and outcome.cause is not None
    assert "first request" in outcome.cause.what or outcome.cause.evidence


def test_a_taken_port_is_the_cause_with_its_holder(rig: Rig) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", rig.port))
        holder.listen()
        outcome = rig.start()
    assert outcome.cause is not None
    assert (outcome.cause.key, outcome.cause.host) == ("port", "n1")
    assert f"port {rig.port} is taken by process {os.getpid()}" in outcome.cause.what


def test_a_lost_host_ends_the_start_by_name(rig: Rig) -> None:
    starting = Starting(rig.fleet, rig.replica())
    original = starting._ask

    def cut() -> Any:
        rig.fleet.dead.add("n2")
        return original()

    starting._ask = cut  # type: ignore[method-assign]
    outcome = starting.start()
    rig.fleet.dead.clear()
    assert outcome.cause is not None and outcome.cause.key == "lost"
    assert outcome.gone == ["n2"]


def test_a_start_left_by_a_run_that_ended_is_joined(rig: Rig) -> None:
    first = Starting(rig.fleet, rig.replica())
    for host in HOSTS:
        assert first._start_one(host) is None
    pids = {h: p["pid"] for h, p in rig.processes().items()}
    outcome = Starting(rig.fleet, rig.replica()).watch()
    assert outcome.ready and outcome.ranks == 4
    assert {h: p["pid"] for h, p in rig.processes().items()} == pids


def test_a_worker_that_dies_later_shows_although_health_is_green(rig: Rig) -> None:
    outcome = rig.start()
    assert outcome.ready, outcome.cause
    worker = rig.processes()["n2"]
    rank = next(p for p in worker["note"]["workers"] if p["pid"] != worker["pid"])
    os.kill(rank["pid"], signal.SIGKILL)
    end = time.time() + 5
    while time.time() < end:
        seen = rig.processes()["n2"]
        if seen["missing"] or seen["state"] != "running":
            break
        time.sleep(0.1)
    assert seen["missing"] or seen["state"] == "exited"


def test_stop_ends_an_engine_that_ignores_term_while_it_loads(rig: Rig) -> None:
    first = Starting(rig.fleet, rig.replica(rig.launches("ignore_term")))
    for host in HOSTS:
        first._start_one(host)
    time.sleep(0.3)
    pids = [p["pid"] for seen in rig.processes().values() for p in seen["pids"]]
    assert len(pids) >= 2
    stop_processes(rig.fleet, {host: f"r1-{host}" for host in HOSTS}, "detached", 0.5)
    assert all(not seen["pids"] for seen in rig.processes().values())
