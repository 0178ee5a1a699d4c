"""Measure the fast tier of preflight on real machines: `python bench/preflight.py --help`. Root only.

Boots machines as the tests do. Each has an `nvidia-smi` that takes some seconds and then prints what a recorded host
printed: the slowest probe, known beforehand. Prints the wall time of the whole command (`invoke preflight`, from its
start to its exit status) for 1 machine and for all, and what that is beyond the slowest probe.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path[:0] = [str(PROJECT / "tests/machines")]

from cluster import Cluster, Machine, why_not  # noqa: E402

RECORDING = PROJECT / "bringup/lab/recordings/h200x8"
ALLOWED = 2.0
"""Seconds that the fast tier on 10 machines may take beyond the slowest probe."""


def slow_tool(machine: Machine, seconds: float) -> None:
    """An `nvidia-smi` on a machine that answers `-q` late and as a healthy host of eight H200 does."""
    shutil.copy(RECORDING / "nvidia.q.txt", machine.root / "usr/local/share/nvidia-q.txt")
    tool = machine.root / "usr/local/bin/nvidia-smi"
    tool.write_text(f'#!/bin/sh\n[ "$1" = -q ] || exit 9\nsleep {seconds}\ncat /usr/local/share/nvidia-q.txt\n')
    tool.chmod(0o755)


def run(inventory: Path, *words: str) -> float:
    """Wall seconds of one command. Raises RuntimeError where it ends with anything but 0 or 4."""
    begun = time.monotonic()
    done = subprocess.run(
        [str(Path(sys.executable).parent / "invoke"), *words, "--inventory", str(inventory)], cwd=PROJECT,
        capture_output=True, text=True)
    took = time.monotonic() - begun
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return took


def slowest(inventory: Path, folder: Path) -> tuple[float, str]:
    """The longest probe of all hosts, as a capture says."""
    target = folder / "capture"
    shutil.rmtree(target, ignore_errors=True)
    run(inventory, "capture", "--output", str(target))
    probes = [(float(probe.get("seconds") or 0), f"{path.parent.name} {probe['id']}")
              for path in target.glob("*/probes.json") for probe in json.loads(path.read_text())["probes"]]
    return max(probes)


def measure(cluster: Cluster, folder: Path, limit: int, repeats: int) -> dict[str, Any]:
    """Figures for the first `limit` machines."""
    variables = {"bringup_known_hosts": str(cluster.known_hosts)}
    whole = json.loads(cluster.inventory(folder / "all.yml", variables).read_text())
    names = {machine.name for machine in cluster.machines[:limit]}

    def cut(tree: dict[str, Any]) -> dict[str, Any]:
        return {key: ({name: host for name, host in value.items() if name in names} if key == "hosts" else
                      {name: cut(group) for name, group in value.items()} if key == "children" else value)
                for key, value in tree.items()}

    inventory = folder / f"{limit}.yml"
    inventory.write_text(json.dumps({"all": cut(whole["all"])}))
    run(inventory, "preflight")
    times = [run(inventory, "preflight") for _ in range(repeats)]
    longest, name = slowest(inventory, folder)
    return {"machines": limit, "seconds": [round(one, 2) for one in times], "slowest_probe": round(longest, 2),
            "probe": name, "beyond": round(min(times) - longest, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow", type=float, default=3.0, help="seconds that nvidia-smi -q takes")
    parser.add_argument("--json", type=Path, help="write every number there")
    given = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"no machines here: {reason}", file=sys.stderr)
        return 1
    with Cluster(size=given.machines) as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for machine in cluster.machines:
            slow_tool(machine, given.slow)
        rows = [measure(cluster, folder, limit, given.repeats) for limit in sorted({1, given.machines})]
    print("| machines | fastest run (s) | slowest probe (s) | beyond it (s) | probe |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['machines']} | {min(row['seconds'])} | {row['slowest_probe']} | {row['beyond']} | "
              f"{row['probe']} |")
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; allowed beyond: {ALLOWED:g} s")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows[-1]["beyond"] <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
