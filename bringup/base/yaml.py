"""YAML as Ansible reads it (1.1 words and numbers, `!vault`, `!unsafe`), read strictly and with origins.

Mappings, lists and texts come back as subclasses of dict, list and str that carry the place where they were written;
a key that stands twice is an error with both lines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from bringup.base.errors import InputError
from bringup.base.origin import Origin

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

EXPANDED_LIMIT = 1_000_000
"""Values that a text may come to once its aliases are written out: far above any real file, far below a bomb."""

Place = tuple[Any, ...]


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
    """A mapping with its place, and the places of its keys and values.

    `value_texts` holds, for a value that YAML read as something else than a text (`no`, `3.10`, `22:22`), what was
    typed; `typed_text` gives it.
    """

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.key_origins: dict[Any, Origin] = {}
        self.value_origins: dict[Any, Origin] = {}
        self.value_texts: dict[Any, str] = {}

    def copy(self) -> YamlMap:
        """A shallow copy that keeps the places."""
        twin = YamlMap(self.origin)
        twin.update(self)
        twin.key_origins = dict(self.key_origins)
        twin.value_origins = dict(self.value_origins)
        twin.value_texts = dict(self.value_texts)
        return twin

    def take(self, key: Any, source: object, origin: Origin | None = None) -> None:
        """Set a key from another mapping, with its places and its text as typed."""
        self[key] = source[key]  # type: ignore[index]
        self.value_texts.pop(key, None)
        if isinstance(source, YamlMap):
            self.key_origins[key] = source.key_origins.get(key, source.origin)
            self.value_origins[key] = source.value_origins.get(key, source.origin)
            if key in source.value_texts:
                self.value_texts[key] = source.value_texts[key]
        elif origin is not None:
            self.key_origins[key] = self.value_origins[key] = origin


class YamlList(list[Any]):
    """A list with its place, and the places of its items."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin
        self.item_origins: list[Origin] = []
        self.item_texts: dict[int, str] = {}


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


def typed_text(container: object, key: Any) -> str:
    """The scalar under a key (or list index) as a person typed it: `no`, not `False`; `3.10`, not `3.1`."""
    texts: dict[Any, str] = {}
    if isinstance(container, YamlMap):
        texts = container.value_texts
    elif isinstance(container, YamlList):
        texts = container.item_texts
    if key in texts:
        return texts[key]
    value = container[key]  # type: ignore[index]
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


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


def load(text: str, file: str, *, line: int = 1, names_at: Callable[[Place], bool] | None = None) -> Any:
    """The one document in a text. `line` is the number of its first line. Raises InputError.

    `names_at(path)` says whether the keys of the mapping at that path are names, taken as typed: `001` and `1` are
    two names there, not one number.
    """
    documents = load_all(text, file, line=line, names_at=names_at)
    if len(documents) > 1:
        raise InputError("holds more than one YAML document; one is expected", where=Origin(file, line))
    return documents[0] if documents else None


def load_all(
    text: str, file: str, *, line: int = 1, names_at: Callable[[Place], bool] | None = None
) -> list[Any]:
    """All documents in a text. Raises InputError with file, line and column."""
    loader = _Loader(text)
    builder = _Builder(file, line - 1, names_at)
    out: list[Any] = []
    nodes: list[yaml.Node] = []
    try:
        while loader.check_node():
            nodes.append(loader.get_node())  # values are found again by id(node): no node may be freed
            out.append(builder.build(nodes[-1]))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Origin(file, mark.line + line, mark.column + 1) if mark else Origin(file)
        details = [error.context] if error.context else []
        raise InputError(f"is not valid YAML: {_problem(error, text, mark)}", where=where, details=details,
                         next=_hint(text, mark)) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not valid YAML: {error}", where=Origin(file, line)) from None
    finally:
        loader.dispose()
    return out


def _problem(error: Any, text: str, mark: Any) -> str:
    problem = str(error.problem or error)
    if mark is not None and problem.endswith("alias"):
        # libyaml does not say which one
        rest = text.splitlines()[mark.line][mark.column :].split()
        return f"{problem} `{rest[0]}`" if rest else problem
    return problem


def _hint(text: str, mark: Any) -> str | None:
    if mark is None:
        return None
    lines = text.splitlines()
    current = lines[mark.line] if mark.line < len(lines) else ""
    before = current[: mark.column]
    if "\t" in before or current[mark.column:].startswith("\t"):
        return "indent with blanks: YAML allows no tab there"
    if "{{" in current:
        return 'quote a value that starts with a template: key: "{{ value }}"'
    if current.count(": ") > 1:
        return "quote a value that holds `: `"
    return None


class _Builder:
    def __init__(self, file: str, offset: int, names_at: Callable[[Place], bool] | None = None) -> None:
        self.file = file
        self.offset = offset
        self.names_at = names_at
        self.path: Place = ()
        self.constructor = yaml.constructor.SafeConstructor()
        self.done: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}

    def origin(self, node: yaml.Node) -> Origin:
        return Origin(self.file, node.start_mark.line + 1 + self.offset, node.start_mark.column + 1)

    def build(self, node: yaml.Node) -> Any:
        key = id(node)
        if key in self.done:
            if key not in self.sizes:
                raise InputError("an anchor holds itself", where=self.origin(node))
            return self.done[key]
        if isinstance(node, yaml.MappingNode):
            value: Any = self.mapping(node)
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            value = self.sequence(node)
            parts = node.value
        else:
            return self.scalar(node)
        self.sizes[key] = 1 + sum(self.sizes.get(id(part), 1) for part in parts)
        if self.sizes[key] > EXPANDED_LIMIT:
            raise InputError(f"its aliases come to more than {EXPANDED_LIMIT:,} values", where=self.origin(node))
        return value

    def under(self, key: Any, node: yaml.Node) -> Any:
        outer = self.path
        self.path = (*outer, key)
        try:
            return self.build(node)
        finally:
            self.path = outer

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
        for index, item in enumerate(node.value):
            out.append(self.under(index, item))
            out.item_origins.append(self.origin(item))
            if _typed(item, out[-1]):
                out.item_texts[index] = item.value
        return out

    def mapping(self, node: yaml.MappingNode) -> YamlMap:
        out = YamlMap(self.origin(node))
        self.done[id(node)] = out
        merged: list[tuple[yaml.Node, Any]] = []
        names = self.names_at is not None and self.names_at(self.path)
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.append((value_node, self.build(value_node)))
                continue
            key = self.build(key_node)
            origin = self.origin(key_node)
            if names and isinstance(key_node, yaml.ScalarNode) and not isinstance(key, str):
                key = YamlText(key_node.value, origin)
            if not isinstance(key, Hashable):
                raise InputError("a list or mapping cannot be a key", where=origin,
                                 next='quote a value that starts with a template: "{{ value }}"')
            if key in out:
                raise InputError(
                    f"the key `{key}` stands twice (first on line {out.key_origins[key].line})",
                    where=origin,
                    details=["the second would silently replace the first; remove one"],
                )
            out[key] = self.under(key, value_node)
            out.key_origins[key] = origin
            out.value_origins[key] = self.origin(value_node)
            if _typed(value_node, out[key]):
                out.value_texts[key] = value_node.value
        for value_node, value in merged:
            self.merge(out, value, self.origin(value_node))
        return out

    def merge(self, out: YamlMap, value: Any, origin: Origin) -> None:
        sources = value if isinstance(value, list) else [value]
        for source in sources:
            if not isinstance(source, YamlMap):
                raise InputError("a merge key `<<` needs a mapping", where=origin)
            for key in source:
                if key not in out:
                    out.take(key, source)


def _typed(node: yaml.Node, value: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and not isinstance(value, str)
