"""From the names of sources to an Inventory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.paths import Project
from bringup.base.text import nearest
from bringup.base.vault import Vault
from bringup.inventory import ini_source, script_source, yaml_source
from bringup.inventory.draft import Draft
from bringup.inventory.model import Inventory
from bringup.inventory.problems import Problems
from bringup.inventory.ranges import expand
from bringup.inventory.values import learn_passwords, surprises, wrong_values
from bringup.inventory.varfiles import VarFiles, read_text, shown

DEFAULT = "lab"
"""The inventory that is meant when none is named: the embedded lab."""

_ENDINGS = ("", ".yml", ".yaml", ".ini")
_IGNORED = re.compile(
    r"^\.|^(host_vars|group_vars|vars_plugins)$|(\.pyc|\.pyo|\.swp|\.bak|~|\.rpm|\.md|\.txt|\.rst|\.orig|\.cfg|\.retry)$")
_YAML_START = re.compile(r"""^(---|\{|%YAML|([^\s\[#;"'][^\s]*|"[^"]*"|'[^']*'):(\s|$))""")


def load_inventory(
    sources: Sequence[str],
    project: Project,
    *,
    extra_vars: Mapping[str, Any] | None = None,
    vault: Vault | None = None,
    playbook_dir: Path | None = None,
) -> Inventory:
    """Read and merge sources: names looked up in inventory/, files, folders, programs, `host1,host2` lists.

    Later sources win. `playbook_dir` adds the group_vars/ and host_vars/ beside a playbook, which win over those
    beside a source. Raises InputError with file and line; an inventory without a host is one too.
    """
    names = list(sources) or [DEFAULT]
    draft = Draft()
    paths: list[Path] = []
    for name in names:
        if "," in name and not Path(name).exists():
            draft.source = None
            _host_list(draft, name)
            continue
        path = find_source(name, project)
        paths.append(path)
        for file in _files(path):
            draft.source = file
            _read(draft, file, vault)
    draft.source = None
    draft.finish()
    shown_as = ", ".join(shown(path) for path in paths) or ", ".join(names)
    if not draft.hosts:
        raise InputError("no hosts: the inventory is empty", where=shown_as,
                         expected="at least one host, as in", details=["all:", "  hosts:", "    gpu01:"])
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    inventory = Inventory(
        sources=paths, hosts=draft.hosts, groups=draft.groups, shown_as=shown_as, warnings=draft.warnings,
        extra_vars=extra_vars or {}, vault=vault,
        beside=[VarFiles(folder.resolve(), vault) for folder in folders],
        play=VarFiles(playbook_dir.resolve(), vault) if playbook_dir else None)
    _check(inventory)
    return inventory


def find_source(name: str, project: Project) -> Path:
    """The file or folder that a name means. Raises InputError with the nearest name."""
    folder = project.root / "inventory"
    bare = os.sep not in name
    if bare:
        for ending in _ENDINGS:
            if (folder / f"{name}{ending}").exists():
                return folder / f"{name}{ending}"
    if Path(name).expanduser().exists():
        return Path(name).expanduser()
    known = sorted({entry.stem for entry in folder.iterdir()} - {"group_vars", "host_vars"}) if folder.is_dir() else []
    near = nearest(Path(name).stem, known)
    raise InputError(f"there is no inventory `{name}`", expected="a file, a folder" + (
                         f", or a name in {shown(folder)}/: {', '.join(known)}" if known else f", or a name in "
                         f"{shown(folder)}/, which holds none"),
                     next=f"--inventory {near}" if near else None)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for entry in sorted(path.iterdir(), key=lambda item: item.name):
        if not _IGNORED.search(entry.name):
            yield from _files(entry)


def _host_list(draft: Draft, text: str) -> None:
    origin = Origin(f"--inventory {text}")
    for part in text.split(","):
        if part.strip():
            names, port = expand(part.strip(), origin)
            for name in names:
                if name not in draft.hosts:
                    draft.host(name, "ungrouped", origin, port)


def _read(draft: Draft, path: Path, vault: Vault | None) -> None:
    file = shown(path)
    if path.suffix == ".toml":
        raise InputError("is TOML, which is not read here", where=file,
                         next=f"ansible-inventory -i {file} --list --yaml --export > {path.stem}.yml")
    if os.access(path, os.X_OK) and _is_program(path):
        script_source.read(draft, path, file)
        return
    text, _ = read_text(path, vault)
    if path.suffix in (".yml", ".yaml", ".json") or (path.suffix != ".ini" and _looks_like_yaml(text)):
        yaml_source.read(draft, text, file)
    else:
        ini_source.read(draft, text, file)


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(4)
            return head[:2] == b"#!" or head == b"\x7fELF"
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=shown(path)) from None


def _looks_like_yaml(text: str) -> bool:
    for line in text.splitlines():
        if line.strip() and line.lstrip()[0] not in "#;":
            return bool(_YAML_START.match(line))
    return False


def _check(inventory: Inventory) -> None:
    """Read every variable file, refuse values that cannot be meant, note what may surprise."""
    problems = Problems()
    folders = [*inventory.beside, *([inventory.play] if inventory.play else [])]
    layers: list[Mapping[Any, Any]] = [group.vars for group in inventory.groups.values()]
    layers += [host.vars for host in inventory.hosts.values()]
    for files in folders:
        layers += [files.group(name) for name in inventory.groups]
        layers += [files.host(name) for name in inventory.hosts]
        inventory.warnings += files.warnings
        inventory.warnings += files.strangers(list(inventory.groups), list(inventory.hosts))
    layers.append(inventory.extra_vars)
    for variables in layers:
        learn_passwords(variables)
        for error in wrong_values(variables):
            problems.add(error)
        inventory.warnings += surprises(variables)
    problems.raise_if_any()
    inventory.warnings += _overruled(inventory, folders)
    inventory.warnings[:] = list(dict.fromkeys(inventory.warnings))


def _overruled(inventory: Inventory, folders: Sequence[VarFiles]) -> Iterator[tuple[Origin, str]]:
    """Variables of a group in the inventory that a group_vars/ file of `all` replaces: files come after texts."""
    for files in folders:
        everywhere = files.group("all")
        for group in inventory.groups.values():
            for key in group.vars.keys() & everywhere.keys():
                if group.name != "all" and group.vars[key] != everywhere[key]:
                    yield (everywhere.value_origins[key],
                           f"`{key}` here wins over its value for the group {group.name} in the inventory itself; "
                           f"move that one to group_vars/{group.name}.yml")
