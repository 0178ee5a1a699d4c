"""`invoke inventory`: what an inventory says, as a table, a tree, or in the JSON of `ansible-inventory`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER
from bringup.cli.options import READING, Option, Options, verb

if TYPE_CHECKING:
    from bringup.inventory.model import Inventory

_OPTIONS = (
    *READING,
    Option("list", False, "all hosts (the default)"),
    Option("graph", False, "groups and hosts as a tree"),
    Option("host", help="the variables of one host"),
    Option("playbook-dir", help="also read group_vars/ and host_vars/ of this folder"),
)


@verb(_OPTIONS)
def inventory(options: Options) -> None:
    """Show the hosts, groups and variables of an inventory."""
    found = load_for(options, Path(options.playbook_dir) if options.playbook_dir else None)
    if sum((options.list, options.graph, options.host is not None)) > 1:
        raise InputError("--list, --graph and --host exclude each other")
    hosts = found.select(options.limit) if options.limit else list(found.hosts)
    _say(_shown(options, found, hosts))
    for file in options.report:
        _write(file, found, hosts)
    if options.format == "text":
        for origin, text in found.warnings:
            print(SCRUBBER.text(f"note  {origin}  {text}"), file=sys.stderr)


def load_for(options: Options, playbook_dir: Path | None = None) -> Inventory:
    """The inventory that a verb's flags name, with its vault passwords and extra variables. Raises InputError."""
    from bringup.base.paths import Project
    from bringup.cli.credentials import extra_vars_of, read_vault
    from bringup.inventory.load import load_inventory

    vault = read_vault(options)
    return load_inventory(options.inventory, Project.find(), vault=vault, playbook_dir=playbook_dir,
                          extra_vars=extra_vars_of(options, vault))


def _shown(options: Options, found: Inventory, hosts: list[str]) -> list[str]:
    from bringup.inventory import listing

    json_wanted = options.format == "json"
    if options.host is not None:
        names = found.select(options.host)
        if len(names) != 1:
            raise InputError(f"--host takes one host; `{options.host}` means {len(names)}")
        if json_wanted:
            return [_json(listing.as_host(found, names[0]))]
        return list(_variables(found, names[0]))
    if options.graph:
        if json_wanted:
            raise InputError("--graph is text; the JSON of --list holds the same")
        return listing.as_graph(found)
    if json_wanted:
        return [_json(listing.as_list(found, hosts))]
    lines = _columns(listing.as_table(found, hosts))
    if options.verbose:
        for name in hosts:
            lines += ["", name, *(f"  {line}" for line in _variables(found, name))]
    return lines


def _write(file: str, found: Inventory, hosts: list[str]) -> None:
    from bringup.inventory import listing

    if not file.endswith(".json"):
        raise InputError("an inventory is reported as .json only", found=file)
    try:
        Path(file).write_text(SCRUBBER.text(_json(listing.as_list(found, hosts))) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report {file} cannot be written: {error.strerror or error}") from None


def _variables(found: Inventory, host: str) -> Iterable[str]:
    from bringup.base.yaml import VaultedText, value_origin
    from bringup.inventory import listing

    merged = found.variables(host)
    rows = []
    for name in sorted(merged, key=str):
        value = merged[name]
        text = "(vaulted)" if isinstance(value, VaultedText) else json.dumps(listing.plain(value), ensure_ascii=False)
        origin = value_origin(merged, name)
        rows.append([str(name), text, origin.short if origin else ""])
    return _columns(rows)


def _columns(rows: list[list[str]]) -> list[str]:
    """Rows as lines with aligned columns; a very wide cell does not push the others away."""
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= 48), default=0) for i in range(len(rows[0]))] if rows \
        else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, indent=4)


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(SCRUBBER.text(line))
