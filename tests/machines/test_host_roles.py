"""Roles and modules that change a host, on real machines: what they change, what they leave, what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

PROJECT = Path(__file__).parents[2]
BRINGUP = Path(sys.executable).parent / "bringup"


@dataclass(frozen=True)
class Ran:
    """A run: its exit status, what it printed, its report."""

    status: int
    printed: str
    report: dict[str, Any]

    def count(self, host: str, what: str) -> int:
        return int(self.report["recap"].get(host, {}).get(what, 0))

    def messages(self, host: str) -> str:
        return json.dumps([one for one in self.report["results"] if one["host"] == host])


Run = Callable[..., Ran]


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Iterator[Run]:
    """Runs a playbook of these tests: `run(tasks_or_roles, *flags, **variables)`."""
    (tmp_path / "roles").symlink_to(PROJECT / "roles")
    inventory = cluster.inventory(tmp_path / "inventory.json")

    def go(body: str, *flags: str, **variables: Any) -> Ran:
        play = tmp_path / "play.yml"
        play.write_text(f"- hosts: all\n  gather_facts: false\n{body}")
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [BRINGUP, "playbook", str(play), "--inventory", str(inventory), "--report", str(report),
             "--extra-vars", json.dumps(variables), *flags],
            cwd=tmp_path, env={**os.environ, "BRINGUP_PROJECT": str(tmp_path), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        return Ran(done.returncode, done.stdout + done.stderr,
                   json.loads(report.read_text()) if report.exists() else {"recap": {}, "results": []})

    yield go
    for machine in cluster.machines:
        machine.run("sudo rm -rf /opt/bringup")


def _roles(*names: str) -> str:
    return "  roles: [" + ", ".join(names) + "]\n"


def _undo(role: str) -> str:
    return f"  tasks:\n    - include_role: {{name: {role}, tasks_from: undo}}\n"


def test_names_resolve_to_the_cluster_address_and_come_back(cluster: Cluster, run: Run) -> None:
    first, second, third = cluster.machines
    text = f"127.0.0.1 localhost\n127.0.1.1 {first.name}.site {first.name}\n{third.address} {third.name} storage\n"
    before = {}
    for machine in (first, second):
        machine.inside(f"cp /etc/hosts /root/hosts.orig; printf '{text}' > /etc/hosts")
        before[machine.name] = machine.run("cat /etc/hosts").stdout
    try:
        assert run(_roles("host_names")).count(first.name, "changed") == 0, "nothing is set until it is listed"
        checked = run(_roles("host_names"), "--check", host_settings=["names"])
        assert checked.count(first.name, "changed") == 1
        assert first.run("cat /etc/hosts").stdout == before[first.name]
        done = run(_roles("host_names"), host_settings=["names"])
        assert done.status == 0, done.printed
        assert f"/etc/hosts:2 says 127.0.1.1 for {first.name}, not {first.address}" in done.messages(first.name)
        for machine in cluster.machines:
            witness = cluster.testinfra(machine)
            for other in cluster.machines:
                assert witness.addr(other.name).ipv4_addresses == [other.address]
            assert "127.0.1.1" not in witness.file("/etc/hosts").content_string
        assert "storage" in cluster.testinfra(first).file("/etc/hosts").content_string
        assert done.count(third.name, "changed") == 0, "what a check finds right is left alone"
        again = run(_roles("host_names"), host_settings=["names"])
        assert [again.count(machine.name, "changed") for machine in cluster.machines] == [0, 0, 0]
        back = run(_undo("host_names"))
        assert back.status == 0, back.printed
        for machine in (first, second):
            assert machine.run("cat /etc/hosts").stdout == before[machine.name]
    finally:
        for machine in (first, second):
            machine.inside("mv /root/hosts.orig /etc/hosts")


def _may_raise_limits(cluster: Cluster) -> bool:
    line = cluster.machines[0].inside("grep CapBnd /proc/1/status").stdout
    return bool(int(line.split()[1], 16) >> 24 & 1)


def test_limits_hold_for_sessions_and_units_and_come_back(cluster: Cluster, run: Run) -> None:
    machine = cluster.machines[0]
    before = machine.run("ulimit -Hl; ulimit -Hn").stdout
    assert before.split()[0] != "unlimited"
    only = ("--limit", machine.name)
    variables = {"host_settings": ["limits"], "host_limits_accounts": ["ops", "root"]}
    done = run(_roles("host_limits"), *only, **variables)
    assert done.status == 0, done.printed
    if not _may_raise_limits(cluster):
        # where the tests themselves run in a container
        assert "limits cannot be raised here" in done.messages(machine.name)
        assert machine.run("ls /etc/security/limits.d").stdout == ""
        return
    assert "memlock of ops is" in done.messages(machine.name)
    assert machine.run("ulimit -Hl; ulimit -Hn").stdout.split() == ["unlimited", "1048576"]
    witness = cluster.testinfra(machine, sudo=True)
    unit = witness.check_output("systemd-run --quiet --wait --pipe sh -c 'ulimit -Hl'")
    assert unit == "unlimited"
    assert run(_roles("host_limits"), *only, **variables).count(machine.name, "changed") == 0
    assert run(_undo("host_limits"), *only, **variables).status == 0
    assert machine.run("ulimit -Hl; ulimit -Hn").stdout == before
    assert not witness.file("/etc/security/limits.d/90-bringup.conf").exists


def test_knobs_that_a_container_lacks_are_skipped_with_the_reason(cluster: Cluster, run: Run) -> None:
    done = run(_roles("host_time", "host_tuning", "host_limits"),
               host_settings=["time", "swap", "governor", "numa_balancing", "persistence", "driver_hold", "shm"])
    assert done.status == 0, done.printed
    name = cluster.machines[0].name
    assert done.count(name, "changed") == 0
    for reason in ("the clock of a container", "swap belongs to the machine outside", "no governor here",
                   "no NVIDIA driver here", "no package of the NVIDIA driver", "/dev/shm of a container"):
        assert reason in done.messages(name)


def test_without_privilege_nothing_is_touched_and_the_reason_printed(cluster: Cluster, run: Run) -> None:
    name = cluster.machines[0].name
    cluster.machines[0].inside(f"cp /etc/hosts /root/hosts.orig; echo '127.0.1.1 {name}' > /etc/hosts")
    try:
        done = run(_roles("host_names", "host_limits", "host_time", "host_tuning", "engine_account"),
                   host_settings=["names", "limits", "time", "swap"], bringup_privileged=False)
        assert done.status == 0, done.printed
        assert all(done.count(machine.name, "changed") == 0 for machine in cluster.machines)
        assert "bringup_privileged is false" in done.messages(name)
        assert cluster.machines[0].run("cat /etc/hosts").stdout == f"127.0.1.1 {name}\n"
    finally:
        cluster.machines[0].inside("mv /root/hosts.orig /etc/hosts")


def test_the_account_of_the_engines(cluster: Cluster, run: Run) -> None:
    machine = cluster.machines[1]
    machine.run("sudo groupadd -f HwHiAiUser")
    done = run(_roles("engine_account"))
    assert done.status == 0, done.printed
    account = cluster.testinfra(machine, sudo=True).user("bringup")
    assert account.exists and account.shell == "/usr/sbin/nologin"
    assert account.uid < 1000
    assert {"video", "HwHiAiUser"} <= set(account.groups)
    assert "HwHiAiUser" not in cluster.testinfra(cluster.machines[2]).user("bringup").groups
    assert run(_roles("engine_account")).count(machine.name, "changed") == 0
    assert machine.run("sudo -u bringup id -u").stdout.strip() == str(account.uid)


_HOLD = ("python3 -c \"import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); "
         "fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep({seconds})\"")


def _package(timeout: int) -> str:
    return ("  become: true\n  tasks:\n"
            f"    - package: {{name: bringup-nothing, state: latest, update_cache: true, lock_timeout: {timeout}}}\n")


def test_a_held_package_lock_is_waited_for_and_never_taken_away(cluster: Cluster, run: Run) -> None:
    machine = cluster.machines[0]
    machine.inside("printf 'deb [trusted=yes] file:/srv/none ./\\n' > /etc/apt/sources.list; "
                   "mkdir -p /srv/none; : > /srv/none/Packages")
    holder = subprocess.Popen([*cluster.ssh(), f"root@{machine.address}", _HOLD.format(seconds=30)],
                              stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        done = run(_package(2), "--limit", machine.name)
        assert done.status == 1
        assert "waiting for the package lock /var/lib/dpkg/lock-frontend: held by pid" in done.printed
        assert "the package lock is still held after" in done.printed
        assert "python3 -c import fcntl" in done.printed
        assert holder.poll() is None, "the holder was left alone"
        assert machine.run("ls /var/lib/dpkg/lock-frontend", check=False).returncode == 0
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
        machine.run("sudo pkill -x python3", check=False)
    brief = subprocess.Popen([*cluster.ssh(), f"root@{machine.address}", _HOLD.format(seconds=3)],
                             stdout=subprocess.PIPE, text=True)
    assert brief.stdout is not None and brief.stdout.readline() == "held\n"
    begun = time.monotonic()
    done = run(_package(60), "--limit", machine.name)
    brief.wait()
    brief.stdout.close()
    assert time.monotonic() - begun > 2
    assert "No package matching 'bringup-nothing' is available" in done.printed, "it went on once the lock was free"


def test_a_half_configured_package_database_is_told_with_the_repair(cluster: Cluster, run: Run) -> None:
    machine = cluster.machines[2]
    machine.inside("touch /var/lib/dpkg/updates/0001")
    try:
        task = "  become: true\n  tasks:\n    - package: {name: bringup-nothing, state: present}\n"
        done = run(task, "--limit", machine.name)
        assert done.status == 1
        assert "half configured" in done.printed
        assert "sudo dpkg --configure -a" in done.printed
    finally:
        machine.inside("rm -f /var/lib/dpkg/updates/0001")


def test_files_under_home_and_for_root_and_into_nowhere(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    machine = cluster.machines[0]
    (tmp_path / "a").write_text("demo\n")
    done = run("  tasks:\n    - file: {path: ~/demo, state: directory}\n"
               "    - copy: {src: a, dest: ~/demo/a}\n"
               "    - file: {path: /etc/demo, state: directory}\n      become: true\n"
               "    - copy: {src: a, dest: /etc/demo/a, owner: root, mode: '0600'}\n      become: true\n"
               "    - copy: {src: a, dest: /no/such/dir/a}\n", "--limit", machine.name)
    assert done.status == 1
    witness = cluster.testinfra(machine, sudo=True)
    assert witness.file("/home/ops/demo/a").content_string == "demo\n"
    assert witness.file("/home/ops/demo/a").user == "ops"
    assert not witness.file("/home/ops/~").exists
    assert (witness.file("/etc/demo/a").mode, witness.file("/etc/demo/a").user) == (0o600, "root")
    assert machine.name in done.printed and "/no/such/dir" in done.printed
    assert witness.check_output("find / -xdev -name '.bringup-*' | wc -l") == "0"


def test_a_full_disk_is_called_a_full_disk(cluster: Cluster, run: Run) -> None:
    machine = cluster.machines[0]
    machine.inside("mkdir -p /srv/small; mount -t tmpfs -o size=64k none /srv/small; chmod 777 /srv/small; "
                   "echo old > /srv/small/x; chown ops /srv/small/x")
    try:
        done = run("  tasks:\n    - copy: {content: \"{{ 'y' * 200000 }}\", dest: /srv/small/x}\n",
                   "--limit", machine.name)
        assert done.status == 1
        assert "the disk is full" in done.printed and "/srv/small" in done.printed
        assert "unreachable" not in done.printed.lower().replace("unreachable=0", "")
        assert machine.run("cat /srv/small/x; ls -A /srv/small").stdout == "old\nx\n"
    finally:
        machine.inside("umount /srv/small")
