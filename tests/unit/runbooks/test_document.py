"""How a runbook is read: what is in it, and what is told of one that is not as it must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.verdicts import Finding, Verdict
from bringup.runbooks.document import Check, Sign, find, parse
from bringup.runbooks.filling import Filling, filled, read_values
from bringup.runbooks.proposing import propose

TEXT = """\
# A thing broke

## How to tell

It smells.

Findings: `process.rank`,
`endpoint (is stopped)`

## Steps

1. Look at it,
   well.

   ```run
   invoke status --inventory $INVENTORY
   ```

   ```check exit=0,4 contains="two words" lacks=fire
   invoke logs --limit $NODE --inventory $INVENTORY
   ```

2. Mend it.

   ```hand
   ssh $NODE reboot
   ```

   ```run danger
   invoke restart --yes --inventory $INVENTORY
   ```

3. Think.

## Afterwards

1. This is no step.
"""


def test_every_part_is_read() -> None:
    book = parse(TEXT, Path("thing.md"))
    assert (book.name, book.title, book.tell) == ("thing", "A thing broke", "It smells.")
    assert book.signs == (Sign("process.rank"), Sign("endpoint", "is stopped"))
    assert [(step.number, step.text) for step in book.steps] == [(1, "Look at it,\nwell."), (2, "Mend it."),
                                                                 (3, "Think.")]
    look, = book.steps[0].commands
    assert look.check == Check((0, 4), ("two words",), ("fire",), "invoke logs --limit $NODE --inventory $INVENTORY")
    assert str(look.origin) == "thing.md:15"
    by_hand, restart = book.steps[1].commands
    assert by_hand.by_hand and not by_hand.danger and restart.danger and restart.check == Check()
    assert book.variables == ("node",)


@pytest.mark.parametrize(("status", "output", "says"), [
    (0, "two words", None), (4, "has two words", None), (1, "two words", "it ended with 1, expected 0 or 4"),
    (0, "words", "does not say `two words`"), (0, "two words of fire", "its output says `fire`"),
])
def test_an_outcome_is_judged(status: int, output: str, says: str | None) -> None:
    fault = parse(TEXT, Path("thing.md")).steps[0].commands[0].check.fault(status, output)
    assert fault is None if says is None else says in str(fault)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("# A thing broke", "A thing broke", "t.md:1  a runbook begins with its title"),
    ("## How to tell", "## Signs", "t.md:3  the section `How to tell` is missing"),
    ("## Steps", "## What", "t.md:3  the section `Steps` is missing"),
    ("## How to tell", "## Before\n\n## How to tell", "t.md:3  `How to tell` comes first"),
    ("```run danger", "```run quick", "t.md:29  `run` takes no `quick`"),
    ("```run danger", "```", "t.md:29  a block of a step is not marked"),
    ("```run danger", "```bash", "t.md:29  a block of a step is marked `bash`"),
    ("```hand", "```check exit=0", "t.md:25  a check without a command before it"),
    ("exit=0,4", "exit=well", "t.md:19  a check cannot read `exit=well`"),
    ("exit=0,4 contains=\"two words\" lacks=fire", "", "t.md:19  a check says nothing"),
    ('"two words"', '"two words', "cannot be read: No closing quotation"),
    ("invoke restart --yes", "rm -rf /", "t.md:29  a `run` block holds one command of bringup"),
    ("invoke restart --yes", "invoke stop\n   invoke restart", "t.md:29  a `run` block holds one command"),
    ("invoke restart --yes", "invoke restart 'yes", "t.md:29  the command cannot be read"),
    ("   ```run\n   invoke status --inventory $INVENTORY\n   ```", "```run\ninvoke status\n```",
     "t.md:15  a `run` block outside of a numbered step"),
])
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        parse(TEXT.replace(old, new, 1), Path("t.md"))
    assert says in str(caught.value)


def test_no_step_at_all() -> None:
    text = TEXT[:TEXT.index("1. Look")]
    with pytest.raises(InputError, match="no numbered step"):
        parse(text, Path("t.md"))


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "rank-down.md").write_text(TEXT)
    with pytest.raises(InputError) as caught:
        find(tmp_path, "rank-dwn")
    assert "no runbook is called `rank-dwn`" in str(caught.value) and "invoke runbook rank-down" in str(caught.value)


@pytest.mark.parametrize(("given", "says"), [
    ([], "needs --set node="), (["node"], "--set takes NAME=VALUE"), (["node="], "--set takes NAME=VALUE"),
    (["node=--limit"], "--set takes NAME=VALUE"), (["nod=gpu1"], "--set node=gpu1"),
    (["node=gpu11"], "--set node=gpu1"),
])
def test_values_are_checked_before_anything(given: list[str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_values(parse(TEXT, Path("t.md")), given, ["gpu1", "other"])
    assert says in str(caught.value)


def test_values_stand_in_every_place_and_stay_one_word() -> None:
    book = parse(TEXT, Path("t.md"))
    filling = Filling({"node": "gpu1; rm x"}, ("a b.yml", "c.yml"), (("--vault-password-file", "v"), ("--odd", "x")),
                      lambda verb: frozenset({"--vault-password-file"}))
    look, mend, _ = (filled(step, filling) for step in book.steps)
    given = "--inventory 'a b.yml' --inventory c.yml"
    assert look.commands[0].text == f"invoke status {given} --vault-password-file v"
    assert look.commands[0].check.otherwise.endswith(given)
    assert mend.commands[0].text == "ssh gpu1; rm x reboot"  # shown to a person, never run
    assert filled(book.steps[0], Filling({})).commands[0].text == "invoke status"


def test_the_exact_runbook_is_proposed_and_the_worst_first() -> None:
    wide = parse(TEXT.replace("endpoint (is stopped)", "endpoint"), Path("wide.md"))
    exact = parse(TEXT.replace("`process.rank`,\n", ""), Path("exact.md"))
    stopped = Finding("endpoint", "gpu1", Verdict.FAIL, "r1 is stopped")
    rank = Finding("process.rank", "gpu2", Verdict.WARN, "a rank")
    other = Finding("drift.link", "gpu2", Verdict.FAIL, "a link")
    proposals, left = propose([rank, stopped, other, Finding("process.rank", "x", Verdict.PASS, "")],
                              {"wide": wide, "exact": exact})
    assert [(p.runbook.name, p.findings) for p in proposals] == [("exact", (stopped,)), ("wide", (rank,))]
    assert left == [other]
    assert proposals[0].command(["h.yml"]) == "invoke runbook exact --inventory h.yml --set node=gpu1"
