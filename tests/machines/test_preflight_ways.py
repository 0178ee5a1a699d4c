"""Preflight on real machines, the rest: ways between hosts, clocks, homes, sudo. One thing broken, one finding."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from network import ip
from test_preflight import ROOT, Look, Seen

SAMPLES = ROOT / "tests/unit/preflight/samples"
NAMES = ("m1", "m2", "m3")


@pytest.fixture(scope="module")
def look(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Look:
    return Look(cluster, tmp_path_factory.mktemp("look"))


@pytest.fixture(scope="module")
def usual(look: Look) -> Seen:
    status, seen, found = look()
    assert status == 0, found
    return seen


@pytest.fixture
def undo() -> Iterator[list[Callable[[], object]]]:
    steps: list[Callable[[], object]] = []
    yield steps
    for step in reversed(steps):
        step()


def deep(look: Look, inventory: Path) -> tuple[int, Seen, dict[tuple[str, str], dict[str, Any]], dict[str, Any]]:
    status, report = look.run(inventory, "--tier", "deep")
    worse = {(one["subject"], one["check"]): one for one in report["findings"]
             if one["verdict"] in ("fail", "warn", "unknown")}
    return status, set(worse), worse, report


def test_untouched_machines_are_measured_and_pass(look: Look, usual: Seen) -> None:
    status, seen, found, report = deep(look, look.plain)
    assert status == 0, found
    assert seen == usual, found
    matrix = report["parity"]["TCP Gb/s"]
    assert matrix[0] == ["from \\ to", *NAMES]
    assert all(float(row[place]) > 0.1 for row in matrix[1:] for place in (1, 2, 3) if row[place] != ".")
    ports = {one["subject"]: one for one in deep(look, look.served)[3]["findings"] if one["check"] == "net.ports"}
    assert {subject for subject, one in ports.items() if one["verdict"] == "pass"} >= {"m2 > m1", "m3 > m1"}


def test_a_firewall_before_the_plans_port(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m2"]
    report = deep(look, look.served)[3]
    assert [one for one in report["findings"] if one["check"] == "net.ports" and one["subject"] == "m2 > m1"]
    machine.inside("ip rule add prio 100 ipproto 6 dport 29501 prohibit")
    undo.append(lambda: machine.inside("ip rule delete prio 100"))
    status, seen, found, _ = deep(look, look.served)
    assert status == 4
    assert {one for one in seen if one[1].startswith(("net.", "rdma."))} == {("m2 > m1", "net.ports")}, found
    assert "29501" in found[("m2 > m1", "net.ports")]["summary"]


def test_a_way_that_is_closed(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m1"]
    away = look.cluster["m3"].address
    machine.inside(f"ip route add blackhole {away}/32")
    undo.append(lambda: machine.inside(f"ip route delete blackhole {away}/32"))
    status, seen, found = look()
    assert status == 4
    assert {one[1] for one in seen - usual} == {"net.reach"}, found
    assert {one[0] for one in seen - usual} <= {"m1 > m3", "m3 > m1"}


def test_packets_that_a_switch_port_drops(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    outer = look.cluster.bridge.link(3)
    ip("link", "set", outer, "mtu", "1400")
    undo.append(lambda: ip("link", "set", outer, "mtu", "1500"))
    status, seen, found = look()
    assert status == 4
    assert seen - usual == {("m3", "net.mtu")}, found
    assert "packets of 1500 do not pass" in found[("m3", "net.mtu")]["summary"]


def test_a_slow_host_is_told_from_its_partners(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m3"]
    machine.delay(40)
    undo.append(lambda: machine.delay(0))
    status, seen, found, report = deep(look, look.plain)
    slow = {one for one in seen - usual if one[1].startswith("net.")}
    assert status == 0, found
    assert slow and {subject for subject, _ in slow} == {"m3"}, found
    assert ("m3", "net.latency") in slow
    row = report["parity"]["TCP us"][3]
    assert float(row[1]) > 30000


def test_a_home_that_is_read_only(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m2"]
    machine.inside("mount --bind /home/ops /home/ops && mount -o remount,bind,ro /home/ops")
    undo.append(lambda: machine.inside("umount /home/ops"))
    status, seen, found = look()
    assert status == 0, found
    assert seen - usual == {("m2", "disk.home")}
    assert "/home/ops is mounted read-only" in found[("m2", "disk.home")]["summary"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler makes a clock that is off")
@pytest.mark.parametrize(("seconds", "verdict"), [(90, "fail"), (-3, "warn")])
def test_a_clock_that_is_off(look: Look, usual: Seen, tmp_path: Path, seconds: int, verdict: str,
                             undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m2"]
    library = machine.root / "usr/local/lib/clock_shift.so"
    subprocess.run(["cc", "-shared", "-fPIC", f"-DSHIFT={seconds}", "-o", library,
                    Path(__file__).with_name("clock_shift.c"), "-ldl"], check=True)
    python = machine.root / "usr/local/bin/shifted-python"
    python.write_text('#!/bin/sh\nLD_PRELOAD=/usr/local/lib/clock_shift.so exec /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    undo += [library.unlink, python.unlink]
    tree = json.loads(look.plain.read_text())
    tree["all"]["vars"]["bringup_privileged"] = False  # sudo takes LD_PRELOAD away
    tree["all"]["hosts"]["m2"]["ansible_python_interpreter"] = "/usr/local/bin/shifted-python"
    other = tmp_path / "shifted.yml"
    other.write_text(json.dumps(tree))
    _, seen, found = look(other)
    assert {one for one in seen - usual if one[1].startswith("time.")} == {("m2", "time.between")}, found
    assert found[("m2", "time.between")]["verdict"] == verdict
    assert ("ahead of" if seconds > 0 else "behind") in found[("m2", "time.between")]["summary"]


def test_chrony_that_is_far_from_its_source(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m1"]
    text = (SAMPLES / "time/chronyc-tracking-69s-fast.txt").read_text()
    tool = machine.root / "usr/local/bin/chronyc"
    tool.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}EOF\n")
    tool.chmod(0o755)
    undo.append(tool.unlink)
    status, seen, found = look()
    assert status == 4
    assert {one for one in seen if one[0] == "m1" and one[1] == "time.sync"}
    assert found[("m1", "time.sync")]["verdict"] == "fail"
    assert {one for one in seen - usual if one != ("m1", "time.sync")} == set()


def test_sudo_that_asks_for_a_password(boot: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = boot(size=1, sudo="password", prefix="p")
    look = Look(cluster, tmp_path)
    status, seen, found = look()
    assert ("p1", "host.sudo") in seen, found
    assert found[("p1", "host.sudo")]["verdict"] in ("warn", "fail")
    assert {check for _, check in seen if not check.startswith(("time.", "host."))} == set()
    secret = tmp_path / "password"
    secret.write_text(cluster.password + "\n")
    secret.chmod(0o600)
    status, report = look.run(look.plain, "--become-password-file", str(secret))
    assert status == 0
    assert "host.sudo" not in {one["check"] for one in report["findings"] if one["verdict"] in ("fail", "warn")}


def test_safe_mends_are_shown_asked_for_and_made(look: Look, usual: Seen, undo: list[Callable[[], object]]) -> None:
    machine = look.cluster["m2"]
    machine.inside("cp /etc/hosts /root/hosts && sed -i 's/^[0-9.]* m2$/127.0.1.1 m2/' /etc/hosts")
    undo.append(lambda: machine.inside("cp /root/hosts /etc/hosts; rm -rf /opt/bringup"))
    before = machine.inside("cat /etc/hosts").stdout
    words = [sys.executable, "-m", "invoke", "preflight", "--inventory", str(look.plain), "--fix"]
    refused = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert "host_setting names" in refused.stdout
    dry = subprocess.run([*words, "--check", "--yes"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert dry.returncode == 4 and "--check changes nothing" in dry.stdout, dry.stdout
    assert machine.inside("cat /etc/hosts").stdout == before
    made = subprocess.run([*words, "--yes"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "127.0.1.1" not in machine.inside("cat /etc/hosts").stdout
    assert look()[1] == usual
    assert "127.0.1.1" in machine.inside("cat /opt/bringup/state/host_settings/names.json").stdout


def test_a_baseline_is_recorded_and_compared(look: Look, usual: Seen, tmp_path: Path) -> None:
    kept = ROOT / "baselines" / "plain.yml"
    assert not kept.exists(), "the project holds a baseline named as the test's inventory"
    try:
        status, _ = look.run(look.plain, "--record")
        assert status == 0
        text = kept.read_text()
        assert {f"  m{number}:" for number in (1, 2, 3)} <= set(text.splitlines())
        status, report = look.run(look.plain)
        assert status == 0
        compared = {one["subject"]: one for one in report["findings"] if one["check"] == "baseline.measured"}
        assert {one["verdict"] for one in compared.values()} == {"pass"}
        old = next(line for line in text.splitlines() if "host memory GiB" in line)
        now = float(old.split(":")[1])
        kept.write_text(text.replace(old, f"      host memory GiB: {now * 1.2:.1f}", 1))
        status, report = look.run(look.plain)
        worse = {one["subject"]: one for one in report["findings"] if one["check"] == "baseline.measured"
                 and one["verdict"] == "warn"}
        assert set(worse) == {"m1"}
        assert worse["m1"]["data"]["loss"] == pytest.approx(16.7, abs=0.5)
        assert report["parity"]["baseline"][0][:2] == ["host memory GiB", "2 as recorded"]
        assert "m1:" in report["parity"]["baseline"][0][2]
        wide = look.run(look.plain, "--extra-vars", "bringup_baseline_tolerance=30")[1]
        assert not [one for one in wide["findings"] if one["check"] == "baseline.measured" and one["verdict"] == "warn"]
    finally:
        kept.unlink(missing_ok=True)
        if kept.parent.is_dir() and not list(kept.parent.iterdir()):
            kept.parent.rmdir()


def test_facts_of_live_hosts(look: Look, usual: Seen) -> None:
    done = subprocess.run([sys.executable, "-m", "invoke", "facts", "--inventory", str(look.plain), "--format", "json"],
                          cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(NAMES)
    kernel = look.cluster["m1"].inside("uname -r").stdout.strip()
    assert found["m1"]["kernel"] == kernel
