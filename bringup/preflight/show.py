"""The typed facts of a host as a tree of plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from bringup.preflight.facts import Facts
from bringup.preflight.unread import Unread


def facts_of(facts: Facts) -> dict[str, Any]:
    """Every fact by name; `unknown: reason` for one that cannot be read, absent ones left out."""
    out: dict[str, Any] = {}
    for name, value in (pair for kind in Facts.__mro__ for pair in vars(kind).items()):
        if not isinstance(value, cached_property):
            continue
        try:
            out[name] = _plain(getattr(facts, name))
        except Unread as error:
            if not error.absent:
                out[name] = f"unknown: {error.reason}"
    return out


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {" ".join(key) if isinstance(key, tuple) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
