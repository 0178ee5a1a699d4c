"""group_vars/ and host_vars/ of one folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base import yaml
from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.secrets import SCRUBBER
from bringup.base.text import nearest
from bringup.base.vault import Vault, is_vaulted
from bringup.base.yaml import YamlMap

ENDINGS = ("", ".yml", ".yaml", ".json")


def shown(path: Path) -> str:
    """A path as messages show it: relative to the current folder where it lies below."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_text(path: Path, vault: Vault | None) -> tuple[str, bool]:
    """The text of a file, opened when it is vaulted, and whether it was. Raises InputError."""
    name = shown(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=name) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=name) from None
    if not is_vaulted(text):
        return text, False
    return (vault or Vault()).open(text, name).reveal(), True


def read_variables(path: Path, vault: Vault | None) -> YamlMap:
    """The mapping of variables in a YAML or JSON file; empty for an empty file. Raises InputError.

    Texts of a vaulted file become known to the scrubber.
    """
    name = shown(path)
    text, vaulted = read_text(path, vault)
    data = yaml.load(text, name)
    if data is None:
        return YamlMap(Origin(name))
    if not isinstance(data, YamlMap):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise InputError(f"holds {kind} where a mapping of variables belongs", where=Origin(name, 1),
                         expected="lines of the form `name: value`")
    if vaulted:
        for leaf in _leaves(data):
            SCRUBBER.add(leaf)
    return data


_SHORTEST_SECRET = 5
"""A text of a vaulted file shorter than this (`root`, `eth0`) would blank ordinary words if it were masked."""


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
        yield value


@dataclass
class VarFiles:
    """The variable files of one folder, read once. A file that lies in the shade of another is told in `warnings`."""

    folder: Path
    vault: Vault | None = None
    warnings: list[tuple[Origin, str]] = field(default_factory=list)
    _read: dict[tuple[str, str], YamlMap] = field(default_factory=dict)

    def group(self, name: str) -> YamlMap:
        """Variables of a group. Raises InputError."""
        return self._variables("group_vars", name)

    def host(self, name: str) -> YamlMap:
        """Variables of a host. Raises InputError."""
        return self._variables("host_vars", name)

    def strangers(self, groups: list[str], hosts: list[str]) -> Iterator[tuple[Origin, str]]:
        """Variable files that belong to nothing here and look like a misspelled name."""
        for kind, known in (("group_vars", groups), ("host_vars", hosts)):
            folder = self.folder / kind
            if not folder.is_dir():
                continue
            for entry in sorted(folder.iterdir()):
                name = entry.stem if entry.suffix in ENDINGS[1:] else entry.name
                near = nearest(name, known)
                if name not in known and near and not name.startswith("."):
                    noun = "group" if kind == "group_vars" else "host"
                    yield Origin(shown(entry)), f"belongs to no {noun} of this inventory; nearest: {near}"

    def _variables(self, kind: str, name: str) -> YamlMap:
        key = (kind, name)
        if key not in self._read:
            out = YamlMap(Origin(shown(self.folder / kind)))
            for path in self._files(self.folder / kind, name):
                data = read_variables(path, self.vault)
                for variable in data:
                    out.take(variable, data)
            self._read[key] = out
        return self._read[key]

    def _files(self, folder: Path, name: str) -> list[Path]:
        if name.startswith(os.sep) or not folder.is_dir():
            return []
        found = [folder / f"{name}{ending}" for ending in ENDINGS if (folder / f"{name}{ending}").exists()]
        for hidden in found[1:]:
            self.warnings.append((Origin(shown(hidden)), f"is not read: {shown(found[0])} comes first"))
        if not found:
            return []
        return list(_below(found[0])) if found[0].is_dir() else [found[0]]


def _below(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir(), key=lambda path: path.name):
        if entry.name.startswith(".") or entry.name.endswith("~"):
            continue
        if entry.is_dir() and not entry.suffix:
            yield from _below(entry)
        elif entry.is_file() and entry.suffix in ENDINGS:
            yield entry
