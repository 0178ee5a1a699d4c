"""Five hundred recorded hosts are judged together in seconds of processor time and little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_hosts import change, fleet, inactive_link, no_driver_match

from bringup.preflight import recording

HOSTS = 500
CPU_SECONDS = 10.0
MEMORY_MB = 500.0
PROGRAM = """
import json, resource, sys
from bringup.cli.program import main
status = 0
try:
    main()
except SystemExit as end:
    status = end.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1024}), file=sys.stderr)
sys.exit(status)
"""


def write_hosts(folder: Path, count: int) -> None:
    """Captures of `count` healthy hosts, one of them with a broken driver and one with a link down."""
    answers, _ = fleet(["gpu001", "gpu002"])
    base = answers["gpu001"]
    for number in range(1, count + 1):
        name = f"gpu{number:03}"
        one = replace(base, host=name)
        names = json.dumps({"hostname": name, "names": {name: {"addresses": [f"198.18.{number // 250}.{number % 250}"],
                                                               "seconds": 0.0}}})
        one = change(change(one, "net.names", names), "net.reach", "{}")
        if number == 7:
            one = no_driver_match(one)
        if number == 11:
            one = inactive_link(one)
        recording.write(folder / name, one)


@pytest.mark.full
def test_five_hundred_recorded_hosts(tmp_path: Path) -> None:
    write_hosts(tmp_path / "hosts", HOSTS)
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "preflight", "--replay", str(tmp_path / "hosts"), "--report", str(report)],
        capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[3],
        env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 4, done.stdout[-2000:] + done.stderr[-2000:]
    used = json.loads(done.stderr.splitlines()[-1])
    findings = json.loads(report.read_text())["findings"]
    assert len({one["subject"] for one in findings}) == HOSTS
    worst = {(one["subject"], one["check"]) for one in findings if one["verdict"] == "fail"}
    assert {("gpu007", "nvidia.library"), ("gpu011", "nvlink.up")} <= worst
    assert {subject for subject, _ in worst} == {"gpu007", "gpu011"}
    assert used["cpu"] < CPU_SECONDS and used["mb"] < MEMORY_MB, used
