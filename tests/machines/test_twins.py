"""What only root on a real machine can show: packages, units, accounts, owners - by Ansible and by us on its twin;
and facts, by both on one machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "against_ansible"))

import answers
import judge
import machines
from base_image import recipe_digest


def _kept(folder: Path) -> Path:
    whole = hashlib.sha256(json.dumps([answers.VERSION, machines.RUNS, machines.LOOK, recipe_digest()]).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "build" not in path.parts:
            whole.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return answers.FOLDER / f"machines-{whole.hexdigest()[:32]}.json"


def _give_apt_library(cluster: Cluster, address: str, tmp: Path) -> None:
    """Ansible's apt needs python3-apt on the machine, which the base does not hold; we do without."""
    subprocess.run(["apt-get", "download", "python3-apt", "python-apt-common", "distro-info-data"],
                   cwd=tmp, check=True, capture_output=True)
    subprocess.run(["scp", *cluster.ssh()[1:], *tmp.glob("*.deb"), f"root@{address}:/root/"], check=True,
                   capture_output=True)
    subprocess.run([*cluster.ssh(), f"root@{address}", "dpkg -i /root/*.deb"], check=True,
                   capture_output=True)


@pytest.mark.full
def test_the_twin_ends_up_the_same(cluster: Cluster, tmp_path: Path) -> None:
    theirs, ours = cluster.machines[:2]
    inventory = cluster.inventory(tmp_path / "twins.json", {})
    folder = machines.prepare(tmp_path / "play")
    kept = _kept(folder)

    def see(machine: Any) -> Any:
        return lambda: machines.look(cluster.ssh(), machine.address)

    if kept.exists() and os.environ.get("BRINGUP_FULL") != "1":
        expected = json.loads(kept.read_text())
    else:
        debs = tmp_path / "debs"
        debs.mkdir()
        _give_apt_library(cluster, theirs.address, debs)
        expected = machines.ansible(folder, inventory, theirs.name, see(theirs))
        for run in expected:
            run.pop("printed")
        kept.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    found = machines.bringup(folder, inventory, ours.name, see(ours))
    differences = judge.differences(expected, found)
    assert not differences, "\n".join([*differences, "", *(run["printed"] for run in found)])


SAME_FACTS = (
    "architecture", "cmdline", "distribution", "distribution_file_parsed", "distribution_file_path",
    "distribution_major_version", "distribution_minor_version", "distribution_release",
    "distribution_version", "dns", "domain", "effective_group_id", "effective_user_id", "fips", "fqdn", "hostname",
    "kernel", "kernel_version", "machine", "machine_id", "memtotal_mb", "nodename", "os_family", "pkg_mgr",
    "proc_cmdline", "processor", "processor_cores", "processor_count", "processor_nproc", "processor_threads_per_core",
    "processor_vcpus", "product_name", "python_version", "real_group_id", "real_user_id", "selinux", "service_mgr",
    "ssh_host_key_ed25519_public", "ssh_host_key_ed25519_public_keytype", "swaptotal_mb", "system", "system_vendor",
    "user_dir", "user_gecos", "user_gid", "user_id", "user_shell", "user_uid", "userspace_architecture",
    "userspace_bits", "flags")


def test_facts_as_ansible_gathers_them(cluster: Cluster, tmp_path: Path) -> None:
    machine = cluster.machines[2]
    inventory = cluster.inventory(tmp_path / "inventory.json", {})
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    subprocess.run([judge.BIN / "ansible", machine.name, "-i", inventory, "-m", "setup", "--tree", tmp_path / "facts"],
                   check=True, capture_output=True, timeout=120, env=environment | {"ANSIBLE_CONFIG": "/nonexistent"})
    theirs = json.loads((tmp_path / "facts" / machine.name).read_text())["ansible_facts"]
    (tmp_path / "play.yml").write_text(
        f"- hosts: {machine.name}\n  tasks:\n    - fetch: {{src: /tmp/facts, dest: {tmp_path}/ours, flat: true}}\n"
        "  pre_tasks:\n    - copy: {content: '{{ ansible_facts }}', dest: /tmp/facts}\n")
    done = subprocess.run([judge.BIN / "bringup", "playbook", "play.yml", "--inventory", str(inventory)], cwd=tmp_path,
                          env={**os.environ, "BRINGUP_PROJECT": str(tmp_path)}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    ours = json.loads((tmp_path / "ours").read_text())
    different = {name: (theirs[f"ansible_{name}"], ours.get(name)) for name in SAME_FACTS
                 if theirs[f"ansible_{name}"] != ours.get(name)}
    assert different == {}
    # in a container that sees another network's /sys Ansible leaves fields out
    assert theirs["ansible_default_ipv4"].items() <= ours["default_ipv4"].items()
    assert ours["all_ipv4_addresses"] == [machine.address]
    mine, other = ({entry["mount"]: (entry["fstype"], entry["size_total"]) for entry in found}
                   for found in (ours["mounts"], theirs["ansible_mounts"]))
    assert mine == other
    assert ours["interfaces"] == ["host0", "lo"]
    assert set(ours["date_time"]) <= set(theirs["ansible_date_time"])
