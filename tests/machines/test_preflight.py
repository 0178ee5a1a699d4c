"""Preflight on real machines: one thing broken at a time gives exactly that finding, on exactly that host."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Machine

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "bringup/lab/recordings/h200x8"
DEPLOYMENT = {"recipe": "zai-org/GLM-5.1", "engine": "vllm", "hardware": "h200", "strategy": "multi_node_tp_pp",
              "tensor_parallel": 8, "pipeline_parallel": 3, "environment": "lab", "manager": "systemd",
              "model_path": "/models/GLM-5.1"}

Seen = set[tuple[str, str]]


class Look:
    """Runs the verb and gives what is worse than a note, as (subject, check)."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.plain = cluster.inventory(folder / "plain.yml", {"bringup_known_hosts": str(cluster.known_hosts)})
        self.served = cluster.inventory(folder / "served.yml", {
            "bringup_known_hosts": str(cluster.known_hosts), "bringup_replay": str(RECORDING),
            "deployment": DEPLOYMENT})

    def run(self, inventory: Path, *words: str) -> tuple[int, dict[str, Any]]:
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "preflight", "--inventory", str(inventory), "--report", str(report),
             *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert report.is_file(), done.stdout + done.stderr
        return done.returncode, json.loads(report.read_text())

    def __call__(self, inventory: Path | None = None) -> tuple[int, Seen, dict[tuple[str, str], dict[str, Any]]]:
        status, report = self.run(inventory or self.plain)
        worse = {(one["subject"], one["check"]): one for one in report["findings"]
                 if one["verdict"] in ("fail", "warn", "unknown")}
        return status, set(worse), worse


@pytest.fixture(scope="module")
def look(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Look:
    return Look(cluster, tmp_path_factory.mktemp("look"))


@pytest.fixture(scope="module")
def usual(look: Look) -> Seen:
    """What is found on untouched machines: nothing that blocks."""
    status, seen, found = look()
    assert status == 0, found
    assert not [one for one in found.values() if one["verdict"] != "warn"]
    # containers keep no time of their own and swap with the machine below
    assert {check for _, check in seen} <= {"time.sync", "host.swap", "host.governor", "host.numa-balancing"}
    return seen


@pytest.fixture
def undo() -> Iterator[list[Callable[[], object]]]:
    steps: list[Callable[[], object]] = []
    yield steps
    for step in reversed(steps):
        step()


def test_untouched_machines_with_replayed_gpus_pass(look: Look, usual: Seen) -> None:
    status, seen, found = look(look.served)
    assert status == 0, found
    assert not {check for _, check in seen if not check.startswith(("time.", "host."))}


def test_own_name_on_loopback(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m2"]
    machine.inside("cp /etc/hosts /root/hosts && sed -i 's/^[0-9.]* m2$/127.0.1.1 m2/' /etc/hosts")
    undo.append(lambda: machine.inside("cp /root/hosts /etc/hosts"))
    status, seen, found = look()
    assert status == 4
    assert seen - usual == {("m2", "net.self-name")}
    assert "127.0.1.1" in found[("m2", "net.self-name")]["summary"]
    assert "/etc/hosts:" in found[("m2", "net.self-name")]["details"][0]


def test_mtu(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m3"]
    link = machine.inside("ip -o route get 198.18.0.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/'").stdout.strip()
    machine.inside(f"ip link set dev {link} mtu 1400")
    undo.append(lambda: machine.inside(f"ip link set dev {link} mtu 1500"))
    status, seen, found = look()
    assert status == 4
    assert seen - usual == {("m3", "net.mtu")}
    assert "MTU 1400, the others have 1500" in found[("m3", "net.mtu")]["summary"]


def mounted(machine: Machine, options: str, undo: list[Callable[[], object]]) -> None:
    machine.inside(f"mkdir -p /opt/bringup && mount -t tmpfs -o {options} none /opt/bringup")
    undo.append(lambda: machine.inside("umount /opt/bringup"))


@pytest.mark.parametrize(("options", "fill", "check", "word"), [
    ("size=8m", "head -c 9m /dev/zero >/opt/bringup/x 2>/dev/null; true", "disk.space", "0 B free"),
    ("size=2g,nr_inodes=64", "", "disk.inodes", "inodes free"),
    ("size=2g,noexec", "", "disk.execute", "no file can be run"),
    ("size=2g,ro", "", "disk.local", "read-only"),
])
def test_folder_of_ours(look: Look, usual: Seen, undo: list[Callable[[], object]], options: str, fill: str, check: str,
                        word: str) -> None:
    machine = look.cluster["m1"]
    mounted(machine, options, undo)
    if fill:
        machine.inside(fill)
    status, seen, found = look()
    assert status == 4
    assert seen - usual == {("m1", check)}
    assert word in found[("m1", check)]["summary"]


def test_limit_of_the_unit(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m2"]
    machine.inside("printf '[Service]\\nExecStart=/bin/sleep 600\\nLimitMEMLOCK=65536\\n' "
                   ">/etc/systemd/system/bringup-r1-m2.service; systemctl daemon-reload; systemctl start bringup-r1-m2")
    undo.append(lambda: machine.inside("systemctl stop bringup-r1-m2; rm /etc/systemd/system/bringup-r1-m2.service; "
                                       "systemctl daemon-reload"))
    status, seen, found = look()
    assert status == 4
    assert seen - usual == {("m2", "host.memlock")}
    assert "64 KiB" in found[("m2", "host.memlock")]["summary"]


def test_port_of_the_plan_held_by_a_stranger(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m1"]
    machine.inside("systemd-run --unit=other --uid=ops python3 -m http.server 8000")
    undo.append(lambda: machine.inside("systemctl stop other"))
    wait_for(machine, "ss -Hltn 'sport = :8000' 2>/dev/null | grep -q . || grep -qi ':1F40 ' /proc/net/tcp")
    status, seen, found = look(look.served)
    assert status == 4
    assert {one for one in seen if one[1].startswith("process.")} == {("m1", "process.ports")}
    text = found[("m1", "process.ports")]["summary"]
    assert "8000 (HTTP)" in text and "of ops" in text and "http.server" in text


def test_process_of_an_earlier_start_of_ours(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m3"]
    machine.inside("systemd-run --unit=orphan --setenv='BRINGUP_PROCESS=/opt/bringup|r1-m3|old' sleep 600")
    undo.append(lambda: machine.inside("systemctl stop orphan"))
    _, seen, found = look()
    assert seen - usual == {("m3", "process.ours")}
    assert "sleep 600" in found[("m3", "process.ours")]["summary"]


def test_what_the_running_release_holds_is_no_finding(look: Look, usual: Seen,
                                                      undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m1"]
    machine.inside("printf '[Service]\\nLimitMEMLOCK=infinity\\nExecStart=/usr/bin/python3 -m http.server 8000\\n' "
                   ">/etc/systemd/system/bringup-r1-m1.service; systemctl daemon-reload; systemctl start bringup-r1-m1")
    undo.append(lambda: machine.inside("systemctl stop bringup-r1-m1; rm /etc/systemd/system/bringup-r1-m1.service; "
                                       "systemctl daemon-reload"))
    wait_for(machine, "grep -qi ':1F40 ' /proc/net/tcp")
    status, seen, found = look(look.served)
    assert status == 0, found
    assert not {check for _, check in seen if check.startswith("process.")}


def test_without_root_what_needs_it_is_skipped_with_the_reason(look: Look, usual: Seen) -> None:
    status, report = look.run(look.plain, "--extra-vars", "bringup_privileged=false")
    assert status == 0
    reasons = {one["check"]: one["summary"] for one in report["findings"] if one["verdict"] == "skip"}
    assert not [one for one in report["findings"] if one["verdict"] in ("fail", "unknown")]
    assert "root" in reasons["pcie.acs"] or "machine" in reasons["pcie.acs"]


def test_a_host_that_is_cut_off_is_a_finding_and_the_others_are_judged(look: Look, usual: Seen) -> None:
    machine = look.cluster["m2"]
    machine.cut()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "preflight", "--inventory", str(look.plain)], cwd=ROOT,
            capture_output=True, text=True, timeout=180)
    finally:
        machine.mend()
        look.cluster.wait([machine])
    assert done.returncode in (3, 4), done.stdout + done.stderr
    assert "m2" in done.stdout
    assert "on 3 hosts" in done.stdout or "on 2 hosts" in done.stdout


def test_capture_and_replay_say_the_same(look: Look, usual: Seen, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "capture", "--inventory", str(look.plain), "--output", str(tmp_path / "c")],
        cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"m1", "m2", "m3"}
    assert (tmp_path / "c/m1/files/proc/meminfo").read_text().startswith("MemTotal")
    again = subprocess.run(
        [sys.executable, "-m", "invoke", "preflight", "--inventory", str(look.plain), "--replay", str(tmp_path / "c"),
         "--format", "json"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    replayed, live = json.loads(again.stdout), look.run(look.plain)[1]
    assert replayed.keys() == live.keys() and replayed["hosts"] == live["hosts"] == ["m1", "m2", "m3"]
    assert replayed["parity"]["parity"][:-1] == live["parity"]["parity"][:-1]  # all but the clocks of that moment
    assert (replayed["verb"], replayed["status"]) == (live["verb"], live["status"]) == ("preflight", 0)
    found = replayed["findings"]
    assert {(one["subject"], one["check"]) for one in found if one["verdict"] in ("fail", "warn", "unknown")} == usual


def test_a_look_takes_seconds(look: Look, usual: Seen) -> None:
    began = time.monotonic()
    look()
    assert time.monotonic() - began < 15


def wait_for(machine: Machine, command: str, deadline: float = 10.0) -> None:
    end = time.monotonic() + deadline
    while machine.inside(command, check=False).returncode:
        assert time.monotonic() < end, f"{machine.name}: {command}"
        time.sleep(0.1)
