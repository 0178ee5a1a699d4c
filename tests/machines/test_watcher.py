"""Watchers on real machines: units that come back at boot, a node that was off, a node that names another release."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from site_project import endpoint_of, wait_for
from test_provision import CONFIG, HOSTS, Machines, answer

STATE = "/opt/bringup/state/watch/r1-{0}.json"


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    for machine in cluster.machines:
        machine.run(f"sudo mkdir -p /models/GLM-5.1 && echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
    made = Machines(tmp_path_factory.mktemp("watched"), cluster)
    made.write(watcher={"silence": 10, "on_alert": "logger -t site-alert \"$BRINGUP_EVENT $BRINGUP_TEXT\""})
    yield made
    made.run("stop", "--yes")


def report(site: Machines, name: str) -> dict[str, Any]:
    done = site.cluster[name].run(f"sudo cat {STATE.format(name)}", check=False)
    return dict(json.loads(done.stdout)["report"]) if done.returncode == 0 else {}


def phases(site: Machines) -> list[str]:
    return [str(report(site, name).get("phase")) for name in HOSTS]


def serves(endpoint: str) -> bool:
    try:
        return bool(answer(endpoint))
    except OSError:
        return False


def test_a_killed_worker_comes_back_with_its_replica_and_no_run_looks(site: Machines) -> None:
    endpoint = endpoint_of(site.good("provision", "--yes"))
    assert wait_for(lambda: phases(site) == ["watching"] * 3, 30)
    for name in HOSTS:
        witness = site.cluster.testinfra(site.cluster[name], sudo=True)
        assert witness.service(f"bringup-watch-r1-{name}").is_enabled
        assert witness.file(f"/opt/bringup/state/secrets/r1-{name}.watch.json").mode == 0o600
    before = site.invocations()
    site.cluster["m2"].run(f"sudo kill -9 {site.unit('m2')['MainPID']}")
    assert wait_for(lambda: all(site.anew(name, before[name].split()[0]) for name in HOSTS), 90), phases(site)
    assert wait_for(lambda: phases(site) == ["watching"] * 3 and serves(endpoint), 60), phases(site)
    told = site.cluster["m1"].run("sudo journalctl -t site-alert -o cat").stdout
    assert "restarting r1 starts again (1 of 2 this hour): m2: the process ended by signal 9" in told
    assert "restarted r1 serves again" in told
    # what it started is what a run would have started: the next one finds nothing to do
    assert "serves already, nothing was restarted" in site.good("provision")


@pytest.mark.full
def test_a_node_that_was_off_and_names_another_release_starts_nothing(site: Machines) -> None:
    site.write(watcher={"silence": 10})
    site.good("provision", "--yes")  # there is another release then
    site.write(context_length=65536, watcher={"silence": 10})
    endpoint = endpoint_of(site.good("provision", "--yes"))
    link = Path(site.cluster["m3"].root) / "opt/bringup/current"
    site.cluster["m3"].stop()
    assert wait_for(lambda: [report(site, name).get("phase") for name in ("m1", "m2")] == ["down"] * 2, 60)
    now = os.readlink(link)
    other = next(path.name for path in (link.parent / "releases").iterdir()
                 if path.is_dir() and len(path.name) == 64 and path.name not in now)
    link.unlink()
    link.symlink_to(f"releases/{other}")
    site.cluster["m3"].start()
    site.cluster.wait([site.cluster["m3"]])
    assert wait_for(lambda: "for an operator: m3 names release" in str(report(site, "m1").get("waits")), 60), \
        report(site, "m1")
    assert not any(site.unit(name)["ActiveState"] == "active" for name in HOSTS)
    done = site.run("status")
    assert done.returncode == 4 and "hosts use different releases" in done.stdout
    assert "it waits for an operator: m3 names release" in done.stdout
    # the operator mends it: all of them start together
    site.cluster["m3"].run(f"sudo ln -sfn {now} /opt/bringup/current")
    assert wait_for(lambda: phases(site) == ["watching"] * 3 and serves(endpoint), 90), phases(site)
