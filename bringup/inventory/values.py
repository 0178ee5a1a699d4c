"""What a variable's value means where a certain kind is expected, and values that cannot be meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.secrets import SCRUBBER
from bringup.base.text import nearest
from bringup.base.vault import Vault
from bringup.base.yaml import VaultedText, YamlList, YamlMap, YamlText, typed_text, value_origin
from bringup.inventory.ranges import RANGE

LEFT_OVER = re.compile(r"\$\{[^}]*\}?|%\{|<%|\[%")
"""Placeholders of a shell, of Terraform, of ERB and of Template Toolkit: no name, address or port holds one."""

_TEMPLATE = re.compile(r"\{\{|\{%")
_TRUE = ("true", "yes", "on", "1", "y", "t")
_FALSE = ("false", "no", "off", "0", "n", "f")
_WORDS = ("yes", "no", "on", "off", "true", "false")
_ADDRESSES = ("ansible_host", "ansible_ssh_host", "cluster_address")
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "ansible_become_password",
              "ansible_become_pass", "ansible_sudo_pass")
_PORTS = ("ansible_port", "ansible_ssh_port")


class IniText(YamlText):
    """A text from an INI file: words such as `yes` stay texts there."""


def text_of(mapping: Mapping[Any, Any], key: str) -> str:
    """The value as typed: `no`, `3.10`, `22:22`. For what becomes an environment or a configuration file."""
    return typed_text(mapping, key)


def flag_of(mapping: Mapping[Any, Any], key: str, default: bool = False) -> bool:
    """A yes or no, the same for YAML and INI. Raises InputError for a word that is neither."""
    if key not in mapping or mapping[key] is None:
        return default
    word = typed_text(mapping, key).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    near = nearest(word, _WORDS)
    raise InputError(f"`{key}` takes yes or no", where=value_origin(mapping, key),
                     expected=f"one of {', '.join(_WORDS)}", found=typed_text(mapping, key),
                     next=f"{key}: {near}" if near else None)


def number_of(mapping: Mapping[Any, Any], key: str, *, least: int = 0, most: int | None = None) -> int:
    """A whole number as typed, in decimal digits. Raises InputError."""
    text = typed_text(mapping, key).strip()
    bounds = f"a whole number from {least} on" if most is None else f"a whole number from {least} to {most}"
    if not re.fullmatch(r"0|-?[1-9][0-9]*", text) or int(text) < least or (most is not None and int(text) > most):
        raise InputError(f"`{key}` takes {bounds}", where=value_origin(mapping, key), found=text)
    return int(text)


def open_vaulted(value: Any, vault: Vault | None) -> Any:
    """The value with every vaulted text in it opened. Raises InputError when no password fits."""
    if isinstance(value, VaultedText):
        return (vault or Vault()).open(value, value.origin)
    if isinstance(value, YamlMap):
        twin = value.copy()
        for key, item in value.items():
            twin[key] = open_vaulted(item, vault)
        return twin
    if isinstance(value, YamlList):
        items = YamlList(value.origin)
        items.extend(open_vaulted(item, vault) for item in value)
        items.item_origins, items.item_texts = list(value.item_origins), dict(value.item_texts)
        return items
    return value


def wrong_values(variables: Mapping[Any, Any]) -> Iterator[InputError]:
    """Addresses and ports that cannot be meant: an unexpanded range, a left-over placeholder, no port number."""
    for key in (*_ADDRESSES, *_PORTS):
        if key not in variables or variables[key] is None:
            continue
        text, where = typed_text(variables, key), value_origin(variables, key)
        if isinstance(variables[key], VaultedText) or _TEMPLATE.search(text):
            continue
        if LEFT_OVER.search(text):
            yield InputError(f"`{key}` holds a placeholder that was not filled in: {text}", where=where,
                             next="run the generator of this file again")
        elif RANGE.search(text):
            yield InputError(f"`{key}` holds a range: {text}", where=where,
                             details=["only names are expanded: every host would get this very text"],
                             next=f"one line per host, each with its own {key}")
        elif key in _PORTS:
            try:
                number_of(variables, key, least=1, most=65535)
            except InputError as error:
                yield error


def learn_passwords(variables: Mapping[Any, Any]) -> None:
    """Make passwords that stand in plain variables known to the scrubber."""
    for key in _PASSWORDS:
        if isinstance(variables.get(key), (str, int)) and not isinstance(variables[key], VaultedText):
            text = typed_text(variables, key)
            if not _TEMPLATE.search(text):
                SCRUBBER.add(text)


def surprises(variables: Mapping[Any, Any]) -> Iterator[tuple[Origin, str]]:
    """Values that are read otherwise than they look, in Ansible too."""
    for key, value in variables.items():
        where = value_origin(variables, key) or Origin("")
        if not re.fullmatch(r"[A-Za-z_]\w*", str(key)):
            better = re.sub(r"\W", "_", str(key))
            hint = "" if better[:1].isdigit() else f"; write {better}"
            yield where, f"`{key}` is no name that a template can use{hint}"
        if isinstance(value, (dict, list)):
            continue
        typed = typed_text(variables, key)
        if isinstance(value, IniText) and value.lower() in _WORDS:
            yield where, f"`{key}={typed}` stays a text in INI, and any text counts as true; write True or False"
        elif isinstance(value, int) and not isinstance(value, bool) and re.search(r":|^[-+]?0\d|_", typed):
            yield where, f"`{key}: {typed}` is read as the number {value}; quote it to keep the text"
