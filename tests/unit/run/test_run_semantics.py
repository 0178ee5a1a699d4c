"""What plays mean, judged by ansible-playbook: its answers are stored in answers/ (see judge/ask.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bringup.base.errors import BringupError
from bringup.base.events import Event, RunEnded, TaskEnded
from bringup.base.results import Status
from bringup.cli.options import Options
from bringup.cli.running import Reading, run_reading

HERE = Path(__file__).resolve().parent
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.yml") if path.stem != "hosts")


class Recorder:
    """Takes a run's events as the judge's callback does."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[list[Any]]] = {}
        self.recap: dict[str, dict[str, int]] = {}
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)
        if isinstance(event, RunEnded):
            self.recap = {host: dict(counts) for host, counts in event.recap.items()}
        if not isinstance(event, TaskEnded) or event.result.item is not None:
            return
        result = event.result
        if result.module in ("include_tasks", "include_role") and result.status is Status.OK:
            return
        status = "ignored" if result.ignored else result.status.value
        entry: list[Any] = [result.task, status]
        if result.module == "debug" and status == "ok" and "msg" in result.data and "results" not in result.data:
            entry.append(result.data["msg"])
        self.hosts.setdefault(result.host, []).append(entry)

    def ask(self, question: str) -> bool | None:
        return None

    def close(self) -> None:
        return None


def run_case(name: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, int]:
    case = HERE / "cases" / f"{name}.yml"
    given: dict[str, Any] = {"inventory": [str(HERE / "cases" / "hosts.yml")], "extra_vars": [f"work={work}"]}
    first = case.read_text().splitlines()[0]
    words = first.removeprefix("# args:").split() if first.startswith("# args:") else []
    for word, value in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("--"):
            key = word[2:].replace("-", "_")
            given[key] = True if key in ("check", "diff") else [value]
    recorder = Recorder()
    monkeypatch.setattr("bringup.ui.screen.open_screen", lambda options, verb: recorder)
    monkeypatch.setenv("BRINGUP_PROJECT", str(work))
    try:
        status = int(run_reading(Reading(Options(given), case), verb="playbook"))
    except BringupError as error:
        status = int(error.status)
        print(error)
    return recorder, status


@pytest.mark.parametrize("name", CASES)
def test_as_ansible(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.loads((HERE / "answers" / f"{name}.json").read_text())
    recorder, status = run_case(name, tmp_path, monkeypatch)
    text = json.dumps(recorder.hosts, default=str).replace(str(tmp_path), "WORK")
    found = json.loads(text)
    for host, wanted in answer["hosts"].items():
        assert found.get(host) == wanted, f"host {host}"
    assert found.keys() == answer["hosts"].keys()
    names = {"failed": "failures", "unreachable": "unreachable", "ok": "ok", "changed": "changed", "skipped": "skipped",
             "rescued": "rescued", "ignored": "ignored"}
    for host, wanted in answer["recap"].items():
        counts = recorder.recap.get(host, {})
        assert {key: counts.get(key, 0) for key in names} == {key: wanted[other] for key, other in names.items()}, host
    assert bool(status) == bool(answer["rc"])
