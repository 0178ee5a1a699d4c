"""Passwords: from files, programs and a real terminal; extra variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER
from bringup.cli.credentials import parse_extra_vars, password_from, read_credentials, read_vault
from bringup.cli.options import Options

ASK = """
import sys
from bringup.cli.credentials import read_credentials
from bringup.cli.options import Options, guarded
def body():
    found = read_credentials(Options({flags}))
    print("GOT", found.ssh_password and found.ssh_password.reveal()[::-1],
          found.become_password and found.become_password.reveal()[::-1])
sys.exit(guarded(body))
"""


def _file(folder: Path, name: str, text: str, *, run: bool = False) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o700 if run else 0o600)
    return str(path)


def _ask(flags: dict[str, object]) -> pexpect.spawn:
    return pexpect.spawn(sys.executable, ["-c", ASK.replace("{flags}", repr(flags))], timeout=20, encoding="utf-8")


def test_asked_once_and_unseen_at_a_terminal() -> None:
    child = _ask({"ask_pass": True, "ask_become_pass": True})
    child.expect("SSH password: ")
    child.sendline("ssh-geheim")
    child.expect(r"sudo password \(empty: the SSH password\): ")
    child.sendline("sudo-geheim")
    child.expect(pexpect.EOF)
    assert "GOT miehegx".replace("x", "-hss") in child.before
    assert "miehegx".replace("x", "-odus") in child.before
    assert "geheim" not in child.before


def test_an_empty_answer_for_sudo_is_the_ssh_password() -> None:
    child = _ask({"ask_pass": True, "ask_become_pass": True})
    child.expect("SSH password: ")
    child.sendline("abcdef")
    child.expect("sudo password")
    child.sendline("")
    child.expect(pexpect.EOF)
    assert "GOT fedcba fedcba" in child.before


def test_nothing_typed_is_an_error() -> None:
    child = _ask({"ask_become_pass": True})
    child.expect("sudo password: ")
    child.sendline("")
    child.expect(pexpect.EOF)
    child.close()
    assert "no sudo password was typed" in child.before
    assert child.exitstatus == 2


def test_interrupt_at_the_prompt() -> None:
    child = _ask({"ask_become_pass": True})
    child.expect("sudo password: ")
    for _ in range(4):
        # Python sees a signal that comes just before it begins to read only once it has read: a person presses again
        child.sendintr()
        if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=10) == 0:
            break
    child.close()
    assert child.exitstatus == 130


@pytest.mark.parametrize(("flags", "says"), [
    ({"ask_become_pass": True}, "no terminal to ask for the sudo password"),
    ({"ask_pass": True}, "no terminal to ask for the SSH password"),
    ({"vault_password_file": ["prompt"]}, "no terminal to ask for the Vault password"),
])
def test_without_a_terminal_it_is_exit_2(flags: dict[str, object], says: str) -> None:
    done = subprocess.run([sys.executable, "-c", ASK.replace("{flags}", repr(flags))], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, start_new_session=True, timeout=30)
    assert done.returncode == 2
    assert says in done.stderr
    assert "nothing was contacted" in done.stderr


def test_a_file_and_a_program(tmp_path: Path) -> None:
    plain = _file(tmp_path, "plain", "  from-a-file \n")
    program = _file(tmp_path, "program", "#!/bin/sh\necho from-a-program\n", run=True)
    for file, wanted in ((plain, "from-a-file"), (program, "from-a-program")):
        found = read_credentials(Options({"become_password_file": file})).become_password
        assert found == wanted
        assert wanted not in repr(found)
        assert wanted not in SCRUBBER.text(f"it was {wanted}!")


@pytest.mark.parametrize(("text", "run", "says"), [
    ("\n", False, "gives no password"), ("#!/bin/sh\nexit 7\n", True, "ended with 7"),
    ("#!/bin/sh\n", True, "gives no password"), ("plain text", True, "executable bit"),
])
def test_a_file_that_gives_none(tmp_path: Path, text: str, run: bool, says: str) -> None:
    with pytest.raises(InputError, match=says):
        password_from(_file(tmp_path, "f", text, run=run), "--become-password-file")


def test_no_such_file() -> None:
    with pytest.raises(InputError, match="--become-password-file: there is no file `/nowhere`"):
        read_credentials(Options({"become_password_file": "/nowhere"}))


def test_vault_passwords_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = _file(tmp_path, "one", "first\n"), _file(tmp_path, "two", "second\n")
    client = _file(tmp_path, "keys-client", '#!/bin/sh\necho "for-$2"\n', run=True)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", _file(tmp_path, "env", "from-environment\n"))
    vault = read_vault(Options({"vault_password_file": [one, f"dev@{two}", f"prod@{client}"]}))
    assert vault.passwords == {"default": ["first", "from-environment"], "dev": ["second"], "prod": ["for-prod"]}


@pytest.mark.parametrize(("given", "wanted"), [
    (["a=1"], {"a": "1"}),
    (["a=1 b='two words' c=\"{{ x | default('y z') }}\""],
     {"a": "1", "b": "two words", "c": "{{ x | default('y z') }}"}),
    (["a={{ x + 1 }} b=c=d"], {"a": "{{ x + 1 }}", "b": "c=d"}),
    (['{"a": 1, "b": [true]}'], {"a": 1, "b": [True]}),
    (["{a: yes, b: 3.5}"], {"a": True, "b": 3.5}),
    (["a=1", "a=2 b=3"], {"a": "2", "b": "3"}),
    ([" ", ""], {}),
])
def test_extra_vars(given: list[str], wanted: dict[str, object]) -> None:
    assert parse_extra_vars(given) == wanted


def test_extra_vars_from_a_file(tmp_path: Path) -> None:
    file = _file(tmp_path, "vars.yml", "a: 1\nb: text\n")
    assert parse_extra_vars([f"@{file}", "b=later"]) == {"a": 1, "b": "later"}


@pytest.mark.parametrize(("text", "says"), [
    ("./vars.yml", "@ before it"), ("[1]", "a mapping of variables belongs here"), ("word", "without `=`"),
    ("a='x", "quote is not closed"), ("a={{ x", "template is not closed"), ("@/nowhere", "cannot be read"),
    ("{a: 1, a: 2}", "stands twice"),
])
def test_extra_vars_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_extra_vars([text])


def test_extra_vars_refused_shows_no_value() -> None:
    with pytest.raises(InputError) as caught:
        parse_extra_vars(["password='hidden-value"])
    assert "hidden-value" not in str(caught.value)
