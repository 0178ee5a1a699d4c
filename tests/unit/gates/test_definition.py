"""The file of gates: what a team may write, what blocks, how measures are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.verdicts import Verdict
from bringup.gates.definition import Bound, incomplete, judge, load_definition
from bringup.gates.playbook import lines
from bringup.gates.schedule import units

REPOSITORY = Path(__file__).parents[3]
LINE = "{owner: o, command: c, rollback: r, pass: {errors: '== 0'}}"


def load(tmp_path, text):
    path = tmp_path / "g.yml"
    path.write_text(text)
    return load_definition(path)


def test_the_file_that_is_shipped():
    shipped = load_definition(REPOSITORY / "gates/default.yml")
    names = [line.name for line in shipped.lines]
    assert names == ["smoke", "traces", "parsers", "chaos", "rehearsal", "scorecard"]
    assert incomplete(shipped) == [] and shipped.tolerance == 5
    assert (REPOSITORY / "playbooks/gate.yml").read_text() == lines(names)


def test_an_empty_line_blocks(tmp_path):
    [finding] = incomplete(load(tmp_path, "gates: {smoke: {owner: '', command: c, pass: {errors: '== 0'}}}"))
    assert finding.blocks and "owner and rollback are empty" in finding.summary


@pytest.mark.parametrize(("text", "words"), [
    ("gates: {}", "at least one line"), ("gates: {smoke: [1]}", "takes a mapping"),
    ("gates: {night: {owner: o}}", "of no known kind"), ("gates: {smoke: {owner: o, file: x}}", "knows no `file`"),
    ("tolerance: some\ngates: {smoke: " + LINE + "}", "takes percent"),
    ("noise: 3\ngates: {smoke: " + LINE + "}", "a number for each measure"),
    ("gates: {smoke: {owner: o, pass: {errors: 0}}}", "says how a measure is bounded"),
])
def test_what_is_refused(tmp_path, text, words):
    with pytest.raises(InputError) as error:
        load(tmp_path, text)
    assert words in "\n".join(error.value.lines())


def test_a_number_that_is_none(tmp_path):
    line = load(tmp_path, "gates: {a: {kind: smoke, owner: o, command: c, rollback: r, requests: many}}").lines[0]
    assert line.name == "a" and line.kind == "smoke"
    with pytest.raises(InputError, match="whole number from 1 on"):
        line.number("requests", 4)


@pytest.mark.parametrize(("bound", "value", "holds"), [
    (Bound("<=", 2), 2.0, True), (Bound("<=", 2), 2.1, False), (Bound(">=", 98), 97.9, False),
    (Bound("==", 0), 0.0, True), (Bound("==", 0), 1.0, False)])
def test_bounds(bound, value, holds):
    assert bound.holds(value) is holds


def test_a_measure_that_was_not_taken_blocks_and_says_who_and_what(tmp_path):
    line = load(tmp_path, "gates: {smoke: " + LINE + "}").lines[0]
    assert judge(line, {"errors": 0.0})[0].verdict is Verdict.PASS
    [unknown] = judge(line, {})
    assert unknown.verdict is Verdict.UNKNOWN and unknown.blocks
    [failed] = judge(line, {"errors": 3.0})
    assert failed.details == ("owner     o", "rollback  r") and failed.mend == "c"


def test_a_nightly_timer(tmp_path):
    made = units("staging", tmp_path, ["staging.yml"], "3:05", ["chaos"], "gates/default.yml", None)
    assert set(made) == {"bringup-gate-staging.service", "bringup-gate-staging.timer"}
    assert "OnCalendar=*-*-* 03:05:00" in made["bringup-gate-staging.timer"]
    service = made["bringup-gate-staging.service"]
    assert "--inventory staging.yml" in service and "--skip chaos" in service and "--yes --again" in service
    with pytest.raises(InputError, match="time of the day"):
        units("s", tmp_path, [], "25:00", [], "g", None)
