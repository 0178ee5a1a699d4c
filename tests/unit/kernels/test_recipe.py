"""Recipes are read strictly, and what is asked of them is checked before any host is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bringup.base.errors import InputError
from bringup.environments.kernels.asking import asked_kernels, checked
from bringup.environments.kernels.choosing import Asked
from bringup.environments.kernels.recipe import load_recipe, names

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
GOOD = """\
purpose: test
source: {folder: source}
commands: [{build: "true"}]
proof: {script: proof.py}
"""


def written(folder: Path, text: str) -> Path:
    place = folder / "kernels" / "one"
    (place / "source").mkdir(parents=True)
    (place / "proof.py").write_text("")
    (place / "kernel.yml").write_text(text)
    return folder / "kernels"


def test_every_recipe_of_the_project_is_read() -> None:
    assert {"deep_gemm", "kt_kernel", "nccl_tests", "smoke"} <= set(names(KERNELS))
    for name in names(KERNELS):
        recipe = load_recipe(KERNELS, name)
        assert recipe.yields and recipe.purpose
        for revision in recipe.revisions:
            source = recipe.at(revision).source
            assert source.folder is not None or (source.main is not None and len(source.main.revision) == 40)


def test_revisions_take_submodules_of_their_own() -> None:
    recipe = load_recipe(KERNELS, "deep_gemm")
    ours, theirs = recipe.source, recipe.at("sglang").source
    assert theirs.main is not None and ours.main is not None and theirs.main.git != ours.main.git
    assert theirs.submodules["third-party/cutlass"].revision != ours.submodules["third-party/cutlass"].revision
    assert theirs.submodules["third-party/cutlass"].keep == ("include",)
    assert theirs.submodules["third-party/fmt"] == ours.submodules["third-party/fmt"]
    with pytest.raises(InputError, match="nearest: sglang"):
        recipe.at("sglnag")


@pytest.mark.parametrize(("text", "says"), [
    (GOOD + "yield: [a]\n", "nearest: yields"),
    (GOOD + "uses: [compilers]\n", "knows no `compilers`"),
    (GOOD + "memory_per_job: 2 GB\n", "2 GiB"),
    (GOOD.replace("folder: source", "folder: sauce"), "not there"),
    (GOOD.replace("script: proof.py", "script: prof.py"), "a file of the recipe is not there"),
    (GOOD.replace('commands: [{build: "true"}]\n', ""), "`commands` is missing"),
    (GOOD.replace("folder: source", "git: https://example.test/a.git, revision: 54e2261"), "its whole hash"),
    (GOOD.replace("proof.py}", "proof.py, python: torch}"), "agent or environment"),
    ("[a]\n", "a mapping is expected"),
])
def test_wrong_recipes_are_told_with_their_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(written(tmp_path, text), "one")
    assert says in str(caught.value) and "kernels/one/kernel.yml" in str(caught.value)


def test_a_wrong_name_has_a_nearest_one() -> None:
    with pytest.raises(InputError, match="nearest: deep_gemm"):
        load_recipe(KERNELS, "deepgemm")
    with pytest.raises(InputError):
        load_recipe(KERNELS, "../envs")


def ask(rows: Any, *named: str) -> list[Asked]:
    return asked_kernels({"deployment": {"kernels": rows}}, named)


def test_what_a_deployment_asks_for() -> None:
    assert ask(["deep_gemm@vllm"]) == [Asked("deep_gemm", "vllm")]
    row = {"name": "kt_kernel", "options": {"CPUINFER_ENABLE_LTO": True, "CPUINFER_USE_CUDA": 1}, "cpu": "avx2",
           "jobs": 4}
    asked = Asked("kt_kernel", None, {"CPUINFER_ENABLE_LTO": "ON", "CPUINFER_USE_CUDA": "1"}, "avx2", 4)
    assert ask([row]) == [asked]
    assert ask([row], "kt_kernel", "smoke") == [asked, Asked("smoke")]
    assert asked_kernels({}, ()) == [] and asked_kernels({"deployment": {}}, ()) == []


@pytest.mark.parametrize("rows", ["deep_gemm", {"name": "deep_gemm"}, [{"nam": "x"}], [{"name": "x", "cpus": "a"}],
                                  [{"name": "x", "jobs": 0}], [{"name": "x", "options": ["a"]}]])
def test_wrong_wishes_are_refused(rows: Any) -> None:
    with pytest.raises(InputError):
        ask(rows)


@pytest.mark.parametrize(("asked", "says"), [
    (Asked("kt_kernel", options={"CPUINFER_ENABLE_LT0": "ON"}), "nearest: CPUINFER_ENABLE_LTO"),
    (Asked("kt_kernel", options={"CPUINFER_ENABLE_LTO": "maybe"}), "does not take `maybe`"),
    (Asked("kt_kernel", cpu="amx2"), "no CPU variant `amx2`"),
    (Asked("kt_kernel", "v1"), "no revision"),
])
def test_wishes_are_checked_against_the_recipe(asked: Asked, says: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(asked, load_recipe(KERNELS, "kt_kernel"))
    assert says in str(caught.value)
