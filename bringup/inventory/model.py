"""Hosts, groups and their variables, as the rest of the package sees them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.origin import Origin
from bringup.base.vault import Vault
from bringup.base.yaml import YamlMap
from bringup.inventory.varfiles import VarFiles

LOCALHOST = ("localhost", "127.0.0.1", "::1")
"""Names that are a host without standing in an inventory, as in Ansible."""


@dataclass
class Group:
    """A group: own variables, direct hosts, direct children, all in the order of the text."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    depth: int = 0
    priority: int = 1
    origin: Origin | None = None


@dataclass
class Host:
    """A host: own variables, the groups that it is a direct member of, the source that named it first."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    origin: Origin | None = None
    source: Path | None = None


@dataclass
class Inventory:
    """One or more inventory sources, merged. Variables are as written: templating is the playbook's.

    `beside` are the group_vars/ and host_vars/ of each source, `play` those of the playbook's folder.
    `warnings` say where Ansible's reading, which holds here too, may surprise.
    """

    sources: Sequence[Path]
    hosts: dict[str, Host] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    shown_as: str = ""
    warnings: list[tuple[Origin, str]] = field(default_factory=list)
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    vault: Vault | None = None
    beside: Sequence[VarFiles] = ()
    play: VarFiles | None = None

    def variables(self, host: str) -> Mapping[str, Any]:
        """The host's merged variables, group variables first, with Ansible's precedence (no magic variables).

        The mapping is a `YamlMap`: it knows where each value was written and as what it was typed.
        Raises InputError for a name that is no host here; `localhost` always is one.
        """
        out = YamlMap(Origin(self.shown_as))
        for layer in self._layers(self.host(host)):
            for key in layer:
                out.take(key, layer)
        return out

    def host(self, name: str) -> Host:
        """The host of that name, localhost made up where none is written. Raises InputError with the nearest name."""
        from bringup.inventory.patterns import unknown_name

        found = self.hosts.get(name)
        if found is not None:
            return found
        if name in LOCALHOST:
            return Host(name, {"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
        raise unknown_name(self, name, None)

    def group_names(self, host: str) -> list[str]:
        """All groups of a host, sorted, without `all`."""
        return sorted(name for name in self._ancestry(self.host(host)) if name != "all")

    def group_hosts(self, group: str) -> list[str]:
        """The hosts of a group and of the groups below it: own ones first, then level by level."""
        out: dict[str, None] = {}
        for name in self._below(group):
            out.update(dict.fromkeys(self.groups[name].hosts))
        return list(out)

    def select(self, pattern: str | Sequence[str], where: Origin | None = None) -> list[str]:
        """Hosts that a pattern matches, in the order in which Ansible takes them.

        `where` is the place of the pattern, for the message. Raises InputError with the nearest name.
        """
        from bringup.inventory.patterns import select

        return select(self, pattern, where)

    def _ancestry(self, host: Host) -> set[str]:
        seen: set[str] = set()
        waiting = list(host.groups)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self.groups[name].parents)
        return seen

    def _below(self, group: str) -> list[str]:
        order = [group]
        for name in order:
            order.extend(child for child in self.groups[name].children if child not in order)
        return order

    def _layers(self, host: Host) -> Iterator[Mapping[Any, Any]]:
        groups = [self.groups[name] for name in self._ancestry(host) if name != "all"]
        groups.sort(key=lambda group: (group.depth, group.priority, group.name))
        beside, play = list(self.beside), [self.play] if self.play else []
        yield self.groups["all"].vars
        yield from (group.vars for group in groups)
        yield from (files.group("all") for files in beside + play)
        for files in beside + play:
            yield from (files.group(group.name) for group in groups)
        yield host.vars
        yield from (files.host(host.name) for files in beside + play)
        yield self.extra_vars
