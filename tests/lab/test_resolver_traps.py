"""Traps of the package index, each with the real packages by their metadata; what hosts of another kind get."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from bringup.base.errors import InputError, StepError
from bringup.environments.definition import Environment, Override, Platform, load_environment
from bringup.environments.indexes import package_settings
from bringup.environments.locks import read_lock
from bringup.environments.planned import HostFacts, plan_for, prepare
from bringup.environments.resolve import Locking, lock_environment
from bringup.environments.uv import uv_blob
from bringup.environments.wheels import fetch_wheels

ENVS = Path(__file__).resolve().parents[2] / "envs"


def resolve(tmp_path: Path, requirements: str, *, glibc: str = "2.35", python: str = "3.12",
            exclude_newer: str | None = None, floors: dict[str, str] | None = None,
            overrides: tuple[Override, ...] = ()) -> Locking:
    file = tmp_path / "requirements.in"
    file.write_text(requirements)
    target = Platform("linux", "x86_64", glibc, "cuda12.8")
    environment = Environment("trap", tmp_path, "a trap", (python,), (target,), requirements=(file,),
                              floors=floors or {}, exclude_newer=exclude_newer, overrides=overrides)
    try:
        return lock_environment(environment, target, base=tmp_path)
    except StepError as error:
        if "not reached" in error.what:
            pytest.fail(f"these tests need the package index: {error}")
        raise


@pytest.mark.full
@pytest.mark.parametrize("glibc", ["2.28", "2.35"])
def test_two_owners_of_transformers_are_refused_though_the_resolver_is_content(tmp_path: Path, glibc: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(tmp_path, "transformers==5.3.0\nsglang-kt>=0.7\n", glibc=glibc, exclude_newer="2026-11-20")
    told = str(caught.value)
    assert "two distributions would own `transformers/`" in told
    assert "transformers==5.3.0" in told and "transformers-kt==" in told and "asked for by sglang-kt" in told


@pytest.mark.full
def test_an_open_vllm_goes_back_years_and_the_floor_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        resolve(tmp_path, "transformers==5.3.0\nvllm>=0.10\n", floors={"vllm": "0.19"}, exclude_newer="2026-11-20")
    assert "below the floor of vllm" in str(caught.value) and "vllm==0.11" in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize(("requirements", "first", "second"), [
    ("transformers==5.3.0\nvllm>=0.24.0\n", "transformers==5.3.0  wanted by requirements.in:1", "transformers>=5.5.3"),
    ("transformers==5.3.0\nsglang-kt==0.5.3\n", "transformers==5.3.0  wanted by requirements.in:1",
     "transformers==4.57.1  wanted by sglang-kt==0.5.3 (requirements.in:2)"),
])
def test_what_cannot_hold_together_is_refused_by_name_range_and_file(tmp_path: Path, requirements: str, first: str,
                                                                    second: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(tmp_path, requirements, exclude_newer="2026-11-20")
    told = str(caught.value)
    assert first in told and second in told
    assert told.index(first) < told.index("the resolver says") < told.index("No solution found")


@pytest.mark.full
def test_the_published_pin_gives_way_to_an_override_with_its_reason(tmp_path: Path) -> None:
    made = resolve(tmp_path, "sglang-kt==0.5.3\ntransformers==5.3.0\n", exclude_newer="2026-04-20",
                   overrides=(Override("transformers==5.3.0", "as the tutorial says"),))
    assert "transformers==5.3.0 \\" in made.text and "# overrides: transformers==5.3.0" in made.text


@pytest.mark.full
def test_the_plain_linux_target_would_pick_an_old_release(tmp_path: Path) -> None:
    """kt-kernel 0.7.2 needs glibc 2.35; for 2.28, which uv's plain Linux target means, the resolver goes back."""
    newest = dict(line.rstrip(" \\").split("==") for line in resolve(
        tmp_path, "kt-kernel>=0.5\n", glibc="2.35", exclude_newer="2026-11-20").text.splitlines() if "==" in line)
    plain = dict(line.rstrip(" \\").split("==") for line in resolve(
        tmp_path, "kt-kernel>=0.5\n", glibc="2.28", exclude_newer="2026-11-20").text.splitlines() if "==" in line)
    assert newest["kt-kernel"] == "0.7.2" and plain["kt-kernel"] < "0.7"


def test_the_placeholder_deep_gemm_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sgl-deep-gemm"):
        resolve(tmp_path, "deep-gemm>=1.0\n")


@pytest.mark.full
def test_uv_for_hosts_of_another_machine_is_fetched(tmp_path: Path) -> None:
    blob = uv_blob("aarch64" if platform.machine() == "x86_64" else "x86_64", tmp_path)
    assert isinstance(blob.source, Path)
    head = blob.source.read_bytes()[:20]
    assert head[:4] == b"\x7fELF" and head[18] == (183 if platform.machine() == "x86_64" else 62)


@pytest.mark.full
def test_wheels_for_another_machine_and_python_are_fetched_by_the_lock(tmp_path: Path) -> None:
    """What a host without an index gets: for its own machine and interpreter, whatever those of this one are."""
    lock = read_lock(ENVS / "lab-legacy" / "locks" / "linux-aarch64-cpu.txt")
    target = Platform("linux-aarch64-cpu", "aarch64", "2.28")
    wheels = fetch_wheels(lock, "3.10.4", target, tmp_path, package_settings())
    assert len(wheels) == len(lock.of_python("3.10"))
    compiled = [name for name in wheels if not name.endswith("-none-any.whl")]
    assert compiled and all("aarch64" in name and ("cp310" in name or "abi3" in name or "-none-" in name)
                            for name in compiled)


@pytest.mark.full
@pytest.mark.parametrize(("requirements", "top"), [
    ("kt-kernel==0.7.2\nsglang-kernel==0.4.1\n", "sgl_kernel"),
    ("kt-kernel==0.7.2\nsgl-deep-gemm==0.2.3.post2\n", "deep_gemm"),
])
def test_kt_kernel_brings_packages_of_others_and_is_refused_beside_them(tmp_path: Path, requirements: str,
                                                                      top: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(tmp_path, requirements, exclude_newer="2026-11-20")
    told = str(caught.value)
    assert f"two distributions would own `{top}/`" in told and "kt-kernel==0.7.2" in told


@pytest.mark.parametrize(("name", "driver", "needed"), [
    ("glm51-vllm", "570.86.15", "driver 580 or newer for CUDA 13"),
    ("glm51-vllm-next", "575.57.08", "driver 580 or newer for CUDA 13"),
    ("glm51-sglang", "470.223.02", "driver 525 or newer for CUDA 12"),
])
def test_the_cuda_of_a_real_lock_is_held_against_the_driver(name: str, driver: str, needed: str) -> None:
    prepared = prepare(load_environment(ENVS, name), ENVS.parent)
    python = {"path": "/usr/bin/python3.12", "version": "3.12.1", "implementation": "CPython", "abi": "x"}
    facts = HostFacts("x86_64", "2.39", (python,), None, None, None, driver)
    with pytest.raises(StepError) as caught:
        plan_for(prepared, facts, "h200")
    assert needed in str(caught.value) and driver in str(caught.value) and "nothing was downloaded" in str(caught.value)
    assert plan_for(prepared, replace(facts, driver="580.126.09"), "h200").platform.family == "cuda"


@pytest.mark.full
@pytest.mark.parametrize(("name", "words"), [("glm51-kt", "no wheels with a matching platform tag"),
                                             ("glm51-sglang", "torch-memory-saver==0.0.9 has no usable wheels")])
def test_the_reason_why_a_platform_has_no_lock_is_the_resolvers(name: str, words: str) -> None:
    environment = load_environment(ENVS, name)
    target = next(item for item in environment.platforms if item.not_locked)
    assert words in str(target.not_locked)
    with pytest.raises(InputError) as caught:
        lock_environment(environment, target, base=ENVS.parent)
    said = " ".join(str(caught.value).split())  # uv breaks its lines where the terminal ends
    assert words.split("==")[0] in said
