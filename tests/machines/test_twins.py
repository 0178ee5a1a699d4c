"""What only root on a real machine can show: packages, units, accounts, owners - by Ansible and by us on its twin."""

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


def _kept(folder: Path) -> Path:
    whole = hashlib.sha256(json.dumps([answers.VERSION, machines.RUNS, machines.LOOK]).encode())
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
