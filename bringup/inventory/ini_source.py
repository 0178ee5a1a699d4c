"""Inventories in INI."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import UnsafeText, YamlMap
from bringup.inventory.draft import Draft, check_name
from bringup.inventory.problems import Problems
from bringup.inventory.ranges import expand
from bringup.inventory.values import IniText

_SECTION = re.compile(r"^\[(?P<name>[^:\]\s]+)(?::(?P<kind>\w+))?\]\s*(?:#.*)?$")
_CHILD = re.compile(r"^(?P<name>[^:\]\s]+)\s*(?:#.*)?$")
_KINDS = ("hosts", "vars", "children")


def read(draft: Draft, text: str, file: str) -> None:
    """Add the hosts and groups of an INI text. Raises InputError."""
    reader = _Reader(draft)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and stripped[0] not in "#;":
            column = len(line) - len(line.lstrip()) + 1
            reader.line(stripped, Origin(file, number, column))
    reader.finish()


@dataclass(frozen=True)
class _Wanted:
    """A group that a line speaks of before a section declares it."""

    origin: Origin
    parents: tuple[str, ...] = ()


class _Reader:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.problems = Problems()
        self.group = "ungrouped"
        self.kind = "hosts"
        self.declared: set[str] = set(draft.groups)
        self.wanted: dict[str, _Wanted] = {}

    def line(self, text: str, origin: Origin) -> None:
        section = _SECTION.match(text)
        if section:
            self.section(section["name"], section["kind"] or "hosts", origin)
        elif text.startswith("[") and text.endswith("]"):
            raise InputError(f"`{text}` is no section", where=origin,
                             expected="[group], [group:vars] or [group:children]")
        elif self.kind == "hosts":
            self.host(text, origin)
        elif self.kind == "vars":
            self.variable(text, origin)
        else:
            self.child(text, origin)

    def section(self, name: str, kind: str, origin: Origin) -> None:
        if kind not in _KINDS:
            near = nearest(kind, _KINDS)
            raise InputError(f"the section [{name}:{kind}] is of no known kind", where=origin,
                             expected="[group], [group:vars] or [group:children]",
                             next=f"[{name}:{near}]" if near else None)
        self.problems.add(check_name(name, origin))
        self.group, self.kind = name, kind
        if kind == "vars":
            if name not in self.draft.groups:
                self.wanted.setdefault(name, _Wanted(origin))
            self.draft.group(name, origin)
            return
        self.draft.group(name, origin)
        self.declared.add(name)
        if name in self.wanted:
            for parent in self.wanted.pop(name).parents:
                self.draft.child(parent, name, origin)

    def host(self, text: str, origin: Origin) -> None:
        try:
            pattern, *assignments = shlex.split(text, comments=True)
        except ValueError as error:
            raise InputError(f"the line cannot be split: {str(error).lower()}", where=origin,
                             next='quote a whole value: name="a b"') from None
        wrong = check_name(pattern, origin)
        if wrong:
            self.problems.add(wrong)
            return
        if pattern == "---":
            raise InputError("`---` begins YAML, and this file is read as INI", where=origin,
                             next="give the file the ending .yml")
        if pattern.endswith(":"):
            raise InputError(f"`{pattern}` ends with a colon, which stands before a port", where=origin,
                             next=f"{pattern[:-1]}, or the ending .yml if the file is YAML")
        names, port = expand(pattern, origin)
        variables = self.assignments(assignments, origin)
        if _cuts_a_word(text):
            self.draft.warnings.append((origin, "from `#` on, also inside a word, this is a comment; quote the value"))
        for name in names:
            self.draft.host(name, self.group, origin, port)
            self.draft.set_host(name, variables, origin)

    def assignments(self, tokens: list[str], origin: Origin) -> YamlMap:
        out = YamlMap(origin)
        for token in tokens:
            key, equals, value = token.partition("=")
            if not equals:
                raise InputError(f"`{token}` is no variable", where=origin, expected="name=value",
                                 next='quote a value that holds blanks: name="a b"')
            if key in out:
                raise InputError(f"`{key}` stands twice on this line", where=origin,
                                 details=["the second would silently replace the first; remove one"])
            put(out, key, value, origin)
        return out

    def variable(self, text: str, origin: Origin) -> None:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(f"`{text}` is no variable", where=origin, expected="name=value")
        out = YamlMap(origin)
        put(out, key, value, origin)
        if isinstance(out[key], str) and re.search(r"\s#", out[key]):
            self.draft.warnings.append((origin, f"the value of `{key}` keeps its `#` and what follows: "
                                                "below [group:vars] a comment has its own line"))
        self.draft.set_group(self.group, out, origin)

    def child(self, text: str, origin: Origin) -> None:
        match = _CHILD.match(text)
        if not match:
            raise InputError(f"`{text}` is no name of a group", where=origin, expected="one group's name on each line")
        name = match["name"]
        if name in self.draft.groups:
            self.draft.child(self.group, name, origin)
            return
        before = self.wanted.get(name, _Wanted(origin))
        self.wanted[name] = _Wanted(before.origin, (*before.parents, self.group))

    def finish(self) -> None:
        self.problems.raise_if_any()
        for name, wish in self.wanted.items():
            near = nearest(name, self.declared)
            section = f"[{wish.parents[-1]}:children] names" if wish.parents else f"[{name}:vars] belongs to"
            raise InputError(f"{section} the group `{name}`, which no section declares", where=wish.origin,
                             next=f"{near}, or a section [{name}]" if near else f"add a section [{name}]")


def _cuts_a_word(text: str) -> bool:
    quote, before, escaped = "", " ", False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#":
            return not before.isspace()
        before = character
    return False


def put(out: YamlMap, key: str, text: str, origin: Origin) -> None:
    """Set a variable from its text: a Python literal where it is one, else the text. Raises InputError."""
    value = literal(text, origin)
    if isinstance(value, bytes):
        # Ansible keeps such a text from its templates
        value = UnsafeText(value.decode("utf-8", "surrogateescape"), origin)
    elif isinstance(value, str):
        value = IniText(value, origin)
    out[key] = value
    out.key_origins[key] = out.value_origins[key] = origin
    if not isinstance(value, (str, list, dict)):
        out.value_texts[key] = text


def literal(text: str, origin: Origin | None = None) -> Any:
    """The value of a text under Ansible's rule for INI: `5` is a number, `True` a boolean, `yes` a text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    except (TypeError, MemoryError, RecursionError) as error:
        raise InputError(f"the value `{text}` cannot be read: {error}", where=origin) from None
    return value if isinstance(value, bytes) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if value is ...:
        return "..."
    return str(value) if isinstance(value, complex) else value
