"""Inventories that a program prints: `PROGRAM --list`, and `PROGRAM --host NAME` where it gives no `_meta`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bringup.base import yaml
from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import printable
from bringup.base.yaml import YamlMap
from bringup.inventory.draft import Draft

DEADLINE = 300.0
"""Seconds for one call: cloud inventories take a minute or two, a hanging one must not hold a run forever."""


def read(draft: Draft, path: Path, file: str) -> None:
    """Run a program and add what it prints. Raises InputError when it fails or prints something else."""
    origin = Origin(f"{file} --list")
    data = _call(path, ["--list"], origin)
    meta = data.pop("_meta", None)
    hostvars = meta.get("hostvars") if isinstance(meta, dict) else None
    if meta is not None and not isinstance(hostvars, dict):
        raise InputError("`_meta` holds no mapping `hostvars`", where=origin)
    named: dict[str, None] = {}
    for group, value in data.items():
        _group(draft, str(group), value, origin, named)
    for host in named:
        if hostvars is None:
            variables: Any = _call(path, ["--host", host], Origin(f"{file} --host {host}"), empty=True)
        else:
            variables = hostvars.get(host, {})
        if not isinstance(variables, dict):
            raise InputError(f"the variables of `{host}` are no mapping", where=origin)
        draft.set_host(host, variables, origin)


def _call(path: Path, arguments: list[str], origin: Origin, *, empty: bool = False) -> YamlMap:
    try:
        done = subprocess.run([str(path.absolute()), *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=DEADLINE, check=False)
    except OSError as error:
        raise InputError(f"cannot be run: {error.strerror or error}", where=origin) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"gave no answer for {DEADLINE:.0f} s", where=origin) from None
    said = [printable(line) for line in done.stderr.decode("utf-8", "replace").splitlines()[-10:]]
    if done.returncode:
        raise InputError(f"ended with {done.returncode}", where=origin, details=said)
    text = done.stdout.decode("utf-8", "replace")
    if empty and not text.strip():
        return YamlMap(origin)
    try:
        json.loads(text)
    except ValueError as error:
        raise InputError(f"printed no JSON: {error}", where=origin, details=said) from None
    data = yaml.load(text, str(origin))
    if not isinstance(data, YamlMap):
        raise InputError("printed no JSON object", where=origin, details=said)
    return data


def _group(draft: Draft, name: str, value: Any, origin: Origin, named: dict[str, None]) -> None:
    draft.group(name, origin)
    if not isinstance(value, dict):
        value = {"hosts": value}
    elif value and not value.keys() & {"hosts", "vars", "children"}:
        value = {"hosts": [name], "vars": value}
        draft.warnings.append((origin, f"`{name}` has none of hosts, vars and children: it is read as a host"))
    for section, kind in (("hosts", list), ("vars", dict), ("children", list)):
        if section in value and not isinstance(value[section], kind):
            raise InputError(f"`{section}` of the group `{name}` is no {'mapping' if kind is dict else 'list'}",
                             where=origin)
    for host in value.get("hosts", ()):
        draft.host(str(host), name, origin)
        named[str(host)] = None
    draft.set_group(name, value.get("vars", {}), origin)
    for child in value.get("children", ()):
        draft.group(str(child), origin)
        draft.child(name, str(child), origin)
