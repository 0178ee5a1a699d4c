"""Runs as hosts remember them, put together; how far back a person asks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.journal import RUNS_KEPT, note_run, runs_of
from bringup.base.errors import InputError
from bringup.cli.history import since_seconds
from bringup.releases.runs import merge_runs

NOW = 2_000_000_000.0


def began(run: str, at: float, *, ended: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"event": "began", "run": run, "at": at, "operator": "ops@deploy1", "machine": "m", "address": "198.18.0.9",
            "verb": "provision", "inventory": "h200.yml", "release": None, "ended": ended, **more}


def end(at: float, outcome: int | None = 0, **more: Any) -> dict[str, Any]:
    return {"event": "ended", "at": at, "outcome": outcome, "tasks": {"changed": 2}, "release": "a" * 64, **more}


def test_one_run_of_two_hosts_is_one_line_whatever_their_clocks_say() -> None:
    told = {"gpu01": {"now": NOW, "held": None, "runs": [began("7f3a91", NOW - 100, ended=end(NOW - 40))]},
            "gpu02": {"now": NOW - 5000, "held": None,
                      "runs": [began("7f3a91", NOW - 5099, ended=end(NOW - 5041, outcome=1))]}}
    [run] = merge_runs(told, {"a" * 64: "r0042"}, now=NOW + 7)
    assert run.began == pytest.approx(NOW + 7 - 100)
    assert (run.hosts, run.state, run.outcome, run.seconds) == (("gpu01", "gpu02"), "ended", 1, 60.0)
    assert (run.before, run.after, run.changed) == ("none", "r0042", 2)


def test_what_did_not_end_is_under_way_or_cut_off() -> None:
    told = {"gpu01": {"now": NOW, "held": "bbbbbb", "runs": [began("aaaaaa", NOW - 900), began("bbbbbb", NOW - 10)]},
            "gpu02": {"now": NOW, "held": None, "runs": [began("aaaaaa", NOW - 900, ended=end(NOW - 800))]}}
    runs = merge_runs(told, {}, now=NOW)
    assert [(run.run, run.state, run.outcome) for run in runs] == [("bbbbbb", "under way", None),
                                                                  ("aaaaaa", "cut off", None)]


def test_older_ones_are_left_out_by_the_hosts_clock() -> None:
    told = {"gpu01": {"now": NOW - 9000, "held": None,
                      "runs": [began("aaaaaa", NOW - 9900), began("bbbbbb", NOW - 9010)]}}
    assert [run.run for run in merge_runs(told, {}, now=NOW, since=60)] == ["bbbbbb"]


def test_the_host_keeps_runs_over_a_lost_power_and_a_new_connection(tmp_path: Path) -> None:
    note_run(str(tmp_path), {"event": "began", "run": "aaaaaa", "operator": "ops"})
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"event": "ended", "run": "aaa')
    note_run(str(tmp_path), {"event": "began", "run": "aaaaaa", "operator": "again"})
    note_run(str(tmp_path), {"event": "ended", "run": "aaaaaa", "outcome": 0})
    [run] = runs_of(str(tmp_path))
    assert run["operator"] == "ops" and run["ended"]["outcome"] == 0
    assert runs_of(str(tmp_path / "nowhere")) == []


def test_the_host_forgets_the_oldest(tmp_path: Path) -> None:
    line = json.dumps({"event": "began", "run": "old", "filler": "x" * 500}) + "\n"
    (tmp_path / "runs.jsonl").write_text(line * (RUNS_KEPT + 50))
    note_run(str(tmp_path), {"event": "began", "run": "new"})
    kept = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert len(kept) == RUNS_KEPT and json.loads(kept[-1])["run"] == "new"


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("12h", 43200), ("2d", 172800), ("1w", 604800)])
def test_since_as_a_span(text: str, seconds: float) -> None:
    assert since_seconds(text, NOW) == seconds


def test_since_as_a_day() -> None:
    now = time.mktime((2026, 11, 30, 20, 0, 0, 0, 0, -1))
    assert since_seconds("2026-11-30", now) == 20 * 3600
    assert since_seconds("2026-11-30T14:00", now) == 6 * 3600


@pytest.mark.parametrize("text", ["yesterday", "2x", "2099-01-01", "-1d", ""])
def test_since_refuses(text: str) -> None:
    with pytest.raises(InputError, match="--since"):
        since_seconds(text, NOW)
