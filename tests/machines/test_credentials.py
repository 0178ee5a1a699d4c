"""Passwords of every origin reach sudo on a real machine, through the public verb, and are never shown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from cluster import Cluster

ROOT = Path(__file__).parents[2]
INVOKE = [str(Path(sys.executable).parent / "invoke"), "-r", str(ROOT), "playbook", "play.yml", "-i", "./hosts.yml"]
PLAY = """
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - name: who am i
      command: id -un
      register: who
      changed_when: false
    - name: it is root
      assert:
        that: who.stdout == "root"
    - name: say it
      debug:
        msg: "it is {{ who.stdout }}"
"""


@pytest.fixture(scope="module")
def locked() -> Iterator[Cluster]:
    """One machine whose sudo asks for a password."""
    with Cluster(size=1, sudo="password") as booted:
        yield booted


@pytest.fixture
def site(locked: Cluster, tmp_path: Path) -> Path:
    (tmp_path / "play.yml").write_text(PLAY)
    locked.inventory(tmp_path / "hosts.yml", {"bringup_root": "/home/ops/.bringup"})
    return tmp_path


def _run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*INVOKE, *arguments], cwd=site, capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, start_new_session=True, env=_environment(site))


def _environment(site: Path) -> dict[str, str]:
    return {**os.environ, "BRINGUP_PROJECT": str(site)}


def _password_file(site: Path, text: str) -> str:
    path = site / "password"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)


def _shown_nowhere(site: Path, password: str, *texts: str) -> None:
    for text in texts:
        assert password not in text
    for path in (site / ".bringup").rglob("*"):
        if path.is_file():
            assert password.encode() not in path.read_bytes(), f"{path} holds the password"


def test_from_a_file(locked: Cluster, site: Path) -> None:
    done = _run(site, "--become-password-file", _password_file(site, locked.password), "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it is root" in done.stdout
    _shown_nowhere(site, locked.password, done.stdout, done.stderr)


def test_from_a_vaulted_variable(locked: Cluster, site: Path) -> None:
    (site / "vault-password").write_text("of the vault\n")
    (site / "group_vars").mkdir()
    vaulted = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-vault"), "encrypt_string", "--vault-password-file",
         "vault-password", "--name", "ansible_become_password", locked.password],
        cwd=site, capture_output=True, text=True, check=True)
    (site / "group_vars/all.yml").write_text(vaulted.stdout)
    done = _run(site, "--vault-password-file", "vault-password", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it is root" in done.stdout
    _shown_nowhere(site, locked.password, done.stdout, done.stderr)

    without = _run(site)
    assert without.returncode == 2
    assert "group_vars/all.yml" in without.stderr + without.stdout
    assert "--vault-password-file" in without.stderr + without.stdout


def test_typed_at_a_terminal(locked: Cluster, site: Path) -> None:
    child = pexpect.spawn(INVOKE[0], [*INVOKE[1:], "--ask-become-pass"], cwd=str(site), env=_environment(site),
                          encoding="utf-8", timeout=60)
    child.expect("sudo password: ")
    child.sendline(locked.password)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    _shown_nowhere(site, locked.password, child.before)


def test_the_ssh_password_from_an_inventory(locked: Cluster, site: Path) -> None:
    variables = {"bringup_root": "/home/ops/.bringup", "ansible_password": locked.password,
                 "ansible_become_password": locked.password, "ansible_ssh_private_key_file": "",
                 "bringup_ssh_config": False}
    locked.inventory(site / "hosts.yml", variables)
    done = _run(site, "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it is root" in done.stdout
    _shown_nowhere(site, locked.password, done.stdout, done.stderr)


@pytest.mark.parametrize(("password", "says"), [
    ("wrong-one-12345", "the sudo password of ops is wrong"), (None, "asks for the password of ops and none was given"),
])
def test_a_wrong_or_missing_password_ends_soon(site: Path, password: str | None, says: str) -> None:
    """One attempt, no waiting at a hidden prompt; nothing ran as root."""
    arguments = ["--become-password-file", _password_file(site, password)] if password else []
    done = _run(site, *arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert says in said
    assert "it is root" not in said
    assert "Traceback" not in said
    if password:
        _shown_nowhere(site, password, said)
