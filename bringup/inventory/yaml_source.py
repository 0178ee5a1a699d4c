"""Inventories in YAML; JSON is YAML here."""

from __future__ import annotations

from typing import Any

from bringup.base import yaml
from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import YamlMap, key_origin, value_origin
from bringup.inventory.draft import Draft, check_name
from bringup.inventory.problems import Problems
from bringup.inventory.ranges import expand
from bringup.inventory.values import wrong_values

SECTIONS = ("hosts", "vars", "children")


def read(draft: Draft, text: str, file: str) -> None:
    """Add the groups of a YAML text. Raises InputError with every wrong place that was found."""
    data = yaml.load(text, file, names_at=_holds_names)
    if data is None:
        return
    if not isinstance(data, YamlMap):
        raise InputError(f"holds {_kind(data)} where groups belong", where=Origin(file, 1), expected="all:")
    if isinstance(data.get("plugin"), str):
        raise InputError(f"is the configuration of the inventory plugin `{data['plugin']}`, which is not run here",
                         where=key_origin(data, "plugin"),
                         next=f"ansible-inventory -i {file} --list --yaml --export > site.yml")
    reader = _Reader(draft)
    for name in data:
        if not _hidden(name, data[name]):
            reader.group(str(name), data[name], key_origin(data, name) or data.origin)
    reader.problems.raise_if_any()


def _holds_names(path: tuple[Any, ...]) -> bool:
    """True for the mappings whose keys are names: of groups, sections, hosts and variables."""
    at = 1
    while at < len(path) and path[at] == "children":
        at += 2
    return at >= len(path) or len(path) == at + 1 or (path[at] == "hosts" and len(path) <= at + 2)


def _hidden(name: Any, value: Any) -> bool:
    """Top-level keys that only park anchors: `.defaults`, and `x-rdma` unless it is made like a group."""
    text = str(name)
    if text.startswith("x-"):
        return not (isinstance(value, dict) and ({"hosts", "children"} & value.keys()))
    return text.startswith(".")


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a mapping" if isinstance(value, dict) else "a single value"


class _Reader:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.problems = Problems()

    def group(self, name: str, data: Any, origin: Origin) -> None:
        self.problems.add(check_name(name, origin))
        self.draft.group(name, origin)
        if data is None:
            return
        if not isinstance(data, YamlMap):
            self.problems.add(InputError(f"the group `{name}` is {_kind(data)}; a mapping belongs there", where=origin,
                                         expected="hosts:, vars: and children: below it"))
            return
        for key in data:
            where = key_origin(data, key) or data.origin
            section = self.section(name, key, data, where)
            if section is None:
                continue
            if key == "vars":
                self.draft.set_group(name, section, where)
            elif key == "children":
                for child in section:
                    place = key_origin(section, child) or where
                    self.group(str(child), section[child], place)
                    self.draft.child(name, str(child), place)
            else:
                self.hosts(name, section)

    def section(self, group: str, key: Any, data: YamlMap, where: Origin) -> YamlMap | None:
        """The mapping below hosts, vars or children; None when there is nothing, or something wrong."""
        value = data[key]
        if key not in SECTIONS:
            near = nearest(str(key), SECTIONS)
            hint = f"{near}:" if near else None
            if isinstance(value, dict) and not near:
                hint = f"put it below `children:` of {group} if it is a group, below `vars:` if it is a variable"
            self.problems.add(InputError(f"the key `{key}` is not known in the group `{group}`", where=where,
                                         expected="hosts, vars or children", next=hint))
            return None
        if value is None:
            return None
        if isinstance(value, YamlMap):
            return value
        if isinstance(value, str) and key != "vars":
            single = YamlMap(where)
            single[value] = None
            single.key_origins[value] = value_origin(data, key) or where
            return single
        names = [str(item) for item in value] if isinstance(value, list) and key != "vars" else []
        self.problems.add(InputError(
            f"`{key}` of the group `{group}` is {_kind(value)}; a mapping belongs there",
            where=value_origin(data, key) or where,
            expected="name: value" if key == "vars" else "each name with a colon behind it, on a line of its own",
            next=f"{names[0]}:" if names else None))
        return None

    def hosts(self, group: str, section: YamlMap) -> None:
        for pattern in section:
            where = key_origin(section, pattern) or section.origin
            wrong = check_name(str(pattern), where)
            self.problems.add(wrong)
            variables = section[pattern]
            if variables is not None and not isinstance(variables, YamlMap):
                self.problems.add(InputError(f"the host `{pattern}` has {_kind(variables)}; variables belong there",
                                             where=value_origin(section, pattern), expected="name: value"))
                continue
            if wrong:
                for error in wrong_values(variables or {}):
                    self.problems.add(error)
                continue
            names, port = expand(str(pattern), where)
            for name in names:
                self.draft.host(name, group, where, port)
                self.draft.set_host(name, variables or {}, where)
