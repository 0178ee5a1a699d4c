"""Runbooks in the embedded lab: the fault is made, the runbook is proposed, and mends it; the record says how."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from preflight_hosts import edit
from preflight_makers import ascend_host, without_process
from site_project import HOSTS, INVOKE, REPOSITORY, Site, answer, children_of, endpoint_of, interrupt, wait_for

from bringup.preflight import recording
from bringup.preflight.answers import Answers

OWN = {"waits": "invoke logs --follow --inventory $INVENTORY", "names": "invoke inventory --limit $WORD",
       "unknown": "invoke statis --inventory $INVENTORY", "flag": "invoke status --fast"}
"""Runbooks of the site's own: name -> the command of their one step."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    shutil.copytree(REPOSITORY / "runbooks", made.folder / "runbooks")
    for name, command in OWN.items():
        (made.folder / f"runbooks/{name}.md").write_text(
            f"# Own\n\n## How to tell\n\nSo.\n\n## Steps\n\n1. Go.\n\n   ```run\n   {command}\n   ```\n")
    yield made
    made.down()


@pytest.fixture(scope="module")
def endpoint(site: Site) -> str:
    return endpoint_of(site.good("provision"))


def record_of(output: str) -> str:
    found = re.search(r"^ *record +(\S+)$", output, re.M)
    assert found, output
    path = Path(found.group(1))
    assert re.fullmatch(r"\d{8}-\d{6}-[a-z-]+(-\d+)?\.md", path.name) and path.parent.name == "runbooks"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text()


def kill_a_rank(site: Site) -> None:
    for child in children_of(site.pids()["lab-w2"]):
        os.kill(child, signal.SIGKILL)
    assert wait_for(lambda: site.nodes()["lab-w2"]["state"] != "running")


@pytest.mark.full
def test_a_dead_rank_is_proposed_and_mended(site: Site, endpoint: str) -> None:
    said = answer(endpoint)
    well = site.good("runbooks")
    assert "nothing wrong found" in well and well.count("NOTE") == 1, well
    kill_a_rank(site)
    proposed = site.run("runbooks")
    assert proposed.returncode == 4
    assert "rank-down: A rank is dead\n  because  lab-w2  process.dead" in proposed.stdout
    assert "type     invoke runbook rank-down\n" in proposed.stdout
    document = site.data("runbooks", "--inventory", "lab")
    assert [row["runbook"] for row in document["proposed"]] == ["rank-down"]
    assert document["proposed"][0]["command"] == "invoke runbook rank-down --inventory lab"

    done = site.good("runbook", "rank-down", "--yes")
    assert done.index("How to tell that it is the right one") < done.index("step 1 of 5")
    record = record_of(done)
    assert "- replayed: devices of lab-head, lab-w1, lab-w2 are recordings, not hardware" in record
    assert "the worker (ranks 16-23) is dead" in record and "Run at 20" in record
    assert record.count("as it must.\n") == 6 and "Done at 20" in record
    assert "nothing wrong found" in record
    assert answer(endpoint) == said
    assert "nothing wrong found" in site.good("runbooks")


def test_a_check_that_fails_stops_and_names_what_to_type(site: Site, endpoint: str) -> None:
    before = site.pids()
    done = site.run("runbook", "rank-down", "--yes")
    assert done.returncode == 1
    assert "step 1 of 5 is not as it must be: it ended with 0, expected 3 or 4" in done.stdout
    assert "next      invoke verify" in done.stdout
    record = record_of(done.stdout)
    assert "NOT as it must" in record and "Next: `invoke verify`" in record
    assert site.pids() == before


def test_without_a_terminal_everything_is_shown_and_nothing_run(site: Site, endpoint: str) -> None:
    before = site.pids()
    done = site.run("runbook", "rollback", "--inventory", "lab")
    assert done.returncode == 4
    assert "danger   invoke rollback --yes --inventory lab" in done.stdout
    assert "next      invoke runbook rollback --inventory lab --yes" in done.stdout
    shown = site.good("runbook", "rollback", "--check")
    assert "5. See that every replica serves." in shown and "record   " not in shown
    assert site.pids() == before


@pytest.mark.parametrize(("words", "says"), [
    (("rank-dwn",), "invoke runbook rank-down"), (("gpu-lost",), "needs --set node="),
    (("gpu-lost", "--set", "node=lab-w9"), "--set node=lab-w"),
    (("unknown",), "runbooks/unknown.md:11  bringup has no such command"),
    (("flag",), "found     invoke status --fast"), (("rank-down", "--from", "6"), "has 5 steps"),
])
def test_wrong_input_contacts_nothing(site: Site, words: tuple[str, ...], says: str) -> None:
    done = site.run("runbook", *words, "--yes")
    assert done.returncode == 2
    assert says in done.stdout and done.stdout.endswith("nothing was contacted\n")


def test_secrets_stand_neither_on_the_screen_nor_in_the_record(site: Site) -> None:
    secret = "kept-to-myself"
    done = subprocess.run([str(INVOKE), "runbook", "names", "--set", f"word={secret}", "--yes"], cwd=site.folder,
                          env={**site.environment(), "SITE_TOKEN": secret}, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 1 and "no host or group matches" in done.stdout
    record = record_of(done.stdout)
    assert "********" in record and "no host or group matches" in record
    assert secret not in record and secret not in done.stdout


def test_an_interrupt_reaches_the_command_and_is_in_the_record(site: Site, endpoint: str) -> None:
    process = site.start("runbook", "waits", "--yes")
    records = site.folder / ".bringup/runbooks"
    assert wait_for(lambda: [path for path in records.glob("*-waits.md") if "Run at" in path.read_text()], 30)
    assert process.stdout
    while not process.stdout.readline().startswith("  | lab-"):
        assert process.poll() is None
    interrupt(process)
    assert process.returncode == 130
    record = next(records.glob("*-waits.md")).read_text()
    assert "Ended with 130 after" in record and "Interrupted in step 1 of 1 at" in record
    assert "Next: `invoke runbook waits`" in record


@pytest.mark.full
def test_a_release_that_is_not_wanted_is_rolled_back(site: Site, endpoint: str) -> None:
    said = answer(endpoint)
    site.write(context_length=65536)
    site.good("provision", "--yes")
    stopped = site.run("runbook", "rollback", "--yes")
    assert stopped.returncode == 4  # what stops the endpoint is never run unasked
    assert "stopped at step 4 of 6: it is never run unasked" in stopped.stdout
    again = re.search(r"at a terminal: invoke (runbook rollback --from 4)", stopped.stdout)
    assert again, stopped.stdout
    assert "Stopped before step 4" in record_of(stopped.stdout)
    assert [row["release"] for row in site.data("releases") if "current" in row["state"]] == ["r0002"]

    child = pexpect.spawn(str(INVOKE), again[1].split(), cwd=str(site.folder), env=site.environment(),
                          encoding="utf-8", dimensions=(24, 200), timeout=120)
    try:
        for _ in range(3):
            child.expect_exact("Run it? [y/N/skip]")
            child.sendline("y")
        child.expect(pexpect.EOF)
        output = child.before.replace("\r\n", "\n")
    finally:
        child.close()
    assert child.exitstatus == 0, output
    record = record_of(output)
    assert "r0002 -> r0001" in record and "Step 4 of 6" in record and "Step 3 of 6" not in record
    assert [row["release"] for row in site.data("releases") if "current" in row["state"]] == ["r0001"]
    assert answer(endpoint) == said


def follow_at_a_terminal(site: Site, words: list[str], by_hand: Callable[[], object]) -> tuple[int, str]:
    """Answer every question with y; what only a person can do is done first."""
    child = pexpect.spawn(str(INVOKE), words, cwd=str(site.folder), env=site.environment(), encoding="utf-8",
                          dimensions=(24, 200), timeout=120)
    screen = ""
    try:
        while (which := child.expect([r"Run it\? \[y/N/skip\]", r"Is it done\? \[y/N/skip\]", pexpect.EOF])) < 2:
            screen += str(child.before)
            if which == 1:
                by_hand()
            child.sendline("y")
        screen += str(child.before)
    finally:
        child.close()
    return child.exitstatus, screen.replace("\r\n", "\n")


HOLDER = """\
import socket, time
held = socket.create_server(({address!r}, {port}))
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.full
def test_a_start_that_failed_for_a_taken_port(site: Site, endpoint: str) -> None:
    site.write()
    site.good("start")
    said = answer(endpoint)
    site.good("stop", "--yes")
    address, _, port = endpoint.removeprefix("http://").partition(":")
    with subprocess.Popen([sys.executable, "-c", HOLDER.format(address=address, port=port)], text=True,
                          stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "held\n"
            assert site.run("start", "--yes").returncode == 1
            proposed = site.run("runbooks")
            assert proposed.returncode == 4
            assert re.search(rf"^start-failed: A start failed\n  because  lab-head  process\.ports  {port} ",
                             proposed.stdout, re.M), proposed.stdout
            begun = site.run("runbook", "start-failed", "--yes")
            assert begun.returncode == 4 and "stopped at step 2 of 6: only a person can do it" in begun.stdout
            hands = iter([lambda: None, holder.kill])
            status, screen = follow_at_a_terminal(site, ["runbook", "start-failed", "--from", "2"],
                                                  lambda: next(hands)())
        finally:
            holder.kill()
    assert status == 0, screen
    record = record_of(screen)
    assert f"{port} (HTTP) is held on {address} by pid {holder.pid}" in record and "NOT as it must" not in record
    assert answer(endpoint) == said
    assert "nothing wrong found" in site.good("runbooks")


@pytest.mark.full
def test_a_deploy_that_does_not_start_is_no_rank_that_died(site: Site, endpoint: str) -> None:
    said = answer(endpoint)
    site.good("stop", "--yes")
    site.write(fault="crash_loading")
    assert site.run("provision", "--yes").returncode == 1
    proposed = site.run("runbooks").stdout
    assert re.search(r"^start-failed: A start failed\n(  because .*\n)*  because .*before it was ready", proposed,
                     re.M), proposed
    assert "rank-down" not in proposed
    hands = iter([lambda: None, site.write])
    status, screen = follow_at_a_terminal(site, ["runbook", "start-failed"], lambda: next(hands)())
    assert status == 0, screen
    assert answer(endpoint) == said


@pytest.mark.full
def test_an_endpoint_with_another_key_gets_the_one_of_the_inventory(site: Site, endpoint: str) -> None:
    site.write(api_key="the-key-of-yesterday")
    site.good("provision", "--yes")
    site.write(api_key="the-key-of-today")
    proposed = site.run("runbooks")
    assert proposed.returncode == 4
    assert re.search(r"^key-changed: .*\n  because  lab-head  endpoint\.key  ", proposed.stdout, re.M), proposed.stdout
    typed = re.search(r"^  type +invoke (runbook key-changed --set node=lab-head)$", proposed.stdout, re.M)
    assert typed, proposed.stdout
    status, screen = follow_at_a_terminal(site, typed[1].split(), lambda: None)
    assert status == 0, screen
    record = record_of(screen)
    assert "NOT as it must" not in record and "the-key-of" not in record + screen + proposed.stdout
    assert "nothing wrong found" in site.good("runbooks")
    site.write()
    site.good("provision", "--yes")


class Ascend(Site):
    """A site of 8 x 910B3 hosts, replayed; the engine is the lab's, with the flags of vllm-ascend."""

    def write(self, **more: object) -> None:
        super().write(engine="vllm-ascend", hardware="ascend-a2", strategy="single_node_tep", variant="w4a8",
                      tensor_parallel=None, pipeline_parallel=None, replicas={"r1": [HOSTS[0]]})
        for number, host in enumerate(HOSTS):
            self.replay(host, npu_host(number))

    def replay(self, host: str, answers: Answers) -> None:
        folder = self.folder / "replay" / host
        shutil.rmtree(folder, ignore_errors=True)
        recording.write(folder, answers)
        path = self.folder / "inventory/lab.yml"
        tree = json.loads(path.read_text())
        for group in tree["all"]["children"].values():
            if host in group["hosts"]:
                group["hosts"][host] = {"bringup_replay": str(folder)}
        path.write_text(json.dumps(tree, indent=1))


def npu_host(number: int = 0) -> Answers:
    return without_process(ascend_host(HOSTS[number], ips={n: f"29.0.{number}.{10 + n}" for n in range(8)}))


def in_alarm(answers: Answers) -> Answers:
    """Chip 3 says Alarm where it said OK."""
    return edit(answers, "ascend.info", lambda text: re.sub(r"(?m)^(\| 3 +910B3 +\| )OK   ", r"\1Alarm", text))


def double_bit(answers: Answers) -> Answers:
    return edit(answers, "ascend.ecc", lambda text: re.sub(r"(?m)^(\s*HBM Double Bit Error Count\s+: )0", r"\g<1>2",
                                                           text, count=1))


@pytest.fixture(scope="module")
def npus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ascend]:
    made = Ascend(tmp_path_factory.mktemp("npus"))
    shutil.copytree(REPOSITORY / "runbooks", made.folder / "runbooks")
    yield made
    made.down()


@pytest.mark.full
def test_an_npu_in_alarm_is_proposed_captured_and_mended(npus: Ascend) -> None:
    said = answer(endpoint_of(npus.good("provision", timeout=240)))
    assert "nothing wrong found" in npus.good("runbooks")
    npus.replay(HOSTS[0], double_bit(npu_host()))
    found = npus.run("runbooks").stdout
    assert re.search(r"^npu-alarm: .*\n  because  lab-head  ascend\.ecc  ", found, re.M), found
    npus.replay(HOSTS[0], in_alarm(npu_host()))
    proposed = npus.run("runbooks")
    assert proposed.returncode == 4
    assert "npu-alarm: An NPU raises an alarm\n  because  lab-head  ascend.health  NPU 3 chip 0: Alarm\n" \
        in proposed.stdout
    typed = re.search(r"^  type +invoke (runbook npu-alarm --set node=lab-head)$", proposed.stdout, re.M)
    assert typed, proposed.stdout

    begun = npus.run(*typed[1].split(), "--yes")
    assert begun.returncode == 4 and "stopped at step 3 of 7: it is never run unasked" in begun.stdout
    record = record_of(begun.stdout)
    assert "- replayed: devices of lab-head, lab-w1, lab-w2 are recordings, not hardware" in record
    assert "ascend.health      NPU 3 chip 0: Alarm" in record and "npu-smi info -t health -i 3" in record
    kept = recording.read(npus.folder / ".bringup/npu-alarm-lab-head/lab-head").get("ascend.info")
    assert re.search(r"\| 3 +910B3 +\| Alarm ", kept.stdout)
    again = re.search(r"at a terminal: invoke (runbook npu-alarm .*--from 3)$", begun.stdout, re.M)
    assert again, begun.stdout
    status, screen = follow_at_a_terminal(npus, again[1].split(), lambda: npus.replay(HOSTS[0], npu_host()))
    assert status == 0, screen
    record = record_of(screen)
    assert "ssh lab-head sudo npu-smi set -t reset -i ID -c 0" in record and "Done by hand" in record
    assert "NOT as it must" not in record and re.search(r"^Done at \d{4}-", record, re.M)
    assert "nothing wrong found" in npus.good("runbooks")
    assert answer(endpoint_of(npus.good("start"))) == said


@pytest.mark.full
def test_an_alarm_that_comes_back_after_the_reset_stops_the_runbook(npus: Ascend) -> None:
    npus.replay(HOSTS[0], npu_host())
    npus.good("provision", "--yes", timeout=240)
    npus.replay(HOSTS[0], in_alarm(npu_host()))
    status, screen = follow_at_a_terminal(
        npus, ["runbook", "npu-alarm", "--set", "node=lab-head", "--from", "3"], lambda: None)
    assert status == 1 and "step 5 of 7 is not as it must be: it ended with 4, expected 0" in screen, screen
    assert "next      invoke runbook node-replaced --set node=lab-head" in screen
    assert [node["state"] for node in npus.nodes().values()] == ["stopped"], "nothing is started on a chip in alarm"
