"""Measure what a rollback costs beyond its restarts: `python bench/rollback.py --help`. Root only.

Boots machines as the tests do, each a replica of its own, and gives them two releases without starting an engine. Then
the stages of `invoke rollback` before its start run for real: choose and prove on every node and write the launch files
(while what is in use serves), then switch all. Prints the wall time of the whole command, of its stages, of
`invoke rollback --rehearse`, and of one look at the stores, which is what connecting costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path[:0] = [str(PROJECT / "tests/machines"), str(PROJECT / "tests/lab")]

from cluster import Cluster, why_not  # noqa: E402
from site_project import DEPLOYMENT, Site  # noqa: E402

ALLOWED = 2.0
"""Seconds that the switch of 16 hosts may take."""

MAKE = """
- name: make
  hosts: all
  gather_facts: false
  tasks:
    - build_environments:
    - make_release:
    - switch_release:
    - announce_ready:
"""
LOOK = """
- name: look
  hosts: all
  gather_facts: false
  tasks:
    - list_releases:
"""
BACK = """
- name: release
  hosts: all
  gather_facts: false
  tasks:
    - choose_release: {to: previous, prove: true}
- name: switch
  hosts: all
  gather_facts: false
  tasks:
    - switch_release:
"""


class Bench(Site):
    """A project whose hosts are the cluster's machines, a replica each."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        super().__init__(folder)
        (folder / "make.yml").write_text(MAKE)
        (folder / "back.yml").write_text(BACK)
        (folder / "look.yml").write_text(LOOK)

    def write(self, *, load_seconds: float = 0.3, fault: str = "", variables: dict[str, Any] | None = None,
              **deployment: Any) -> None:
        self.cluster.inventory(self.folder / "inventory/lab.yml", {
            "bringup_known_hosts": str(self.cluster.known_hosts), "bringup_ssh_config": False,
            "deployment": {**DEPLOYMENT, "recipe": "zai-org/GLM-5.1-FP8", "variant": "default",
                           "strategy": "single_node_tp", "pipeline_parallel": None, "manager": "systemd",
                           "model_path": "/models/GLM-5.1", **deployment}})

    def timed(self, *words: str) -> tuple[float, dict[str, float]]:
        """Wall seconds of one verb, and those of its stages. Raises RuntimeError where it does not end with 0."""
        report = self.folder / "report.json"
        began = time.monotonic()
        done = self.run(*words, "--report", str(report), timeout=600)
        took = time.monotonic() - began
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
        return took, {stage["name"]: stage["seconds"] for stage in json.loads(report.read_text())["stages"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    reason = why_not()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    with Cluster(size=given.machines) as cluster, tempfile.TemporaryDirectory() as folder:
        for machine in cluster.machines:
            machine.run("sudo mkdir -p /models/GLM-5.1 && "
                        "echo '{\"model_type\": \"glm_moe_dsa\"}' | sudo tee /models/GLM-5.1/config.json")
        bench = Bench(Path(folder), cluster)
        quickest: dict[str, float] = {}
        for number in range(given.repeats):
            for context in (65536 + number * 2, 65537 + number * 2):
                bench.write(context_length=context)
                bench.timed("playbook", "make.yml")
            for name, words in (("look", ("playbook", "look.yml")), ("rehearsal", ("rollback", "--rehearse")),
                                ("back", ("playbook", "back.yml"))):
                took, stages = bench.timed(*words)
                for key, seconds in {f"{name}, whole command": took,
                                     **{f"{name}, stage {k}": v for k, v in stages.items()}}.items():
                    quickest[key] = min(seconds, quickest.get(key, seconds))
    for key, seconds in quickest.items():
        print(f"{key:32} {seconds:6.2f} s")
    proof = quickest["back, stage release"] - quickest["look, stage look"]
    switch = quickest["back, stage switch"]
    print(f"{given.machines} hosts: {proof:.2f} s beyond connecting to choose, prove and prepare; {switch:.2f} s of "
          f"{ALLOWED:.1f} s allowed to switch")
    return int(switch > ALLOWED)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
