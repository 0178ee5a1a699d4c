"""The `playbook` verb from the command line: listings, wrong input, exit statuses, plain output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import inventory_text

PLAY = """
- name: first
  hosts: all
  gather_facts: false
  tasks:
    - {name: one, command: "true", tags: [alpha]}
    - {name: two, command: "true"}
- name: second
  hosts: b
  gather_facts: false
  tasks:
    - {name: three, debug: {msg: hello}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "hosts.yml").write_text(inventory_text(tmp_path, "a,b"))
    return tmp_path


def bringup(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from bringup.cli.program import main; main()", *words], cwd=folder, capture_output=True,
        text=True, check=False, timeout=60, env={**os.environ, "BRINGUP_PROJECT": str(folder / "project")})


def playbook(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return bringup(folder, "playbook", "play.yml", "--inventory", "hosts.yml", *words)


def test_listings_contact_nothing(folder: Path) -> None:
    done = playbook(folder, "--list-hosts", "--list-tasks", "--list-tags", "--limit", "b")
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines == ["play 1  first  (all)", "hosts (1)", "b", "tasks", "one  [alpha]", "two", "tags  alpha",
                     "play 2  second  (b)", "hosts (1)", "b", "tasks", "three", "tags  none"]
    assert "2 plays, 3 tasks, nothing wrong" in playbook(folder, "--syntax-check").stdout
    assert not (folder / "a").exists()
    assert not (folder / "project").exists()


@pytest.mark.parametrize(("words", "said"), [
    (("--limit", "c"), "no host or group"), (("--tags", "alfa"), "nearest: alpha"),
    (("--forks", "many"), "whole number"), (("--extra-vars", "@none.yml"), "none.yml"),
])
def test_wrong_flags(folder: Path, words: tuple[str, str], said: str) -> None:
    done = playbook(folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "nothing was contacted" in done.stderr


def test_a_playbook_that_is_not_there(folder: Path) -> None:
    done = bringup(folder, "playbook", "plai.yml", "--inventory", "hosts.yml")
    assert done.returncode == 2
    assert "nearest: play.yml" in done.stderr


def test_a_run_tells_its_recap(folder: Path) -> None:
    done = playbook(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a : ok=2 changed=2 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0" in done.stdout
    assert "b : ok=3 changed=2" in done.stdout


def test_only_what_failed_is_tried_again(folder: Path) -> None:
    text = PLAY.replace('two, command: "true"', "two, command: 'test {{ inventory_hostname }} = a'")
    (folder / "play.yml").write_text(text)
    done = playbook(folder)
    assert done.returncode == 1
    again = next(line for line in done.stdout.splitlines() if "--limit @" in line).split("--limit ")[1]
    shown = playbook(folder, "--list-hosts", "--limit", again)
    assert [line.strip() for line in shown.stdout.splitlines()][:3] == ["play 1  first  (all)", "hosts (1)", "b"]


def test_modules_are_listed_with_their_arguments(folder: Path) -> None:
    assert "copy" in bringup(folder, "modules").stdout
    shown = bringup(folder, "modules", "--name", "file").stdout
    assert "path  path, required" in shown
    assert "nearest: file" in bringup(folder, "modules", "--name", "fil").stderr


def test_a_play_that_reaches_a_host_in_another_way_is_refused(folder: Path) -> None:
    text = (folder / "play.yml").read_text()
    (folder / "play.yml").write_text(text.replace("- name: second\n", "- name: second\n  port: 2222\n"))
    done = playbook(folder)
    assert done.returncode == 2
    assert "play.yml:8:3  this play reaches b in another way than the play before it" in done.stderr
