"""Locks: merged over interpreters, read back as written, and those of the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from bringup.base.errors import InputError
from bringup.environments.definition import load_environment, names
from bringup.environments.locks import lock_cuda, merge, parse_lock, read_lock, render
from bringup.environments.owners import two_owners
from bringup.environments.resolve import inputs_digest

ENVS = Path(__file__).resolve().parents[3] / "envs"


def flat(*packages: str) -> str:
    return "".join(f"{name} \\\n    --hash=sha256:{'ab' * 32}\n    # via -r requirements.in\n" for name in packages)


def test_merge_marks_what_not_all_interpreters_share() -> None:
    locks = {"3.10": parse_lock(flat("a==1", "b==1", "old==1"), "x"), "3.9": parse_lock(flat("a==1", "b==1"), "x"),
             "3.11": parse_lock(flat("a==1", "b==2"), "x"), "3.12": parse_lock(flat("a==1", "b==3", "old==1"), "x")}
    text = render(merge(locks), {"platform": "p", "python": "3.9 3.10 3.11 3.12"})
    lock = parse_lock(text, "merged")
    markers = {(item.name, item.version): item.marker for item in lock.packages}
    assert markers == {
        ("a", "1"): "", ("b", "1"): "python_version < '3.11'",
        ("b", "2"): "python_version >= '3.11' and python_version < '3.12'", ("b", "3"): "python_version >= '3.12'",
        ("old", "1"): "python_version == '3.10' or python_version == '3.12'",
    }
    for python, part in locks.items():
        assert lock.of_python(python) == {item.name: item.version for item in part.packages}
        assert lock.of_python(python + ".7") == lock.of_python(python)
    assert render(lock.packages, lock.header) == text


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(InputError, match="b has no hash") as caught:
        parse_lock(flat("a==1") + "b==2\n", "x.txt")
    assert "x.txt:4" in str(caught.value)


def test_a_line_that_is_no_pin_is_refused() -> None:
    with pytest.raises(InputError, match="not understood"):
        parse_lock("--index-url https://index.example/simple\n", "x.txt")


@pytest.mark.parametrize(("packages", "cuda"), [
    (("nvidia-cuda-runtime-cu12==12.8.90", "torch==2.9.1"), "12.8.90"), (("nvidia-cuda-runtime==13.0.96",), "13.0.96"),
    (("torch==2.11.0+cu130",), "13.0"), (("torch==2.13.0+cpu",), None), (("numpy==2.4.6",), None),
])
def test_cuda_of_a_lock(packages: tuple[str, ...], cuda: str | None) -> None:
    assert lock_cuda(parse_lock(flat(*packages), "x")) == cuda


@pytest.mark.parametrize("name", names(ENVS))
def test_locks_of_the_project(name: str) -> None:
    environment = load_environment(ENVS, name)
    for platform in [item for item in environment.platforms if not item.not_locked]:
        lock = read_lock(environment.lock_file(platform))
        # no index, no other address: each site brings its own
        assert not re.search(r"https?://|index-url|find-links", lock.text)
        assert lock.header["inputs"] == inputs_digest(environment), f"invoke env.lock --env {name}"
        assert set(lock.pythons) == set(environment.pythons)
        for python in environment.pythons:
            packages = lock.of_python(python)
            assert two_owners(packages) == []
            for package, floor in environment.floors.items():
                assert Version(packages[package]) >= Version(floor)
        if platform.family == "cuda":
            assert str(lock_cuda(lock)).startswith(platform.device.removeprefix("cuda"))
        else:
            assert lock_cuda(lock) is None
