"""What a host gets: platform and interpreter by what it has, and a digest that names all that decides the content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bringup.agent.modules.python_env_imports import torch_finding
from bringup.base.errors import StepError
from bringup.environments.definition import Environment, Override, Platform
from bringup.environments.locks import parse_lock
from bringup.environments.planned import HostFacts, Prepared, plan_for

LOCK = parse_lock("# bringup lock\n# python: 3.11 3.12\n\n"
                  f"a==1 ; python_version < '3.12' \\\n    --hash=sha256:{'ab' * 32}\n"
                  f"a==2 ; python_version >= '3.12' \\\n    --hash=sha256:{'cd' * 32}\n", "x")
PLATFORMS = (Platform("cpu", "x86_64", "2.28"), Platform("cuda", "x86_64", "2.35", "cuda12.8"))
ENVIRONMENT = Environment("one", Path(), "test", ("3.12", "3.11"), PLATFORMS)
PREPARED = Prepared(ENVIRONMENT, {"cpu": LOCK, "cuda": LOCK}, None, ())


def facts(*versions: str, machine: str = "x86_64", glibc: str | None = "2.36") -> HostFacts:
    found = tuple({"path": f"/usr/bin/python{v}", "version": v, "implementation": "CPython", "abi": "x"}
                  for v in versions)
    return HostFacts(machine, glibc, found, None, None, None)


def test_the_first_wanted_interpreter_that_is_there_is_taken() -> None:
    assert plan_for(PREPARED, facts("3.11.2", "3.12.1"), None).python == "3.12.1"
    planned = plan_for(PREPARED, facts("3.9.1", "3.11.2"), None)
    assert planned.python == "3.11.2" and planned.item["packages"] == {"a": "1"}


def test_devices_decide_the_platform() -> None:
    assert plan_for(PREPARED, facts("3.12.1"), "h200").platform.name == "cuda"
    assert plan_for(PREPARED, facts("3.12.1"), "ascend-a2").platform.name == "cpu"
    assert plan_for(PREPARED, facts("3.12.1", glibc="2.31"), "h200").platform.name == "cpu"


@pytest.mark.parametrize(("host", "says"), [
    (facts("3.12.1", machine="aarch64"), "no platform"), (facts("3.12.1", glibc=None), "another libc"),
    (facts("3.12.1", glibc="2.17"), "glibc 2.17"), (facts("3.13.0"), "no Python"), (facts(), "none of them"),
])
def test_a_host_that_nothing_fits_is_told_why(host: HostFacts, says: str) -> None:
    with pytest.raises(StepError) as caught:
        plan_for(PREPARED, host, None)
    assert says in str(caught.value) and "next" in str(caught.value)


def cuda_lock(version: str) -> Prepared:
    text = (f"# bringup lock\n# python: 3.12\n\nnvidia-cuda-runtime=={version} \\\n"
            f"    --hash=sha256:{'ab' * 32}\n")
    environment = replace(ENVIRONMENT, platforms=(Platform("new", "x86_64", "2.28", "cuda13"),
                                                  Platform("old", "x86_64", "2.28", "cuda12.8")))
    old = parse_lock(text.replace(version, "12.8.90"), "x")
    return Prepared(environment, {"new": parse_lock(text, "x"), "old": old}, None, ())


@pytest.mark.parametrize(("driver", "platform"), [("580.126.09", "new"), ("570.86.15", "old"), (None, "new")])
def test_the_driver_decides_between_cuda_platforms(driver: str | None, platform: str) -> None:
    host = replace(facts("3.12.1"), driver=driver)
    assert plan_for(cuda_lock("13.0.96"), host, "h200").platform.name == platform


def test_a_driver_that_is_too_old_is_told_before_anything_is_downloaded() -> None:
    prepared = cuda_lock("13.0.96")
    only = replace(prepared, locks={"new": prepared.locks["new"]})
    with pytest.raises(StepError) as caught:
        plan_for(only, replace(facts("3.12.1"), driver="550.144.03"), "h200")
    told = str(caught.value)
    assert "driver 580 or newer for CUDA 13.0.96" in told and "550.144.03" in told and "nothing was downloaded" in told


def test_a_platform_without_a_lock_says_the_resolvers_reason() -> None:
    arm = Platform("arm", "aarch64", "2.28", not_locked="kt-kernel has no wheels for aarch64")
    prepared = replace(PREPARED, environment=replace(ENVIRONMENT, platforms=(*PLATFORMS, arm)))
    with pytest.raises(StepError) as caught:
        plan_for(prepared, facts("3.12.1", machine="aarch64"), None)
    told = str(caught.value)
    assert "cannot be had on arm" in told and "kt-kernel has no wheels for aarch64" in told and "env.list" in told


@pytest.mark.parametrize(("said", "driver", "finding"), [
    ({"version": "2.11.0", "cuda": "13.0", "available": False},
     "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30", "driver 550.144.03"),
    ({"version": "2.11.0", "cuda": "13.0", "available": True}, "NVRM version: 580.126.09", None),
    ({"version": "2.11.0", "cuda": "13.0", "available": False}, None, None),
    ({"version": "2.13.0+cpu", "cuda": None, "available": False}, "NVRM version: 580.126.09", None),
])
def test_torchs_cuda_against_the_driver(said: dict[str, object], driver: str | None, finding: str | None) -> None:
    found = torch_finding(said, driver)
    assert (found or {}).get("found") == finding
    if found:
        assert found["expected"] == "a driver for CUDA 13.0"


def test_the_digest_names_what_decides_the_content_and_nothing_else() -> None:
    base = plan_for(PREPARED, facts("3.12.1"), None).digest
    others = {
        "interpreter": plan_for(PREPARED, facts("3.12.2"), None).digest,
        "platform": plan_for(PREPARED, facts("3.12.1"), "h200").digest,
        "lock": plan_for(replace(PREPARED, locks={"cpu": replace(LOCK, text=LOCK.text + "\n")}), facts("3.12.1"),
                         None).digest,
        "overlay": plan_for(replace(PREPARED, overlay=b"x"), facts("3.12.1"), None).digest,
        "overrides": plan_for(replace(PREPARED, environment=replace(
            ENVIRONMENT, overrides=(Override("a==2", "why"),))), facts("3.12.1"), None).digest,
    }
    assert len({base, *others.values()}) == 6
    renamed = replace(PREPARED, environment=replace(ENVIRONMENT, name="two", purpose="other", imports=("a",)))
    assert plan_for(renamed, facts("3.12.1"), None).digest == base
