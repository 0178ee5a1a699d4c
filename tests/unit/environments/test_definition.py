"""env.yml, read strictly: each mistake with file, line and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.environments.definition import Platform, load_environment, names
from bringup.environments.locks import read_lock

GOOD = """\
purpose: test
python: ["3.12", "3.11"]
platforms:
  linux-x86_64: {machine: x86_64, glibc: "2.28"}
"""
ENVS = Path(__file__).resolve().parents[3] / "envs"


def written(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "envs" / "one"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "env.yml").write_text(text)
    return tmp_path / "envs"


def test_defaults(tmp_path: Path) -> None:
    found = load_environment(written(tmp_path, GOOD), "one")
    assert found.pythons == ("3.12", "3.11")
    assert found.platforms[0].target == "x86_64-manylinux_2_28" and found.platforms[0].family == "cpu"
    assert [path.name for path in found.requirements] == ["requirements.in"]


@pytest.mark.parametrize(("text", "line", "says"), [
    (GOOD + "purpos: x\n", 5, "purpos"),
    (GOOD.replace('["3.12", "3.11"]', "3.10"), 2, "quoted"),
    (GOOD.replace('["3.12", "3.11"]', '["python3"]'), 2, "quoted"),
    (GOOD.replace(', glibc: "2.28"', ""), 4, "2.28"),
    (GOOD.replace("x86_64, glibc", "x86_64-unknown-linux-gnu, glibc"), 4, "aarch64"),
    (GOOD.replace('"2.28"}', '"2.28", device: cuda}'), 4, "cuda12.8"),
    (GOOD + 'overrides: [{requirement: "a==1"}]\n', 5, "reason"),
    (GOOD + "overlay: nowhere\n", 5, "not there"),
    (GOOD + "build: {VLLM_TARGET_DEVICE: empty}\n", 5, "nothing to build"),
    (GOOD + "sources: [vllm]\nbuild: {PYTHONPATH: /x}\n", 6, "more than a build"),
    (GOOD + "sources: [vllm]\nbuild: [empty]\n", 6, "no mapping"),
    (GOOD.replace('"2.28"}', '"2.28", not_locked: ""}'), 4, "without a reason"),
    (GOOD + "exclude_newer: soon\n", 5, "2026"),
    (GOOD + "verify: {config: {file: env.yml, model_type: x, expect: maybe}}\n", 5, "known"),
    (GOOD + "verify: {commands: [vllm --version]}\n", 5, "not understood"),
    (GOOD + "verify: {commands: [{run: [vllm], say: [--port]}]}\n", 5, "not understood"),
    (GOOD + "verify: {shared: {build_backend.py: }}\n", 5, "without a reason"),
    (GOOD + "verify: {own: {a: b}}\n", 5, "not_imported, shared"),
    (GOOD + "last: [a]\n", 5, "{PACKAGE: why}"),
    (GOOD + "python: [\"3.12\"]\n", 5, "twice"),
])
def test_mistakes_name_the_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_environment(written(tmp_path, text), "one")
    told = str(caught.value)
    assert f"envs/one/env.yml:{line}" in told and says in told


def test_a_wrong_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nearest: one"):
        load_environment(written(tmp_path, GOOD), "oen")


@pytest.mark.parametrize(("machine", "glibc", "fits"), [
    ("x86_64", "2.35", True), ("x86_64", "2.36", True), ("x86_64", "2.4", False), ("x86_64", "2.31", False),
    ("aarch64", "2.39", False), ("x86_64", None, False),
])
def test_a_platform_fits_by_machine_and_glibc(machine: str, glibc: str | None, fits: bool) -> None:
    assert Platform("p", "x86_64", "2.35").fits(machine, glibc) is fits


def test_all_environments_of_the_project_can_be_read() -> None:
    found = names(ENVS)
    assert {"lab", "lab-legacy", "glm51-vllm", "glm51-vllm-next", "glm51-vllm-ascend", "glm51-sglang", "glm51-kt",
            "glm51-kt-pinned", "legacy"} <= set(found)
    for name in found:
        environment = load_environment(ENVS, name)
        assert environment.purpose
        # a platform has a lock, or the reason why none can be had
        for platform in environment.platforms:
            assert environment.lock_file(platform).is_file() != bool(platform.not_locked), (name, platform.name)


def test_the_ascend_lock_holds_nothing_of_cuda_and_one_row_of_the_vendors_table() -> None:
    lock = read_lock(ENVS / "glm51-vllm-ascend" / "locks" / "linux-aarch64-cann9.1.txt").of_python("3.11")
    assert not [name for name in lock if name.startswith(("nvidia-", "cuda-", "flashinfer"))]
    assert (lock["vllm"], lock["vllm-ascend"], lock["torch"], lock["transformers"]) == (
        "0.23.0", "0.23.0", "2.10.0", "5.5.4")
    assert lock["torch-npu"].startswith("2.10.0")
