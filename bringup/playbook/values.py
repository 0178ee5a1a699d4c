"""Containers whose texts are rendered when they are looked at, and the marks that values may carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, TypeVar

from bringup.base.yaml import UnsafeText, VaultedText

T = TypeVar("T")


class _Omit:
    """The value of `omit`: an argument or item that renders to it is left out."""

    def __repr__(self) -> str:
        return "omit"


OMIT = _Omit()


def looks_templated(text: str) -> bool:
    """True for a text that holds a Jinja2 delimiter and may be rendered."""
    return ("{{" in text or "{%" in text or "{#" in text) and not isinstance(text, UnsafeText)


class TemplateFinder:
    """Says whether a value holds a template or a vaulted text anywhere. Remembers containers it has seen."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, bool]] = {}

    def __call__(self, value: Any) -> bool:
        if isinstance(value, str):
            return isinstance(value, VaultedText) or looks_templated(value)
        if not isinstance(value, (dict, list, tuple)):
            return False
        known = self._seen.get(id(value))
        if known is not None:
            return known[1]
        self._seen[id(value)] = (value, False)  # a container that holds itself ends here
        if isinstance(value, dict):
            found = any(self(item) for item in value.values())
        else:
            found = any(self(item) for item in value)
        self._seen[id(value)] = (value, found)
        return found


class LazyDict(dict[Any, Any]):
    """A mapping whose values are rendered on access. A C-level copy of it goes through `keys` and `[]`."""

    def __init__(self, raw: dict[Any, Any], render: Callable[[Any], Any]) -> None:
        super().__init__(raw)
        self._render = render

    def __getitem__(self, key: Any) -> Any:
        return self._render(dict.__getitem__(self, key))

    def __iter__(self) -> Iterator[Any]:  # also keeps dict(...) from reading past __getitem__
        return dict.__iter__(self)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._render(dict.__getitem__(self, key)) if key in self else default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    def pop(self, key: Any, *default: Any) -> Any:
        return self.copy().pop(key, *default)

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if isinstance(other, LazyDict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(self.copy())

    __hash__ = None


class LazyList(list[Any]):
    """A list whose items are rendered on access."""

    def __init__(self, raw: list[Any], render: Callable[[Any], Any]) -> None:
        super().__init__(raw)
        self._render = render

    def plain(self) -> list[Any]:
        return [self._render(item) for item in list.__iter__(self)]

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = list.__getitem__(self, index)
        return [self._render(item) for item in found] if isinstance(index, slice) else self._render(found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.plain())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.plain()[::-1])

    def __contains__(self, value: object) -> bool:
        return value in self.plain()

    def __add__(self, other: Any) -> Any:
        return self.plain() + list(other)

    def __radd__(self, other: Any) -> Any:
        return list(other) + self.plain()

    def __mul__(self, count: SupportsIndex) -> Any:
        return self.plain() * count

    def copy(self) -> list[Any]:
        return self.plain()

    def index(self, value: Any, *rest: Any) -> int:
        return self.plain().index(value, *rest)

    def count(self, value: Any) -> int:
        return self.plain().count(value)

    def __eq__(self, other: object) -> bool:
        return self.plain() == (other.plain() if isinstance(other, LazyList) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self.plain() < list(other)

    def __repr__(self) -> str:
        return repr(self.plain())

    __hash__ = None
