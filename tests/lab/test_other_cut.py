"""Another strategy in one provision: what an earlier plan runs on these nodes ends with the turn that needs them,
whole, and starts again as it was when that turn fails. The lab's engines, on folders of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_release_actions as actions

from bringup.base.errors import FindingError, StepError
from bringup.base.events import Findings, Note, Ready
from bringup.inventory.load import load_inventory
from bringup.releases.making import make_release
from bringup.releases.starting import start_replicas

SMALL = {"hardware": "gb200", "variant": "nvfp4", "tensor_parallel": None, "pipeline_parallel": None}
SINGLE = {**SMALL, "strategy": "single_node_tp"}
WHOLE = {**SMALL, "strategy": "multi_node_tp_pp", "nodes": 3}
PAIR = {**SMALL, "strategy": "multi_node_tp", "nodes": 2}
POOLS = {**SMALL, "strategy": "pd_cluster", "nodes": 2}


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("envs")


@pytest.fixture
def rig(tmp_path: Path, environments: Path) -> Iterator[Any]:
    made = actions.Rig(tmp_path, environments)
    yield made
    for wanted in (SINGLE, WHOLE, POOLS):
        actions.stop_replicas(made.run(**wanted), {})
    assert actions.end(actions.marked(tmp_path / "hosts")) == []


def running(rig: Any) -> dict[str, str]:
    """Process -> release of all that runs."""
    from bringup.serving.engine_calls import call_all

    seen = call_all(rig.fleet, "engine_process", {h: {"action": "status"} for h in actions.HOSTS}, changes=False)
    return {name: found["release"] for result in seen.values() for name, found in result.data["processes"].items()
            if found["state"] == "running"}


@pytest.mark.full
def test_replicas_of_one_node_give_way_to_one_over_all_and_back(rig: Any) -> None:
    rig.provision(**SINGLE)
    first = running(rig)
    assert set(first) == {"r1-n1", "r2-n2", "r3-n3"}
    rig.provision(**WHOLE)
    second = running(rig)
    assert set(second) == {"r1-n1", "r1-n2", "r1-n3"} and not set(second.values()) & set(first.values())
    assert "r1, r2, r3 serves now" in rig.fleet.asked[0]
    rig.provision(**SINGLE)
    assert running(rig) == first, "the release is found again, and nothing of the other one is left"
    assert rig.told(Ready)[0].release == "r0001"
    again = dict(running(rig))
    rig.provision(**SINGLE)
    assert running(rig) == again and not rig.fleet.asked


@pytest.mark.full
@pytest.mark.parametrize(("before", "after", "names"), [
    (SINGLE, WHOLE, {"r1-n1", "r2-n2", "r3-n3"}), (WHOLE, SINGLE, {"r1-n1", "r1-n2", "r1-n3"}),
    (POOLS, PAIR, {"r1-prefill-n1", "r1-decode-n2", "r1-router-n1"}), (PAIR, POOLS, {"r1-n1", "r1-n2"})])
def test_a_start_that_fails_brings_the_earlier_cut_back(rig: Any, before: Any, after: Any, names: set[str]) -> None:
    rig.provision(**before)
    there, links = running(rig), current(rig)
    assert set(there) == names
    with pytest.raises(StepError) as caught:
        rig.provision(fault="crash_loading", **after)
    assert caught.value.status == 1, "it serves again"
    assert "r0001 serves again on r1" in caught.value.what
    assert running(rig) == there and current(rig) == links
    rig.provision(**after)
    assert running(rig) and not set(running(rig).values()) & set(there.values())


@pytest.mark.full
def test_what_the_plan_has_no_replica_for_is_ended_on_a_spare_too(rig: Any) -> None:
    rig.provision(**SINGLE)
    rig.provision(**PAIR)
    assert set(running(rig)) == {"r1-n1", "r1-n2"}
    assert "r3 of r0001 on n3 ends: this plan has no such replica" in rig.fleet.asked[0]
    assert any("r3 of r0001 on n3 was ended" in event.text for event in rig.told(Note))
    again = running(rig)
    rig.provision(**PAIR)
    assert running(rig) == again and not rig.fleet.asked


def current(rig: Any) -> dict[str, str]:
    """Host -> the release that its link names."""
    return {host: (rig.base / "hosts" / host / "current").readlink().name for host in actions.HOSTS
            if (rig.base / "hosts" / host / "current").is_symlink()}


def test_nothing_stops_without_a_yes(rig: Any) -> None:
    rig.provision(**SINGLE)
    there = running(rig)
    fleet = rig.run(**WHOLE)
    make_release(fleet, {})
    fleet.yes = False
    with pytest.raises(FindingError, match="everything is prepared"):
        start_replicas(fleet, {})
    assert running(rig) == there


def test_what_runs_on_a_spare_is_told_by_status_and_ended_by_stop(rig: Any) -> None:
    rig.provision(**SINGLE)
    with pytest.raises(FindingError):
        actions.replica_status(rig.run(**PAIR), {})
    told = {finding.subject: finding.summary for event in rig.told(Findings) for finding in event.findings
            if finding.check == "process.other"}
    assert told == {host: f"{name} runs here and belongs to no replica of this plan"
                    for host, name in (("n2", "r2-n2"), ("n3", "r3-n3"))}
    actions.stop_replicas(rig.run(**PAIR), {})
    assert not running(rig)


@pytest.mark.full
def test_clients_are_led_away_from_each_that_ends(rig: Any) -> None:
    rig.provision(**SINGLE)
    told = rig.base / "told"
    fleet = rig.run(**WHOLE)
    path = rig.base / "inventory.yml"
    written = json.loads(path.read_text())
    hooks = {f"traffic_{word}": f"echo {word} {{{{ replica.name }}}} {{{{ replica.release }}}} >> {told}"
             for word in ("out", "in")}
    written["all"]["vars"].update(hooks, traffic_deadline=5)
    path.write_text(json.dumps(written))
    fleet.inventory = load_inventory([str(path)], fleet.project)
    make_release(fleet, {})
    start_replicas(fleet, {})
    assert told.read_text().splitlines() == ["out r1 r0001", "out r2 r0001", "out r3 r0001", "in r1 r0002"]
    assert set(running(rig)) == {"r1-n1", "r1-n2", "r1-n3"}
    assert not [event for event in rig.told(Note) if "traffic" in event.text and "is out" in event.text]
