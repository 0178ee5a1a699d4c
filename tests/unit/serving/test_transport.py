"""Sockets where RDMA was planned: read from what the collective library wrote, a start that fails for the host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_fleet import LocalFleet, make_environment
from test_start import HOSTS, Rig

from bringup.agent.modules import nccl_transport
from bringup.agent.processes import proc
from bringup.agent.processes.launch import Place
from bringup.agent.task import Task
from bringup.serving.start import Starting
from bringup.serving.stop import stop_processes

IB = """gpu01:4242:4242 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0
gpu01:4242:4242 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB bond0:198.18.0.11<0>
gpu01:4242:4242 [0] NCCL INFO Using network IB
"""
SOCKETS = """gpu01:4243:4243 [1] NCCL INFO NET/IB : No device found.
gpu01:4243:4243 [1] NCCL INFO NET/Socket : Using [0]bond0:198.18.0.11<0>
gpu01:4243:4243 [1] NCCL INFO Using network Socket
"""
ENV = {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_DEBUG_FILE": "nccl.%h.%p.log"}


def look(root: Path) -> dict[str, Any]:
    return dict(nccl_transport.run(Task({"name": "r1-n1", "file": ENV["NCCL_DEBUG_FILE"]}, root=str(root))))


def test_files_of_this_start_alone_are_read(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "r1-n1")
    proc.make_folder(place.work)
    proc.write_json(place.record, {"started": time.time()})
    for name, text, age in (("nccl.gpu01.1.log", IB, 0), ("nccl.gpu01.2.log", SOCKETS, 0),
                            ("nccl.gpu01.3.log", SOCKETS, 3600), ("other.log", SOCKETS, 0)):
        path = Path(place.work) / name
        path.write_text(text)
        os.utime(path, (time.time() - age, time.time() - age))
    found = look(tmp_path)
    assert found["networks"] == {"IB": 1, "Socket": 1} and found["files"] == 2
    assert found["line"].endswith("[1] NCCL INFO Using network Socket")
    assert found["device"].endswith("NET/Socket : Using [0]bond0:198.18.0.11<0>")
    (Path(place.work) / "nccl.gpu01.2.log").write_text("[1] NCCL INFO NET/IB : No device found.\n")
    assert look(tmp_path)["networks"] == {"IB": 1}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_environment(tmp_path_factory.mktemp("env") / "lab"))


@pytest.fixture
def rig(tmp_path: Path, engine: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, engine)
    yield made
    stop_processes(made.fleet, {host: f"r1-{host}" for host in HOSTS}, "detached", 1.0)


def written(fleet: LocalFleet, host: str, text: str) -> None:
    """What the library of a rank will have written, dated after the start."""
    place = Place(str(fleet.paths(host).root), f"r1-{host}")
    proc.make_folder(place.work)
    path = Path(place.work) / "nccl.host.7.log"
    path.write_text(text)
    os.utime(path, (time.time() + 3600, time.time() + 3600))


@pytest.mark.parametrize(("text", "ready"), [(IB, True), (SOCKETS, False)])
def test_a_replica_on_sockets_does_not_count_as_started(rig: Rig, text: str, ready: bool) -> None:
    launches = rig.launches()
    for host in HOSTS:
        launches[host]["env"].update(ENV)
        written(rig.fleet, host, text if host == "n2" else IB)
    outcome = Starting(rig.fleet, rig.replica(launches)).start()
    assert outcome.ready is ready, outcome.cause
    if not ready:
        assert outcome.cause is not None
        assert outcome.cause.key == "transport" and outcome.cause.host == "n2" and outcome.cause.lies_in == "host"
        assert outcome.cause.what == "1 process took sockets, RDMA was planned over mlx5_0:1,mlx5_1:1"
        assert "Using network Socket" in outcome.cause.evidence and "rdma" in outcome.cause.mend


def test_where_no_rdma_was_planned_nothing_is_asked(rig: Rig) -> None:
    written(rig.fleet, "n1", SOCKETS)
    assert Starting(rig.fleet, rig.replica()).start().ready
    assert "nccl_transport" not in {module for _, module, _ in rig.fleet.calls}
