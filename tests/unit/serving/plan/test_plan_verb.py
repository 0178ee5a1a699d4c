"""`invoke plan` on the sample inventories: the page at two widths, JSON, wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def invoke(*words, columns=160):
    return subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True,
                          timeout=30, env={**os.environ, "COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 160])
def test_the_page_fits_and_names_every_part(columns):
    done = invoke("plan", "--inventory", "h200", columns=columns)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(done.stdout.split())
    for words in ("1 replica of 2 nodes", "1,786 GB needed, 2,256 GB there", "16 ranks on gpu[01-02]",
                  "ranks 8-15", "ports 8000, 29501", "--master-addr 198.18.0.11", "VLLM_HOST_IP=198.18.0.12",
                  "--reasoning-parser glm47", "vLLM from 0.24.0 names it glm47", "site: default port of vllm",
                  "http://198.18.0.11:8000/v1"):
        assert words in text


def test_json_holds_layers_and_reasons(tmp_path):
    report = tmp_path / "plan.json"
    done = invoke("plan", "--inventory", "h200", "--format", "json", "--report", str(report))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert json.loads(report.read_text()) == plan
    head = plan["replicas"][0]["processes"][0]
    assert head["argv"][:3] == ["vllm", "serve", "/models/GLM-5.1"]
    assert {argument["layer"] for argument in head["arguments"]} == {"recipe", "site"}
    assert head["env"]["HF_HUB_OFFLINE"] == {"value": "1", "layer": "site", "reason": head["env"]["HF_HUB_OFFLINE"][
        "reason"]}


def test_the_lab_is_planned_without_being_up():
    done = invoke("plan")
    assert done.returncode == 0, done.stderr
    assert "24 ranks" in done.stdout and "--pipeline-parallel-size 3" in done.stdout
    assert "replayed" in done.stdout


def test_wrong_input_is_2_and_nothing_is_contacted():
    done = invoke("plan", "--inventory", "h200", "--extra-vars", "{deployment: {recipe: zai-org/GLM-5.1, model: x}}")
    assert done.returncode == 2
    assert "`deployment` knows no key `model`" in done.stderr and "nothing was contacted" in done.stderr


def test_a_limit_that_cuts_a_replica_is_refused():
    done = invoke("plan", "--inventory", "h200", "--limit", "gpu01")
    assert done.returncode == 2 and "cuts the replica r1" in done.stderr


def test_one_recipe_on_the_command_line():
    done = invoke("recipe.render", "--recipe", "zai-org/GLM-5.1", "--strategy", "multi_node_tp", "--hardware", "h200",
                  "--nodes", "2")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["workerArgv"][:3] == ["vllm", "serve", "zai-org/GLM-5.1"] and "--headless" in row["workerArgv"]


def test_render_takes_a_batch_or_a_recipe():
    done = invoke("recipe.render")
    assert done.returncode == 2 and "--batch FILE or --recipe NAME" in done.stderr
    done = invoke("recipe.render", "--batch", "/nowhere.jsonl")
    assert done.returncode == 2 and "/nowhere.jsonl" in done.stderr


def test_what_fits_at_all():
    done = invoke("plan", "--inventory", "h200", "--options")
    assert done.returncode == 0, done.stderr
    fitting, _, rest = done.stdout.partition("does not fit:")
    rows = [line.split() for line in fitting.splitlines()[1:] if line.strip()]
    assert ["vllm", "default", "bf16", "multi_node_tp", "2"] in [row[:5] for row in rows]
    assert ["vllm", "default", "bf16", "multi_node_dep", "2"] not in [row[:5] for row in rows]
    assert not [row for row in rows if row[1] == "nvfp4"]
    assert "needs 1,786 GB, 1 node of 8 x H200 141 GB has 1,128 GB" in rest
    assert "leaves no room for the KV cache" in rest
    options = json.loads(invoke("plan", "--inventory", "h200", "--options", "--format", "json").stdout)
    assert {option["problem"] is None for option in options} == {True, False}
