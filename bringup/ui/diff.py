"""A module's before and after as a unified diff."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from bringup.base.text import printable


def diff_lines(entry: Mapping[str, Any], host: str) -> Iterator[str]:
    """Lines of a unified diff of `before` and `after` (texts or trees), headed by the host; `prepared` as it is."""
    if "prepared" in entry:
        yield f"--- {host}"
        yield from (printable(line) for line in str(entry["prepared"]).splitlines())
        return
    before, after = _text(entry.get("before", "")), _text(entry.get("after", ""))
    if before == after:
        return
    old = f"{host}: {entry.get('before_header') or 'before'}"
    new = f"{host}: {entry.get('after_header') or 'after'}"
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), old, new, lineterm=""):
        yield printable(line)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, default=str)
