"""The lock of a run: taken before the first change, refused to others, given up at every end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from small_runs import Start, inventory_text

from bringup.base.errors import LockedError

SLOW = """
- name: slow play
  hosts: all
  gather_facts: false
  tasks:
    - {name: begins, command: touch %(folder)s/begun}
    - {name: long, command: sleep %(seconds)s}
    - {name: behind, command: touch %(folder)s/behind}
"""
QUICK = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: quick, command: 'true'}\n"


def other_run(folder: Path, seconds: float, hosts: str = "a,b") -> subprocess.Popen[str]:
    """A run in a process of its own, in the middle of its long task."""
    (folder / "slow.yml").write_text(SLOW % {"folder": folder, "seconds": seconds})
    (folder / "others.yml").write_text(inventory_text(folder, hosts))
    process = subprocess.Popen(
        [sys.executable, "-c", "from bringup.cli.program import main; main()", "playbook", str(folder / "slow.yml"),
         "--inventory", str(folder / "others.yml")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "BRINGUP_PROJECT": str(folder / "other")})
    until = time.monotonic() + 20
    while not (folder / "begun").exists():
        assert time.monotonic() < until, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(0.3)
    return process


def record(folder: Path, host: str = "a") -> dict[str, object] | None:
    path = folder / host / "state" / "run.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_a_second_operator_is_refused_and_changes_nothing(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 4)
    run = str((record(tmp_path) or {})["run"])
    seen = start(f"- hosts: all\n  gather_facts: false\n  tasks:\n    - command: touch {tmp_path}/no\n", hosts="a,b,c")
    assert seen.status == 5
    assert isinstance(seen.error, LockedError)
    shown = str(seen.error)
    assert "held by" in shown
    assert f"invoke status --run {run}" in shown
    assert not (tmp_path / "no").exists()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert record(tmp_path) is None


def test_reading_needs_no_lock(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 2)
    seen = start("- hosts: all\n  gather_facts: false\n  tasks:\n    - stat: {path: /}\n")
    assert seen.status == 0
    assert start(QUICK, check=True).status == 0
    process.communicate(timeout=30)


def test_ctrl_c_leaves_no_lock_and_no_process(tmp_path: Path) -> None:
    process = other_run(tmp_path, 61)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130, out
    assert "interrupted in task" in out
    assert record(tmp_path) is None
    assert record(tmp_path, "b") is None
    assert not (tmp_path / "behind").exists()
    found = subprocess.run(["pgrep", "-f", "^sleep 61"], capture_output=True, text=True, check=False).stdout
    assert found == ""


def test_taking_a_living_run_over(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 4, hosts="a")
    run = str((record(tmp_path) or {})["run"])
    seen = start(QUICK, take_over=run)
    assert seen.states() == [("quick", "changed")]
    assert seen.status == 0
    assert f"a run {run} is asked to stop at the end of its task; waiting for that, 120 s at most" in seen.notes
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 5, out
    assert "took this run over" in out
    assert not (tmp_path / "behind").exists()


def test_a_dead_run_of_the_same_operator_is_gone_on_with(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 1, hosts="a")
    process.kill()
    process.communicate()
    run = str((record(tmp_path) or {})["run"])
    time.sleep(2)
    seen = start(QUICK)
    assert seen.status == 0
    assert f"goes on where run {run} stopped (playbook, slow play)" in seen.notes
    assert record(tmp_path) is None


def test_somebody_elses_dead_run_is_shown_and_cleared_by_name(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    state.mkdir(parents=True)
    (state / "run.json").write_text(json.dumps({"run": "51bd07", "operator": "lin@deploy2", "machine": "other",
                                                "verb": "provision", "step": "weights"}))
    seen = start(QUICK)
    assert seen.status == 5
    assert "run 51bd07 of lin@deploy2 did not finish here (provision, weights)" in str(seen.error)
    assert "invoke unlock --run 51bd07" in str(seen.error)
    unlock = [sys.executable, "-c", "from bringup.cli.program import main; main()", "unlock", "--inventory",
              str(tmp_path / "hosts.yml")]
    environment = {**os.environ, "BRINGUP_PROJECT": str(tmp_path / "project")}
    wrong = subprocess.run([*unlock, "--run", "000000"], env=environment, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1, wrong.stdout
    assert "no host knows" in wrong.stdout
    assert record(tmp_path) is not None
    right = subprocess.run([*unlock, "--run", "51bd07"], env=environment, capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stdout
    assert record(tmp_path) is None
    assert start(QUICK).status == 0


def test_where_no_lock_can_be_kept_the_run_says_so_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where the folder should be")
    (tmp_path / "b").write_text("")
    seen = start(QUICK, hosts="a,b")
    assert seen.status == 0
    assert seen.notes.count("no lock and no journal") == 2  # a reason for each root; each told once


def test_a_delegate_found_on_the_way_is_locked_too(start: Start, tmp_path: Path) -> None:
    text = f"""
- hosts: a
  gather_facts: false
  tasks:
    - {{name: look, command: "cat {tmp_path}/b/state/run.json", delegate_to: "{{{{ ['b'] | first }}}}", register: out}}
    - {{name: local, command: "true", delegate_to: localhost}}
"""
    seen = start(text, hosts="a,b")
    assert seen.states() == [("look", "changed"), ("local", "changed")]
    assert json.loads(seen.result("look").data["stdout"])["run"]
    assert record(tmp_path, "b") is None


def test_a_delegate_that_is_held_is_refused(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 3, hosts="b")
    text = f"""
- hosts: a
  gather_facts: false
  tasks:
    - {{command: "touch {tmp_path}/no", delegate_to: "{{{{ ['b'] | first }}}}"}}
"""
    seen = start(text, hosts="a,b")
    assert seen.status == 5
    assert "held by" in str(seen.error)
    assert not (tmp_path / "no").exists()
    assert record(tmp_path, "a") is None
    process.communicate(timeout=30)


def test_term_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    process = other_run(tmp_path, 62)
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130, out
    assert record(tmp_path) is None


def test_an_agent_of_ours_without_a_controller_is_waited_for(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 6, hosts="a")
    process.kill()
    process.communicate()
    path = tmp_path / "a" / "state" / "run.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "heard": held["heard"] - 30}))
    seen = start(QUICK)
    assert seen.status == 0
    assert f"your run {held['run']} was cut off here; waiting" in seen.notes


def test_the_same_command_after_a_killed_controller_waits_and_goes_on(start: Start, tmp_path: Path) -> None:
    process = other_run(tmp_path, 4, hosts="a,b")
    run = str((record(tmp_path) or {})["run"])
    process.kill()
    process.communicate()
    seen = start(QUICK, hosts="a,b")
    assert seen.status == 0, str(seen.error)
    assert f"a your run {run} was cut off here; waiting" in seen.notes
    assert f"goes on where run {run} stopped" in seen.notes
    assert not (tmp_path / "behind").exists()
