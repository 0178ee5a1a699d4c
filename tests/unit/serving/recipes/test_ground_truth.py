"""Rows as upstream renders them: equal argument for argument, environment included, through the public verb."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.serving.recipes.load import load_library
from bringup.serving.recipes.rows import render_rows

ROOT = Path(__file__).resolve().parents[4]
UPSTREAM = Path(__file__).parent / "upstream"
ASKED = ("variant", "strategy", "hardware", "features", "nodes")


def expected():
    for path in sorted((UPSTREAM / "expected").glob("*.json.xz")):
        recipe = path.name.removesuffix(".json.xz").replace("__", "/")
        for row in json.loads(lzma.decompress(path.read_bytes())):
            yield recipe, row


def test_every_row_equals_upstream(tmp_path):
    rows = list(expected())
    batch = tmp_path / "rows.jsonl"
    batch.write_text("".join(json.dumps({"recipe": recipe, **{key: row[key] for key in ASKED}}) + "\n"
                             for recipe, row in rows))
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "recipe.render", "--batch", str(batch), "--recipes", str(UPSTREAM)], cwd=ROOT,
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    got = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(got) == len(rows) > 2000
    for (recipe, row), mine in zip(rows, got, strict=True):
        assert mine == {"recipe": recipe, **row}


def render(text):
    return list(render_rows(load_library(UPSTREAM), text.splitlines(), "rows.jsonl"))


def test_a_row_without_features_takes_the_recipes_own():
    [row] = render('{"recipe": "zai-org/GLM-5.1", "strategy": "single_node_tp", "hardware": "h200"}')
    assert row["features"] == ["tool_calling", "reasoning"]


@pytest.mark.parametrize(("line", "words"), [
    ('{"recipe": "zai-org/GLM-5.1"', "rows.jsonl:1"),
    ('[1]', "a row is a mapping"),
    ('{"recipe": "zai-org/GLM-5.1"}', "lacks strategy, hardware"),
    ('{"recipe": "zai-org/GLM-5.3", "strategy": "single_node_tp", "hardware": "h200"}', "recipe: zai-org/GLM-5."),
    ('{"recipe": "zai-org/GLM-5.1", "strategy": "single_node_pt", "hardware": "h200"}', "strategy: single_node_tp"),
    ('{"recipe": "zai-org/GLM-5.1", "strategy": "single_node_tp", "hardware": "h201"}', "hardware: h20"),
    ('{"recipe": "zai-org/GLM-5.1", "strategy": "single_node_tp", "hardware": "h200", "variant": "fp9"}',
     "variant: fp8"),
    ('{"recipe": "zai-org/GLM-5.1", "strategy": "single_node_tp", "hardware": "h200", "features": ["tools"]}',
     "no feature is called `tools`"),
])
def test_a_wrong_row_is_told_with_its_line_and_the_nearest_name(line, words):
    with pytest.raises(InputError) as error:
        render(line)
    assert words in str(error.value)
    assert "rows.jsonl:1" in str(error.value)


def test_a_row_that_does_not_fit_is_rendered_all_the_same():
    [row] = render('{"recipe": "zai-org/GLM-5.1", "strategy": "single_node_tp", "hardware": "h100", "features": []}')
    assert row["argv"][-2:] == ["--tensor-parallel-size", "8"]


def test_a_folder_that_holds_no_recipes_is_refused(tmp_path):
    with pytest.raises(InputError, match="no folder of recipes"):
        load_library(tmp_path)


def test_our_own_recipes_have_no_key_that_is_not_read():
    from bringup.base.yaml import load_file
    from bringup.serving.recipes.load import DATA

    known = {
        "": {"meta", "model", "parser_family", "requires", "shape", "features", "opt_in_features", "variants",
             "compatible_strategies", "hardware_overrides", "strategy_overrides", "engines", "closing", "notes",
             "default_strategy", "strategy_hardware", "routes"},
        "variants": {"model_id", "precision", "vram_minimum_gb", "weights_gb", "supported_hardware", "extra_args",
                     "extra_env", "hardware_overrides", "without_features", "tp", "default_modes", "engines"},
        "engines": {"min_version", "strategies", "hardware", "variants", "vram_minimum_gb", "host_memory_gb", "env",
                    "args", "features", "closing", "notes", "hardware_overrides", "node_args",
                    "worker_args", "node_env", "node_overrides", "variant_overrides"},
        "features": {"description", "args", "env", "modes", "default_mode"},
    }
    for path in DATA.glob("models/*/*.yaml"):
        data = load_file(path)
        assert set(data) <= known[""], path
        for part in ("variants", "engines", "features"):
            for entry in (data.get(part) or {}).values():
                assert set(entry) <= known[part], path
