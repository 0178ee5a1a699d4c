"""A refusal names what would fit, and that fits: over every row of upstream's, and over combinations of all names."""

from __future__ import annotations

import json
import lzma
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.near import settle, settle_or_tell
from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.schema import Library

ROOT = Path(__file__).resolve().parents[4]
UPSTREAM = ROOT / "tests/unit/serving/recipes/upstream"


def wish(recipe: str, **more: object) -> Deployment:
    return replace(Deployment(recipe=recipe, model_path="/m", environment="e"), **more)


def written(text: str, asked: Deployment) -> Deployment:
    """The deployment with what a `next` line tells to write."""
    words = text.partition("; the smallest that would is ")[2] or text
    changes: dict[str, object] = {}
    for part in re.split(r", (?=[a-z_]+: )", words.split("   (")[0]):
        key, _, value = part.partition(": ")
        changes[key] = tuple(filter(None, value.strip("[]").split(", "))) if key == "features" else \
            int(value) if value.isdigit() else value
    if "hardware" in changes:
        asked = replace(asked, nodes=None, features=None)
    return replace(asked, **changes)


def refused(library: Library, asked: Deployment, hosts: int | None = None) -> InputError | None:
    recipe = find_recipe(library, asked.recipe)
    try:
        settle_or_tell(library, recipe, asked, hosts)
    except InputError as error:
        assert error.next, (asked, error.what)
        settle(library, recipe, written(error.next, asked))
        for line in error.details:
            precision, _, words = line.partition("  ")
            kept = settle(library, recipe, written(words.strip(), asked)).choice.variant.precision
            assert f"as {kept}" == precision.strip()
        return error
    return None


def test_every_refused_row_names_what_fits_and_it_does() -> None:
    library = load_library(UPSTREAM)
    rows = [(path.name.removesuffix(".json.xz").replace("__", "/"), row)
            for path in sorted((UPSTREAM / "expected").glob("*.json.xz"))
            for row in json.loads(lzma.decompress(path.read_bytes()))]
    found = 0
    for name, row in rows:
        asked = wish(name, variant=row["variant"], strategy=row["strategy"], hardware=row["hardware"],
                     features=tuple(row["features"]), nodes=row["nodes"])
        error = refused(library, asked)
        found += error is not None
        assert error is None or not str(error.next).startswith("nothing of")
    assert len(rows) > 2000 and found > 100


@pytest.mark.parametrize("folder", [UPSTREAM, None])
def test_any_names_together_are_refused_with_what_fits(folder: Path | None) -> None:
    library = load_library(folder)
    every = [(recipe.name, engine, variant, strategy, hardware, nodes) for recipe in library.recipes.values()
             for engine, variant, strategy, hardware, nodes in product(
                 ("vllm", *recipe.engines), recipe.variants, library.strategies, library.hardware, (None, 1, 2, 3, 4))]
    chosen = random.Random(5).sample(every, 600)
    refusals = [refused(library, wish(name, engine=engine, variant=variant, strategy=strategy, hardware=hardware,
                                      nodes=nodes))
                for name, engine, variant, strategy, hardware, nodes in chosen]
    assert sum(error is not None for error in refusals) > 300


def test_where_nothing_fits_the_smallest_is_named() -> None:
    library = load_library(UPSTREAM)
    error = refused(library, wish("zai-org/GLM-5.1", hardware="rtx_5090", strategy="single_node_tp"))
    assert error is not None
    assert error.next == ("nothing of zai-org/GLM-5.1 fits RTX 5090; the smallest that would is hardware: gb200, "
                          "variant: nvfp4   (nvfp4, 446 of 768 GB on one node)")
    alone = Library("shelf", library.recipes, library.strategies, {"rtx_5090": library.hardware["rtx_5090"]})
    with pytest.raises(InputError) as caught:
        settle_or_tell(alone, library.recipes["zai-org/GLM-5.1"], wish("zai-org/GLM-5.1", hardware="rtx_5090",
                                                                       strategy="single_node_tp"))
    assert "nor any other hardware of shelf: its smallest variant nvfp4 (nvfp4) needs 446 GB" in str(caught.value.next)


def test_more_nodes_than_there_are_come_last() -> None:
    library = load_library()
    asked = wish("zai-org/GLM-5.1", hardware="h100", strategy="multi_node_tp", nodes=2)
    assert str(getattr(refused(library, asked), "next", "")).startswith("nodes: 4   (bf16, tensor parallel 32")
    assert str(getattr(refused(library, asked, 2), "next", "")).startswith("variant: fp8   (fp8, tensor parallel 16")
    alone = refused(library, wish("zai-org/GLM-5.1", hardware="h100", strategy="single_node_tp"), 1)
    assert alone is not None and str(alone.next).startswith("engine: sglang-kt   (bf16, 210 of 640 GB on one node)")


def test_what_a_recipe_says_of_strategy_and_hardware_is_kept() -> None:
    library = load_library(UPSTREAM)
    for strategy, hardware, words in (("pd_cluster", "rtx_pro_6000_8x", "does not run as pd_cluster"),
                                      ("multi_node_dep", "rtx_pro_6000_8x", "is a machine of its own"),
                                      ("single_node_tep", "dgx_spark_gb10", "wants 2 devices")):
        error = refused(library, wish("deepseek-ai/DeepSeek-V4-Flash", strategy=strategy, hardware=hardware))
        assert error is not None and words in error.what


def test_the_verb_prints_it(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text(
        "all:\n  vars:\n    deployment:\n      {recipe: zai-org/GLM-5.1, hardware: h200, strategy: single_node_tp,\n"
        "       environment: glm51-vllm, model_path: /m}\n  hosts: {a: {}, b: {}}\n")
    done = subprocess.run([sys.executable, "-m", "invoke", "plan", "--inventory", str(tmp_path / "site.yml")], cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and not done.stdout
    assert "next      variant: fp8   (fp8, 893 of 1,128 GB on one node)" in done.stderr
    assert "as bf16   strategy: multi_node_tp   (bf16, tensor parallel 16, 1,786 of 2,256 GB on 2 nodes)" in done.stderr
