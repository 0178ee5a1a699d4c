"""Prefill and decode in pools of their own, by the verbs: two lab machines, a router, the cache really handed over."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_project import REPOSITORY, Site, answer, children_of, endpoint_of, wait_for

PARTS = ("r1-prefill", "r1-decode", "r1-router")


def write(site: Site, fault: str = "", load_seconds: float = 0.3, **deployment: Any) -> None:
    site.write(fault=fault, load_seconds=load_seconds, recipe="zai-org/GLM-5.1-FP8", strategy="pd_cluster",
               served_name="zai-org/GLM-5.1", tensor_parallel=None, pipeline_parallel=None, **deployment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.run("stop", "--yes")
    made.down()


def parts(site: Site) -> dict[str, dict[str, Any]]:
    """Part -> its line of `invoke status`."""
    found: dict[str, dict[str, Any]] = {}
    for node in site.data("status")["nodes"]:
        found[node["replica"]] = node
    return found


def states(site: Site) -> dict[str, str]:
    return {name: node["state"] for name, node in parts(site).items()}


@pytest.fixture
def serving(site: Site) -> Site:
    write(site)
    site.good("provision", "--yes")
    return site


def test_provision_serves_through_the_router(site: Site) -> None:
    write(site)
    first = site.good("provision")
    assert "2 hosts, one replica of 2, 1 spare · glm-5.1-fp8 fp8 on vllm, pd_cluster" in first
    assert "16 ranks on 2 nodes in two pools, first token through the router" in first
    order = [first.index(f"{words}, started") for words in (
        "r1-prefill lab-head  prefill", "r1-decode lab-w1  decode", "r1-router lab-head  router")]
    assert order == sorted(order) and first.index("r1-prefill lab-head  prefill, ranks 0-7 up") < order[2]
    said = answer(endpoint_of(first))
    assert said[0]["content"] == "pong"
    there = parts(site)
    assert list(there) == list(PARTS) and {node["state"] for node in there.values()} == {"running"}
    assert there["r1-prefill"]["node"] == there["r1-router"]["node"] == "lab-head"
    second = site.good("provision")
    assert "serves already, nothing was restarted" in second
    assert {name: node["pid"] for name, node in parts(site).items()} == {
        name: node["pid"] for name, node in there.items()}
    assert "r0001: 1 of 1 replica up, nothing wrong found" in site.good("status")


@pytest.mark.full
def test_the_cache_comes_from_the_prefill_pool(serving: Site) -> None:
    """Each answer is asked of both engines, prefill first; what decode does not get fails the request."""
    lines = serving.good("logs", "--lines", "200").splitlines()
    asked = [line for line in lines if "POST /v1/chat/completions" in line]
    for lead in ("lab-w1  (APIServer", "lab-head  [r1-prefill] (APIServer", "lab-head  [r1-router] (Router"):
        assert any(line.startswith(lead) for line in asked), (lead, lines)
    ranked = serving.good("logs", "--rank", "3", "--since", "1h").splitlines()
    assert {line.split("]")[0] for line in ranked if line.startswith("lab-head")} == {"lab-head  [r1-prefill"}
    assert len(ranked) > 50 and not [line for line in serving.good("logs", "--since", "0s").splitlines()
                                     if line.startswith("lab-")]
    for wrong, told in ((("--rank", "x"), "--rank takes whole numbers"), (("--rank", "8"), "no process of these"),
                        (("--since", "soon"), "--since takes")):
        done = serving.run("logs", *wrong)
        assert done.returncode == 2 and told in done.stdout, done.stdout
    write(serving, fault="transfer_fails:role=decode")
    failed = serving.run("provision", "--yes")
    assert failed.returncode == 1 and "FAILED" in failed.stdout, failed.stdout
    assert "/health answers 200 and the first request fails" in failed.stdout
    assert "r0001 serves again on r1" in failed.stdout
    assert set(states(serving).values()) == {"running"}


@pytest.mark.full
def test_a_dead_pool_is_named_and_all_parts_start_anew(serving: Site) -> None:
    before = parts(serving)
    for child in children_of(before["r1-decode"]["pid"]):
        os.kill(child, signal.SIGKILL)
    assert wait_for(lambda: parts(serving)["r1-decode"]["state"] != "running")
    done = serving.run("status")
    assert done.returncode == 4 and "r1-decode: the decode (ranks 0-7) is dead" in done.stdout
    assert "0 of 1 replica up" in done.stdout
    serving.good("start", "--yes")
    after = parts(serving)
    assert {name: node["state"] for name, node in after.items()} == dict.fromkeys(PARTS, "running")
    assert all(after[name]["pid"] != before[name]["pid"] for name in PARTS)


@pytest.mark.parametrize(("fault", "told"), [
    ("crash_loading:role=decode", "lab-w1: the engine ended with an error of its own"),
    ("router_crashes", "(r1-router)"),
])
def test_a_part_that_does_not_start_brings_the_release_before_back(serving: Site, fault: str, told: str) -> None:
    write(serving, fault=fault)
    failed = serving.run("provision", "--yes")
    assert failed.returncode == 1 and told in failed.stdout, failed.stdout
    assert "r0001 serves again on r1" in failed.stdout
    part = "r1-router" if fault == "router_crashes" else "r1-decode"
    assert list(serving.folder.glob(f".bringup/runs/*/{part}/cause.json"))
    assert set(states(serving).values()) == {"running"}


@pytest.mark.full
def test_rollback_stop_start_and_a_first_start_that_fails(site: Site) -> None:
    write(site)
    site.good("provision", "--yes")
    write(site, arguments=["--max-num-seqs", "32"])
    second = site.good("provision", "--yes")
    assert "was r0001" in second and "--max-num-seqs 32 (new) (prefill, decode)" in second
    back = site.good("rollback", "--yes")
    assert "r0001" in back and answer(endpoint_of(back))
    stopped = site.good("stop", "--yes")
    assert "stopped, nothing is left" in stopped
    assert set(states(site).values()) == {"stopped"}
    assert "16 ranks on 2 nodes in two pools" in site.good("start")
    cut = site.run("stop", "--yes", "--limit", "lab-head")
    assert cut.returncode == 2 and "--limit cuts the replica r1" in cut.stdout, cut.stdout


@pytest.mark.full
def test_watchers_bring_a_pool_and_the_router_back(site: Site) -> None:
    """Nobody's run looks: each part has a watcher of its own, which starts it again while the others stay."""
    write(site, watcher={"port": 7761, "silence": 20})
    site.run("stop", "--yes")
    done = site.good("provision", "--yes")
    assert "watched on 2 nodes" in done and "watched on" not in site.good("provision", "--yes")
    endpoint, before = endpoint_of(done), parts(site)
    for part in ("r1-decode", "r1-router"):
        os.kill(int(before[part]["pid"]), signal.SIGKILL)
        assert wait_for(lambda part=part: (there := parts(site)[part])["state"] == "running"
                        and there["pid"] != before[part]["pid"] and _serves(endpoint), 90), parts(site)
    after = parts(site)
    assert after["r1-prefill"]["pid"] == before["r1-prefill"]["pid"]
    assert wait_for(lambda: site.run("status").returncode == 0, 60), site.run("status").stdout
    assert "stopped, nothing is left" in site.good("stop", "--yes")
    assert set(states(site).values()) == {"stopped"}


def _serves(endpoint: str) -> bool:
    try:
        return bool(answer(endpoint))
    except OSError:
        return False


@pytest.mark.full
def test_another_strategy_takes_the_place_of_the_pools_and_back(serving: Site) -> None:
    serving.write(recipe="zai-org/GLM-5.1-FP8", strategy="multi_node_tp", nodes=2, tensor_parallel=None,
                  pipeline_parallel=None, served_name="zai-org/GLM-5.1")
    unasked = serving.run("provision")
    assert unasked.returncode == 4 and "r1 of r0001 runs there, of an earlier plan" in unasked.stdout, unasked.stdout
    status = serving.run("status")
    assert "r1-prefill-lab-head, r1-router-lab-head runs here and belongs to no replica of this plan" in status.stdout
    done = serving.good("provision", "--yes")
    assert "16 ranks on 2 nodes, first token" in done
    undo = next(line for line in done.splitlines() if line.startswith("undo"))
    assert "strategy: pd_cluster" in undo and "invoke provision" in undo and "rollback" not in undo, undo
    back = serving.run("rollback", "--yes")
    assert back.returncode == 1 and "the release is of another strategy" in back.stdout, back.stdout
    assert "strategy: pd_cluster" in back.stdout and answer(endpoint_of(done)), "what served serves on"
    write(serving)
    again = serving.good("provision", "--yes")
    assert "(made before)" in again and answer(endpoint_of(again))
    assert set(states(serving).values()) == {"running"} and "nothing wrong found" in serving.good("status")
    serving.good("stop", "--yes")


@pytest.mark.full
def test_both_pools_on_one_machine(site: Site) -> None:
    """A recipe small enough for half a node."""
    shelf = site.folder / "shelf"
    data = REPOSITORY / "bringup/serving/recipes/data"
    if not shelf.exists():
        (shelf / "models/zai-org").mkdir(parents=True)
        for name in ("strategies", "taxonomy.yaml", "routes"):
            (shelf / name).symlink_to(data / name)
        text = (data / "models/zai-org/GLM-5.1-FP8.yaml").read_text()
        assert "weights_gb" in text
        text = re.sub(r"weights_gb: *\d+", "weights_gb: 100", re.sub(r"vram_minimum_gb: *\d+", "vram_minimum_gb: 120",
                                                                     text))
        (shelf / "models/zai-org/Small.yaml").write_text(text)
    site.run("stop", "--yes")
    site.write(recipes="shelf", recipe="zai-org/Small", strategy="pd_cluster", tensor_parallel=None,
               pipeline_parallel=None, replicas={"r1": ["lab-head"], "r2": ["lab-w2"]})
    done = site.good("provision", "--yes")
    assert done.count("8 ranks on 1 node in two pools") == 2 and "serves on 2 of 2" in done
    document = json.loads((site.root("lab-w2") / "processes/r2-decode-lab-w2/record.json").read_text())
    assert document["ranks"] == [0, 1, 2, 3]
    assert "2 of 2 replicas up" in site.good("status")
    site.good("stop", "--yes")
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(site.folder).encode() in _read(path)
                and b"bringup_lab_engine" in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
