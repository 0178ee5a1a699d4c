"""Environments built for real: uv, hashed locks, real interpreters, folders of this machine as hosts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from folder_fleet import FolderFleet
from small_wheels import source, wheel
from standalone_python import find_python, standalone

from bringup.base.errors import InputError
from bringup.base.events import Findings, Note, Progress, StageSummary
from bringup.base.results import Status
from bringup.environments.build import build_environments, find_environments, verify_environments
from bringup.environments.definition import load_environment
from bringup.environments.resolve import lock_environment, write_lock
from bringup.environments.uv import uv_program, uv_version
from bringup.lab.state import uv_cache

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
ENV = """\
purpose: test
python: ["%s"]
platforms:
  linux-x86_64: {machine: x86_64, glibc: "2.17"}
  linux-aarch64: {machine: aarch64, glibc: "2.17"}
"""


class Site:
    """A project with environments of small wheels, and the folder that is its index."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "project"
        self.wheels = base / "wheels"
        self.cache = base / "cache"

    def environment(self, name: str, requirements: str, more: str = "", *, device: str = "cpu",
                    python: str = PYTHON) -> None:
        folder = self.root / "envs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "env.yml").write_text((ENV % python).replace('"2.17"}', f'"2.17", device: {device}}}') + more)
        (folder / "requirements.in").write_text(requirements)
        environment = load_environment(self.root / "envs", name)
        for platform in environment.platforms:
            write_lock(lock_environment(environment, platform, base=self.root))

    def fleet(self, *names: str, hosts: tuple[str, ...] = ("a",), check: bool = False,
              **variables: Any) -> FolderFleet:
        given = {"deployment": {"environments": list(names)}, "bringup_uv": str(uv_program()),
                 "bringup_uv_cache": str(self.cache), "bringup_environment_python": sys.executable, **variables}
        return FolderFleet(self.base / "hosts", self.root, hosts, given, check)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    site = Site(tmp_path)
    wheel(site.wheels, "alpha", "1.0", {"alpha/__init__.py": "VALUE = 1\n", "alpha/more.py": "X = 2\n"}, ["beta>=1"],
          {"alpha-cli": "alpha.cli:main"})
    wheel(site.wheels, "beta", "1.5", {"beta.py": "VALUE = 5\n"})
    monkeypatch.setenv("UV_FIND_LINKS", str(site.wheels))
    monkeypatch.setenv("UV_OFFLINE", "1")
    return site


def built(fleet: FolderFleet, name: str = "one", host: str = "a") -> dict[str, Any]:
    results = build_environments(fleet, {})
    assert results[host].status in (Status.OK, Status.CHANGED), results[host]
    told: dict[str, Any] = results[host].data["environments"][name]
    return told


def import_in(path: str, code: str) -> str:
    return subprocess.run([f"{path}/bin/python", "-c", code], capture_output=True, text=True, check=True).stdout


def test_built_once_on_all_hosts_then_nothing_to_do(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    fleet = site.fleet("one", hosts=("a", "b"))
    first = build_environments(fleet, {})
    assert [result.status for result in first.values()] == [Status.CHANGED, Status.CHANGED]
    told = first["b"].data["environments"]["one"]
    assert import_in(told["path"], "import alpha, beta; print(alpha.VALUE, beta.VALUE)") == "1 5\n"
    assert told["packages"] == {"alpha": "1.0", "beta": "1.5"}
    inode = os.stat(Path(told["path"]) / "bringup-env.json").st_ino
    started = time.monotonic()
    again = build_environments(fleet, {})
    assert time.monotonic() - started < 6  # two interpreters are started per host by this fleet
    assert [result.status for result in again.values()] == [Status.OK, Status.OK]
    assert again["b"].data["environments"]["one"]["seconds"] < 1
    assert os.stat(Path(told["path"]) / "bringup-env.json").st_ino == inode
    texts = [event.text for event in fleet.events if isinstance(event, StageSummary)]
    assert "built on a,b" in texts[0] and "there already on a,b" in texts[1]
    found = find_environments(fleet)
    assert found["a"]["one"].sound and found["a"]["one"].digest == told["digest"]
    assert found["b"]["one"].path == told["path"]


def test_check_changes_nothing(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    result = build_environments(site.fleet("one", check=True), {})["a"]
    assert result.status is Status.CHANGED and "would build one" in result.message
    assert list((site.base / "hosts" / "a").iterdir()) == []


def edit(path: Path) -> None:
    (next(path.glob("lib/*/site-packages")) / "beta.py").write_text("VALUE = 666\n")


def edit_unseen(path: Path) -> None:
    """An edit that leaves size and time as they were: only the hashes tell."""
    file = next(path.glob("lib/*/site-packages")) / "beta.py"
    seen = file.stat()
    file.write_text("VALUE = 6\n")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def plant(path: Path) -> None:
    (next(path.glob("lib/*/site-packages")) / "sitecustomize.py").write_text("import sys\n")


def lose_interpreter(path: Path) -> None:
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to("/nonexistent/python3")


def see_system(path: Path) -> None:
    file = path / "pyvenv.cfg"
    file.write_text(file.read_text().replace("system-site-packages = false", "system-site-packages = true"))


def lose_package(path: Path) -> None:
    shutil.rmtree(next(path.glob("lib/*/site-packages")) / "alpha")


def unfinished(path: Path) -> None:
    (path / "bringup-env.json").unlink()


@pytest.mark.full
@pytest.mark.parametrize(("damage", "says"), [
    (edit, "not as installed"), (plant, "belongs to no package"), (lose_interpreter, "interpreter is gone"),
    (see_system, "changed"), (lose_package, "not as installed"), (unfinished, "unfinished"),
])
def test_damage_is_found_and_built_anew(site: Site, damage: Callable[[Path], None], says: str) -> None:
    site.environment("one", "alpha>=1\n")
    fleet = site.fleet("one")
    path = Path(built(fleet)["path"])
    damage(path)
    found = verify_environments(fleet, {})["a"]
    assert found.status is Status.FAILED
    emitted = [event for event in fleet.events if isinstance(event, Findings)][-1]
    assert says in " ".join(finding.summary for finding in emitted.findings)
    again = built(fleet)
    assert again["changed"] and again["path"] == str(path)
    assert import_in(str(path), "import alpha, beta; print(beta.VALUE)") == "5\n"
    assert verify_environments(fleet, {})["a"].status is Status.OK
    assert [entry.name for entry in path.parent.iterdir() if ".old-" in entry.name or ".new-" in entry.name] == []


def test_an_edit_that_only_hashes_show_is_found_and_the_cache_is_not_trusted(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    site.environment("two", "beta>=1\n")
    path = Path(built(site.fleet("one"))["path"])
    edit_unseen(path)  # hard links: the cache and every other environment now hold the same edit
    assert verify_environments(site.fleet("one"), {})["a"].status is Status.FAILED
    two = built(site.fleet("two"), "two")
    assert import_in(two["path"], "import beta; print(beta.VALUE)") == "5\n"


def test_a_moved_folder_is_not_trusted(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    fleet = site.fleet("one")
    path = Path(built(fleet)["path"])
    shutil.move(site.base / "hosts" / "a", site.base / "hosts" / "b")
    moved = site.fleet("one", hosts=("b",))
    assert "moved" in (find_environments(moved)["b"]["one"].reason or "")
    told = built(moved, host="b")
    assert told["changed"] and told["path"] != str(path)
    assert import_in(told["path"], "import sys; print(sys.prefix)").strip() == told["path"]


def test_wrong_hash_stops_before_anything_is_seen(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    wheel(site.wheels, "beta", "1.5", {"beta.py": "VALUE = 'other'\n"})
    result = build_environments(site.fleet("one"), {})["a"]
    assert result.status is Status.FAILED and "one" in result.message
    assert any("hash" in line.lower() for line in result.output), result
    envs = site.base / "hosts" / "a" / "envs"
    assert [entry.name for entry in envs.iterdir() if not entry.name.endswith(".lock")] == []


def test_two_owners_of_one_import_package_are_found_by_record(site: Site) -> None:
    wheel(site.wheels, "gamma", "2.0", {"beta.py": "VALUE = 'gamma'\n"})
    site.environment("one", "alpha>=1\ngamma>=2\n")
    result = build_environments(site.fleet("one"), {})["a"]
    assert result.status is Status.FAILED
    assert "two owners: beta and gamma" in result.message and "1 of the files differ" in (result.found or "")


def test_a_compiled_package_that_cannot_be_loaded_stops_the_build_though_nobody_named_it(site: Site) -> None:
    wheel(site.wheels, "epsilon", "3.0", {"epsilon/__init__.py": "from epsilon import _C\n",
                                          "epsilon/_C.abi3.so": "no"})
    wheel(site.wheels, "zeta", "1.0", {"zeta/__init__.py": "", "zeta/lib/libzeta.so": "a library, nothing to import"})
    site.environment("one", "alpha>=1\nepsilon>=3\nzeta>=1\n")
    result = build_environments(site.fleet("one"), {})["a"]
    assert result.status is Status.FAILED and "import epsilon fails (epsilon 3.0)" in result.message
    assert "_C.abi3.so" in str(result.found)
    envs = site.base / "hosts" / "a" / "envs"
    assert [entry.name for entry in envs.iterdir() if not entry.name.endswith(".lock")] == []
    site.environment("one", "alpha>=1\nepsilon>=3\nzeta>=1\n",
                     "verify: {not_imported: {epsilon: there is no such device here}}\n")
    assert built(site.fleet("one"))["changed"]


def test_a_package_is_built_from_source_with_the_variables_of_env_yml(site: Site) -> None:
    source(site.wheels, "eta", "2.0", "ETA_TARGET")
    more = "sources: [eta]\n"
    site.environment("one", "eta>=2\n", more)
    plain = built(site.fleet("one"))
    assert import_in(plain["path"], "import eta; print(eta.BUILT)") == "none\n"
    site.environment("one", "eta>=2\n", more + "build: {ETA_TARGET: empty}\n")
    told = built(site.fleet("one"))
    assert told["digest"] != plain["digest"]
    assert import_in(told["path"], "import eta; print(eta.BUILT)") == "empty\n"


def test_a_build_from_source_is_held_to_its_share_of_the_memory_and_says_so(site: Site) -> None:
    source(site.wheels, "eta", "2.0", "MAX_JOBS")
    site.environment("one", "eta>=2\n", "sources: [eta]\nmemory_per_job: 100000 GiB\n")
    fleet = site.fleet("one")
    told = built(fleet)
    assert import_in(told["path"], "import eta; print(eta.BUILT)") == "1\n"  # no compiler fits: one all the same
    said = [event.text for event in fleet.events if isinstance(event, Progress)]
    assert any(re.search(r"built from source: eta, 1 at a time, [\d.]+ GiB at most of [\d.]+ GiB that are free, held",
                         text) for text in said), said
    site.environment("one", "eta>=2\n", "sources: [eta]\nbuild: {MAX_JOBS: '7'}\n")
    assert import_in(built(site.fleet("one"))["path"], "import eta; print(eta.BUILT)") == "7\n"


def test_a_build_from_source_takes_the_toolkit_of_its_lock_and_names_what_is_there(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source(site.wheels, "eta", "2.0", "CUDA_HOME")
    wheel(site.wheels, "nvidia-cuda-runtime", "98.1.3", {"nvidia/cuda/__init__.py": ""})
    homes = {}
    for version in ("97.4.1", "98.0.2", "98.1.9"):
        homes[version] = site.base / f"cuda-{version}"
        for name in ("bin", "include"):
            (homes[version] / name).mkdir(parents=True)
        (homes[version] / "include" / "cuda_runtime.h").write_text("")
        (homes[version] / "bin" / "nvcc").write_text(f"#!/bin/sh\necho 'release {version[:4]}, V{version}'\n")
        (homes[version] / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(homes["97.4.1"]))  # of the account: another one
    monkeypatch.setenv("CUDA_PATH", str(homes["98.1.9"]))
    site.environment("one", "eta>=2\nnvidia-cuda-runtime==98.1.3\n", "sources: [eta]\n", device="cuda98")
    hardware = {"environments": ["one"], "hardware": "h200"}
    told = built(site.fleet(deployment=hardware))
    assert import_in(told["path"], "import eta; print(eta.BUILT)") == f"{homes['98.1.9']}\n"
    assert find_environments(site.fleet(deployment=hardware))["a"]["one"].cuda_home == str(homes["98.1.9"])
    named = built(site.fleet(deployment=hardware, bringup_cuda_home=str(homes["98.0.2"])))
    assert named["digest"] != told["digest"]  # what is compiled by another toolkit is another environment
    assert import_in(named["path"], "import eta; print(eta.BUILT)") == f"{homes['98.0.2']}\n"
    wrong = build_environments(site.fleet(deployment=hardware, bringup_cuda_home=str(homes["97.4.1"])), {})["a"]
    assert wrong.status is Status.FAILED and "bringup_cuda_home does not fit the environment one" in wrong.message
    assert "CUDA 98.x as its lock" in str(wrong.expected) and "97.4.1" in str(wrong.found)
    monkeypatch.delenv("CUDA_PATH")
    none = build_environments(site.fleet(deployment=hardware), {})["a"]
    assert none.status is Status.FAILED and "needs a CUDA toolkit that this host does not have" in none.message
    assert f"{homes['97.4.1']} 97.4.1 (CUDA_HOME)" in str(none.found)
    # nothing is compiled: no toolkit is needed
    site.environment("one", "beta>=1\nnvidia-cuda-runtime==98.1.3\n", device="cuda98")
    assert built(site.fleet(deployment=hardware))["changed"]


def test_overridden_requirements_are_taken_out_of_the_consistency_check(site: Site) -> None:
    wheel(site.wheels, "delta", "1.0", {"delta.py": ""}, ["beta<1"])
    with pytest.raises(InputError) as caught:
        site.environment("one", "delta>=1\nbeta==1.5\n")
    for part in ("beta<1", "delta>=1", "envs/one/requirements.in:2", "No solution found"):
        assert part in str(caught.value).replace("delta==1.0", "delta>=1")
    override = 'overrides: [{requirement: "beta==1.5", reason: proven at run time}]\n'
    site.environment("one", "delta>=1\nbeta==1.5\n", override)
    told = built(site.fleet("one"))
    assert told["packages"]["beta"] == "1.5"
    marker = json.loads((Path(told["path"]) / "bringup-env.json").read_text())
    assert marker["overrides"] == ["beta"]


def test_nothing_leaks_in(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "beta.py").write_text("VALUE = 'leaked'\n")
    monkeypatch.setenv("PYTHONPATH", str(outside))
    for name in ("PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"):
        monkeypatch.setenv(name, str(tmp_path / "nonexistent"))
    site.environment("one", "alpha>=1\n")
    told = built(site.fleet("one"))
    assert told["changed"] and "nothing visible from outside" in told["proven"]


def test_a_floor_is_asserted_after_resolving(site: Site) -> None:
    wheel(site.wheels, "alpha", "0.5", {"alpha/__init__.py": ""}, ["beta<1"])
    wheel(site.wheels, "beta", "0.9", {"beta.py": ""})
    with pytest.raises(InputError) as caught:
        site.environment("one", "alpha>=0.1\nbeta>=0.1,<1\n", "floors: {alpha: '1.0'}\n")
    assert "below the floor of alpha" in str(caught.value) and "alpha==0.5" in str(caught.value)
    with pytest.raises(InputError, match="open at the bottom"):
        site.environment("one", "alpha>=0.1\nbeta<1\n")


def test_overlay_and_proofs(site: Site) -> None:
    overlay = site.root / "overlay"
    (overlay / "bin").mkdir(parents=True)
    (overlay / "site-packages" / "extra").mkdir(parents=True)
    (overlay / "site-packages" / "extra" / "__init__.py").write_text("VERSION = '3.1'\n")
    (overlay / "bin" / "tool").write_text("#!python\nimport extra, sys\nprint(extra.VERSION, sys.prefix)\n")
    site.environment("one", "alpha>=1\n",
                     "overlay: overlay\nverify: {imports: [alpha], commands: [[tool, --version]]}\n")
    told = built(site.fleet("one"))
    out = subprocess.run([told["path"] + "/bin/tool"], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["3.1", told["path"]]
    assert verify_environments(site.fleet("one"), {})["a"].status is Status.OK
    (overlay / "bin" / "tool").write_text("#!python\nraise SystemExit('no such engine')\n")
    failed = build_environments(site.fleet("one"), {})["a"]
    assert failed.status is Status.FAILED and "no such engine" in (failed.found or "")
    # what was there before is untouched
    assert subprocess.run([told["path"] + "/bin/tool"], capture_output=True, check=True).returncode == 0


def test_uv_is_sent_where_the_host_has_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.environment("one", "alpha>=1\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(site.base))
    fleet = site.fleet("one", bringup_uv=None)
    assert built(fleet)["changed"]
    tools = list((site.base / "hosts" / "a" / "cache" / "tools").iterdir())
    assert [path.name.startswith(f"uv-{uv_version()}-") for path in tools] == [True]
    # used from then on: nothing is sent again
    shutil.rmtree(site.base / "hosts" / "a.blobs")
    shutil.rmtree(site.base / "hosts" / "a" / "envs")
    assert built(fleet)["changed"]
    assert max(path.stat().st_size for path in (site.base / "hosts" / "a.blobs").iterdir()) < 1 << 20


@pytest.mark.parametrize("told", [True, False])
def test_a_host_without_an_index_gets_the_wheels_from_here(site: Site, told: bool) -> None:
    site.environment("one", "alpha>=1\n")
    nowhere = {"UV_FIND_LINKS": "", "UV_OFFLINE": "", "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}
    variables = {"bringup_packages_from": "controller"} if told else {}
    fleet = site.fleet("one", bringup_packages=nowhere, **variables)
    assert built(fleet)["changed"]
    assert {path.name for path in (site.base / "hosts" / "a" / "cache" / "wheels").iterdir()} == {
        "alpha-1.0-py3-none-any.whl", "beta-1.5-py3-none-any.whl"}
    shutil.rmtree(site.cache)
    shutil.rmtree(site.base / "hosts" / "a" / "envs")
    shutil.rmtree(site.wheels)  # what was fetched once is kept here and there
    assert built(fleet)["changed"]


def test_no_interpreter_and_wrong_interpreter_are_told(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    named = build_environments(site.fleet("one", bringup_environment_python="/nonexistent/python"), {})["a"]
    assert named.status is Status.FAILED and "bringup_environment_python" in (named.next or "")


def test_an_interpreter_is_brought_where_the_host_has_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next((minor for minor in ("3.12", "3.13", "3.10") if minor != PYTHON and find_python(minor) is not None
                  and not Path(f"/usr/bin/python{minor}").exists()), None)
    if other is None or (python := find_python(other)) is None:
        pytest.skip("a second Python with a prefix of its own is needed here")
    _, listed = standalone(python, site.base / "standalone")
    site.environment("one", "alpha>=1\n", python=other)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(listed))
    monkeypatch.delenv("UV_OFFLINE")

    def fleet(**more: Any) -> FolderFleet:
        return site.fleet("one", **{"bringup_environment_python": None, **more})

    pythons = site.base / "hosts" / "a" / "pythons"
    own = build_environments(fleet(bringup_interpreters="hosts"), {})["a"]
    assert own.status is Status.FAILED and "no Python for the environment one" in own.message
    checked = build_environments(fleet(check=True), {})["a"]
    assert checked.status is Status.CHANGED and not pythons.exists()
    first = fleet()
    told = built(first)
    assert told["python"]["version"].startswith(other + ".") and told["python"]["path"].startswith(str(pythons))
    assert import_in(told["path"], "import alpha; print(alpha.VALUE)") == "1\n"
    notes = [event.text for event in first.events if isinstance(event, Note)]
    assert any(text.startswith(f"no Python {other} there: {other}.") for text in notes), notes
    assert not built(fleet())["changed"]  # found again, nothing fetched
    assert find_environments(fleet())["a"]["one"].sound
    shutil.rmtree(site.base / "hosts")
    shutil.rmtree(site.root / ".bringup")
    (site.base / "standalone" / "downloads.json").write_text("{}")
    none = build_environments(fleet(), {})["a"]
    assert none.status is Status.FAILED and "none can be brought" in none.message
    assert f"uv knows no Python {other}" in str(none.found) and "UV_PYTHON_INSTALL_MIRROR" in str(none.next)
    with pytest.raises(InputError, match="bring or hosts"):
        build_environments(fleet(bringup_interpreters="never"), {})


def test_a_killed_build_leaves_nothing_that_is_trusted(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    envs = site.base / "hosts" / "a" / "envs"
    told = built(site.fleet("one"))
    path = Path(told["path"])
    half = envs / f".{path.name}.new-1-1"
    shutil.copytree(path, half, symlinks=True)
    (half / "bringup-env.json").unlink()
    shutil.rmtree(path)
    again = built(site.fleet("one"))
    assert again["changed"] and not half.exists()


def test_two_builders_of_one_digest_do_not_meet(site: Site) -> None:
    site.environment("one", "alpha>=1\n")
    results: list[Mapping[str, Any]] = []
    threads = [threading.Thread(target=lambda: results.append(build_environments(site.fleet("one"), {})))
               for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result["a"].status.value for result in results) == ["changed", "ok"]


def test_lab_and_lab_legacy_for_three_hosts(tmp_path: Path) -> None:
    """The lab's own two environments from the package index (or its cache), with their proofs."""
    fleet = FolderFleet(tmp_path, ROOT, ("a", "b", "c"), {
        "deployment": {"environments": ["lab", "lab-legacy"], "hardware": "h200"}, "bringup_uv": str(uv_program()),
        "bringup_uv_cache": uv_cache()})
    results = build_environments(fleet, {})
    assert {result.status for result in results.values()} == {Status.CHANGED}, results
    for host, result in results.items():
        told = result.data["environments"]
        assert told["lab"]["packages"]["transformers"] == "5.3.0", host
        assert told["lab-legacy"]["packages"]["transformers"] == "4.57.6", host
        assert "glm_moe_dsa is known (GlmMoeDsaConfig)" in told["lab"]["proven"]
        assert "glm_moe_dsa is refused" in told["lab-legacy"]["proven"]
        assert "nothing visible from outside" in told["lab"]["proven"]
    legacy = results["a"].data["environments"]["lab-legacy"]["path"]
    words = subprocess.run([f"{legacy}/bin/python", "-c", "import transformers; print(transformers.__version__)"],
                           capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
    assert words == "4.57.6\n"
    # 4.57 where 5.3 is expected is no success: the expectation is what decides
    assert verify_environments(fleet, {"names": ["lab"]})["b"].status is Status.OK


def test_through_the_verbs_over_ssh(tmp_path: Path) -> None:
    """env.build and env.verify on the lab's machines: built, nothing to do, damaged, found (4), mended."""
    env = {**os.environ, "BRINGUP_LAB": str(tmp_path / "lab"), "BRINGUP_PROJECT": str(ROOT)}

    def invoke(*words: str) -> subprocess.CompletedProcess[str]:
        program = "import sys; from bringup.cli.program import main; sys.exit(main())"
        return subprocess.run([sys.executable, "-c", program, *words], env=env, cwd=tmp_path, capture_output=True,
                              text=True, timeout=300)

    try:
        checked = invoke("env.build", "--env", "lab-legacy", "--check")
        assert checked.returncode == 0 and "would be built on lab-head,lab-w[1-2]" in checked.stdout, checked
        assert not list((tmp_path / "lab" / "machines").glob("*/envs/*"))
        done = invoke("env.build", "--env", "lab-legacy")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "replayed" in done.stdout and "built on lab-head,lab-w[1-2]" in done.stdout
        again = invoke("env.build", "--env", "lab-legacy")
        assert again.returncode == 0 and "there already on lab-head,lab-w[1-2]" in again.stdout
        site = next((tmp_path / "lab" / "machines" / "lab-w1" / "envs").glob("*/lib/python3*/site-packages"))
        (site / "sitecustomize.py").write_text("")
        found = invoke("env.verify", "--env", "lab-legacy")
        assert found.returncode == 4 and "sitecustomize.py" in found.stdout, found.stdout + found.stderr
        assert "stopped by a finding (4)" in found.stdout and "a step failed" not in found.stdout
        told = re.findall(r"environment\.lab-legacy\.\S+", found.stdout)
        assert told and len(told) == len(set(told)), found.stdout
        mended = invoke("env.build", "--env", "lab-legacy")
        assert mended.returncode == 0 and "built on lab-w1" in mended.stdout
        assert invoke("env.verify", "--env", "lab-legacy").returncode == 0
        wrong = invoke("env.build", "--env", "lab-legcy")
        assert wrong.returncode == 2 and "nearest: lab-legacy" in wrong.stderr
    finally:
        invoke("lab.down", "--purge")
    assert not (tmp_path / "lab").exists()
