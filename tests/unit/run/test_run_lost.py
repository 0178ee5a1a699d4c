"""Hosts that cannot be reached, and connections that are cut in the middle of a task."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from small_runs import Start, inventory_text

from bringup.base.errors import UnreachableError
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


def cut_after(seconds: float, how: str = "close", pids: list[int] | None = None) -> object:
    pids = pids if pids is not None else []

    def prepare(run: Run) -> None:
        def cut() -> None:
            link = run.engine.hosts["a"].link
            if how == "close":
                link._pipe.close()  # type: ignore[union-attr]
            else:
                sent = signal.SIGSTOP if how == "stop" else signal.SIGKILL
                link._pipe._process.send_signal(sent)  # type: ignore[union-attr]
                pids.append(link._pipe._process.pid)  # type: ignore[union-attr]

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


def test_an_idle_host_that_was_cut_is_connected_again(start: Start, tmp_path: Path) -> None:
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {{name: first, command: "true"}}
    - {{name: long on b, command: "sleep 2", when: inventory_hostname == 'b'}}
    - {{name: once, command: "touch {tmp_path}/once", run_once: true}}
    - {{name: last, command: "cat {tmp_path}/{{{{ inventory_hostname }}}}/state/run.json", register: out}}
"""
    seen = start(text, hosts="a,b", prepare=cut_after(1.0))
    assert [state for _, state in seen.states("a")] == ["changed", "skipped", "changed", "changed"]
    assert "nothing was running there" in seen.notes
    assert "is back" in seen.notes
    assert seen.status == 0
    assert not (tmp_path / "a" / "state" / "run.json").exists()


def test_what_was_behind_the_cut_task_runs_once(start: Start, tmp_path: Path) -> None:
    tasks = "".join(f"    - {{name: t{n}, shell: echo {n} >> {tmp_path}/log}}\n" for n in range(5))
    text = f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {{name: long, command: sleep 2}}\n{tasks}"
    seen = start(text, prepare=cut_after(1.0))
    assert seen.status == 0
    assert (tmp_path / "log").read_text() == "0\n1\n2\n3\n4\n"


def test_a_host_that_does_not_come_back_is_lost(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.run.recovery.RETRY_FOR", 1.0)

    def prepare(run: Run) -> None:
        cut_after(1.0)(run)  # type: ignore[operator]
        linker = run.engine.linker
        made: list[str] = []

        def once(host: str) -> object:
            made.append(host)
            if made.count(host) > 1:
                raise UnreachableError("gone", host=host)
            return linker(host)

        run.engine.linker = once  # type: ignore[assignment]

    seen = start(LONG % ("", tmp_path / "behind"), hosts="a,b", prepare=prepare)
    assert seen.states("a") == [("first", "changed"), ("long", "lost")]
    assert seen.states("b")[-1] == ("behind", "changed")
    assert seen.status == 3


def gone_for_good(seconds: float) -> object:
    """Host a is cut after so long and cannot be connected again."""
    def prepare(run: Run) -> None:
        cut_after(seconds)(run)  # type: ignore[operator]
        linker = run.engine.linker
        made: list[str] = []

        def once(host: str) -> object:
            made.append(host)
            if made.count("a") > 1 and host == "a":
                raise UnreachableError("gone", host=host)
            return linker(host)

        run.engine.linker = once  # type: ignore[assignment]

    return prepare


@pytest.mark.parametrize("seconds", [2, 4])
def test_an_idle_host_that_is_lost_behind_its_last_task_is_told_at_the_end(
        start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr("bringup.run.recovery.RETRY_FOR", 1.0)
    text = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {{name: first, command: "true"}}
    - {{name: long on b, command: "sleep {seconds}", when: inventory_hostname == 'b'}}
"""
    seen = start(text, hosts="a,b", prepare=gone_for_good(1.0))
    assert seen.states("a") == [("first", "changed"), ("long on b", "skipped"), ("", "lost")]
    assert "its tasks of this play were done before" in seen.result("").message
    assert seen.states("b")[-1] == ("long on b", "changed")
    assert seen.recap["a"]["unreachable"] == 1
    assert seen.status == 3


def test_a_frozen_agent_is_lost_the_others_finish_and_the_next_run_completes(
        start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.session.HEARTBEAT", 0.5)
    monkeypatch.setattr("bringup.connection.session.LOST_AFTER", 2.0)
    monkeypatch.setattr("bringup.run.recovery.GRACE", 1.0)
    text = LONG % ("", tmp_path / "behind")
    stopped: list[int] = []
    try:
        seen = start(text, hosts="a,b", prepare=cut_after(1.0, "stop", stopped))
        assert seen.states("a") == [("first", "changed"), ("long", "lost")]
        assert "no heartbeat for 2 s" in seen.result("long").message
        assert seen.states("b")[-1] == ("behind", "changed")
        assert seen.status == 3
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    again = start(text, hosts="a,b")
    assert again.status == 0
    assert again.states("a")[-1] == ("behind", "changed")
