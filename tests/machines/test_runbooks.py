"""Runbooks are rehearsed: the fault is made on real machines, the runbook is proposed first, followed to its end at a
terminal of 80 columns, and the fault is gone. Faults of GPU and RDMA port are replayed, and the record says so.

Each is begun with --yes, which stops before the first step that only a person may do or allow; from there it goes on
at a terminal with the command that was named.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest
from cluster import Cluster, Machine
from preflight_hosts import change, dead_gpu, gpu_field
from test_provision import CONFIG, RECORDING, Machines, answer
from test_releases import ALONE

from bringup.preflight import recording
from bringup.preflight.answers import Answers
from bringup.runbooks.document import load

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from site_project import INVOKE, REPOSITORY, endpoint_of, wait_for

FAULT = "/models/GLM-5.1/lab_engine_fault.json"
HEALTHY = recording.read(RECORDING)
FALLEN = "[9999999.0] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
GATES = """\
gates:
  smoke:
    owner: tests
    command: invoke gate --only smoke
    rollback: invoke rollback
    requests: 4
    at_once: 4
    pass: {errors: '== 0', first_token_p95: '<= 4'}
"""
Hand = Callable[[], object]


class Rehearsals(Machines):
    """The machines with the runbooks that come with bringup, and one fault at a time."""

    def replay(self, host: str, answers: Answers | None) -> None:
        """Give a host a recording of its own, or with None the healthy one again."""
        path = self.folder / "inventory/lab.yml"
        tree = json.loads(path.read_text())
        own = tree["all"]["hosts"][host]
        own.pop("bringup_replay", None)
        if answers is not None:
            folder = self.folder / "replay" / host
            shutil.rmtree(folder, ignore_errors=True)
            recording.write(folder, answers)
            own["bringup_replay"] = str(folder)
        path.write_text(json.dumps(tree, indent=1))

    def fault(self, host: str, **data: Any) -> None:
        """What the lab engine on a host does wrong from now on; nothing without a name."""
        text = json.dumps(data)
        self.cluster[host].inside(f"printf %s '{text}' > {FAULT}" if data else f"rm -f {FAULT}")

    def kill(self, host: str) -> None:
        self.cluster[host].inside(f"kill -9 {self.unit(host)['MainPID']}")
        assert wait_for(lambda: self.unit(host)["ActiveState"] != "active", 30)

    def proposed(self, name: str, *because: str) -> str:
        """`invoke runbooks` proposes this one first, for these checks; returns the command that it names."""
        done = self.run("runbooks")
        assert done.returncode in (3, 4), done.stdout
        first = re.search(r"^([a-z-]+): ", done.stdout, re.M)
        assert first and first[1] == name, done.stdout
        own = done.stdout.split(f"{name}: ", 1)[1].split("  type ", 1)[0]
        for check in because:
            assert f" {check}  " in own, done.stdout
        typed = re.search(r"^  type +invoke (runbook .+)$", done.stdout, re.M)
        assert typed, done.stdout
        return typed[1]


@dataclass
class Followed:
    """How a runbook ended: what stood on the screen, and its records in order."""

    status: int
    screen: str
    records: list[str]


def follow(site: Rehearsals, command: str, hands: Mapping[int, Hand] | None = None, skip: tuple[int, ...] = ()
           ) -> Followed:
    """Begin with --yes, go on at a terminal where it stops. `hands` are done at the step of that number."""
    done = site.run(*command.split(), "--yes", timeout=240)
    records = [record_of(done.stdout)]
    if done.returncode != 4:
        return Followed(done.returncode, done.stdout, records)
    again = re.search(r"at a terminal: +invoke (.+)$", done.stdout, re.M)
    assert again, done.stdout
    assert "Stopped before step" in records[0] and f"Next: `at a terminal: invoke {again[1]}`" in records[0]
    status, screen = at_a_terminal(site, again[1].split(), hands or {}, skip)
    return Followed(status, screen, [*records, record_of(screen)])


def at_a_terminal(site: Rehearsals, words: list[str], hands: Mapping[int, Hand], skip: tuple[int, ...] = ()
                  ) -> tuple[int, str]:
    """Answer every question with y, or with skip at these steps; a person's steps are done first."""
    child = pexpect.spawn(str(INVOKE), words, cwd=str(site.folder), env={**site.environment(), "COLUMNS": "80"},
                          encoding="utf-8", dimensions=(24, 80), timeout=240)
    screen, step = "", 0
    try:
        while True:
            which = child.expect([r"step (\d+) of \d+  ", r"(Run it|Is it done)\? \[y/N/skip\]", pexpect.EOF])
            screen += str(child.before) + (str(child.after) if which < 2 else "")
            if which == 2:
                break
            if which == 0:
                step = int(child.match[1])
                continue
            if child.match[1] == "Is it done" and step in hands:
                hands[step]()
            child.sendline("skip" if step in skip else "y")
    finally:
        child.close()
    return child.exitstatus, screen.replace("\r\n", "\n")


def record_of(output: str) -> str:
    found = re.search(r"^ *record +(\S+(?:\n +\S+)*)$", output, re.M)
    assert found, output
    path = Path(re.sub(r"\s", "", found[1]))
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text()


def mended(site: Rehearsals, name: str, followed: Followed) -> None:
    """Every step ended as it must, the records tell each, and nothing is found any more."""
    book = load(REPOSITORY / f"runbooks/{name}.md")
    assert followed.status == 0, followed.screen
    whole = "\n".join(followed.records)
    for step in book.steps:
        assert f"## Step {step.number} of {len(book.steps)}" in whole
    for record in followed.records:
        assert record.startswith(f"# {book.title}\n") and re.search(r"^- begun: \d{4}-.* UTC$", record, re.M)
        assert "- replayed: devices of m1, m2, m3 are recordings, not hardware" in record
    run = [line for line in whole.splitlines() if line.startswith("Run at ")]
    assert len(run) == whole.count("\nEnded with ") and "NOT as it must" not in whole
    assert re.search(r"^Done at \d{4}-", followed.records[-1], re.M)
    too_wide = [line for line in followed.screen.splitlines() if len(line) > 80 and not line.startswith("  | ")
                and " " in line.strip()[60:]] if len(followed.records) > 1 else []
    assert not [line for line in too_wide if not re.match(r" +(will run|by hand|record|\|)|.*invoke ", line)], too_wide
    found = site.run("runbooks")
    assert found.returncode == 0 and "nothing wrong found" in found.stdout, found.stdout
    assert answer(endpoint_of(site.good("start")))


@pytest.fixture(scope="module")
def machines(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsals]:
    for machine in cluster.machines:
        machine.run(f"sudo mkdir -p /models/GLM-5.1 && echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
    site = Rehearsals(tmp_path_factory.mktemp("rehearsed"), cluster)
    prepare(site)
    yield site
    site.run("stop", "--yes")


def prepare(site: Rehearsals) -> None:
    shutil.copytree(REPOSITORY / "runbooks", site.folder / "runbooks")
    (site.folder / "gates").mkdir()
    (site.folder / "gates/default.yml").write_text(GATES)


@pytest.fixture
def site(machines: Rehearsals) -> Rehearsals:
    for machine in machines.cluster.machines:
        machine.inside(f"rm -f {FAULT}")
    machines.write()
    machines.good("provision", "--yes", timeout=240)
    return machines


@pytest.mark.full
def test_endpoint_down(site: Rehearsals) -> None:
    site.cluster["m1"].inside(f"kill -STOP {site.unit('m1')['MainPID']}")
    mended(site, "endpoint-down", follow(site, site.proposed("endpoint-down", "endpoint")))


@pytest.mark.full
def test_rank_down(site: Rehearsals) -> None:
    site.kill("m2")
    followed = follow(site, site.proposed("rank-down", "process.dead"))
    mended(site, "rank-down", followed)
    assert "the worker (ranks 8-15) is dead" in followed.records[0]


def lost_gpu(answers: Answers) -> Answers:
    return change(dead_gpu(answers), "host.kernel_log", answers.get("host.kernel_log").stdout + FALLEN)


@pytest.mark.full
def test_gpu_lost(site: Rehearsals) -> None:
    site.replay("m2", lost_gpu(HEALTHY))
    site.kill("m2")
    followed = follow(site, site.proposed("gpu-lost", "nvidia.xid", "nvidia.count"),
                      {4: lambda: site.replay("m2", None)})
    mended(site, "gpu-lost", followed)
    assert "Xid 79" in followed.records[0] and (site.folder / ".bringup/gpu-lost-m2/m2/probes.json").is_file()


def port_down(answers: Answers) -> Answers:
    """Port mlx5_3 polls: its cable, or the other end, is gone."""
    parts = answers.get("rdma.ibstat").stdout.split("CA '")
    at = next(number for number, part in enumerate(parts) if part.startswith("mlx5_3'"))
    parts[at] = re.sub(r"State: Active\n(\s+Physical state:) LinkUp", r"State: Down\n\1 Polling", parts[at])
    made = change(answers, "rdma.ibstat", "CA '".join(parts))
    return change(made, "rdma.sysfs", files={
        path: "1: DOWN\n" if path.endswith("mlx5_3/ports/1/state") else
        "2: Polling\n" if path.endswith("mlx5_3/ports/1/phys_state") else text
        for path, text in answers.get("rdma.sysfs").files.items()})


@pytest.mark.full
def test_rdma_link_down(site: Rehearsals) -> None:
    site.replay("m2", port_down(HEALTHY))
    site.kill("m2")
    followed = follow(site, site.proposed("rdma-link-down", "rdma.state"), {2: lambda: site.replay("m2", None)})
    mended(site, "rdma-link-down", followed)


@pytest.mark.full
def test_out_of_memory(site: Rehearsals) -> None:
    site.fault("m2", name="out_of_memory")
    site.kill("m2")
    assert site.run("start", "--yes", timeout=240).returncode in (1, 6)
    followed = follow(site, site.proposed("out-of-memory", "cause.memory.device"), {4: lambda: site.fault("m2")})
    mended(site, "out-of-memory", followed)
    assert "CUDA out of memory" in followed.records[0]


@pytest.mark.full
def test_tool_calls_malformed(site: Rehearsals) -> None:
    site.fault("m1", name="malformed_arguments")
    followed = follow(site, site.proposed("tool-calls-malformed", "contract.tools.structured"),
                      {4: lambda: site.fault("m1")})
    mended(site, "tool-calls-malformed", followed)


@pytest.mark.full
def test_slow_first_token(site: Rehearsals) -> None:
    site.fault("m1", name="slow", seconds=6)
    followed = follow(site, site.proposed("slow-first-token", "endpoint.slow"), {5: lambda: site.fault("m1")})
    mended(site, "slow-first-token", followed)


@pytest.mark.full
def test_a_gpu_that_throttles_is_a_slow_first_token(site: Rehearsals) -> None:
    site.replay("m3", gpu_field(HEALTHY, 2, "Clocks Event Reasons / HW Slowdown", "Active"))
    site.proposed("slow-first-token", "nvidia.throttle")


@pytest.fixture
def small_disk(site: Rehearsals) -> Iterator[Rehearsals]:
    """bringup_root of m3 lies on a file system of its own, so small that a test can fill it."""
    machine = site.cluster["m3"]
    machine.inside("cp -a /opt/bringup /root/kept && mount -t tmpfs -o size=1200m small /opt/bringup && "
                   "cp -a /root/kept/. /opt/bringup/")
    yield site
    machine.inside("rm -rf /root/kept && cp -a /opt/bringup /root/kept && umount -l /opt/bringup && "
                   "rm -rf /opt/bringup && mv /root/kept /opt/bringup")


@pytest.mark.full
def test_disk_full(small_disk: Rehearsals) -> None:
    site, machine = small_disk, small_disk.cluster["m3"]
    machine.inside("cat /dev/zero > /opt/bringup/core 2> /dev/null; true")
    site.kill("m3")
    followed = follow(site, site.proposed("disk-full", "disk.space"),
                      {4: lambda: machine.inside("rm /opt/bringup/core")})
    mended(site, "disk-full", followed)


@pytest.mark.full
def test_full_restart(site: Rehearsals) -> None:
    """A power cut: nothing starts by itself."""
    for machine in site.cluster.machines:
        machine.stop()
    for machine in site.cluster.machines:
        machine.start()
    site.cluster.wait()
    mended(site, "full-restart", follow(site, site.proposed("full-restart")))


@pytest.mark.full
def test_key_changed(site: Rehearsals) -> None:
    machine = site.cluster["m2"]
    new_key(machine)

    def known() -> None:
        lines = [line for line in site.cluster.known_hosts.read_text().splitlines() if machine.address not in line]
        site.cluster.known_hosts.write_text("\n".join([*lines, f"{machine.address} {machine.host_key}", ""]))
        site.write()

    followed = follow(site, site.proposed("key-changed", "process.unknown"), {3: known}, skip=(5,))
    mended(site, "key-changed", followed)
    assert "Skipped by the person at" in followed.records[-1]


@pytest.mark.full
def test_rollback(site: Rehearsals) -> None:
    """A release that was good everywhere, and one host whose link was put back by hand."""
    first = site.current()
    site.write(context_length=65536)
    site.good("provision", "--yes", timeout=240)
    machine, second = site.cluster["m3"], site.current()
    machine.inside(f"ln -sfn {first.pop()} /opt/bringup/current")
    followed = follow(site, site.proposed("rollback", "release.mixed"))
    mended(site, "rollback", followed)
    assert "its `current` was changed by hand" in followed.records[0]
    assert len(site.current()) == 1 and site.current() != second
    told = {row["release"]: row["state"] for row in site.data("releases")}
    assert sorted(told.values())[-2:] == ["current, good", "rolled back from"], told
    assert {node["release"] for node in site.nodes().values()} == {name for name in told if "current" in told[name]}


@pytest.mark.full
def test_a_node_that_was_installed_anew(site: Rehearsals) -> None:
    """The machine died; it comes back under the same name with a new disk."""
    machine = site.cluster["m2"]
    machine.stop()

    def installed() -> None:
        shutil.rmtree(machine.root / "opt/bringup")
        for path in (machine.root / "etc/systemd/system").glob("bringup-*"):
            path.unlink()
        machine.start()
        site.cluster.wait()

    try:
        followed = follow(site, site.proposed("node-replaced", "process.unknown"), {1: installed}, skip=(3,))
    finally:
        if machine.process is None:
            installed()
    mended(site, "node-replaced", followed)
    assert len(site.current()) == 1 and site.unit("m2")["ActiveState"] == "active"


@pytest.mark.full
def test_a_spare_takes_the_place_of_a_dead_node(site: Rehearsals) -> None:
    """Two replicas of one node each and a spare; the second node dies and stays off until all is well without it."""
    site.good("stop", "--yes")
    replicas, alone = {"r1": ["m1"], "r2": ["m2"]}, {**ALONE, "served_name": "zai-org/GLM-5.1"}
    site.write(**alone, replicas=replicas)
    site.good("provision", "--yes", timeout=240)
    before = site.invocations()["m1"]
    machine = site.cluster["m2"]
    machine.stop()
    try:
        proposed = site.run("runbooks")
        assert "1 of 1 replica up; r2 not counted: m2 not looked at" in proposed.stdout, proposed.stdout
        assert "type     invoke runbook spare-takes-over --set node=m2 --set spare=SPARE" in proposed.stdout
        followed = follow(site, "runbook spare-takes-over --set node=m2 --set spare=m3",
                          {3: lambda: site.write(**alone, replicas={**replicas, "r2": ["m3"]})})
    finally:
        machine.start()
        site.cluster.wait()
    mended(site, "spare-takes-over", followed)
    assert "m3 in the place of m2" in followed.records[-1]
    assert site.invocations()["m1"] == before, "the other replica served on"
    site.good("stop", "--yes")


def new_key(machine: Machine) -> None:
    """As a host that is installed anew has one."""
    path = machine.root / "etc/ssh/ssh_host_ed25519_key"
    path.unlink()
    path.with_suffix(".pub").unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", machine.name, "-f", str(path)], check=True)
    machine.host_key = " ".join(path.with_suffix(".pub").read_text().split()[:2])
    machine.inside("systemctl restart ssh")
