"""Preflight's measure of collectives where a host has none: nccl-tests are built there, or it is said why not.

The machines have neither GPU nor compiler: device files, nvidia-smi and what the recipe builds are stand-ins. What is
tried is the way: asked, built as a job, proven, spread, asked again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
SMI = """\
#!/bin/sh
case "$*" in
*compute-apps*) ;;
*memory.used*) printf '0\\n0\\n' ;;
*-q*) cat /usr/local/share/nvidia-smi-q.txt ;;
*) exit 1 ;;
esac
"""
TOOL = """\
#!/bin/sh
cat <<'END'
# nThread 1 nGpus 2 minBytes 67108864 maxBytes 4294967296 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 \
validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on         m1 device  0 [0000:18:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4242 on         m1 device  1 [0000:2a:00] NVIDIA H200
#
m1:4242:4250 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   3020.5  355.48  355.48      0   3021.5  355.36  355.36      0
  4294967296    1073741824     float     sum      -1  11900.5  360.91  360.91      0  11911.5  360.57  360.57      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 358.08
END
"""
RECIPE = """\
purpose: a stand-in of nccl-tests
source: {folder: source}
memory_per_job: 100 MiB
commands:
  - make: |
      mkdir -p "$OUT/bin"
      cp all_reduce_perf "$OUT/bin/"
      chmod 755 "$OUT/bin/all_reduce_perf"
yields: [bin/all_reduce_perf]
proof: {script: proof.py, seconds: 60}
"""
PROOF = """\
import json, os, subprocess
text = subprocess.check_output([os.path.join(os.environ["OUT"], "bin", "all_reduce_perf")])
print(json.dumps({"proof": "%d bytes said" % len(text)}))
"""


class Site:
    """A project of its own, so that its recipe `nccl_tests` is the one that preflight finds."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        for name in ("tasks.py", "playbooks", "roles", "envs", "bringup"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "kernels").mkdir()
        (folder / "inventory").mkdir()
        self.inventory = cluster.inventory(folder / "inventory" / "machines.json",
                                           {"bringup_known_hosts": str(cluster.known_hosts)})

    def stand_in(self) -> None:
        recipe = self.folder / "kernels" / "nccl_tests"
        (recipe / "source").mkdir(parents=True)
        (recipe / "source" / "all_reduce_perf").write_text(TOOL)
        (recipe / "kernel.yml").write_text(RECIPE)
        (recipe / "proof.py").write_text(PROOF)

    def own_recipe(self) -> None:
        (self.folder / "kernels" / "nccl_tests").symlink_to(ROOT / "kernels" / "nccl_tests")

    def look(self, *words: str) -> tuple[int, str, dict[str, dict[str, Any]]]:
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "preflight", "--inventory", str(self.inventory), "--tier", "deep",
             "--only", "collective", "--report", str(report), *words], cwd=self.folder, text=True, timeout=240,
            env={**os.environ, "BRINGUP_PROJECT": str(self.folder), "NO_COLOR": "1", "COLUMNS": "160"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        found = json.loads(report.read_text())["findings"] if report.is_file() else []
        return done.returncode, done.stdout, {one["subject"]: one for one in found
                                              if one["check"] == "collective.all-reduce"}


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    sample = (ROOT / "bringup/lab/recordings/h200x8/nvidia.q.txt").read_text()
    for machine in cluster.machines:
        machine.inside("rm -rf /opt/bringup/builds /opt/bringup/jobs; touch /dev/nvidia0 /dev/nvidia1")
        for path, text in (("/usr/local/bin/nvidia-smi", SMI), ("/usr/local/share/nvidia-smi-q.txt", sample)):
            (machine.root / path[1:]).write_text(text)
        machine.inside("chmod 755 /usr/local/bin/nvidia-smi")
    yield Site(tmp_path, cluster)
    for machine in cluster.machines:
        machine.inside("rm -f /dev/nvidia0 /dev/nvidia1 /usr/local/bin/nvidia-smi")


def test_built_where_nothing_measures_then_used_and_found_again(cluster: Cluster, site: Site) -> None:
    site.stand_in()
    status, text, found = site.look()
    assert set(found) == {"m1", "m2", "m3"}, text
    assert {one["verdict"] for one in found.values()} == {"pass"}, (text, found)
    assert "360.9 GB/s busbw over 2 devices" in found["m1"]["summary"]
    assert status == 0 and "nccl-tests are built" in " ".join(text.split()) and "spread to" in text, text
    again = site.look()
    assert again[0] == 0 and "nccl-tests" not in again[1] and again[2]["m2"]["verdict"] == "pass", again[1]
    for machine in cluster.machines:  # a look leaves no lock behind, and the host may be changed
        assert machine.inside("cat /opt/bringup/state/run.json", check=False).returncode != 0


def test_without_a_toolkit_it_is_skipped_with_the_reason_and_the_command(site: Site) -> None:
    site.own_recipe()
    status, text, found = site.look()
    assert status == 0, text
    for host in ("m1", "m2", "m3"):
        assert found[host]["verdict"] == "skip"
        assert "needs a CUDA toolkit that this host does not have" in found[host]["summary"], found[host]
        assert found[host]["summary"].endswith(
            "invoke kernel.build --kernel nccl_tests --inventory inventory/machines.json --limit m1,m2,m3")
    assert text.count("the collectives are not measured") == 1


def test_check_mode_builds_nothing(cluster: Cluster, site: Site) -> None:
    site.stand_in()
    status, text, found = site.look("--check")
    assert status == 0 and "--check builds nothing" in found["m1"]["summary"], text
    for machine in cluster.machines:
        assert machine.inside("ls /opt/bringup/builds", check=False).stdout == ""


def test_a_capture_builds_nothing(cluster: Cluster, site: Site) -> None:
    site.stand_in()
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "capture", "--inventory", str(site.inventory), "--tier", "deep", "--output",
         str(site.folder / "kept"), "--limit", "m1"], cwd=site.folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "BRINGUP_PROJECT": str(site.folder)})
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads((site.folder / "kept/m1/probes.json").read_text())["probes"]
    skipped = next(entry["skipped"] for entry in entries if entry["id"] == "load.all_reduce")
    assert skipped.startswith("no all_reduce_perf here, and no Python with torch; invoke kernel.build")
    assert cluster["m1"].inside("ls /opt/bringup/builds", check=False).stdout == ""
