"""A journal as events again: what `invoke status --run ID` shows, also of a run that is still under way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from bringup.base import events
from bringup.base.origin import Origin
from bringup.base.results import Result, Status
from bringup.base.verdicts import Finding, Verdict

_EMPTY: Mapping[str, Any] = {"str": "", "int": 0, "float": 0.0, "bool": False}


def events_of(lines: Iterator[str]) -> Iterator[tuple[float, events.Event]]:
    """(Unix time, event) of each line of a journal that is whole; what an older version wrote otherwise is left out."""
    for line in lines:
        try:
            tree = json.loads(line)
            event = _event(tree)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        if event is not None:
            yield float(tree.get("time") or 0.0), event


def _event(tree: Mapping[str, Any]) -> events.Event | None:
    kind = getattr(events, str(tree.get("event")), None)
    if not (isinstance(kind, type) and issubclass(kind, events.Event)):
        return None
    values = dict(tree)
    if "result" in values:
        values["result"] = _built(Result, {**values["result"], "status": Status(values["result"]["status"])})
    if "findings" in values:
        values["findings"] = [_built(Finding, {**one, "verdict": Verdict(one["verdict"])})
                              for one in values["findings"]]
    built = _built(kind, values)
    assert isinstance(built, events.Event)
    return built


def _built(kind: type, values: Mapping[str, Any]) -> Any:
    """An instance of a dataclass; the journal leaves out what is empty."""
    given = {}
    for item in dataclasses.fields(kind):
        value = values.get(item.name)
        if item.name == "origin":
            value = _origin(value)
        elif isinstance(value, list):
            value = tuple(value)
        if value is None:
            if item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING:
                continue
            value = _EMPTY.get(str(item.type), () if str(item.type).startswith("tuple") else None)
        given[item.name] = value
    return kind(**given)


def _origin(text: Any) -> Origin | None:
    if not text:
        return None
    file, _, rest = str(text).partition(":")
    numbers = [int(part) for part in rest.split(":") if part.isdigit()]
    return Origin(file, *numbers[:2])
