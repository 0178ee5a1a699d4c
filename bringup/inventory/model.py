"""Hosts, groups and their variables, as the rest of the package sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.origin import Origin


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
    """A host: own variables, and the groups that it is a direct member of."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    origin: Origin | None = None


@dataclass
class Inventory:
    """One or more inventory sources, merged. Variables are as written: templating is the playbook's."""

    sources: Sequence[Path]
    hosts: dict[str, Host] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    shown_as: str = ""

    def variables(self, host: str) -> Mapping[str, Any]:
        """The host's merged variables, group variables first, with Ansible's precedence (no magic variables)."""
        raise NotImplementedError

    def group_names(self, host: str) -> list[str]:
        """All groups of a host, sorted, without `all`."""
        raise NotImplementedError

    def select(self, pattern: str) -> list[str]:
        """Hosts that a pattern matches, in inventory order. Raises InputError with the nearest name."""
        raise NotImplementedError
