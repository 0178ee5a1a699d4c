"""The columns of status that are looked at beside the survey: memory and queue of engines that run."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import engine_vitals
from bringup.cli.status import narrowed
from bringup.releases.glance import Glance, glances, silent
from bringup.releases.history import HostStore
from bringup.releases.survey import Node, ReplicaView, Survey, look, rows
from bringup.serving.draining import queue_of
from bringup.serving.start import Deadlines, ReplicaStart, Starting
from bringup.serving.stop import stop_processes
from bringup.serving.vitals import Vitals, held

SERVING = Path(__file__).parents[1] / "serving"


def module(name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, SERVING / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


rigs = module("test_start")
PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
"""


def test_a_queue_is_the_sum_of_all_engines() -> None:
    assert queue_of(PAGE) == (5, 7)
    assert queue_of("sglang:num_running_reqs 1.0\nsglang:num_queue_reqs 0.0\n") == (1, 0)
    assert queue_of("python_info 1.0\n") is None


@pytest.mark.parametrize(("devices", "text"), [
    ([91_000_000_000] * 8, "91.0 GB each"), ([80_000_000_000, 91_000_000_000], "80.0 GB to 91.0 GB each"),
    ([91_000_000_000], "91.0 GB"), ([None, None], "2.0 MB host"), ([], "-"),
])
def test_what_processes_hold(devices: list[int | None], text: str) -> None:
    found = [{"pid": n, "command": "VLLM::Worker", "cpu": 0, "read": 0, "memory": 1_000_000, "device": device}
             for n, device in enumerate(devices)]
    assert held(Vitals.read({"at": 0, "processes": found}, range(8), 8)) == text


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine = Path(rigs.local.make_environment(tmp_path_factory.mktemp("env") / "lab"))
    made = rigs.Rig(tmp_path_factory.mktemp("hosts"), engine)
    launches = made.launches()
    for document in launches.values():
        document["env"]["LAB_ENGINE_FAULT"] = "slow:seconds=4"
    limits = Deadlines(rendezvous=60, load=60, token=60, grace=2)
    assert Starting(made.fleet, ReplicaStart("r1", launches, "detached", limits)).start().ready
    made.documents = launches
    yield made
    stop_processes(made.fleet, {host: f"r1-{host}" for host in rigs.HOSTS}, "detached", 1.0)


def surveyed(rig: Any) -> Survey:
    """What a look finds, with the launch documents as the stores of a provision have them."""
    survey = look(rig.fleet, {"r1": rigs.HOSTS}, "detached", ask=False)
    stores = {host: HostStore(None, {}, {}, {document["release"]: {document["name"]: document}}, [])
              for host, document in rig.documents.items()}
    return Survey(survey.replicas, survey.history, stores)


def test_engines_that_run_are_looked_at(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = surveyed(rig)
    idle = glances(rig.fleet, survey, None)
    assert {name: glance.queue for name, glance in idle.items()} == {"r1-n1": "0 run, 0 wait", "r1-n2": "-"}
    assert all(glance.memory.endswith(" host") for glance in idle.values())
    request = urllib.request.Request(f"http://127.0.0.1:{rig.port}/v1/chat/completions", method="POST", data=(
        b'{"model": "glm", "messages": [{"role": "user", "content": "ping"}]}'),
        headers={"Content-Type": "application/json"})
    asked = threading.Thread(target=lambda: urllib.request.urlopen(request, timeout=60).read(), daemon=True)
    asked.start()
    end = time.monotonic() + 30
    while (busy := glances(rig.fleet, survey, None)["r1-n1"].queue) != "1 run, 0 wait" and time.monotonic() < end:
        time.sleep(0.05)
    assert busy == "1 run, 0 wait"
    asked.join(60)
    monkeypatch.setattr(engine_vitals, "device_memory", lambda pids: ({}, "silent"))
    seen = glances(rig.fleet, survey, None)
    [finding] = silent(survey, seen)
    assert finding.subject == "n[1-2]" and not finding.blocks and "does not answer" in finding.summary
    assert silent(survey, idle) == []


def test_a_host_that_does_not_answer_has_no_figures(rig: Any) -> None:
    survey = surveyed(rig)
    rig.fleet.dead.add("n1")
    try:
        assert glances(rig.fleet, survey, None)["r1-n1"] == Glance()
    finally:
        rig.fleet.dead.clear()


def test_the_table_keeps_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {f"gpu{n:02d}": Node(f"gpu{n:02d}", f"r1-gpu{n:02d}", "running", "a" * 64, 3941022, 86400.0 * 3,
                                 tuple(range(8)), True) for n in (1, 2)}
    survey = Survey({"r1": ReplicaView("r1", nodes)}, look_history(), {})
    table = rows(survey, dict.fromkeys(("r1-gpu01", "r1-gpu02"), ("91.2 GB each", "12 run, 0 wait")))
    for width, told, gone in ((160, "role pid ranks memory queue", ""), (80, "memory queue", "role")):
        monkeypatch.setenv("COLUMNS", str(width))
        names = list(narrowed(table)[0])
        assert set(told.split()) <= set(names) and not set(gone.split()) & set(names), (width, names)
    monkeypatch.setenv("COLUMNS", "160")
    assert "queue" not in narrowed(rows(survey))[0] and narrowed(rows(survey))[0][-1] == "endpoint"


def look_history() -> Any:
    from bringup.releases.history import History

    return History((), {"gpu01": "a" * 64, "gpu02": "a" * 64})
