"""`playbook` on real machines: become, handlers, a host cut off the bridge in the middle of a task, a refused sudo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cluster import Cluster

PROGRAM = [sys.executable, "-c", "from bringup.cli.program import main; main()", "playbook"]

PLAY = """
- name: settings
  hosts: all
  gather_facts: false
  become: true
  tasks:
    - name: folder
      file: {path: /srv/run-test, state: directory, owner: ops, mode: "0750"}
    - name: text
      template: {src: text.j2, dest: /srv/run-test/text, mode: "0600"}
      notify: restarted
    - name: long
      command: sleep 3
      changed_when: false
    - name: as ops
      command: touch /srv/run-test/by-ops
      become_user: ops
      args: {creates: /srv/run-test/by-ops}
  handlers:
    - name: restarted
      shell: echo once >> /srv/run-test/handled
"""


def write(cluster: Cluster, folder: Path, play: str = PLAY) -> list[str]:
    (folder / "templates").mkdir(parents=True)
    (folder / "templates" / "text.j2").write_text("of {{ inventory_hostname }}\n")
    (folder / "play.yml").write_text(play)
    cluster.inventory(folder / "hosts.yml", {"bringup_ssh_config": False})
    return [*PROGRAM, str(folder / "play.yml"), "--inventory", str(folder / "hosts.yml")]


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180,
                          env={**os.environ, "BRINGUP_PROJECT": str(folder), **more})


def test_a_play_and_its_second_run(cluster: Cluster, tmp_path: Path) -> None:
    command = write(cluster, tmp_path / "p")
    first = run(command, tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    for machine in cluster.machines:
        host = cluster.testinfra(machine, sudo=True)
        folder = host.file("/srv/run-test")
        assert (folder.user, folder.mode) == ("ops", 0o750)
        text = host.file("/srv/run-test/text")
        assert (text.content_string, text.user, text.mode) == (f"of {machine.name}\n", "root", 0o600)
        assert host.file("/srv/run-test/by-ops").user == "ops"
        assert host.file("/srv/run-test/handled").content_string == "once\n"
        assert not host.file("/opt/bringup/state/run.json").exists
    second = run(command, tmp_path)
    assert second.returncode == 0, second.stdout
    assert second.stdout.count("changed=0") == len(cluster.machines), second.stdout
    assert cluster.machines[0].inside("cat /srv/run-test/handled").stdout == "once\n"


def test_a_host_cut_off_is_lost_the_others_finish_and_the_next_run_completes(cluster: Cluster, tmp_path: Path) -> None:
    for machine in cluster.machines:
        machine.inside("rm -rf /srv/run-test")
    command = write(cluster, tmp_path / "p", PLAY.replace("sleep 3", "sleep 6"))
    away = cluster.machines[2]

    def cut() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and away.inside("pgrep -x sleep", check=False).returncode:
            time.sleep(0.1)
        away.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        done = run(command, tmp_path)
    finally:
        cutter.join()
        away.mend()
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"LOST    {away.name}" in done.stdout
    assert "no heartbeat" in done.stdout
    for machine in cluster.machines[:2]:
        assert machine.inside("cat /srv/run-test/handled").stdout == "once\n"
    failed = [path.read_text() for path in (tmp_path / ".bringup/runs").glob("*/failed")]
    assert failed == [f"{away.name}\n"]
    time.sleep(3)
    again = run(command, tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert cluster.testinfra(away, sudo=True).file("/srv/run-test/by-ops").exists


def test_a_wrong_sudo_password_is_told_once_for_each_host(boot: Callable[..., Cluster], tmp_path: Path) -> None:
    machines = boot(size=1, sudo="password")
    command = write(machines, tmp_path / "p")
    (tmp_path / "word").write_text("not-the-password\n")
    done = run([*command, "--become-password-file", str(tmp_path / "word")], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not-the-password" not in done.stdout + done.stderr
    assert "sudo" in done.stdout
    assert "folder" in done.stdout
    (tmp_path / "word").write_text(machines.password + "\n")
    assert run([*command, "--become-password-file", str(tmp_path / "word")], tmp_path).returncode == 0


def wait_for_sleep(cluster: Cluster, seconds: int) -> None:
    """Until the long task is under way on every machine."""
    until = time.monotonic() + 60
    for machine in cluster.machines:
        while machine.inside(f"pgrep -f '^sleep {seconds}'", check=False).returncode:
            assert time.monotonic() < until, f"the long task does not begin on {machine.name}"
            time.sleep(0.1)


def test_a_killed_controller_and_the_same_command_at_once(cluster: Cluster, tmp_path: Path) -> None:
    for machine in cluster.machines:
        machine.inside("rm -rf /srv/run-test")
    command = write(cluster, tmp_path / "p", PLAY.replace("sleep 3", "sleep 8"))
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, "BRINGUP_PROJECT": str(tmp_path)})
    wait_for_sleep(cluster, 8)
    first.kill()
    first.wait()
    again = run(command, tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "was cut off here; waiting for its agent to end" in again.stdout
    assert "goes on where run" in again.stdout
    for machine in cluster.machines:
        assert cluster.testinfra(machine, sudo=True).file("/srv/run-test/by-ops").exists
        assert machine.inside("pgrep -f '^sleep 8'", check=False).returncode == 1


def test_a_frozen_agent_under_sudo_is_lost_and_the_next_run_completes(cluster: Cluster, tmp_path: Path) -> None:
    """Only the agent under sudo is stopped: the one that it speaks to lives and knows that it says nothing."""
    for machine in cluster.machines:
        machine.inside("rm -rf /srv/run-test")
    command = write(cluster, tmp_path / "p", PLAY.replace("sleep 3", "sleep 9"))
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env={**os.environ, "BRINGUP_PROJECT": str(tmp_path)})
    frozen = cluster.machines[1]
    wait_for_sleep(cluster, 9)
    pid = json.loads(frozen.inside("cat /opt/bringup/state/run.json").stdout)["pid"]
    frozen.inside(f"kill -STOP {pid}")
    try:
        out = first.communicate(timeout=180)[0]
    finally:
        first.kill()
        frozen.inside(f"kill -CONT {pid}", check=False)
    assert first.returncode == 3, out
    assert f"LOST    {frozen.name}" in out
    assert "no heartbeat for 15 s" in out
    assert cluster.machines[0].inside("cat /srv/run-test/handled").stdout == "once\n"
    again = run(command, tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert cluster.testinfra(frozen, sudo=True).file("/srv/run-test/by-ops").exists
