"""Hosts that cannot be reached, and connections that are cut in the middle of a task."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from small_runs import Start, inventory_text

from bringup.run.plays import Run

LONG = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: first, command: "true"}
    - {name: long, command: sleep 2%s}
    - {name: behind, command: touch %s}
"""


def no_python(folder: Path, name: str) -> str:
    return f"    {name}: {{ansible_python_interpreter: /no/python, bringup_root: {folder}/{name}}}\n"


def cut_after(seconds: float, how: str = "close") -> object:
    def prepare(run: Run) -> None:
        def cut() -> None:
            link = run.engine.hosts["a"].link
            if how == "close":
                link._pipe.close()  # type: ignore[union-attr]
            else:
                link._pipe._process.send_signal(signal.SIGKILL)  # type: ignore[union-attr]

        threading.Timer(seconds, cut).start()

    return prepare


def test_a_task_that_went_on_is_taken_as_it_ended(start: Start, tmp_path: Path) -> None:
    seen = start(LONG % ("", tmp_path / "behind"), prepare=cut_after(1.0))
    assert seen.states() == [("first", "changed"), ("long", "changed"), ("behind", "changed")]
    assert (tmp_path / "behind").exists()
    assert "connecting again" in seen.notes
    assert "is back" in seen.notes
    assert seen.status == 0


def test_a_task_whose_output_is_needed_stays_lost(start: Start, tmp_path: Path) -> None:
    seen = start(LONG % (", register: out", tmp_path / "behind"), hosts="a,b", prepare=cut_after(1.0))
    assert seen.states() == [("first", "changed"), ("long", "lost")]
    assert "the task ended there (changed)" in seen.result("long").message
    assert seen.states("b")[-1] == ("behind", "changed")
    assert seen.recap["a"] == {"ok": 1, "changed": 1, "unreachable": 1, "ignored": 0}
    assert seen.status == 3


def test_a_killed_agent_is_a_lost_task_and_the_next_run_goes_on(start: Start, tmp_path: Path) -> None:
    text = LONG % ("", tmp_path / "behind")
    seen = start(text, prepare=cut_after(1.0, "kill"))
    assert seen.states() == [("first", "changed"), ("long", "lost")]
    assert not (tmp_path / "behind").exists()
    assert seen.status == 3
    again = start(text)
    assert again.states()[-1] == ("behind", "changed")
    assert "goes on where run" in again.notes


@pytest.mark.parametrize("ignore", [False, True])
def test_a_host_that_cannot_be_reached(start: Start, tmp_path: Path, ignore: bool) -> None:
    inventory = inventory_text(tmp_path, "a") + no_python(tmp_path, "b")
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - {{name: first, command: "true", ignore_unreachable: {str(ignore).lower()}}}
        - {{name: second, command: "true", ignore_unreachable: {str(ignore).lower()}}}
      rescue:
        - {{name: no rescue, command: "true"}}
"""
    seen = start(text, inventory=inventory)
    assert seen.states("a") == [("first", "changed"), ("second", "changed")]
    if ignore:
        assert seen.states("b") == [("first", "unreachable"), ("second", "unreachable")]
        assert seen.status == 0
    else:
        assert seen.states("b") == [("first", "unreachable")]
        assert "/no/python" in seen.result("first", "b").message
        assert seen.status == 3
    failed = tmp_path / "project" / ".bringup" / "runs"
    assert [path.read_text() for path in failed.glob("*/failed")] == ([] if ignore else ["b\n"])
    assert ("--limit @" in " ".join(seen.ended.next)) is not ignore


def test_all_hosts_again_needs_no_limit(start: Start) -> None:
    seen = start("[{hosts: all, gather_facts: false, tasks: [{name: fails, command: 'false'}]}]")
    assert seen.status == 1
    assert seen.ended.next == ()


def test_unreachable_hosts_count_for_the_limit(start: Start, tmp_path: Path) -> None:
    inventory = inventory_text(tmp_path, "a,b") + no_python(tmp_path, "c")
    text = """
- hosts: all
  gather_facts: false
  max_fail_percentage: 30
  tasks:
    - {name: first, command: "true"}
    - {name: second, command: "true"}
"""
    seen = start(text, inventory=inventory)
    assert seen.states("a") == [("first", "changed")]
    assert seen.states("b") == [("first", "changed")]
    assert seen.status == 3
