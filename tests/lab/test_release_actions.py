"""Make, start, status, rollback over three folders as hosts, with the lab engine in a real environment."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bringup.base.errors import FindingError, ServedError, StepError, UnreachableError
from bringup.base.events import Findings, Note, Ready, StageSummary
from bringup.base.paths import Project
from bringup.base.results import Status
from bringup.environments.build import build_environments
from bringup.inventory.load import load_inventory
from bringup.lab.processes import end, marked
from bringup.releases import storing
from bringup.releases.choosing import choose_release
from bringup.releases.ending import replica_status, stop_replicas
from bringup.releases.history import merge
from bringup.releases.making import make_release
from bringup.releases.reading import rows
from bringup.releases.starting import announce_ready, start_replicas
from bringup.releases.switching import switch_release

spec = importlib.util.spec_from_file_location("local_fleet", Path(__file__).parents[1] / "unit/serving/local_fleet.py")
assert spec is not None and spec.loader is not None
local = sys.modules.setdefault("local_fleet", importlib.util.module_from_spec(spec))
spec.loader.exec_module(local)

REPOSITORY = Path(__file__).parents[2]
HOSTS = ("n1", "n2", "n3")
PLATFORM = f"linux-{os.uname().machine}"
ENV_YML = f"""
purpose: the lab engine alone
python: ["3.13", "3.12", "3.11", "3.10"]
platforms:
  {PLATFORM}: {{machine: {os.uname().machine}, glibc: "2.17"}}
overlay: bringup/lab/engine/overlay
"""
LOCK = f"# bringup lock\n# platform: {PLATFORM}\n# python: 3.10 3.11 3.12 3.13\n\n"


class Rig:
    """A project with one environment and an inventory of three hosts on loopback addresses of their own."""

    def __init__(self, base: Path, environments: Path) -> None:
        self.base = base
        for host in HOSTS:
            (base / "hosts" / host).mkdir(parents=True)
            (base / "hosts" / host / "envs").symlink_to(environments)
        self.net = f"127.{random.randint(80, 250)}.{random.randint(1, 250)}"
        project = base / "project"
        (project / "envs/tiny/locks").mkdir(parents=True)
        (project / "envs/tiny/env.yml").write_text(ENV_YML)
        (project / "envs/tiny/requirements.in").write_text("")
        (project / f"envs/tiny/locks/{PLATFORM}.txt").write_text(LOCK)
        (project / "bringup").symlink_to(REPOSITORY / "bringup")
        self.model = local.make_model(base / "GLM-5.1")
        self.runs = 0
        self.fleet = self.run()

    def run(self, *, fault: str = "", **deployment: Any) -> Any:
        """A new run, as a person would start one after editing the inventory."""
        env = {"LAB_ENGINE_LOAD_SECONDS": "0.3", **({"LAB_ENGINE_FAULT": fault} if fault else {})}
        wanted = {"recipe": "zai-org/GLM-5.1", "engine": "vllm", "hardware": "h200", "strategy": "multi_node_tp_pp",
                  "tensor_parallel": 8, "pipeline_parallel": 3, "environment": "tiny", "manager": "detached",
                  "features": ["tool_calling", "reasoning"], "model_path": str(self.model), "env": env, **deployment}
        hosts: dict[str, dict[str, Any]] = {h: {"cluster_address": f"{self.net}.{i}"} for i, h in enumerate(HOSTS, 1)}
        text = json.dumps({"all": {
            "vars": {"bringup_lab": True, "bringup_privileged": False, "deployment": wanted},
            "children": {"head": {"hosts": {"n1": hosts.pop("n1")}}, "workers": {"hosts": hosts}}}})
        path = self.base / "inventory.yml"
        path.write_text(text)
        self.runs += 1
        fleet = local.LocalFleet(self.base, HOSTS, {}, load_inventory([str(path)], Project(self.base / "project")))
        fleet.run_id = f"run{self.runs:03d}"
        fleet.yes = True
        self.fleet = fleet
        return fleet

    def provision(self, **deployment: Any) -> dict[str, Any]:
        fleet = self.run(**deployment)
        build_environments(fleet, {})
        make_release(fleet, {})
        start_replicas(fleet, {})
        announce_ready(fleet, {})
        return self.pids()

    def rollback(self, to: str = "previous", *, yes: bool = True) -> None:
        fleet = self.run()
        fleet.yes = yes
        choose_release(fleet, {"to": to, "prove": True, "ask": True})
        switch_release(fleet, {})
        start_replicas(fleet, {"asked": True})
        announce_ready(fleet, {})

    def processes(self) -> dict[str, Any]:
        from bringup.serving.engine_calls import call_all

        seen = call_all(self.fleet, "engine_process", {h: {"action": "status"} for h in HOSTS}, changes=False)
        return {h: next((p for n, p in seen[h].data["processes"].items() if n.endswith(f"-{h}")), {}) for h in HOSTS}

    def pids(self) -> dict[str, Any]:
        return {host: seen.get("pid") for host, seen in self.processes().items()}

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.fleet.events if isinstance(event, kind)]

    def current(self) -> set[str]:
        return {os.readlink(self.base / "hosts" / host / "current") for host in HOSTS}


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of environments that the hosts share, as on a network file system: built once."""
    return tmp_path_factory.mktemp("envs")


@pytest.fixture
def rig(tmp_path: Path, environments: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, environments)
    yield made
    stop_replicas(made.run(), {})
    # replicas of another cut than the last one's are not in that plan
    assert end(marked(tmp_path / "hosts")) == []


def test_the_second_run_changes_nothing_and_restarts_nothing(rig: Rig) -> None:
    before = rig.provision()
    ready = rig.told(Ready)[0]
    assert ready.release == "r0001" and ready.previous is None
    assert ready.endpoints == (f"http://{rig.net}.1:8000/v1",)
    assert all(before.values())
    assert rig.provision() == before
    assert [e.text for e in rig.told(StageSummary)][-1] == "r0001 serves already, nothing was restarted"
    assert not rig.fleet.asked
    results = replica_status(rig.fleet, {})
    assert {r.status for r in results.values()} == {Status.OK}


def test_a_dead_worker_is_named_while_health_is_green(rig: Rig) -> None:
    rig.provision()
    seen = rig.processes()["n3"]
    for process in seen["note"]["workers"]:
        os.kill(process["pid"], signal.SIGKILL)
    time.sleep(0.5)
    with pytest.raises(FindingError) as caught:
        replica_status(rig.run(), {})
    assert caught.value.host == "n3"
    assert "worker (ranks 16-23) is dead" in caught.value.what
    found = rig.told(Findings)[0].findings
    assert any("/health with 200" in detail for finding in found for detail in finding.details), found


def test_a_start_that_fails_brings_the_old_release_back(rig: Rig) -> None:
    before = rig.provision()
    old = rig.current()
    with pytest.raises(StepError) as caught:
        rig.provision(fault="crash_loading:node_rank=1")
    error = caught.value
    assert error.status == 1
    assert "FAILED after" in error.what and "r0001 serves again on r1" in error.what
    assert "n2: the engine ended with an error of its own" in error.details[0]
    assert "told to crash while loading" in error.details[1]
    kept = rig.base / "project/.bringup/runs" / rig.fleet.run_id / "r1"
    assert {p.name for p in kept.iterdir()} == {"cause.json", *(f"{h}.{e}" for h in HOSTS for e in ("log", "json"))}
    assert "told to crash" in (kept / "n2.log").read_text()
    assert rig.current() == old
    after = rig.pids()
    assert all(after.values()) and not set(after.values()) & set(before.values())
    replica_status(rig.run(), {})
    with pytest.raises(FindingError, match="known to be bad"):
        rig.rollback("r0002")
    assert rig.pids() == after


@pytest.mark.full
def test_when_the_old_one_does_not_come_back_either_the_status_is_6(rig: Rig) -> None:
    rig.provision()
    fleet = rig.run(fault="crash_loading:node_rank=1")
    make_release(fleet, {})
    (rig.model / "lab_engine_fault.json").write_text('{"name": "out_of_memory"}')
    with pytest.raises(ServedError, match="did not start again either"):
        start_replicas(fleet, {})
    (rig.model / "lab_engine_fault.json").unlink()
    assert not any(rig.pids().values())


@pytest.mark.full
def test_rollback_returns_and_tells_what_it_left(rig: Rig) -> None:
    rig.provision()
    rig.provision(context_length=65536)
    assert rig.told(Ready)[0].previous == "r0001"
    assert any("--max-model-len" in change for change in rig.told(Ready)[0].changes), rig.told(Ready)[0].changes
    rig.rollback()
    ready = rig.told(Ready)[0]
    assert (ready.release, ready.previous) == ("r0001", "r0002")
    assert rig.fleet.asked[0] == "Go back?"
    replica_status(rig.run(), {})
    with pytest.raises(FindingError, match="no earlier release"):
        rig.rollback()
    with pytest.raises(FindingError, match="rolled back from"):
        rig.rollback("2")


def test_rollback_without_an_answer_leaves_everything(rig: Rig) -> None:
    rig.provision()
    before = rig.provision(context_length=65536)
    link = rig.current()
    with pytest.raises(FindingError, match="everything is prepared") as caught:
        rig.rollback(yes=False)
    assert caught.value.status == 4 and "--yes" in str(caught.value.next)
    assert rig.pids() == before and rig.current() == link


def test_rollback_is_refused_before_anything_stops_when_its_environment_is_gone(rig: Rig) -> None:
    rig.provision()
    before = rig.provision(context_length=65536)
    link = rig.base / "hosts/n2/envs"
    target = link.readlink()
    link.unlink()
    with pytest.raises(FindingError, match="cannot start today; nothing was stopped") as caught:
        rig.rollback()
    link.symlink_to(target)
    assert caught.value.host == "n2" and "missing" in caught.value.details[0], caught.value.details
    assert rig.pids() == before


def test_a_start_is_an_outage_and_asks(rig: Rig) -> None:
    before = rig.provision()
    fleet = rig.run(context_length=65536)
    fleet.yes = False
    make_release(fleet, {})
    with pytest.raises(FindingError, match="everything is prepared"):
        start_replicas(fleet, {})
    assert "r1 serves now" in fleet.asked[0] and "its last start" in fleet.asked[0]
    assert rig.pids() == before
    fleet = rig.run()
    target = choose_release(fleet, {"to": "previous"})
    assert not any(r.data["go"] for r in target.values())
    assert "r0002 was never switched to: r0001 is in use" in rig.told(StageSummary)[0].text


def test_a_taken_port_is_found_before_anything_stops(rig: Rig) -> None:
    import socket

    before = rig.provision()
    with socket.socket() as holder:
        holder.bind((f"{rig.net}.1", 8123))
        holder.listen()
        with pytest.raises(StepError, match="port 8123 is taken by process") as caught:
            rig.provision(port=8123)
    assert caught.value.host == "n1" and "serves on" in str(caught.value.found)
    assert rig.pids() == before


def test_a_deploy_that_stopped_half_way_is_named_and_finished(rig: Rig) -> None:
    rig.provision()
    fleet = rig.run(context_length=65536)
    make_release(fleet, {})
    from bringup.releases import chosen

    storing.switch(fleet, chosen.needed(fleet).digest, ["n1"])
    with pytest.raises(FindingError) as caught:
        replica_status(rig.run(), {})
    assert "different releases" in caught.value.what
    with pytest.raises(FindingError, match="different releases"):
        choose_release(rig.run(), {"to": "current"})
    rig.provision(context_length=65536)
    assert len(rig.current()) == 1
    replica_status(rig.run(), {})


def test_check_mode_changes_nothing(rig: Rig) -> None:
    fleet = rig.run()
    build_environments(fleet, {})
    fleet = rig.run()
    fleet.check = True
    make_release(fleet, {})
    results = start_replicas(fleet, {})
    assert {r.status for r in results.values()} == {Status.CHANGED}
    assert not list((rig.base / "hosts").glob("*/releases")) and not any(rig.pids().values())


def test_hosts_with_different_model_files_are_refused(rig: Rig) -> None:
    fleet = rig.run()
    build_environments(fleet, {})
    other = local.make_model(rig.base / "other")
    (other / "config.json").write_text('{"model_type": "glm_moe_dsa", "num_attention_heads": 32}')
    fleet = rig.run()
    plain = fleet.variables

    def variables(host: str) -> Any:
        own = dict(plain(host))
        if host == "n2":
            own["deployment"] = own["deployment"].copy()
            own["deployment"]["model_path"] = str(other)
        return own

    fleet.variables = variables
    with pytest.raises(StepError, match="not the same on all nodes") as caught:
        make_release(fleet, {})
    assert "different on n2" in str(caught.value.found)


ONE_NODE = {"recipe": "zai-org/GLM-5.1-FP8", "variant": "default", "strategy": "single_node_tp",
            "pipeline_parallel": None}


@pytest.mark.full
def test_replicas_are_started_one_after_the_other_and_a_failure_leaves_the_rest_untouched(rig: Rig) -> None:
    before = rig.provision(**ONE_NODE)
    assert len(rig.told(Ready)[0].endpoints) == 3
    started = [rig.processes()[host]["started"] for host in HOSTS]
    assert started == sorted(started)
    fleet = rig.run(**ONE_NODE, context_length=65536)
    make_release(fleet, {})
    from bringup.releases import chosen as choice

    chosen = choice.needed(fleet)
    document = dict(chosen.launches["r2"]["n2"])
    document["env"] = {**document["env"], "LAB_ENGINE_FAULT": "out_of_memory"}
    choice.save(fleet, replace(chosen, launches={**chosen.launches, "r2": {"n2": document}}))
    with pytest.raises(StepError) as caught:
        start_replicas(fleet, {})
    assert "FAILED after" in caught.value.what and "(r2)" in caught.value.what
    assert "r3 untouched" in caught.value.what and "r0001 serves again on r2" in caught.value.what
    after = rig.pids()
    assert after["n1"] != before["n1"] and after["n2"] != before["n2"] and after["n3"] == before["n3"]
    with pytest.raises(FindingError):
        replica_status(rig.run(**ONE_NODE), {})
    rig.provision(**ONE_NODE)
    replica_status(rig.run(**ONE_NODE), {})


def test_a_replica_with_a_dead_node_is_left_out_by_name(rig: Rig) -> None:
    rig.provision(**ONE_NODE)
    fleet = rig.run(**ONE_NODE, context_length=65536)
    fleet.hosts = ("n1", "n3")
    make_release(fleet, {})
    start_replicas(fleet, {})
    notes = [event.text for event in rig.told(Note)]
    assert "r2 is left out: n2 is not in this run" in notes


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_key_reaches_the_engine_and_no_file_but_the_secret_one(rig: Rig, engine: str) -> None:
    key = f"sk-{engine}-very-secret"
    more = {**ONE_NODE, "api_key": key, "engine": engine}
    rig.provision(**more)
    replica_status(rig.run(**more), {})
    holding = [path for path in rig.base.rglob("*") if path.is_file() and not path.is_symlink()
               and "envs" not in path.parts and key in path.read_text(errors="replace")]
    assert {path.name for path in holding} == {"inventory.yml", *(f"r{n}-n{n}.env" for n in (1, 2, 3))}
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding if path.suffix == ".env")


@pytest.mark.full
def test_a_host_lost_between_stop_and_start_is_told_as_what_served_and_does_not(rig: Rig) -> None:
    rig.provision()
    fleet = rig.run(context_length=65536)
    make_release(fleet, {})
    plain = fleet.call

    def call(calls: Any, **more: Any) -> Any:
        if any(one.args.get("action") == "switch" for one in calls.values()):
            fleet.dead.add("n3")
        return plain(calls, **more)

    fleet.call = call
    with pytest.raises(ServedError) as caught:
        start_replicas(fleet, {})
    assert "r0001 is not started again: n3 cannot be reached" in caught.value.what
    rig.provision(context_length=65536)
    replica_status(rig.run(), {})


@pytest.mark.full
def test_a_rollback_switches_all_nodes_of_a_replica_or_none(rig: Rig) -> None:
    rig.provision()
    before = rig.provision(context_length=65536)
    link = rig.current()
    fleet = rig.run()
    choose_release(fleet, {"to": "previous", "prove": True, "ask": True})
    _lost_at_the_switch(fleet, "n3")
    with pytest.raises(UnreachableError, match="no replica could be switched; nothing was stopped") as caught:
        switch_release(fleet, {})
    assert caught.value.host == "n3"
    fleet.dead.clear()
    assert rig.current() == link and rig.pids() == before
    states = [row[2] for row in rows(merge(storing.stores_of(rig.run(), HOSTS)), HOSTS, {})[1:]]
    assert states == ["current, good", "good"], "the way back is forgotten as well"
    rig.rollback()
    assert rig.told(Ready)[0].release == "r0001"


@pytest.mark.full
def test_a_replica_that_did_not_switch_is_left_out_and_the_others_go_on(rig: Rig) -> None:
    rig.provision(**ONE_NODE)
    before = rig.provision(**ONE_NODE, context_length=65536)
    fleet = rig.run(**ONE_NODE)
    choose_release(fleet, {"to": "previous", "prove": True, "ask": True})
    _lost_at_the_switch(fleet, "n2")
    results = switch_release(fleet, {})
    assert results["n2"].status is Status.UNREACHABLE and results["n1"].status is Status.CHANGED
    assert any("r2 is left out: n2 did not switch" in event.text for event in rig.told(Note))
    start_replicas(fleet, {"asked": True})
    fleet.dead.clear()
    announce_ready(fleet, {})
    after = rig.pids()
    assert after["n2"] == before["n2"] and after["n1"] != before["n1"] and after["n3"] != before["n3"]
    assert len(rig.current()) == 2
    again = rig.run(**ONE_NODE)
    chosen = choose_release(again, {"to": "previous", "prove": True, "ask": True})
    assert chosen["n2"].data["go"]
    assert "finishes the rollback to r0001 on n2" in next(e.text for e in rig.told(Note) if " -> " in e.text)
    switch_release(again, {})
    start_replicas(again, {"asked": True})
    announce_ready(again, {})
    assert len(rig.current()) == 1 and rig.pids()["n1"] == after["n1"]


def _lost_at_the_switch(fleet: Any, host: str) -> None:
    plain = fleet.call

    def call(calls: Any, **more: Any) -> Any:
        if any(one.args.get("action") == "switch" for one in calls.values()):
            fleet.dead.add(host)
        return plain(calls, **more)

    fleet.call = call


def test_a_switch_that_one_host_refuses_brings_the_old_release_back(rig: Rig) -> None:
    before = rig.provision()
    fleet = rig.run(context_length=65536)
    make_release(fleet, {})
    link = rig.base / "hosts/n3/current"
    old = os.readlink(link)
    plain = fleet.call

    def call(calls: Any, **more: Any) -> Any:
        first = next(iter(calls.values()))
        if first.args.get("action") == "switch" and link.is_symlink() and not hasattr(fleet, "refused"):
            fleet.refused = True
            link.unlink()
            link.mkdir()
            try:
                return plain(calls, **more)
            finally:
                link.rmdir()
                link.symlink_to(old)
        return plain(calls, **more)

    fleet.call = call
    with pytest.raises(StepError) as caught:
        start_replicas(fleet, {})
    assert caught.value.status == 1 and "r0001 serves again on r1" in caught.value.what
    assert rig.current() == {old}
    assert not set(rig.pids().values()) & set(before.values())
    replica_status(rig.run(), {})
