"""Kernels built for real with this machine's compiler, on hosts that are folders; transfers over loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from folder_fleet import FolderFleet
from small_kernels import quick

from bringup.base.errors import FindingError
from bringup.base.events import Findings, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.environments.kernels.build import build_kernels
from bringup.environments.kernels.verify import verify_kernels

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++", path="/usr/bin") is None, reason="no /usr/bin/g++")

LIBRARY = """\
#include <string>
extern "C" int answer(int x) { std::string s = std::to_string(x); return static_cast<int>(s.size()) + SHIFT; }
"""
PROOF = """\
import ctypes, json, os, sys
found = ctypes.CDLL(os.path.join(os.environ["OUT"], "lib", "lib.so")).answer(4711)
if found != 4:
    print(json.dumps({"message": "answer(4711) differs from the reference: %d" % found}))
    sys.exit(1)
print(json.dumps({"proof": "answer(4711) is 4"}))
"""
RECIPE = """\
purpose: test
uses: [compiler]
source: {folder: source}
memory_per_job: 100 MiB
environment: {SHIFT: "%(shift)s"}
commands:
%(before)s
  - compile: |
      mkdir -p "$OUT/lib"
      "$CXX" %(flags)s -DSHIFT=$SHIFT -shared -fPIC -o "$OUT/lib/lib.so" lib.cpp
yields: [lib/lib.so]
links: {lib/lib.so: libstdc++.so.6}
proof: {script: proof.py, seconds: 60}
%(more)s
"""


class Fleet(FolderFleet):
    """A folder fleet whose hosts may differ and whose person may be away."""

    own: Mapping[str, Mapping[str, Any]] = {}
    answer: bool | None = True

    def variables(self, host: str) -> Mapping[str, Any]:
        return {**super().variables(host), "cluster_address": "127.0.0.1", **self.own.get(host, {})}

    def ask(self, question: str) -> bool | None:
        return self.answer


class Site:
    def __init__(self, base: Path) -> None:
        self.base = base

    def recipe(self, name: str = "one", *, shift: int = 0, flags: str = "", before: str = "", more: str = "",
               proof: str = PROOF, library: str = LIBRARY) -> None:
        folder = self.base / "project" / "kernels" / name
        (folder / "source").mkdir(parents=True, exist_ok=True)
        (folder / "source" / "lib.cpp").write_text(library)
        (folder / "proof.py").write_text(proof)
        (folder / "kernel.yml").write_text(RECIPE % {"shift": shift, "flags": flags, "before": before, "more": more})

    def fleet(self, *hosts: str, check: bool = False, **variables: Any) -> Fleet:
        return Fleet(self.base / "hosts", self.base / "project", hosts or ("a",), variables, check)

    def root(self, host: str = "a") -> Path:
        return self.base / "hosts" / host


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def build(fleet: Fleet, *names: str) -> Mapping[str, Result]:
    return build_kernels(fleet, {"names": names or ("one",), "needed": True})


def row(results: Mapping[str, Result], host: str = "a", name: str = "one") -> dict[str, Any]:
    assert results[host].status in (Status.OK, Status.CHANGED), results[host]
    told: dict[str, Any] = results[host].data["kernels"][name]
    return told


def summary(fleet: Fleet) -> str:
    return [event.text for event in fleet.events if isinstance(event, StageSummary)][-1]


def test_built_once_spread_to_the_likes_then_nothing_to_do(site: Site) -> None:
    site.recipe()
    fleet = site.fleet("a", "b", "c")
    first = build(fleet)
    hows = sorted(row(first, host)["how"] for host in "abc")
    builder = next(host for host in "abc" if row(first, host)["how"] == "built")
    assert hows == ["built", *[f"received from {builder}"] * 2]
    contents = {(Path(row(first, host)["path"]) / "lib" / "lib.so").read_bytes() for host in "abc"}
    assert len(contents) == 1
    assert all(row(first, host)["proof"]["proof"] == "answer(4711) is 4" for host in "abc")
    assert "spread to" in summary(fleet) and "proven: answer(4711) is 4" in summary(fleet)
    again = build(fleet)
    assert {result.status for result in again.values()} == {Status.OK}
    assert "there already on a,b,c" in summary(fleet)
    for host in "abc":
        left = [path.name for path in (site.root(host) / "builds").iterdir()]
        assert left == [row(again, host)["digest"][:20]], left


def test_check_changes_nothing(site: Site) -> None:
    site.recipe()
    fleet = site.fleet("a", "b", check=True)
    results = build(fleet)
    assert {result.status for result in results.values()} == {Status.CHANGED}
    assert "would be built for a,b (1 kind of host)" in summary(fleet)
    notes = [event.text for event in fleet.events if type(event).__name__ == "Note"]
    assert any("at a time" in text for text in notes) and any("memory: " in text for text in notes), notes
    assert not (site.root() / "builds").exists()


def test_hosts_that_differ_build_their_own(site: Site) -> None:
    site.recipe(more="cpu:\n  first: {flags: [], environment: {}}\n  second: {flags: [], environment: {}}\n")
    fleet = site.fleet("a", "b")
    fleet.own = {"b": {"deployment": {"kernels": [{"name": "one", "cpu": "second"}]}}}
    results = build(fleet)
    assert row(results, "a")["how"] == row(results, "b")["how"] == "built"
    assert row(results, "a")["digest"] != row(results, "b")["digest"]


def test_a_variant_that_some_hosts_lack_is_refused_before_anything_is_built(site: Site) -> None:
    site.recipe(more="cpu:\n  fancy: {flags: [fantasy_tile], environment: {}}\n  plain: {flags: [], environment: {}}\n")
    fleet = site.fleet("a", "b", deployment={"kernels": [{"name": "one", "cpu": "fancy"}]})
    with pytest.raises(FindingError) as caught:
        build(fleet)
    text = str(caught.value)
    assert "a,b" in text and "fantasy_tile" in text and "cpu: plain, which all of them run" in text
    assert not (site.root("a") / "builds").exists()


def test_through_the_controller_where_hosts_do_not_reach_each_other(site: Site) -> None:
    site.recipe()
    fleet = site.fleet("a", "b")
    fleet.own = {host: {"cluster_address": "198.18.255.254"} for host in "ab"}  # no address of this machine
    results = build(fleet)
    assert sorted(row(results, host)["how"].split(" from ")[-1] for host in "ab")[0].endswith("through here")
    assert not list((site.base / "project" / ".bringup" / "cache" / "kernels").glob(".*"))


def test_what_came_and_is_not_proven_gets_no_name_and_comes_anew(site: Site, tmp_path: Path) -> None:
    flag = tmp_path / "bad-device"
    flag.touch()
    site.recipe(proof=PROOF.replace("if found != 4:", f"if found != 4 or ('/hosts/b/' in os.environ['OUT'] and "
                                                      f"os.path.exists({str(flag)!r})):"))
    build(site.fleet("a"))
    first = build(site.fleet("a", "b"))
    assert first["b"].status is Status.FAILED and "the computation is wrong" in first["b"].message, first["b"]
    assert [path.name[0] for path in (site.root("b") / "builds").iterdir()] == ["."]
    flag.unlink()
    second = build(site.fleet("a", "b"))
    assert row(second, "b")["how"] == "received from a"
    assert [path.name for path in (site.root("b") / "builds").iterdir()] == [row(second, "b")["digest"][:20]]


def test_a_wrong_result_is_no_build(site: Site) -> None:
    site.recipe()
    good = row(build(site.fleet()))
    site.recipe(shift=1)
    result = build(site.fleet())["a"]
    assert result.status is Status.FAILED
    assert "answer(4711) differs from the reference: 5" in result.message
    assert [path.name for path in (site.root() / "builds").iterdir() if not path.name.startswith(".")] == [
        good["digest"][:20]]


CRASH = "import ctypes\nctypes.CDLL(None).strlen(0)\n"
ILLEGAL = """\
import ctypes, os
ctypes.CDLL(os.path.join(os.environ["OUT"], "lib", "lib.so")).trap()
"""


def test_an_import_is_no_proof_a_crash_is_told(site: Site) -> None:
    site.recipe(proof=CRASH)
    result = build(site.fleet())["a"]
    assert "loads and crashes at its first computation" in result.message and "libstdc++" in (result.next or "")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="ud2 is of x86")
def test_an_instruction_that_the_cpu_lacks_is_a_finding(site: Site) -> None:
    site.recipe(library=LIBRARY + 'extern "C" void trap() { __builtin_trap(); }\n', proof=ILLEGAL)
    result = build(site.fleet())["a"]
    assert "an instruction that this CPU does not have" in result.message
    assert result.data["exit_status"] == 4


def test_a_failed_proof_is_tried_again_without_compiling(site: Site) -> None:
    site.recipe(proof="print('not today')\n", before="  - count: echo >> \"$WORK/../../count\"")
    assert build(site.fleet())["a"].status is Status.FAILED
    site.recipe(before="  - count: echo >> \"$WORK/../../count\"")
    told = row(build(site.fleet()))
    assert told["how"] == "built" and told["proof"]["proof"] == "answer(4711) is 4"
    assert (site.root() / "builds" / "count").read_text() == "\n"


def test_a_proof_that_says_nothing_or_hangs_is_no_proof(site: Site) -> None:
    site.recipe(proof="print('imported')\n")
    assert "one failed in `proof`" in build(site.fleet())["a"].message
    site.recipe(proof="import time\ntime.sleep(600)\n", more="note: x")
    folder = site.base / "project" / "kernels" / "one" / "kernel.yml"
    folder.write_text(folder.read_text().replace("seconds: 60", "seconds: 1"))
    started = time.monotonic()
    assert build(site.fleet())["a"].status is Status.FAILED
    assert time.monotonic() - started < 120


def test_a_libstdcxx_of_its_own_is_found_out_before_the_proof(site: Site) -> None:
    site.recipe(flags="-static-libstdc++ -static-libgcc")
    result = build(site.fleet())["a"]
    assert result.data["cause"] == "libstdcxx-static" and "lib/lib.so" in result.message


def test_the_systems_compiler_is_taken_although_a_wrapper_is_first(site: Site, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    wrap = site.base / "wrap"
    wrap.mkdir()
    for name in ("g++", "gcc"):
        (wrap / name).write_text(f'#!/bin/sh\nexec /usr/bin/{name} -static-libstdc++ -static-libgcc "$@"\n')
        (wrap / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrap}:{os.environ['PATH']}")
    site.recipe(before="  - which: test \"$(realpath $(which g++))\" = \"$(realpath /usr/bin/g++)\"")
    fleet = site.fleet()
    assert row(build(fleet))["facts"]["compiler"][0] == os.path.realpath("/usr/bin/g++")
    notes = [event.text for event in fleet.events if type(event).__name__ == "Note"]
    assert any(f"not taken: {wrap}/g++" in text and "libstdc++ of its own" in text for text in notes)


def test_a_build_that_makes_nothing_and_a_compiler_error_are_told(site: Site) -> None:
    site.recipe(more="")
    file = site.base / "project" / "kernels" / "one" / "kernel.yml"
    file.write_text(file.read_text().replace("yields: [lib/lib.so]", "yields: [lib/other.so]"))
    assert "did not make lib/other.so" in build(site.fleet())["a"].message
    site.recipe(library="#include <cutlass/none.h>\n")
    result = build(site.fleet())["a"]
    assert "the headers of the submodule cutlass are missing" in result.message and "cutlass/none.h" in (
        result.found or "")


def test_exhausted_memory_is_tried_once_more_with_fewer(site: Site) -> None:
    starved = """\
  - starved: |
      if [ "$JOBS" -gt 1 ]; then
        ulimit -v 60000
        /usr/bin/g++ -O3 -x c++ -c -o /dev/null lib.cpp
      fi"""
    site.recipe(before=starved)
    asks = [{"name": "one", "jobs": 4}]
    fleet = site.fleet(deployment={"kernels": asks})
    result = build(fleet)["a"]
    if result.status is Status.FAILED:  # 4 -> 2 is still more than one: the second try starves too
        assert result.data["cause"] == "memory" and "memory was exhausted" in result.message, result
    fleet = site.fleet(deployment={"kernels": [{"name": "one", "jobs": 2}]})
    told = row(build(fleet))
    assert told["jobs"] == 1
    output = next((site.root() / "jobs").glob("kernel-*/output")).read_text()
    assert "memory was exhausted; once more with 1 at a time" in output


def test_a_build_that_lost_its_controller_is_followed_to_its_end(site: Site) -> None:
    site.recipe(before="  - wait: while [ ! -e \"$WORK/../go\" ]; do sleep 0.1; done")
    fleet = site.fleet()

    class Gone(Exception):
        pass

    def leave(event: Any) -> None:
        if isinstance(event, Progress) and "building, job" in event.text:
            raise Gone

    fleet.emit = leave  # type: ignore[method-assign]
    with pytest.raises(Gone):
        build(fleet)
    staged = next((site.root() / "builds").glob(".*.new"))
    again = site.fleet()
    note = again.emit

    def release(event: Any) -> None:
        note(event)
        if isinstance(event, Progress) and "was being built already" in event.text:
            (staged / "go").touch()

    again.emit = release  # type: ignore[method-assign]
    told = row(build(again))
    assert told["how"] == "built"
    texts = [event.text for event in again.events if isinstance(event, Progress)]
    assert any("was being built already" in text for text in texts), texts


@pytest.mark.parametrize("launched", [False, True])
def test_a_start_that_an_interrupted_run_left_half_done_is_begun_again(site: Site, launched: bool) -> None:
    site.recipe()
    fleet = site.fleet("a")
    made = row(build(fleet))
    shutil.rmtree(made["path"])
    folder = site.root() / "jobs" / f"kernel-{made['digest'][:12]}"
    job = json.loads((folder / "job.json").read_text())
    for name in ("supervisor", "supervisor_started", "pid", "started", "began"):
        del job[name]
    gone = subprocess.Popen(["true"])
    gone.wait()
    (folder / "job.json").write_text(json.dumps({**job, "asked": time.time(), "starter": [gone.pid, "1"]}))
    (folder / "status.json").unlink()
    if not launched:
        (folder / "launched").unlink()
    assert row(build(fleet))["how"] == "built"


def test_a_killed_build_leaves_nothing_that_is_trusted(site: Site) -> None:
    site.recipe(before="  - wait: if [ ! -e /tmp/never ] && [ -n \"$HOLD\" ]; then sleep 600; fi")
    fleet = site.fleet(bringup_kernel_environment={"HOLD": "1"})

    class Gone(Exception):
        pass

    def leave(event: Any) -> None:
        if isinstance(event, Progress) and "building, job" in event.text:
            raise Gone

    fleet.emit = leave  # type: ignore[method-assign]
    with pytest.raises(Gone):
        build(fleet)
    job = json.loads(next((site.root() / "jobs").glob("kernel-*/job.json")).read_text())
    os.killpg(job["pid"], 9)
    assert row(build(site.fleet()))["how"] == "built"


def test_damage_is_found_and_mended(site: Site) -> None:
    site.recipe()
    fleet = site.fleet()
    library = Path(row(build(fleet))["path"]) / "lib" / "lib.so"
    assert verify_kernels(fleet, {"names": ["one"]}) == {}
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)  # the same size: only the hash tells
    found = verify_kernels(fleet, {"names": ["one"]})["a"]
    assert found.data["exit_status"] == 4
    told = [event for event in fleet.events if isinstance(event, Findings)][-1].findings[0]
    assert "1 files are not as they were built: lib/lib.so" in told.summary and told.mend == "invoke kernel.build"
    library.write_bytes(b"")
    assert row(build(site.fleet()))["how"] == "built"
    assert verify_kernels(fleet, {"names": ["one"]}) == {}
    shutil.move(site.root(), site.root("z"))
    assert row(build(site.fleet("z")), "z")["how"] == "built"


@pytest.fixture
def serving(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the mark of an engine of host a."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "BRINGUP_PROCESS": f"{site.root()}|r1|1"})
    yield process
    process.kill()
    process.wait()


def test_a_host_that_serves_is_spared_and_asked_for(site: Site, serving: subprocess.Popen[bytes]) -> None:
    site.recipe()
    assert row(build(site.fleet("a", "b")), "b")["how"] == "built"  # a receives, b builds
    site.recipe(shift=0, before="  - other: true")
    alone = site.fleet("a")
    alone.answer = None
    with pytest.raises(FindingError, match="a serves"):
        build(alone)
    alone.answer = True
    assert row(build(alone))["how"] == "built"


@pytest.mark.full
def test_a_release_runs_with_the_kernels_of_its_deployment(tmp_path: Path) -> None:
    """Provision builds on one lab machine, spreads to the others, and every engine finds the build first."""
    from site_project import Site as LabSite

    lab = LabSite(tmp_path / "lab-site")
    quick(lab.folder)
    try:
        lab.write(kernels=["quick"])
        text = lab.good("provision", "--yes", timeout=300)
        assert "spread to" in text and "quick computes 7" in text
        machines = lab.folder / ".bringup" / "lab" / "machines"
        seen = 0
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            mark = next((word for word in words if word.startswith(b"BRINGUP_PROCESS=" + bytes(machines))), None)
            if mark is None or b"|watch-" in mark:
                continue
            given = [word for word in words if word.startswith(b"PYTHONPATH=")]
            assert given and b"/builds/" in given[0] and given[0].split(b":")[0].endswith(b"/site"), given
            seen += 1
        assert seen >= 3
        lab.write(kernels=["quik"])
        wrong = lab.run("provision", "--yes")
        assert wrong.returncode == 2 and "nearest: quick" in wrong.stdout
    finally:
        lab.run("lab.down", "--purge")


def test_through_the_verbs(tmp_path: Path) -> None:
    """kernel.build and kernel.verify with the local connection: built, nothing to do, damaged, found (4), mended."""
    project = tmp_path / "site"
    project.mkdir()
    for name in ("tasks.py", "playbooks", "roles", "kernels", "envs"):
        (project / name).symlink_to(ROOT / name)
    (project / "inventory").mkdir()
    (project / "inventory" / "here.yml").write_text(json.dumps({"all": {"hosts": {"here": {
        "ansible_connection": "local", "bringup_root": str(tmp_path / "root"), "bringup_privileged": False}}}}))
    env = {**os.environ, "BRINGUP_PROJECT": str(project), "PYTHONPATH": str(ROOT), "COLUMNS": "80"}

    def invoke(*words: str) -> subprocess.CompletedProcess[str]:
        program = "import sys; from bringup.cli.program import main; sys.exit(main())"
        return subprocess.run([sys.executable, "-c", program, *words], env=env, cwd=project, capture_output=True,
                              text=True, timeout=300)

    done = invoke("kernel.build", "-i", "here", "--kernel", "smoke")
    assert done.returncode == 0 and "built on here" in done.stdout, done.stdout + done.stderr
    again = invoke("kernel.build", "-i", "here", "--kernel", "smoke")
    assert again.returncode == 0 and "there already on here" in again.stdout
    assert invoke("kernel.verify", "-i", "here", "--kernel", "smoke").returncode == 0
    next((tmp_path / "root" / "builds").glob("*/lib/libsmoke.so")).write_bytes(b"")
    found = invoke("kernel.verify", "-i", "here", "--kernel", "smoke")
    assert found.returncode == 4 and "is not as it was built" in found.stdout, found.stdout
    wrong = invoke("kernel.build", "-i", "here", "--kernel", "smok")
    assert wrong.returncode == 2 and "nearest: smoke" in wrong.stderr
    nothing = invoke("kernel.build", "-i", "here")
    assert nothing.returncode == 2 and "no kernel is named" in nothing.stdout
    listed = json.loads(invoke("kernel.list", "--format", "json").stdout)
    assert {item["name"] for item in listed} >= {"smoke", "deep_gemm"}
