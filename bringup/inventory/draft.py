"""The inventory while its sources are read: what stands twice, what hangs on nothing, what closes a circle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.yaml import YamlMap, key_origin, typed_text
from bringup.inventory.model import LOCALHOST, Group, Host
from bringup.inventory.ranges import RANGE
from bringup.inventory.values import LEFT_OVER


@dataclass
class Draft:
    """Hosts and groups so far. `source` is the file that is read now; the last one to set a variable wins."""

    hosts: dict[str, Host] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    warnings: list[tuple[Origin, str]] = field(default_factory=list)
    source: Path | None = None
    _set_by: dict[tuple[str, str, str], tuple[Path | None, Origin]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("all", "ungrouped"):
            self.groups[name] = Group(name, YamlMap(Origin("")))
        self.child("all", "ungrouped", Origin(""))

    def group(self, name: str, origin: Origin) -> Group:
        """The group of that name, made when it is new. Raises InputError for a name with a range or left-over."""
        if name not in self.groups:
            if RANGE.search(name):
                raise InputError(f"`{name}`: a range belongs into a host's name, not a group's", where=origin)
            self.groups[name] = Group(name, YamlMap(origin), origin=origin)
        return self.groups[name]

    def host(self, name: str, group: str | None, origin: Origin, port: int | None = None) -> Host:
        """The host of that name, made when it is new, as a member of the group."""
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = Host(name, YamlMap(origin), origin=origin, source=self.source)
            self._one_localhost(name, origin)
            if port is not None:
                typed = YamlMap(origin)
                typed["ansible_port"] = port
                self.set_host(name, typed, origin)
        elif port is not None and host.vars.get("ansible_port") != port:
            self.warnings.append((origin, f"the port {port} of `{name}` is not taken: it counts only where the host "
                                          "is named first; write ansible_port"))
        if group is not None and group not in host.groups:
            host.groups.append(group)
            self.groups[group].hosts.append(name)
        return host

    def set_host(self, name: str, variables: Mapping[Any, Any], origin: Origin) -> None:
        """Set variables of a host. Raises InputError where this source gives one of them two values."""
        for key in variables:
            self._set("host", name, self.hosts[name].vars, key, variables, origin)

    def set_group(self, name: str, variables: Mapping[Any, Any], origin: Origin) -> None:
        """Set variables of a group; `ansible_group_priority` is its rank among groups of equal depth."""
        group = self.groups[name]
        for key in variables:
            if key == "ansible_group_priority":
                group.priority = _priority(variables, origin)
            else:
                self._set("group", name, group.vars, key, variables, origin)

    def child(self, parent: str, child: str, origin: Origin) -> None:
        """Put a group below another. Raises InputError where that closes a circle."""
        if child in self.groups[parent].children:
            return
        way = self._way_down(child, parent)
        if way:
            raise InputError(f"the group `{child}` would hold itself: {' > '.join([parent, *way])}", where=origin)
        self.groups[parent].children.append(child)
        self.groups[child].parents.append(parent)

    def finish(self) -> None:
        """Hang every group below `all`, sort hosts without a group into `ungrouped`, count depths."""
        for group in list(self.groups.values()):
            if group.name != "all" and not group.parents:
                self.child("all", group.name, group.origin or Origin(""))
        for host in self.hosts.values():
            own = set(host.groups) - {"all", "ungrouped"}
            if own and "ungrouped" in host.groups:
                host.groups.remove("ungrouped")
                self.groups["ungrouped"].hosts.remove(host.name)
            elif not own and "ungrouped" not in host.groups:
                host.groups.append("ungrouped")
                self.groups["ungrouped"].hosts.append(host.name)
        self._count_depths()
        for name in self.groups:
            if name in self.hosts:
                self.warnings.append((self.hosts[name].origin or Origin(""),
                                      f"`{name}` is a host and a group: a pattern with that name means the host"))

    def _set(self, kind: str, name: str, own: dict[str, Any], key: Any, given: Mapping[Any, Any],
             origin: Origin) -> None:
        place = key_origin(given, key) or origin
        by, first = self._set_by.get((kind, name, key), (None, place))
        if key in own and by == self.source and not _same(own[key], given[key]):
            before, after = typed_text(own, key), typed_text(given, key)
            raise InputError(
                f"`{key}` of the {kind} {name} stands twice with different values", where=place,
                found=f"{before} ({first.short}) and {after}",
                details=["the second would silently replace the first; remove one"])
        assert isinstance(own, YamlMap)
        own.take(key, given, place)
        self._set_by[kind, name, key] = (self.source, place)

    def _one_localhost(self, name: str, origin: Origin) -> None:
        if name in LOCALHOST:
            others = [other for other in LOCALHOST if other != name and other in self.hosts]
            if others:
                self.warnings.append((origin, f"`{name}` and `{others[0]}` are both this machine"))

    def _way_down(self, start: str, goal: str) -> list[str]:
        """The names from a group down to another, both included; empty when there is no way."""
        waiting = [[start]]
        seen = {start}
        while waiting:
            way = waiting.pop()
            if way[-1] == goal:
                return way
            for child in self.groups[way[-1]].children:
                if child not in seen:
                    seen.add(child)
                    waiting.append([*way, child])
        return []

    def _count_depths(self) -> None:
        """The longest way from the top to each group: a deeper group's variables win."""
        missing = {name: len(group.parents) for name, group in self.groups.items()}
        ready = [name for name, count in missing.items() if not count]
        for name in ready:
            for child in self.groups[name].children:
                self.groups[child].depth = max(self.groups[child].depth, self.groups[name].depth + 1)
                missing[child] -= 1
                if not missing[child]:
                    ready.append(child)


def check_name(name: str, origin: Origin) -> InputError | None:
    """The error for a host or group name in which a generator left a placeholder, or None."""
    if LEFT_OVER.search(name):
        return InputError(f"the name `{name}` holds a placeholder that was not filled in", where=origin,
                          next="run the generator of this file again")
    return None


def _same(one: Any, other: Any) -> bool:
    kinds = (str, bool)
    return all(isinstance(one, kind) == isinstance(other, kind) for kind in kinds) and bool(one == other)


def _priority(variables: Mapping[Any, Any], origin: Origin) -> int:
    try:
        return int(variables["ansible_group_priority"])
    except (TypeError, ValueError):
        raise InputError("`ansible_group_priority` takes a whole number",
                         where=key_origin(variables, "ansible_group_priority") or origin,
                         found=str(variables["ansible_group_priority"])) from None
