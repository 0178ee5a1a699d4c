"""Pins, gc, drift, history and rehearsal in the embedded lab, by the verbs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_project import HOSTS, Site, wait_for


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.down()


def test_a_first_start_that_fails_leaves_nothing_in_use(site: Site) -> None:
    site.write(fault="crash_loading:node_rank=1")
    failed = site.run("provision", "--yes")
    assert failed.returncode == 1 and "nothing was in use here before, and nothing is now" in failed.stdout
    assert not any(os.path.lexists(site.root(host) / "current") for host in HOSTS)
    assert list((site.folder / ".bringup/runs").glob("*/r1/lab-w1.log")), "the diagnosis is kept"
    assert [row["state"] for row in site.data("releases")] == ["bad"]
    none = site.run("start")
    assert none.returncode == 4 and "no release is in use here yet" in none.stdout
    back = site.run("rollback", "--yes")
    assert back.returncode == 4 and "no earlier release" in back.stdout
    site.write()
    site.good("provision")
    assert [row["state"] for row in site.data("releases")] == ["current, good", "bad"]


def test_history_names_every_run_from_the_hosts_alone(site: Site) -> None:
    shown = site.data("history")
    verbs = [(run["verb"], run["outcome"]) for run in shown]
    assert verbs[0] == ("provision", 0) and ("provision", 1) in verbs
    good = shown[0]
    assert good["before"] == "none" and good["after"] == "r0002" and good["state"] == "ended" and good["changed"] == 3
    assert "@" in good["operator"] and good["inventory"] == "inventory/lab.yml" and set(good["hosts"]) == set(HOSTS)
    for run in (site.folder / ".bringup/runs").iterdir():
        (run / "journal.jsonl").unlink(missing_ok=True)  # the laptop is lost
    table = site.good("history")
    assert good["run"] in table and "a step failed (1)" in table and "none -> r0002" in table
    only = site.data("history", "--host", "lab-w1", "--since", "1h")
    assert only and all(run["hosts"] == ["lab-w1"] for run in only)
    assert site.run("history", "--since", "yesterday").returncode == 2
    assert site.run("history", "--host", "lab-w9").returncode == 2
    assert site.run("history", "--host", "lab-w1", "--limit", "lab-w1").returncode == 2


def test_drift_finds_what_was_changed_by_hand(site: Site) -> None:
    assert "pass" in site.good("drift")
    root = site.root("lab-w1")
    release = os.readlink(root / "current").rpartition("/")[2]
    script = root / "releases" / release / "launch/r1-lab-w1.sh"
    text = script.read_text()
    script.write_text(text + "# by hand\n")
    done = site.run("drift")
    assert done.returncode == 4 and "launch script of r1-lab-w1 is edited" in done.stdout and "lab-w1" in done.stdout
    script.write_text(text)
    document = json.loads((root / "releases" / release / "launch/r1-lab-w1.json").read_text())
    program = Path(document["values"]["env"]) / "bin/vllm"
    kept, times = program.read_text(), program.stat()
    program.write_text(kept + "# patched\n")
    done = site.run("drift", "--format", "json")
    assert done.returncode == 4
    found = [f for f in json.loads(done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1])["findings"]
             if f["blocks"]]
    program.write_text(kept)
    os.utime(program, ns=(times.st_atime_ns, times.st_mtime_ns))
    site.good("drift")
    assert {f["check"] for f in found} == {"drift.packages"} and {f["subject"] for f in found} == {"lab-w1"}
    approved = root / "releases" / release / "approved.json"
    then = json.loads(approved.read_text())
    approved.write_text(json.dumps({**then, "kernel": "5.4.0-1"}))
    done = site.run("drift", "--limit", "lab-w1")
    assert "kernel 5.4.0-1 -> " in done.stdout and done.returncode == 4
    approved.write_text(json.dumps(then))
    assert site.run("drift", "--against", "nowhere.yml").returncode == 2
    assert site.run("drift", "--against", "lab").returncode == 2, "the same hosts"


def test_an_edited_launch_file_is_not_what_the_release_makes(site: Site) -> None:
    root = site.root("lab-w2")
    release = os.readlink(root / "current").rpartition("/")[2]
    path = root / "releases" / release / "launch/r1-lab-w2.json"
    kept = path.read_text()
    launch = json.loads(kept)
    path.write_text(json.dumps({**launch, "env": {**launch["env"], "NCCL_DEBUG": "TRACE"}}))
    done = site.run("drift")
    path.write_text(kept)
    assert done.returncode == 4, done.stdout
    assert "NCCL_DEBUG" in done.stdout and "is not what r000" in done.stdout, done.stdout
    site.good("drift")


def test_a_rehearsal_proves_and_touches_nothing(site: Site) -> None:
    site.write(context_length=65536)
    site.good("provision", "--yes")
    pids, links = site.pids(), {host: os.readlink(site.root(host) / "current") for host in HOSTS}
    out = site.good("rollback", "--rehearse")
    for words in ("environment sound", "weights as the release has them", "ports free or ours", "rehearsed in",
                  "nothing was stopped or switched", "only its start does"):
        assert words in out, out
    assert site.pids() == pids and {host: os.readlink(site.root(host) / "current") for host in HOSTS} == links
    assert not any(list(site.root(host).glob("current.*")) for host in HOSTS)


def test_weights_that_changed_are_found_before_anything_stops(site: Site) -> None:
    config = site.models() / "config.json"
    kept, pids = config.read_text(), site.pids()
    config.write_text(kept.replace("{", '{"changed": 1, ', 1))
    try:
        for words in (("rollback", "--yes"), ("rollback", "--rehearse")):
            done = site.run(*words)
            assert done.returncode == 4, done.stdout
            assert "cannot start today; nothing was stopped" in done.stdout
            assert "is not as the release has it: configuration files" in done.stdout
            assert "no other good release can start" in done.stdout
    finally:
        config.write_text(kept)
    assert site.pids() == pids


def test_pins_and_gc(site: Site) -> None:
    before = [row["release"] for row in site.data("releases")]
    assert before == ["r0003", "r0002", "r0001"]
    site.good("release.pin", "r0001", "--reason", "to be looked into")
    assert site.data("releases")[2]["state"] == "bad, pinned (to be looked into)"
    assert "nothing to remove" in site.good("release.gc", "--keep", "0", "--yes")
    site.good("release.unpin", "1")
    unknown = site.run("release.pin", "r0009")
    assert unknown.returncode == 2 and "r0001" in unknown.stdout
    shown = site.good("release.gc", "--keep", "0", "--check")
    assert "would go: bad" in shown and "r0003" in shown and "stays: in use" in shown
    refused = site.run("release.gc", "--keep", "0")
    assert refused.returncode == 4 and "nothing was removed" in refused.stdout
    assert len(site.data("releases")) == 3
    gone = site.good("release.gc", "--keep", "0", "--yes")
    assert "freed" in gone
    assert [row["release"] for row in site.data("releases")] == ["r0003", "r0002"], "the last good one before stays"
    told = site.run("rollback", "--to", "r0001")
    assert told.returncode == 2 and "was removed by release.gc" in told.stdout
    assert site.run("release.gc", "--keep", "many").returncode == 2
    site.good("status")


def test_an_environment_that_no_release_uses_goes_and_a_strange_one_stays(site: Site) -> None:
    envs = site.root("lab-w2") / "envs"
    digest = "ab" * 32
    old = envs / digest[:20]
    old.mkdir()
    (old / "bringup-env.json").write_text(json.dumps({"digest": digest, "name": "older", "path": str(old)}))
    strange = envs / "by-hand"
    strange.mkdir()
    shown = site.good("release.gc", "--check")
    assert "older abababababab" in shown and "would go" in shown
    assert old.is_dir()
    out = site.good("release.gc", "--yes")
    assert "it was not made here by bringup" in " ".join(out.split())
    assert not old.exists() and strange.is_dir()
    strange.rmdir()
    assert [entry.name for entry in envs.iterdir() if not entry.name.startswith(".")], "the one in use stays"
    site.good("status")


def test_two_inventories_of_equal_hosts_do_not_differ(site: Site) -> None:
    from bringup.base.paths import Project
    from bringup.lab.state import lab_variables

    tree = json.loads((site.folder / "inventory/lab.yml").read_text())
    own = {f"stg-{name}": dict(values) for name, values in lab_variables(Project(site.folder)).items()}
    head = next(iter(own))
    tree["all"]["vars"]["bringup_lab"] = False
    for values in own.values():
        values["bringup_lab"] = False
    tree["all"]["children"] = {"head": {"hosts": {head: own.pop(head)}}, "workers": {"hosts": own}}
    (site.folder / "inventory/staging.yml").write_text(json.dumps(tree))
    out = site.good("drift", "--against", "staging")
    assert "lab.yml against staging.yml" in out and "pass 5 of 5" in out


SHIFTED = """\
import os, time
_off, _time = float(os.environ.get("TEST_CLOCK_OFF", "0")), time.time
time.time = lambda: _time() + _off
"""


@pytest.mark.full
@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_a_controller_whose_clock_is_wrong_neither_waits_nor_takes_over(site: Site, off: float) -> None:
    """A living run of the same operator is refused at once; one that was cut off is gone on with."""
    site.run("lab.up")
    folder = site.folder / "clock"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SHIFTED)
    os.environ.update(PYTHONPATH=str(folder), TEST_CLOCK_OFF=str(off))
    site.write(load_seconds=30, context_length=32768 if off > 0 else 16384)
    try:
        os.environ["TEST_CLOCK_OFF"] = "0"
        run = site.start("provision", "--yes")
        assert wait_for(lambda: (site.root("lab-w2") / "state/run.json").is_file()
                        and "start" in (site.root("lab-w2") / "state/run.json").read_text(), 60)
        os.environ["TEST_CLOCK_OFF"] = str(off)
        began = time.monotonic()
        other = site.run("provision", "--yes")
        assert other.returncode == 5 and "is held by" in other.stdout, other.stdout
        assert "was cut off" not in other.stdout and time.monotonic() - began < 60
        assert "last heard 3600" not in other.stdout and "1 h" not in other.stdout
        run.send_signal(signal.SIGKILL)
        run.wait(timeout=30)
        site.write(context_length=65536)
        done = site.run("provision", "--yes", timeout=180)
        assert done.returncode == 0, done.stdout
    finally:
        del os.environ["PYTHONPATH"], os.environ["TEST_CLOCK_OFF"]
