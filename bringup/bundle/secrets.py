"""Nothing that is secret goes into a bundle: what is packed as it lies here is looked through first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER
from bringup.base.vault import Vault
from bringup.base.yaml import VaultedText

_LARGEST = 8 << 20
"""Bytes of a file that are looked at: a secret is a small text; weights and archives are not read."""
_SIGNS = (
    (re.compile(rb"\$ANSIBLE_VAULT;\d"), "a vaulted text"),
    (re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{16}"), "a private key"),
    (re.compile(rb"(?:url|insteadOf)\s*=\s*\w+://[^/@\s:]+:[^/@\s]+@"), "an address with a password"),
)
_NAMES = re.compile(r"(?i)(password|passwd|secret|token|api_?key|_pass)$")


def learn_secrets(variables: Iterable[Mapping[str, Any]], vault: Vault | None = None) -> None:
    """Make vaulted values that a password opens, and plain ones whose name says secret, known to the scrubber.

    A vaulted value that nothing opens stays closed: it lies nowhere in plain text. Raises InputError when a password
    was given and does not open it.
    """
    for one in variables:
        _learn("", one, vault)


def _learn(name: str, value: Any, vault: Vault | None) -> None:
    if isinstance(value, VaultedText):
        if vault is not None and vault.passwords:
            vault.open(value, value.origin)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _learn(str(key), item, vault)
    elif isinstance(value, list):
        for item in value:
            _learn(name, item, vault)
    elif isinstance(value, str) and _NAMES.search(name) and "{{" not in value and len(value) >= 6:
        SCRUBBER.add(value)


def refuse_secrets(path: Path, shown: str) -> None:
    """Raise InputError when a file holds something secret; binary and very large files are taken as they are."""
    with path.open("rb") as file:
        data = file.read(_LARGEST)
    refuse_in(data, shown)


def refuse_in(data: bytes, shown: str) -> None:
    """The same for content."""
    for sign, what in _SIGNS:
        found = sign.search(data)
        if found:
            raise _refused(what, f"{shown}:{data.count(bytes([10]), 0, found.start()) + 1}")
    text = data.decode("utf-8", "surrogateescape")
    if SCRUBBER.text(text) != text:
        raise _refused("a value that is secret in this inventory", shown)


def _refused(what: str, where: str) -> InputError:
    return InputError(f"{what} would go into the bundle", where=where, expected="no secret in anything that is carried",
                      next="keep it in the inventory's folder: inventories never go into a bundle")
