"""A capture of the deep tier on a real host of two H200: measured by the nccl-tests that our recipe built there."""

from __future__ import annotations

import shutil
from pathlib import Path

from bringup.base.verdicts import Finding, Verdict
from bringup.preflight import replay
from bringup.preflight.judge import Chosen

CAPTURE = Path(__file__).with_name("captures") / "h200x2-deep"


def judged(path: Path = CAPTURE) -> list[Finding]:
    return replay.judged(replay.recorded([path]), Chosen("deep"))


def test_no_false_alarm_on_a_healthy_host() -> None:
    findings = judged()
    alarms = [item for item in findings if item.verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)]
    assert alarms == []
    assert sum(item.verdict is Verdict.PASS for item in findings) >= 60


def test_two_devices_are_judged_by_the_line_of_two() -> None:
    found = {item.check: item for item in judged()}
    reduced = found["collective.all-reduce"]
    assert reduced.verdict is Verdict.PASS and reduced.required == "332 GB/s for 2"
    assert "343.6 GB/s busbw over 2 devices at 4.3 GB (nccl-tests)" in reduced.summary
    assert found["collective.transport"].summary == "P2P"
    assert found["copy.peer"].verdict is Verdict.PASS and "392.7 GB/s" in found["copy.peer"].summary


def test_a_slow_link_of_the_same_host_is_found(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    shutil.copytree(CAPTURE, slow)
    for file in slow.rglob("load.all_reduce.txt"):
        lines = file.read_text().splitlines()
        rows = [number for number, line in enumerate(lines) if line.split()[:1] == ["4294967296"]]
        assert len(rows) == 1
        words = lines[rows[0]].split()
        words[7] = "171.80"
        lines[rows[0]] = " ".join(words)
        file.write_text("\n".join(lines) + "\n")
    found = {item.check: item for item in judged(slow)}["collective.all-reduce"]
    assert found.verdict is Verdict.FAIL and found.found == "171.8 GB/s"
