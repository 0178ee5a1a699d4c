"""Weights on real machines: one fetches from a hub on the bridge, the others take from it; cables are pulled."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from small_hub import COMMIT, Hub, small_model

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from site_project import DEPLOYMENT, REPOSITORY, Site, endpoint_of

HOSTS = ("m1", "m2", "m3")
REPO = "demo/GLM-5.1"
PATH = "/models/GLM-5.1"
MB = 1 << 20


class Machines(Site):
    """A site whose hosts are the cluster's machines and whose hub is this one, on the bridge."""

    def __init__(self, folder: Path, cluster: Cluster, hub: Hub) -> None:
        self.cluster = cluster
        self.hub = hub
        super().__init__(folder)

    def write(self, *, variables: dict[str, Any] | None = None, weights: dict[str, Any] | None = None,
              **deployment: Any) -> None:
        self.cluster.inventory(self.folder / "inventory/lab.yml", {
            "bringup_known_hosts": str(self.cluster.known_hosts), "bringup_ssh_config": False, **(variables or {}),
            "deployment": {**DEPLOYMENT, "manager": "systemd", "model_path": PATH, "weights": {
                "repo": REPO, "revision": COMMIT, "endpoint": self.hub.url, **(weights or {})}, **deployment}})

    def clear(self) -> None:
        for machine in self.cluster.machines:
            machine.mend()
            machine.run("sudo rm -rf /models; sudo mkdir /models")
        self.hub.asked.clear()
        self.hub.slow = 0.0

    def digests(self, path: str = PATH) -> dict[str, str]:
        """Host -> one digest over all files of its folder, by sha256sum."""
        return {name: self.cluster[name].run(
            f"cd {path} && find . -type f -not -name '.*' | sort | xargs sha256sum | sha256sum").stdout
            for name in HOSTS}


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    hub = Hub({REPO: {COMMIT: small_model(shards=6, size=4 * MB)}}, address=cluster.bridge.subnet.gateway)
    with hub:
        yield Machines(tmp_path_factory.mktemp("site"), cluster, hub)


@pytest.fixture
def machines(site: Machines) -> Machines:
    site.clear()
    site.write()
    return site


def wait_until(what: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.1)


def parts_on(machines: Machines, name: str) -> int:
    """Bytes that are gathered on a machine and have not got their place yet."""
    done = machines.cluster[name].inside("du -sb /models/.GLM-5.1.bringup-new 2>/dev/null | cut -f1", check=False)
    return int(done.stdout.strip() or 0)


def test_one_machine_fetches_and_the_others_have_the_same(machines: Machines) -> None:
    before = machines.run("weights.check")
    assert before.returncode == 4 and "/models/GLM-5.1 is not there" in before.stdout
    out = machines.good("weights.fetch")
    assert "brought to m[1-3]" in out
    assert sorted({name for name, _ in machines.hub.asked}) == sorted(machines.hub.repos[REPO][COMMIT])
    assert len(machines.hub.asked) == len(machines.hub.repos[REPO][COMMIT])
    assert len(set(machines.digests().values())) == 1
    assert "3 complete and equal" in machines.good("weights.check", "--full")
    again = machines.good("weights.fetch")
    assert "there already on m[1-3]" in again
    for name in HOSTS:
        shown = machines.cluster[name].run("ls -A /models; sudo ls /opt/bringup/state/transfers/*").stdout.split()
        assert shown[0] == "GLM-5.1" and "spec.json" not in shown


@pytest.mark.full
def test_a_cable_pulled_in_the_middle_of_the_spread_is_no_new_beginning(machines: Machines) -> None:
    machines.write(weights={"rate": "4 MB/s"})
    run = machines.start("weights.fetch")
    wait_until(lambda: parts_on(machines, "m3") > 3 * MB)
    machines.cluster["m3"].cut()
    time.sleep(3)
    machines.cluster["m3"].mend()
    out, _ = run.communicate(timeout=300)
    if run.returncode:  # the session was lost meanwhile, the copying was not
        out = machines.good("weights.fetch", timeout=300)
    assert len(set(machines.digests().values())) == 1, out
    assert len([name for name, _ in machines.hub.asked if name.endswith(".safetensors")]) == 6


@pytest.mark.full
def test_a_controller_that_is_killed_leaves_the_copying_and_the_next_run_finds_it(machines: Machines) -> None:
    machines.write(weights={"rate": "3 MB/s"})
    run = machines.start("weights.fetch")
    wait_until(lambda: parts_on(machines, "m2") > 2 * MB)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    was = parts_on(machines, "m2")
    wait_until(lambda: parts_on(machines, "m2") > was + MB or parts_on(machines, "m2") == 0)
    out = machines.good("weights.fetch", timeout=300)
    assert len(set(machines.digests().values())) == 1, out
    assert len([name for name, _ in machines.hub.asked if name.endswith(".safetensors")]) == 6


@pytest.mark.full
def test_machines_that_do_not_reach_each_other_take_through_the_controller(machines: Machines) -> None:
    for machine in machines.cluster.machines:
        others = [other.address for other in machines.cluster.machines if other is not machine]
        for address in others:
            machine.inside(f"ip route add blackhole {address}/32")
    try:
        out = machines.good("weights.fetch", timeout=400)
    finally:
        for machine in machines.cluster.machines:
            for other in machines.cluster.machines:
                if other is not machine:
                    machine.inside(f"ip route del blackhole {other.address}/32", check=False)
    assert len(set(machines.digests().values())) == 1, out
    assert len([name for name, _ in machines.hub.asked if name.endswith(".safetensors")]) == 6


def test_a_full_disk_is_told_with_bytes_before_anything_comes(machines: Machines) -> None:
    machine = machines.cluster["m2"]
    machine.inside("mount -t tmpfs -o size=80m none /models")
    try:
        done = machines.run("weights.fetch")
        left = machine.run("ls -A /models").stdout
    finally:
        machine.inside("umount /models")
    assert done.returncode == 1
    assert re.search(r"FAILED  m2 .*\n +no room for what is to come under /models/GLM-5.1", done.stdout), done.stdout
    assert re.search(r"expected +92.\d MB free \([\d,]+ bytes\)\n +found +83.9 MB free", done.stdout), done.stdout
    assert "UNREACHABLE" not in done.stdout
    assert left == ""


def test_provision_names_a_revision_that_is_in_the_way(machines: Machines) -> None:
    for name in HOSTS:
        machines.cluster[name].run(f"sudo mkdir -p {PATH} && echo '{{}}' | sudo tee {PATH}/config.json")
    done = machines.run("weights.fetch")
    assert done.returncode == 1
    assert f"model_path: {PATH}@{COMMIT[:12]}" in done.stdout
    assert len(set(machines.digests(f"{PATH}@{COMMIT[:12]}").values())) == 1
    machines.write(model_path=f"{PATH}@{COMMIT[:12]}")
    assert "there already on m[1-3]" in machines.good("weights.fetch")


@pytest.mark.full
def test_provision_brings_the_weights_before_the_engines_start(machines: Machines) -> None:
    machines.write(variables={"bringup_replay": str(REPOSITORY / "bringup/lab/recordings/h200x8")},
                   env={"LAB_ENGINE_LOAD_SECONDS": "0.3"})
    try:
        out = machines.good("provision", "--yes", timeout=400)
        assert re.search(r"weights +25\.2 MB brought to m\[1-3\]", out), out
        assert endpoint_of(out)
        again = machines.good("provision", "--yes", timeout=400)
        assert "there already on m[1-3]" in again and "nothing was restarted" in again
    finally:
        machines.run("stop", "--yes")


def test_check_changes_nothing(machines: Machines) -> None:
    out = machines.good("weights.fetch", "--check")
    assert "would be brought to m[1-3]" in out
    assert all(machines.cluster[name].run("ls -A /models").stdout == "" for name in HOSTS)
    assert machines.hub.asked == []
