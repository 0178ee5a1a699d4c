"""Reports: one JSON tree, JUnit that parses, HTML without a script; secrets masked in all of them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bringup.base import events
from bringup.base.errors import InputError, StepError
from bringup.base.results import Result, Status
from bringup.base.secrets import MASK, SCRUBBER
from bringup.base.verdicts import Finding, Verdict
from bringup.ui.report import Collector, check_reports, write_report


@pytest.fixture
def collector() -> Collector:
    out = Collector()
    SCRUBBER.add("s3cret-in-report")
    for event in (
        events.RunStarted("preflight", "h200.yml", "7f3a91", "ops@deploy1", ("gpu01", "gpu02")),
        events.PlayStarted("preflight", 1, 1, ("gpu01", "gpu02")),
        events.TaskEnded(Result("gpu01", "Check <all>", Status.FAILED, message="s3cret-in-report & more\x07")),
        events.TaskEnded(Result("gpu02", "Check <all>", Status.SKIPPED, message="not here")),
        events.TaskEnded(Result("gpu02", "Quiet", Status.OK, message="hidden thing", no_log=True)),
        events.Findings("preflight", (Finding("nvidia.library", "gpu01", Verdict.FAIL, "mismatch", mend="sudo reboot"),
                                      Finding("nvidia.remap", "gpu02", Verdict.UNKNOWN, "unread"),
                                      Finding("time.sync", "gpu02", Verdict.PASS, "fine"))),
        events.PlayEnded("preflight", 1, 1.5),
        events.RunEnded(4, 2.0, recap={"gpu01": {"failed": 1}}),
    ):
        out(event)
    return out


def test_json_tree(collector: Collector) -> None:
    tree = json.loads(collector.json())
    assert tree["status"] == 4
    assert tree["run"] == "7f3a91"
    assert [f["verdict"] for f in tree["findings"]] == ["fail", "unknown", "pass"]
    assert "s3cret" not in collector.json()
    assert "hidden thing" not in collector.json()


def test_a_second_look_takes_the_place_of_the_first(collector: Collector) -> None:
    collector(events.Findings("preflight", (Finding("nvidia.library", "gpu01", Verdict.PASS, "equal"),)))
    tree = json.loads(collector.json())
    assert [(one["subject"], one["check"], one["verdict"]) for one in tree["findings"]] == [
        ("gpu02", "nvidia.remap", "unknown"), ("gpu02", "time.sync", "pass"), ("gpu01", "nvidia.library", "pass")]
    assert tree["counts"] == {"pass": 2, "note": 0, "warn": 0, "fail": 0, "unknown": 1, "skip": 0}
    assert [one["blocks"] for one in tree["findings"]] == [True, False, False]


def test_junit_counts(collector: Collector, tmp_path: Path) -> None:
    path = tmp_path / "r.xml"
    write_report(collector, str(path))
    root = ElementTree.parse(path).getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert suites["tasks"].get("failures") == "1"
    assert suites["tasks"].get("skipped") == "1"
    assert suites["checks"].get("failures") == "1"
    assert suites["checks"].get("errors") == "1"
    assert "s3cret" not in path.read_text()


def test_html_is_escaped_and_worst_first(collector: Collector, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_report(collector, str(path))
    text = path.read_text()
    assert "Check &lt;all&gt;" in text
    assert "<script" not in text
    assert text.index("mismatch") < text.index("fine")


@pytest.mark.parametrize(("path", "says"), [
    ("x.pdf", "the ending says the kind"), ("/no-such-folder/x.json", "there is no folder"),
    ("{}/folder.json", "a folder"),
])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(path: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=says):
        check_reports([path.format(tmp_path)])


def test_reports_that_can_be_written_pass(tmp_path: Path) -> None:
    check_reports([str(tmp_path / "x.json"), str(tmp_path / "x.xml"), str(tmp_path / "x.html")])


def test_a_report_that_fails_after_the_run_says_where(collector: Collector) -> None:
    with pytest.raises(StepError, match="cannot be written"):
        write_report(collector, "/no-such-folder/x.json")


def test_a_secret_that_is_a_word_of_ours_leaves_the_keys(collector: Collector) -> None:
    known = SCRUBBER._known.copy(), list(SCRUBBER._forms)
    try:
        for word in ("status", "seconds", "failed"):
            SCRUBBER.add(word)
        tree = collector.tree()
        assert tree["results"][0]["status"] == MASK
        assert tree["stages"][0]["seconds"] == 1.5
        assert tree["recap"]["gpu01"]["failed"] == 1
    finally:
        SCRUBBER._known, SCRUBBER._forms = known
