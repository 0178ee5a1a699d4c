"""Every playbook of the corpus gives the same recap and the same files as `ansible-playbook`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import judge
import pytest
from corpus import CASES, REFUSED


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_same_as_ansible(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = judge.ansible(case, tmp_path)
    ours, printed = judge.bringup(case, tmp_path)
    found = judge.differences(theirs, ours)
    assert not found, "\n".join([*found, "", "what the runs printed:", *printed])


@pytest.mark.full
def test_listed_differences_are_these_and_no_others(tmp_path: Path) -> None:
    """Each stands with its reason in docs/playbooks-differences.md."""
    case = judge.Case("differences.yml", runs=((),))
    ours, _ = judge.bringup(case, tmp_path)
    assert judge.differences(judge.ansible(case, tmp_path), ours) == [
        "run 1 tree h1/noend:\n    ansible 'file 0644 me:mine x1 onetwo\\n'\n"
        "    bringup 'file 0644 me:mine x1 one\\ntwo\\n'",
        "run 1 tree h1/owner:\n    ansible 'file 0644 me:mine x1 x\\n'\n    bringup None",
        "run 1 tree h1/unnamed:\n    ansible 'file 0644 me:mine x1 .'\n    bringup 'file 0644 me:mine x1 command.'",
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_host_is_contacted(name: str, tmp_path: Path) -> None:
    """What Ansible would run into, or do silently, is told with file and line; no task before it has run."""
    task, expected = REFUSED[name]
    (tmp_path / "hosts.ini").write_text(f"h1 ansible_connection=local root={tmp_path}\n")
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        f"    - copy: {{content: x, dest: '{{{{ root }}}}/made'}}\n    - {task}\n")
    done = subprocess.run([judge.BIN / "bringup", "playbook", "play.yml", "--inventory", "hosts.ini"], cwd=tmp_path,
                          env={**os.environ, "BRINGUP_PROJECT": str(tmp_path)}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "play.yml:5:" in done.stderr
    assert "nothing was contacted" in done.stderr
    for words in expected:
        assert words in done.stderr
    assert not (tmp_path / "made").exists()
