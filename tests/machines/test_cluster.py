"""The machines themselves: they boot, can be reached, cut off, slowed down, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import CACHE, Cluster, sweep
from network import ip

HERE = Path(__file__).parent


def test_three_machines_boot_in_seconds(cluster: Cluster) -> None:
    assert len(cluster.machines) == 3
    assert cluster.boot_seconds < 30
    ids = {machine.run("cat /etc/machine-id").stdout for machine in cluster.machines}
    assert len(ids) == 3
    for machine in cluster.machines:
        said = machine.run("hostname; python3 -V; ps -p 1 -o comm=; sudo -n id -u").stdout.split("\n")
        assert said[:4] == [machine.name, "Python 3.11.2", "systemd", "0"]
        for other in cluster.machines:
            assert machine.run(f"getent hosts {other.name}").stdout.split()[0] == other.address


def test_units_of_one_name_do_not_meet(cluster: Cluster) -> None:
    """Each machine has its own control groups: stopping a unit on one leaves its namesake on the others alone."""
    for machine in cluster.machines:
        machine.run("sudo systemd-run --unit=twin sleep 600")
    cluster.machines[0].run("sudo systemctl stop twin")
    states = [machine.run("systemctl is-active twin", check=False).stdout.strip() for machine in cluster.machines]
    assert states == ["inactive", "active", "active"]


def test_units_run_and_testinfra_sees_them(cluster: Cluster) -> None:
    host = cluster.testinfra(cluster.machines[0])
    assert host.service("ssh").is_running
    assert host.socket("tcp://0.0.0.0:22").is_listening
    assert host.user().name == "ops"
    assert cluster.testinfra(cluster.machines[0], sudo=True).user().name == "root"


def test_cut_and_mend(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    machine.cut()
    try:
        assert machine.run("true", check=False).returncode == 255
        assert machine.inside("hostname").stdout.strip() == machine.name
        assert cluster.machines[2].run("true").returncode == 0
    finally:
        machine.mend()
    cluster.wait([machine], 10)


def test_delay(cluster: Cluster) -> None:
    machine = cluster.machines[2]

    def seconds() -> float:
        begun = time.monotonic()
        with socket.create_connection((machine.address, 22), timeout=5):
            return time.monotonic() - begun

    machine.delay(50)
    try:
        seconds()  # the first one asks for the address on the link, too
        assert 0.05 <= min(seconds() for _ in range(3)) < 0.08
        text = "x" * 2_000_000
        assert machine.run("wc -c", input=text).stdout.strip() == "2000000"
        machine.cut()
        assert machine.run("true", check=False).returncode == 255
        machine.mend()
    finally:
        machine.delay(0)
    assert seconds() < 0.02


def test_inventories_are_read_by_ansible_and_by_us(cluster: Cluster, tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    for keys in ("pinned", "accept-new"):
        path = cluster.inventory(tmp_path / f"{keys}.yml", {"x": 1}, keys=keys)
        theirs = json.loads(subprocess.run([tools / "ansible-inventory", "-i", path, "--list"], capture_output=True,
                                           text=True, check=True).stdout)
        ours = json.loads(subprocess.run([tools / "invoke", "-r", HERE.parents[1], "inventory", "-i", path, "--format",
                                          "json"], capture_output=True, text=True, check=True).stdout)
        assert ours == theirs
        assert ours["workers"]["hosts"] == ["m2", "m3"]
        pinged = subprocess.run([tools / "ansible", "-i", path, "all", "-m", "ping"], capture_output=True, text=True,
                                env={**os.environ, "ANSIBLE_CONFIG": "/nonexistent/ansible.cfg"})
        assert pinged.stdout.count("SUCCESS") == 3, pinged.stdout + pinged.stderr


def test_a_machine_comes_back_after_a_hard_stop(cluster: Cluster) -> None:
    machine = cluster.machines[2]
    machine.run("echo kept > ~/kept; sync")
    machine.stop()
    assert machine.run("true", check=False).returncode == 255
    machine.start()
    cluster.wait([machine])
    assert machine.run("cat ~/kept").stdout == "kept\n"


def test_sudo_with_a_password_and_a_second_cluster_beside(cluster: Cluster, boot) -> None:
    other = boot(size=1, sudo="password")
    machine = other.machines[0]
    assert machine.address != cluster.machines[0].address
    assert machine.run("sudo -n true", check=False).returncode == 1
    assert machine.run("sudo -S -p '' id -u", input=f"{other.password}\n").stdout == "0\n"
    assert cluster.machines[0].run("true").returncode == 0


def _traces(identity: str) -> list[str]:
    found = [f"link {link['ifname']}" for link in json.loads(ip("-json", "link", "show")) if identity in link["ifname"]]
    found += [f"namespace {line}" for line in ip("netns", "list").splitlines() if identity in line]
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if identity in line]
    found += [f"control group {path}" for path in Path("/sys/fs/cgroup").glob(f"**/*{identity}*")]
    found += [f"folder {path}" for path in (CACHE / "runs").glob(f"*{identity}*")]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if identity.encode() in process.read_bytes():
                found.append(f"process {process.parent.name}")
        except OSError:
            continue
    return found


def test_nothing_is_left_behind() -> None:
    with Cluster(size=1) as gone:
        assert len(_traces(gone.identity)) > 4
    assert _traces(gone.identity) == []


@pytest.mark.parametrize("how", [signal.SIGKILL])
def test_what_a_killed_run_left_is_swept(how: signal.Signals) -> None:
    script = f"import sys, time; sys.path.insert(0, {str(HERE)!r}); from cluster import Cluster\n" \
             "c = Cluster(size=1); c.up(); print(c.identity, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    identity = child.stdout.readline().strip()
    sweep()
    assert any("mount" in trace for trace in _traces(identity)), "a living run was swept"
    child.send_signal(how)
    child.wait(10)
    assert _traces(identity)
    sweep()
    end = time.monotonic() + 10
    while _traces(identity) and time.monotonic() < end:
        time.sleep(0.1)
    assert _traces(identity) == []
