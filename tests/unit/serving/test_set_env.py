"""The set_env scripts of a vendor: what they set is read in a clean shell and goes into every process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_fleet import LocalFleet
from stand_in_docker import StandIn

from bringup.agent.modules import set_env
from bringup.agent.task import Failure, Task
from bringup.base.errors import StepError
from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.releases.places import Place
from bringup.releases.planned import Planned
from bringup.releases.vendor_env import with_vendor_environment
from bringup.serving.planner import make_plan
from bringup.serving.planning.variables import rendered

TOOLKIT = """
# as CANN's: knows its own folder, reads variables that are not set, prints something
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
echo "setting up"
export ASCEND_TOOLKIT_HOME=$here
export LD_LIBRARY_PATH=$here/lib64:$LD_LIBRARY_PATH
export PATH=$here/bin:$PATH
helper() { :; }
export -f helper
"""
NNAL = 'export ATB_HOME_PATH=/nnal\nexport LD_LIBRARY_PATH=/nnal/lib:$LD_LIBRARY_PATH\nexport TWO_LINES="a\nb"\n'


@pytest.fixture
def scripts(tmp_path: Path) -> list[str]:
    for name, text in (("cann/set_env.sh", TOOLKIT), ("nnal/set_env.sh", NNAL)):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(text)
    return [str(tmp_path / "cann/set_env.sh"), str(tmp_path / "nnal/set_env.sh")]


def read(scripts: list[str], **more: Any) -> dict[str, str]:
    filled = {name: spec.get("default") for name, spec in set_env.ARGUMENTS.items()}
    return dict(set_env.run(Task({**filled, "scripts": scripts, **more}))["variables"])


def test_a_clean_shell_sees_only_what_the_scripts_set(scripts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/operator")
    monkeypatch.setenv("MINE", "1")
    folder = os.path.dirname(scripts[0])
    found = read(scripts)
    assert found == {"ASCEND_TOOLKIT_HOME": folder, "ATB_HOME_PATH": "/nnal", "TWO_LINES": "a\nb",
                     "LD_LIBRARY_PATH": f"/nnal/lib:{folder}/lib64:",
                     "PATH": f"{folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def test_in_an_image_the_images_own_variables_are_the_ground(scripts: list[str], tmp_path: Path) -> None:
    docker = StandIn(tmp_path / "client")
    docker.image("registry.example/npu:1", path="/image/bin")
    found = read(scripts, client=str(docker.client), image="registry.example/npu:1")
    assert found["PATH"] == f"{os.path.dirname(scripts[0])}/bin:/image/bin:/usr/local/bin:/usr/bin:/bin"
    assert docker.runs()[0][:6] == ["--rm", "--pull", "never", "--network", "none", "--entrypoint"]


def test_a_missing_or_broken_script_is_named(scripts: list[str], tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"/nowhere/set_env.sh is not there on this host"):
        read([scripts[0], "/nowhere/set_env.sh"])
    (tmp_path / "bad.sh").write_text("return 7\n")
    with pytest.raises(Failure, match="cannot be sourced"):
        read([str(tmp_path / "bad.sh")])


def planned(tmp_path: Path, scripts: list[str]) -> tuple[LocalFleet, Planned]:
    (tmp_path / "site.yml").write_text(f"""
all:
  vars:
    deployment: {{recipe: zai-org/GLM-5.1, engine: vllm-ascend, hardware: ascend-a3, strategy: multi_node_tp_dp,
                 environment: npu, engine_version: 0.23.0, manager: systemd, model_path: /models/GLM-5.1,
                 set_env: {scripts}, env: {{ATB_HOME_PATH: /mine}}}}
  children:
    head: {{hosts: {{n1: {{ansible_host: 198.18.0.1}}}}}}
    workers: {{hosts: {{n2: {{ansible_host: 198.18.0.2}}}}}}
""")
    inventory = load_inventory([str(tmp_path / "site.yml")], Project(tmp_path))
    plan = make_plan(inventory, Project(tmp_path), rendered(inventory), lab=False)
    return LocalFleet(tmp_path, ("n1", "n2"), {}, inventory), Planned(plan, plan.replicas)


def test_what_they_set_is_in_every_process_and_the_sites_words_win(scripts: list[str], tmp_path: Path) -> None:
    fleet, plan = planned(tmp_path, scripts)
    places = {host: Place("/env", "d") for host in ("n1", "n2")}
    done = with_vendor_environment(fleet, plan, places)
    for process in done.replicas[0].processes:
        assert process.env["ASCEND_TOOLKIT_HOME"] == (os.path.dirname(scripts[0]), "vendor")
        assert process.env["ATB_HOME_PATH"] == ("/mine", "site")
        assert process.env["HCCL_OP_EXPANSION_MODE"] == ("AIV", "recipe")
    assert done.replicas[0].head.env["HCCL_IF_IP"] == ("198.18.0.1", "recipe")


def test_hosts_that_differ_get_no_release(scripts: list[str], tmp_path: Path) -> None:
    fleet, plan = planned(tmp_path, scripts)
    places = {host: Place("/env", "d") for host in ("n1", "n2")}
    (tmp_path / "cann/set_env.sh").write_text('export ASCEND_TOOLKIT_HOME=/cann/$RANDOM$RANDOM\n')
    with pytest.raises(StepError, match="set ASCEND_TOOLKIT_HOME differently on n1 and n2"):
        with_vendor_environment(fleet, plan, places)
    gone = replace(plan, plan=replace(plan.plan, facts={**plan.plan.facts, "set_env": ["/nowhere.sh"]}))
    with pytest.raises(StepError, match="the set_env scripts cannot be read") as error:
        with_vendor_environment(fleet, gone, places)
    assert error.value.next is not None and "set_env: [PATH" in error.value.next


def test_without_scripts_nothing_is_asked(tmp_path: Path) -> None:
    fleet, plan = planned(tmp_path, [])
    assert with_vendor_environment(fleet, plan, {}) is plan and fleet.calls == []
