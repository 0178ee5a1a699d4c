"""`invoke status --run`: the journal shows what the screen showed, and a run under way is followed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from bringup.base import events
from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.results import Result, Status
from bringup.base.verdicts import Finding, Verdict
from bringup.cli.runs import run_folder, show_run, under_way
from bringup.run.journal import Journal
from bringup.ui.layout import Layout

BEGINNING: tuple[events.Event, ...] = (
    events.RunStarted("provision", "h200.yml", "7f3a91", "ops@deploy1", ("gpu01", "gpu02"), headline="2 hosts"),
    events.PlayStarted("preflight", 1, 2, ("gpu01", "gpu02"), Origin("playbooks/x.yml", 2, 3)),
    events.Findings("preflight", (Finding("nvidia.remap", "gpu02", Verdict.WARN, "one row", details=("a", "b")),),
                    {"driver": (("2 x 580", ""),)}),
    events.PlayEnded("preflight", 1, 1.5),
    events.PlayStarted("start", 2, 2, ("gpu01", "gpu02")),
    events.TaskEnded(Result("gpu01", "Start", Status.FAILED, Origin("r.yml", 2), message="no", expected="x", found="y",
                            output=("| a",), next="invoke status")),
    events.StageSummary("r1", "it failed"),
)
END: tuple[events.Event, ...] = (events.PlayEnded("start", 2, 3.0),
                                 events.RunEnded(1, 5.0, recap={"gpu01": {"failed": 1}}, next=("try again",)))


def screen(*happened: events.Event) -> list[str]:
    layout = Layout("stages", width=100)
    return [line.text for event in happened for line in layout.lines(event)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "7f3a91")


def test_a_run_that_ended_is_shown_as_it_was(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for event in (*BEGINNING, *END):
        journal(event)
    journal.close()
    (journal.folder / "r1").mkdir()
    (journal.folder / "r1/gpu01.log").write_text("log")
    said: list[str] = []
    assert show_run(journal.folder, said.append) == 0
    assert said[0] == "run 7f3a91"
    assert said[1].startswith("began ")
    assert said[2:-1] == screen(*BEGINNING, *END)
    assert said[-1].endswith("r1/gpu01.log")


def test_a_run_under_way_is_followed_to_its_end(journal: Journal) -> None:
    for event in BEGINNING:
        journal(event)
    assert under_way(journal.folder / "journal.jsonl")
    said: list[str] = []
    follower = threading.Thread(target=show_run, args=(journal.folder, said.append))
    follower.start()
    follower.join(1)
    assert follower.is_alive()
    assert "under way" in said[0]
    for event in END:
        journal(event)
    journal.close()
    follower.join(5)
    assert not follower.is_alive()
    assert said[-1].startswith("a step failed (1)")


def test_a_run_that_was_cut_off_says_so(journal: Journal) -> None:
    for event in BEGINNING:
        journal(event)
    journal.close()
    with (journal.folder / "journal.jsonl").open("a") as file:
        file.write('{"event": "RunEn')
    said: list[str] = []
    show_run(journal.folder, said.append)
    assert said[-2].startswith("cut off: it did not end")
    assert "invoke status" in said[-1]


def test_as_json_it_is_the_document_of_the_run(journal: Journal) -> None:
    for event in (*BEGINNING, *END):
        journal(event)
    said: list[str] = []
    show_run(journal.folder, said.append, as_json=True)
    document = json.loads("\n".join(said))
    assert document["run"] == "7f3a91"
    assert document["results"][0]["message"] == "no"
    assert document["findings"][0]["check"] == "nvidia.remap"
    assert document["status"] == 1


def test_an_unknown_run_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_PROJECT", str(tmp_path))
    with pytest.raises(InputError, match="no run `abcdef`"):
        run_folder("abcdef")
