"""Rollback with dead nodes, spares and cut cables, drift and history, on real machines with systemd and sudo."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from test_provision import CONFIG, HOSTS, Machines

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from site_project import endpoint_of, wait_for

ALONE: dict[str, Any] = {"recipe": "zai-org/GLM-5.1-FP8", "variant": "default", "strategy": "single_node_tp",
                         "pipeline_parallel": None}
"""Each node a replica of its own."""
ASCEND = "/usr/local/Ascend/driver/version.info"
"""A driver whose version is a file: these machines have no device."""


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    for machine in cluster.machines:
        machine.run(f"sudo mkdir -p /models/GLM-5.1 && echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
        machine.run(f"sudo mkdir -p {os.path.dirname(ASCEND)} && echo 'Version=24.1.0' | sudo tee {ASCEND}")
    yield Machines(tmp_path_factory.mktemp("site"), cluster)


def link(site: Machines, name: str) -> str:
    return site.cluster[name].inside("readlink /opt/bringup/current", check=False).stdout.strip()


def two_releases(site: Machines, **deployment: Any) -> str:
    """Two good releases, the second in use; returns where `current` of the first points."""
    site.write(**deployment)
    site.good("provision", "--yes", timeout=300)
    first = link(site, "m1")
    site.write(**{"context_length": 65536, **deployment})
    site.good("provision", "--yes", timeout=300)
    assert link(site, "m1") != first
    return first


@pytest.mark.full
def test_drift_of_units_flags_drivers_and_links(site: Machines) -> None:
    site.write()
    site.good("provision", "--yes", timeout=300)
    site.good("drift")
    m2 = site.cluster["m2"]
    m2.run("sudo mkdir -p /etc/systemd/system/bringup-r1-m2.service.d && "
           "printf '[Service]\\nNice=5\\n' | sudo tee /etc/systemd/system/bringup-r1-m2.service.d/nice.conf && "
           "sudo systemctl daemon-reload")
    done = site.run("drift")
    assert done.returncode == 4 and "drop-ins change the unit bringup-r1-m2.service" in done.stdout, done.stdout
    m2.run("sudo rm -r /etc/systemd/system/bringup-r1-m2.service.d && sudo systemctl daemon-reload")
    m2.run(f"echo 'Version=25.0.0' | sudo tee {ASCEND}")
    done = site.run("drift")
    assert done.returncode == 4 and "ascend 24.1.0 -> 25.0.0 since r0001 was approved" in done.stdout, done.stdout
    m2.run(f"echo 'Version=24.1.0' | sudo tee {ASCEND}")
    script = "/opt/bringup/current/launch/r1-m3.sh"
    m3 = site.cluster["m3"]
    m3.run(f"sudo sed -i 's/ --node-rank 2/ --node-rank 2 --enforce-eager/' {script} && "
           "sudo sed -i '$ a # by hand' /etc/systemd/system/bringup-r1-m3.service")
    m3.run("sudo systemctl daemon-reload && sudo systemctl restart bringup-r1-m3")
    found = {f["check"]: f for f in site.data("drift")["findings"] if f["blocks"]}
    assert set(found) == {"drift.files", "drift.unit", "drift.flags"}, found
    assert all(f["subject"] == "m3" for f in found.values())
    assert any("--enforce-eager" in line for line in found["drift.flags"]["details"]), found["drift.flags"]
    assert "+ # by hand" in found["drift.unit"]["details"]
    site.good("restart", "--yes")
    site.good("drift")


@pytest.mark.full
def test_the_hosts_remember_every_operator(site: Machines) -> None:
    os.environ["LOGNAME"] = "lin"
    try:
        site.good("provision", "--yes", timeout=300)
    finally:
        del os.environ["LOGNAME"]
    site.good("provision", "--yes", timeout=300)
    shown = site.data("history")
    assert shown[0]["operator"].split("@")[0] != "lin" and shown[1]["operator"].startswith("lin@")
    assert {run["verb"] for run in shown[:2]} == {"provision"}
    assert shown[0]["address"], "from where"
    assert shown[1]["outcome"] == 0 and shown[1]["state"] == "ended" and set(shown[1]["hosts"]) == set(HOSTS)
    assert shown[0]["before"] == shown[1]["after"]
    host = site.cluster.testinfra(site.cluster["m1"], sudo=True)
    assert shown[1]["run"] in host.file("/opt/bringup/state/runs.jsonl").content_string


@pytest.mark.full
def test_a_driver_that_is_gone_keeps_everything_running(site: Machines) -> None:
    two_releases(site)
    before = site.invocations()
    site.cluster["m3"].run(f"sudo mv {ASCEND} {ASCEND}.away")
    done = site.run("rollback", "--yes")
    site.cluster["m3"].run(f"sudo mv {ASCEND}.away {ASCEND}")
    assert done.returncode == 4, done.stdout
    assert "m3: the driver ascend 24.1.0 is not there any more" in done.stdout, done.stdout
    assert site.invocations() == before


@pytest.mark.full
def test_a_node_lost_between_switch_and_start_is_named_and_finished_by_the_next_run(site: Machines) -> None:
    first = two_releases(site)
    site.good("drift")
    run = site.start("rollback", "--yes")
    assert wait_for(lambda: link(site, "m1") == first and link(site, "m3") == first, 90)
    site.cluster["m3"].cut()
    out = run.communicate(timeout=240)[0]
    site.cluster["m3"].mend()
    assert run.returncode in (3, 6), out
    assert "m3" in out, out
    assert wait_for(lambda: site.run("status").returncode != 3, 60)
    # its agent holds the lock until it has heard nothing for 60 s
    assert wait_for(lambda: site.run("rollback", "--yes", timeout=300).returncode == 0, 200)
    assert {link(site, name) for name in HOSTS} == {first}, "finished, and not a step further back"
    states = {row["release"]: row["state"] for row in site.data("releases")}
    assert [state for state in states.values() if state.startswith("current")] == ["current, good"]
    assert "rolled back from" in states.values()
    site.good("status")


@pytest.mark.full
def test_a_replica_with_a_dead_node_is_left_out_by_name_and_finished_when_it_is_back(site: Machines) -> None:
    site.good("stop", "--yes")
    first = two_releases(site, **ALONE)
    second = link(site, "m2")
    site.cluster["m2"].cut()
    done = site.run("rollback", "--yes", timeout=300)
    site.cluster["m2"].mend()
    assert done.returncode == 3, done.stdout
    assert "r2 is left out: m2 is not in this run" in done.stdout, done.stdout
    assert [link(site, name) for name in HOSTS] == [first, second, first]
    assert wait_for(lambda: site.run("status").returncode == 4, 60)
    mixed = site.run("start", "--yes")
    assert mixed.returncode == 4 and "different releases" in mixed.stdout, "it is not started into the group"
    again = site.good("rollback", "--yes", timeout=300)
    assert "finishes the rollback" in again and "on m2" in again
    assert {link(site, name) for name in HOSTS} == {first}
    site.good("status")


@pytest.mark.full
def test_a_spare_takes_the_place_of_a_dead_node(site: Machines) -> None:
    site.good("stop", "--yes")
    replicas = {"r1": ["m1"], "r2": ["m2"]}
    first = two_releases(site, **ALONE, replicas=replicas)
    refused = site.run("rollback", "--replace", "m2=m1", "--yes")
    assert refused.returncode == 2 and "serves in a replica" in refused.stdout, refused.stdout
    site.cluster["m2"].stop()
    try:
        rehearsed = site.good("rollback", "--replace", "m2=m3", "--rehearse", timeout=300)
        assert "on 2 hosts" in rehearsed
        out = site.good("rollback", "--replace", "m2=m3", "--yes", timeout=300)
        assert "m3 in the place of m2" in out
        assert link(site, "m3") == first == link(site, "m1")
        assert site.cluster.testinfra(site.cluster["m3"], sudo=True).service("bringup-r2-m3").is_running
        site.write(**ALONE, replicas={"r1": ["m1"], "r2": ["m3"]})
        status = site.run("status", "--limit", "m1:m3")
        assert status.returncode == 0, status.stdout
        endpoint = endpoint_of(site.good("start", "--limit", "m1:m3", timeout=300))
        assert endpoint == f"http://{site.cluster['m1'].address}:8000"
    finally:
        site.cluster["m2"].start()
        site.cluster.wait()
    assert json.loads(site.cluster["m3"].run("sudo cat /opt/bringup/releases/history.json").stdout)
