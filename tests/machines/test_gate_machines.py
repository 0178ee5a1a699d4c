"""The gates on real machines: a unit that is killed, a way between nodes that is really cut, a rollback rehearsal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from site_project import REPOSITORY
from test_provision import CONFIG, HOSTS, Machines

from bringup.serving.contract.checks import CHECKS


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    for machine in cluster.machines:
        machine.run(f"sudo mkdir -p /models/GLM-5.1 && echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
    made = Machines(tmp_path_factory.mktemp("gate"), cluster)
    shutil.copytree(REPOSITORY / "gates", made.folder / "gates")
    yield made


@pytest.mark.full
def test_chaos_and_a_rehearsal_on_two_releases(site: Machines) -> None:
    site.write()
    site.good("provision", "--yes", timeout=600)
    site.write(arguments=["--max-num-seqs", "8"])
    site.good("provision", "--yes", timeout=600)
    before = site.current()
    out = site.good("gate", "--yes", "--only", "smoke", "--only", "chaos", "--only", "rehearsal", timeout=600)
    told = " ".join(out.split())
    assert "every process of m3 was killed" in told and "every process of m1 was killed" in told
    # root of these machines may not change routes: the worker is silenced instead, and that is said
    assert "m3 was stopped (routes may not be changed there)" in told
    assert "could start on all 3 hosts" in told
    kept = json.loads((site.folder / ".bringup/gates/lab.json").read_text())["cycles"]["1"]["chaos"]["measures"]
    assert {name for name in kept if name.startswith("recovery_")} == {"recovery_worker", "recovery_head",
                                                                       "recovery_link"}
    assert site.current() == before, "a rehearsal switches nothing"
    for name in HOSTS:
        assert site.unit(name)["ActiveState"] == "active"
        assert "blackhole" not in site.cluster[name].run("ip route").stdout, "the cut ends by itself"
    asked = len(CHECKS) - 1  # this deployment has no key
    assert f"{asked} of {asked}" in site.good("verify", timeout=300)
