"""Passwords and extra variables of a call, read once and before any connection."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER, Secret
from bringup.cli.options import Options

if TYPE_CHECKING:
    from bringup.base.vault import Vault

SCRIPT_DEADLINE = 120.0
"""Seconds for a program that prints a password: it may ask a person or a key service."""


@dataclass(frozen=True)
class Credentials:
    """What was given on the command line; None where nothing was. Variables of the inventory may give more."""

    become_password: Secret | None
    ssh_password: Secret | None
    vault: Vault


def read_credentials(options: Options) -> Credentials:
    """Ask for or read every password that the flags name, each once.

    Raises InputError where one is missing: no terminal to ask at, a file that cannot be read or holds nothing, a
    program that fails. An empty answer for sudo means the SSH password, as in Ansible.
    """
    given = options.values
    ssh = ask("SSH password: ") if given.get("ask_pass") else None
    become: Secret | None = None
    if given.get("ask_become_pass"):
        prompt = "sudo password (empty: the SSH password): " if ssh else "sudo password: "
        become = ask(prompt, instead=ssh)
    elif given.get("become_password_file"):
        become = password_from(str(given["become_password_file"]), "--become-password-file")
    return Credentials(become, ssh, read_vault(options))


def read_vault(options: Options) -> Vault:
    """The vault passwords of `--vault-password-file` and ANSIBLE_VAULT_PASSWORD_FILE.

    Each is FILE, ID@FILE, `prompt` or ID@prompt. A program is run; one whose name ends with `-client` is also given
    `--vault-id ID`, as Ansible does. Raises InputError.
    """
    from bringup.base.vault import Vault

    sources = [str(source) for source in options.values.get("vault_password_file") or ()]
    if os.environ.get("ANSIBLE_VAULT_PASSWORD_FILE"):
        sources.append(os.environ["ANSIBLE_VAULT_PASSWORD_FILE"])
    passwords: dict[str, list[Secret]] = {}
    for source in dict.fromkeys(sources):
        label, at, rest = source.partition("@")
        label, file = (label or "default", rest) if at and not Path(source).exists() else ("default", source)
        if file == "prompt" and not Path(file).exists():
            secret = ask(f"Vault password ({label}): " if at else "Vault password: ")
        else:
            client = Path(file).stem.endswith("-client")
            secret = password_from(file, "--vault-password-file", ["--vault-id", label] if client and at else [])
        passwords.setdefault(label, []).append(secret)
    return Vault(passwords)


def ask(prompt: str, *, instead: Secret | None = None) -> Secret:
    """A password typed at the terminal, unseen. Raises InputError without a terminal, or when nothing is typed."""
    import getpass

    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise InputError(f"there is no terminal to ask for the {prompt.split(' (')[0].rstrip(': ')}",
                         next="--become-password-file FILE, or ansible_become_password in the inventory"
                         if "sudo" in prompt else "a variable of the inventory, as ansible_password, vaulted") from None
    try:
        typed = getpass.getpass(prompt)
    except EOFError:
        typed = ""
    if not typed:
        if instead is not None:
            return instead
        raise InputError(f"no {prompt.split(' (')[0].rstrip(': ')} was typed")
    return _learn(typed)


def password_from(file: str, flag: str, arguments: Sequence[str] = ()) -> Secret:
    """The password that a file holds, or that a program prints. Raises InputError."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError(f"{flag}: there is no file `{file}`")
    text = _printed_by(path, flag, arguments) if os.access(path, os.X_OK) else _held_by(path, flag)
    password = text.strip("\r\n")
    if not password:
        raise InputError(f"{flag}: `{file}` gives no password", found="nothing")
    return _learn(password)


def _held_by(path: Path, flag: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(f"{flag}: `{path}` cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{flag}: `{path}` is not UTF-8 text") from None


def _printed_by(path: Path, flag: str, arguments: Sequence[str]) -> str:
    import subprocess

    try:
        done = subprocess.run([str(path.absolute()), *arguments], stdout=subprocess.PIPE, check=False,
                              timeout=SCRIPT_DEADLINE)
    except subprocess.TimeoutExpired:
        raise InputError(f"{flag}: `{path}` gave no answer for {SCRIPT_DEADLINE:.0f} s") from None
    except OSError as error:
        raise InputError(f"{flag}: `{path}` cannot be run: {error.strerror or error}",
                         next="take away its executable bit if it is a plain file") from None
    if done.returncode:
        raise InputError(f"{flag}: `{path}` ended with {done.returncode}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _learn(password: str) -> Secret:
    SCRUBBER.add(password)
    return Secret(password)


API_KEY = "bringup_api_key"
"""The variable that --ask-api-key sets: `api_key: "{{ bringup_api_key }}"` in the deployment."""
_TYPED: dict[str, Secret] = {}


def extra_vars_of(options: Options, vault: Vault | None = None) -> dict[str, Any]:
    """The variables of --extra-vars, and the endpoint's key where --ask-api-key has it typed, once for a command.
    Raises InputError."""
    out = parse_extra_vars(options.values.get("extra_vars") or (), vault)
    if options.values.get("ask_api_key"):
        if API_KEY not in _TYPED:
            _TYPED[API_KEY] = ask("API key of the endpoint: ")
        out[API_KEY] = _TYPED[API_KEY].reveal()
    return out


def parse_extra_vars(given: Sequence[str], vault: Vault | None = None) -> dict[str, Any]:
    """Variables of `--extra-vars`, later ones win: `name=value ...` (values are texts), a YAML or JSON mapping, @FILE.

    Raises InputError.
    """
    out: dict[str, Any] = {}
    for text in given:
        out.update(_extra(text.strip(), vault))
    return out


def _extra(text: str, vault: Vault | None) -> dict[str, Any]:
    # the text itself may hold a password: messages name the flag only
    where = "--extra-vars"
    if not text:
        return {}
    if text.startswith("@"):
        from bringup.inventory.varfiles import read_variables

        return read_variables(Path(text[1:]).expanduser(), vault)
    if text[0] in "/.":
        raise InputError("a file of variables is written with an @ before it", where=where,
                         next=f"--extra-vars @{text}")
    if text[0] in "{[":
        from bringup.base import yaml

        data = yaml.load(text, "--extra-vars")
        if not isinstance(data, dict):
            raise InputError("a mapping of variables belongs here", where=where, expected='{"name": "value"}')
        return data
    out: dict[str, Any] = {}
    for word in _words(text, where):
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError("a word without `=` is no variable", where=where,
                             expected="name=value, {name: value} or @FILE")
        out[name.strip()] = _unquoted(value.strip())
    return out


def _words(text: str, where: str) -> list[str]:
    """Split at blanks, but not inside quotes or a template."""
    words, current, quote, depth = [], "", "", 0
    for index, character in enumerate(text):
        pair = text[index : index + 2]
        if quote:
            quote = "" if character == quote and text[index - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif pair in ("{{", "{%", "{#"):
            depth += 1
        elif pair in ("}}", "%}", "#}") and depth:
            depth -= 1
        if character.isspace() and not quote and not depth:
            if current:
                words.append(current)
            current = ""
        else:
            current += character
    if quote or depth:
        raise InputError("a quote is not closed" if quote else "a template is not closed", where=where)
    return [*words, current] if current else words


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
