"""What engines compiled on one machine reaches its likes before they start, as the engines' account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from test_provision import CONFIG, HOSTS, Machines


@pytest.fixture
def serving(cluster: Cluster, tmp_path: Path) -> Iterator[Machines]:
    for machine in cluster.machines:
        machine.mend()
        machine.run(f"sudo mkdir -p /models/GLM-5.1 && echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
    site = Machines(tmp_path / "site", cluster)
    site.write()
    site.good("provision", "--yes")
    yield site


def found(site: Machines, name: str) -> list[str]:
    """Owner, time and content of the compiled files of a machine."""
    return site.cluster[name].run(
        "cd /opt/bringup/cache/compiled && sudo find . -type f -printf '%p %u %Ts ' -exec sha256sum {} + | sort"
    ).stdout.splitlines()


@pytest.mark.full
def test_a_filled_cache_comes_to_its_likes_before_they_start(serving: Machines) -> None:
    site = serving
    environment = site.cluster["m1"].run(
        "sudo sh -c \"tr '\\0' '\\n' < /proc/" + site.unit("m1")["MainPID"] + "/environ\"").stdout
    folder = next(line.partition("=")[2] for line in environment.splitlines() if line.startswith("TRITON_CACHE_DIR="))
    assert folder.startswith("/opt/bringup/cache/compiled/") and folder.endswith("-h200/triton")
    assert f"caches m[1-3]: empty {folder[:-7]}" in " ".join(site.good("plan", "--running").split())
    site.cluster["m1"].run(
        f"sudo -u bringup sh -c 'mkdir -p {folder}/ab && head -c 3000000 /dev/urandom > {folder}/ab/k.cubin && "
        f"touch -d 2024-05-06 {folder}/ab/k.cubin'")
    shown = " ".join(site.good("plan", "--running").split())
    assert "caches m1: 3.0 MB in 1 file" in shown and "m[2-3]: empty; a start brings those of m1" in shown
    assert "would bring 3.0 MB from m1 to m[2-3]" in " ".join(site.good("restart", "--check").split())
    assert not found(site, "m2")
    out = " ".join(site.good("restart", "--yes").split())
    assert "1 file, 3.0 MB from m1 to m[2-3]" in out
    first = found(site, "m1")
    assert first and " bringup " in first[0]
    assert [found(site, name) for name in HOSTS[1:]] == [first, first]
    assert site.cluster["m2"].run("sudo ls -A /opt/bringup/cache/compiled-out").stdout.split() == []
    assert "from m1" not in site.good("restart", "--yes")
