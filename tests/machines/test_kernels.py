"""Kernels on real machines: a build as a job under systemd, spread over the cluster network, a controller that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster, Machine

PROJECT = Path(__file__).parents[2]
INVOKE = Path(sys.executable).parent / "invoke"
# the machines have no compiler: what is tried here is the way of a build, not what it compiles
RECIPE = """\
purpose: test
source: {folder: source}
memory_per_job: 100 MiB
commands:
  - wait: while [ -e /tmp/hold ]; do sleep 0.2; done
  - make: |
      mkdir -p "$OUT/site/plain"
      cp text "$OUT/site/plain/text"
      head -c 3000000 /dev/urandom > "$OUT/site/plain/weight"
yields: [site/plain/text]
proof: {script: proof.py, seconds: 60}
"""
PROOF = """\
import json, os
folder = os.path.join(os.environ["OUT"], "site", "plain")
print(json.dumps({"proof": "%d bytes of weight" % os.path.getsize(os.path.join(folder, "weight"))}))
"""


class Site:
    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        for name in ("tasks.py", "playbooks", "roles", "envs", "bringup"):
            (folder / name).symlink_to(PROJECT / name)
        recipe = folder / "kernels" / "plain"
        (recipe / "source").mkdir(parents=True)
        (recipe / "source" / "text").write_text("one\n")
        (recipe / "kernel.yml").write_text(RECIPE)
        (recipe / "proof.py").write_text(PROOF)
        (folder / "inventory").mkdir()
        self.inventory = cluster.inventory(folder / "inventory" / "machines.json")

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [INVOKE, "kernel.build", "--inventory", str(self.inventory), "--kernel", "plain"], cwd=self.folder,
            env={**os.environ, "BRINGUP_PROJECT": str(self.folder), "NO_COLOR": "1", "COLUMNS": "160"}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def build(self) -> str:
        process = self.start()
        text, _ = process.communicate(timeout=240)
        assert process.returncode == 0, text
        return text


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    for machine in cluster.machines:
        machine.run("sudo -n rm -rf /opt/bringup/builds /opt/bringup/jobs /opt/bringup/cache/kernels /tmp/hold")
    return Site(tmp_path, cluster)


def weights(machine: Machine) -> list[str]:
    return machine.run("sudo -n find /opt/bringup/builds -name weight -not -path '*/.*' -exec sha256sum {} +"
                       ).stdout.split()[:1]


def test_one_builds_and_the_others_get_the_same_bytes(cluster: Cluster, site: Site) -> None:
    keys = [machine.run("sudo -n sha256sum /root/.ssh/authorized_keys ~/.ssh/authorized_keys 2>/dev/null; "
                        "ls ~/.ssh /root/.ssh 2>/dev/null", check=False).stdout for machine in cluster.machines]
    text = site.build()
    assert "built on" in text and "spread to" in text, text
    assert "through the controller" not in text
    found = {tuple(weights(machine)) for machine in cluster.machines}
    assert len(found) == 1 and found != {()}, found  # drawn at random: built once
    after = [machine.run("sudo -n sha256sum /root/.ssh/authorized_keys ~/.ssh/authorized_keys 2>/dev/null; "
                         "ls ~/.ssh /root/.ssh 2>/dev/null", check=False).stdout for machine in cluster.machines]
    assert keys == after  # no key of a transfer stays, no account learns one
    for machine in cluster.machines:
        assert "runner.py" not in machine.run("ps -eo args").stdout
    assert "there already on" in site.build()


def test_a_killed_controller_loses_no_build(cluster: Cluster, site: Site) -> None:
    for machine in cluster.machines:
        machine.run("touch /tmp/hold")
    process = site.start()
    until = time.monotonic() + 120
    builder = None
    while builder is None and time.monotonic() < until:
        builder = next((machine for machine in cluster.machines
                        if "runner.py" in machine.run("ps -eo args").stdout), None)
        time.sleep(0.3)
    assert builder is not None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    units = builder.run("systemctl list-units --plain --no-legend 'bringup-job-kernel-*'").stdout
    assert "bringup-job-kernel-" in units and "running" in units
    bound = builder.run("systemctl show -p MemoryMax --value 'bringup-job-kernel-*'").stdout.strip()
    free = builder.run("awk '/^MemTotal/ {print $2}' /proc/meminfo").stdout.strip()
    assert bound.isdigit() and 0 < int(bound) < int(free) * 1024, bound  # what is left to the host
    assert "held by" in builder.run("sudo -n sh -c 'cat /opt/bringup/jobs/kernel-*/output'").stdout
    started = builder.run("ps -eo lstart,args | grep '[r]unner.py'").stdout
    again = site.start()
    time.sleep(5)
    assert builder.run("ps -eo lstart,args | grep '[r]unner.py'", check=False).stdout == started
    for machine in cluster.machines:
        machine.run("rm -f /tmp/hold")
    text, _ = again.communicate(timeout=240)
    assert again.returncode == 0, text
    assert "spread to" in text, text
    assert f"built on {builder.name}" in text or f"there already on {builder.name}" in text, text
    assert len({tuple(weights(machine)) for machine in cluster.machines}) == 1


def test_where_hosts_do_not_reach_each_other_it_goes_through_the_controller(cluster: Cluster, site: Site) -> None:
    # an address that no machine has: nobody can listen there, as where a firewall lets nobody in
    site.inventory = cluster.inventory(site.inventory, {"cluster_address": "198.18.255.254"})
    text = site.build()
    assert "spread to" in text, text
    assert len({tuple(weights(machine)) for machine in cluster.machines}) == 1
    assert not list((site.folder / ".bringup" / "cache" / "kernels").glob(".*"))
