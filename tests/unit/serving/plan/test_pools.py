"""`pd_cluster`: shown with both pools, their devices, ports and order; never run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.serving.plan import LaunchPlan
from bringup.serving.planner import make_plan
from bringup.serving.planning.variables import rendered

ROOT = Path(__file__).parents[4]


def write(folder: Path, **changes: object) -> Path:
    wanted = {"recipe": "zai-org/GLM-5.1", "hardware": "b300", "strategy": "pd_cluster", "variant": "fp8",
              "environment": "e", "model_path": "/m", **changes}
    (folder / "site.yml").write_text(json.dumps({"all": {
        "vars": {"deployment": wanted}, "hosts": {"n1": {"ansible_host": "198.18.0.1"}}}}))
    return folder / "site.yml"


def plan(folder: Path, **changes: object) -> LaunchPlan:
    inventory = load_inventory([str(write(folder, **changes))], Project(folder))
    return make_plan(inventory, Project(folder), rendered(inventory), lab=False, pools=True)


def test_both_pools_share_a_node(tmp_path: Path) -> None:
    made = plan(tmp_path, arguments=["--max-num-seqs", "32"], served_name="glm")
    prefill, decode = made.replicas[0].processes
    assert (prefill.role, decode.role) == ("prefill", "decode") and prefill.host == decode.host == "n1"
    assert prefill.argv == [
        "vllm", "serve", "/m", "--trust-remote-code", "--chat-template-content-format=string", "--port", "8001",
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail"}',
        "--tensor-parallel-size", "4", "--tool-call-parser", "glm47", "--enable-auto-tool-choice",
        "--reasoning-parser", "glm47", "--served-model-name", "glm", "--host", "0.0.0.0", "--max-num-seqs", "32"]
    assert "kv_consumer" in decode.argv[8] and decode.argv[6] == "8002"
    assert prefill.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert decode.environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert prefill.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "198.18.0.1"
    assert prefill.ports == (8001, 5557) and decode.ports == (8002, 5558)
    assert made.facts["weights_per_device_gb"] == 189.0 and made.facts["world_size"] == 8


def test_weights_that_leave_a_pool_no_room(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"189\.0 GB of weights on each of its 4 devices of 141 GB"):
        plan(tmp_path, hardware="h200")


def test_it_is_shown_and_not_run(tmp_path: Path) -> None:
    path = str(write(tmp_path))
    env = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-m", "invoke", "plan", "--inventory", path], cwd=ROOT, env=env, text=True,
                          capture_output=True, timeout=60)
    # the site's own folder has no environments of that name
    assert done.returncode == 2 and "no environment is called `e`" in done.stdout + done.stderr
    path = str(write(tmp_path, environment="glm51-vllm"))
    done = subprocess.run([sys.executable, "-m", "invoke", "plan", "--inventory", path], cwd=ROOT, env=env, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "prefill and decode side by side" in done.stdout and "does not run it" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    with pytest.raises(InputError, match="not run by bringup"):
        inventory = load_inventory([path], Project(tmp_path))
        make_plan(inventory, Project(tmp_path), rendered(inventory), lab=False)
