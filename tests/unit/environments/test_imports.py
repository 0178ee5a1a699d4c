"""Imports that fail: what waits for a driver is not broken, what is broken is told by its cause. Texts as recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bringup.agent.modules.python_env_build import excerpt
from bringup.agent.modules.python_env_imports import (
    NVIDIA,
    at_run_time,
    cause,
    lacking,
    told,
    waits_for,
    without_device,
)
from bringup.agent.task import Completed
from bringup.environments.locks import read_lock

DATA = Path(__file__).parent / "data" / "imports"
ENVS = Path(__file__).resolve().parents[3] / "envs"
SGL = (DATA / "sgl_kernel_without_driver.txt").read_text()
DEEP_GEMM = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n"
CUDART = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n"
SYMBOL = "ImportError: demo_kernel.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib\n"


def none(path: str) -> bool:
    return False


def nvidia(path: str) -> bool:
    return path == NVIDIA


@pytest.mark.parametrize(("packages", "there", "compiler", "cuda", "driver", "says"), [
    ({"triton": "3"}, True, "/usr/bin/cc", None, True, []),
    ({"triton": "3"}, False, "/usr/bin/cc", None, True, ["no /i/Python.h here: apt-get install python3.12-dev"]),
    ({"triton": "3"}, False, None, None, False, ["no C compiler", "Python.h"]),
    ({"flashinfer-python": "1"}, True, "/usr/bin/cc", None, True, ["finds no CUDA toolkit here that fits"]),
    ({"flashinfer-python": "1"}, False, None, None, False, []),
    ({"flashinfer-python": "1", "triton": "3"}, True, "/usr/bin/cc", "/usr/local/cuda", True, []),
])
def test_what_engines_will_miss_when_they_compile_is_told_when_they_are_built(
        packages: dict[str, str], there: bool, compiler: str | None, cuda: str | None, driver: bool,
        says: list[str]) -> None:
    said = {"header": "/i/Python.h", "there": there, "compiler": compiler, "python": "3.12"}
    told_so = lacking(packages, said, cuda, driver)
    assert len(told_so) == len(says) and all(part in text for part, text in zip(says, told_so, strict=True)), told_so


def test_the_headers_and_the_compiler_of_this_machine_are_looked_for() -> None:
    item = {"packages": {"triton": "3"}}
    env = {"PATH": "/nonexistent"}
    assert any("no C compiler" in text for text in at_run_time(env, sys.executable, item))
    assert at_run_time(env, sys.executable, {"packages": {"alpha": "1"}}) == []


def ended(stderr: str, rc: int = 1, late: bool = False) -> Completed:
    return Completed(["python"], rc, "", stderr, 1.0, late)


@pytest.mark.parametrize("stderr", [SGL, DEEP_GEMM])
def test_a_library_of_a_driver_that_is_not_loaded_is_no_broken_package(stderr: str) -> None:
    reason = waits_for(stderr, none)
    assert reason == "it needs libcuda.so.1 of the NVIDIA driver, and none is loaded on this host"
    # a driver is loaded and its library is not found: that is one
    assert waits_for(stderr, nvidia) is None
    assert "libcuda.so.1" in told("deep_gemm", "kt-kernel 0.7.2", ended(stderr), "2.9.1", None)["found"]


def test_other_libraries_never_wait_for_a_driver() -> None:
    assert waits_for(CUDART, none) is None and waits_for(SYMBOL, none) is None
    assert waits_for("ImportError: libascend_hal.so: cannot open shared object file: No such file", none) \
        == "it needs libascend_hal.so of the Ascend driver, and none is loaded on this host"


def test_a_symbol_that_is_missing_names_package_and_both_torches() -> None:
    found = told("demo_kernel", "demo-kernel 0.3", ended(SYMBOL), "2.9.1+cu129", "==2.11")
    assert found["summary"] == "import demo_kernel fails (demo-kernel 0.3)"
    assert "torch 2.9.1+cu129" in found["expected"] and "torch==2.11" in found["expected"]
    assert "_ZN3c1013MessageLoggerC1EPKciib" in found["found"] and "another torch" in found["found"]


@pytest.mark.parametrize(("done", "says"), [
    (ended(SGL), "libcuda.so.1: cannot open"),
    (ended("a\nModuleNotFoundError: No module named 'click'\n  note: x\n"), "No module named 'click'"),
    (ended("", -4), "built for another CPU"),
    (ended("", -11), "signal 11"),
    (ended("", -9, True), "no end after 300 s"),
    (ended("", 3), "rc 3"),
])
def test_the_cause_is_told_and_not_the_last_line(done: Completed, says: str) -> None:
    assert says in cause(done)


def test_a_library_of_the_distribution_names_its_package() -> None:
    found = told("kt", "kt-kernel 0.5.3", ended("ImportError: libnuma.so.1: cannot open shared object file: x\n"),
                 None, None)
    assert found["mend"] == "apt-get install libnuma1"


def test_a_command_line_that_wants_a_device_is_untried_where_none_can_be() -> None:
    said = (DATA / "vllm_version_without_device.txt").read_text()
    assert "wants a device" in str(without_device(said, none))
    assert without_device(said, nvidia) is None
    assert without_device("SyntaxError: invalid syntax\n", none) is None


@pytest.mark.parametrize("name", ["glm51-vllm", "glm51-vllm-next"])
def test_who_is_installed_last_is_taken_from_the_lock_with_its_hashes(name: str) -> None:
    lock = read_lock(ENVS / name / "locks" / "linux-x86_64-cuda13.txt")
    text = excerpt(lock.text, ["nvidia-cutlass-dsl-libs-cu13"])
    mine = next(item for item in lock.packages if item.name == "nvidia-cutlass-dsl-libs-cu13")
    assert text.startswith(f"{mine.name}=={mine.version} \\\n")
    assert [line.strip(" \\") for line in text.splitlines()[1:]] == [f"--hash={value}" for value in sorted(mine.hashes)]
