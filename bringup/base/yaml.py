"""YAML as Ansible reads it (1.1 words and numbers, `!vault`, `!unsafe`), read strictly and with origins.

Mappings, lists and texts come back as subclasses of dict, list and str that carry the place where they were written;
a key that stands twice is an error with both lines.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from bringup.base.errors import InputError
from bringup.base.origin import Origin

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlText(str):
    """A text with the place where it was written."""

    origin: Origin

    def __new__(cls, value: str, origin: Origin) -> YamlText:
        self = super().__new__(cls, value)
        self.origin = origin
        return self


class UnsafeText(YamlText):
    """A text under `!unsafe`: never templated."""


class VaultedText(YamlText):
    """Ciphertext under `!vault`: decrypted by `bringup.base.vault` when it is used."""


class YamlMap(dict[Any, Any]):
    """A mapping with its place, and the places of its keys and values."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.key_origins: dict[Any, Origin] = {}
        self.value_origins: dict[Any, Origin] = {}

    def copy(self) -> YamlMap:
        """A shallow copy that keeps the places."""
        twin = YamlMap(self.origin)
        twin.update(self)
        twin.key_origins = dict(self.key_origins)
        twin.value_origins = dict(self.value_origins)
        return twin


class YamlList(list[Any]):
    """A list with its place, and the places of its items."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.item_origins: list[Origin] = []


def origin_of(value: object, default: Origin | None = None) -> Origin | None:
    """The place of a value that carries one, else `default`."""
    found = getattr(value, "origin", None)
    return found if isinstance(found, Origin) else default


def key_origin(mapping: object, key: object) -> Origin | None:
    """Where the key of a mapping was written, when the mapping knows."""
    if isinstance(mapping, YamlMap):
        return mapping.key_origins.get(key, mapping.origin)
    return None


def value_origin(mapping: object, key: object) -> Origin | None:
    """Where the value under a key was written, when the mapping knows."""
    if isinstance(mapping, YamlMap):
        return mapping.value_origins.get(key, mapping.origin)
    return None


def load_file(path: str | Path, *, shown_as: str | None = None) -> Any:
    """The document in a file; None for an empty one. Raises InputError with file and line."""
    name = shown_as or str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=name) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=name) from None
    return load(text, name)


def load(text: str, file: str, *, line: int = 1) -> Any:
    """The one document in a text. `line` is the number of its first line. Raises InputError."""
    documents = load_all(text, file, line=line)
    if len(documents) > 1:
        raise InputError("holds more than one YAML document; one is expected", where=Origin(file, line))
    return documents[0] if documents else None


def load_all(text: str, file: str, *, line: int = 1) -> list[Any]:
    """All documents in a text. Raises InputError with file, line and column."""
    loader = _Loader(text)
    builder = _Builder(file, line - 1)
    out = []
    try:
        while loader.check_node():
            out.append(builder.build(loader.get_node()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Origin(file, mark.line + line, mark.column + 1) if mark else Origin(file)
        details = [error.context] if error.context else []
        raise InputError(f"is not valid YAML: {error.problem or error}", where=where, details=details,
                         next=_hint(text, mark)) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not valid YAML: {error}", where=Origin(file, line)) from None
    finally:
        loader.dispose()
    return out


def _hint(text: str, mark: Any) -> str | None:
    if mark is None:
        return None
    lines = text.splitlines()
    current = lines[mark.line] if mark.line < len(lines) else ""
    before = current[: mark.column]
    if "\t" in before:
        return "indent with blanks: YAML allows no tab there"
    if "{{" in current:
        return 'quote a value that starts with a template: key: "{{ value }}"'
    if current.count(": ") > 1:
        return "quote a value that holds `: `"
    return None


class _Builder:
    def __init__(self, file: str, offset: int) -> None:
        self.file = file
        self.offset = offset
        self.constructor = yaml.constructor.SafeConstructor()
        self.done: dict[int, Any] = {}

    def origin(self, node: yaml.Node) -> Origin:
        return Origin(self.file, node.start_mark.line + 1 + self.offset, node.start_mark.column + 1)

    def build(self, node: yaml.Node) -> Any:
        key = id(node)
        if key in self.done:
            return self.done[key]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node)
        return self.scalar(node)

    def scalar(self, node: yaml.Node) -> Any:
        origin = self.origin(node)
        tag = node.tag
        if tag == "tag:yaml.org,2002:str":
            return YamlText(node.value, origin)
        if tag in ("!vault", "!vault-encrypted"):
            return VaultedText(node.value, origin)
        if tag == "!unsafe":
            return UnsafeText(node.value, origin)
        if tag.startswith("!"):
            raise InputError(f"the tag `{tag}` is not known here", where=origin,
                             expected="!vault or !unsafe, as Ansible reads them")
        try:
            return self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise InputError(f"the value `{node.value}` cannot be read: {error}", where=origin) from None

    def sequence(self, node: yaml.SequenceNode) -> YamlList:
        out = YamlList(self.origin(node))
        self.done[id(node)] = out
        for item in node.value:
            out.append(self.build(item))
            out.item_origins.append(self.origin(item))
        return out

    def mapping(self, node: yaml.MappingNode) -> YamlMap:
        out = YamlMap(self.origin(node))
        self.done[id(node)] = out
        merged: list[tuple[yaml.Node, Any]] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.append((value_node, self.build(value_node)))
                continue
            key = self.build(key_node)
            origin = self.origin(key_node)
            if not isinstance(key, Hashable):
                raise InputError("a list or mapping cannot be a key", where=origin,
                                 next='quote a value that starts with a template: "{{ value }}"')
            if key in out:
                raise InputError(
                    f"the key `{key}` stands twice (first on line {out.key_origins[key].line})",
                    where=origin,
                    details=["the second would silently replace the first; remove one"],
                )
            out[key] = self.build(value_node)
            out.key_origins[key] = origin
            out.value_origins[key] = self.origin(value_node)
        for value_node, value in merged:
            self.merge(out, value, self.origin(value_node))
        return out

    def merge(self, out: YamlMap, value: Any, origin: Origin) -> None:
        sources = value if isinstance(value, list) else [value]
        for source in sources:
            if not isinstance(source, YamlMap):
                raise InputError("a merge key `<<` needs a mapping", where=origin)
            for key, item in source.items():
                if key not in out:
                    out[key] = item
                    out.key_origins[key] = source.key_origins.get(key, source.origin)
                    out.value_origins[key] = source.value_origins.get(key, source.origin)
