"""The controller's record of a run: `.bringup/runs/RUN/journal.jsonl`, scrubbed, one event a line."""

from __future__ import annotations

import dataclasses
import enum
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bringup.base.events import NAMES, Event, Line, Progress, TaskEnded
from bringup.base.origin import Origin
from bringup.base.secrets import SCRUBBER

KEPT = 50
"""Runs whose folders are kept."""


def new_run_id() -> str:
    """Six hex digits."""
    return os.urandom(3).hex()


class Journal:
    """A sink that appends to the journal; the file is made with the first event."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, (Line, Progress)):
            return
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.folder / "journal.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - kept for the run
            os.fchmod(self._file.fileno(), 0o600)
            # held until the run ends, however it ends: `status --run` follows a journal that is locked
            fcntl.flock(self._file, fcntl.LOCK_EX)
        entry = {"event": type(event).__name__, "time": round(time.time(), 3), **_shown(event)}
        self._file.write(json.dumps(SCRUBBER.tree(entry, NAMES), default=str, ensure_ascii=False) + "\n")
        if not isinstance(event, TaskEnded) or event.result.bad:
            self._file.flush()

    def write_failed(self, hosts: list[str]) -> str | None:
        """The set to be tried again, for `--limit @FILE`; its path, or None when there is none."""
        if not hosts:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "failed"
        path.write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
        return os.path.relpath(path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def prune(runs: Path) -> None:
    """Forget the oldest runs beyond those kept."""
    if not runs.is_dir():
        return
    folders = sorted((path for path in runs.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for folder in folders[:-KEPT]:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
        folder.rmdir()


_fields: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, none for another type."""
    found = _fields.get(kind)
    if found is None:
        found = tuple(item.name for item in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
        _fields[kind] = found
    return found


def _shown(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is float or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, Origin):
        return str(value)
    if names := _names(kind):
        out: dict[str, Any] = {}
        for name in names:
            found: Any = getattr(value, name)
            if name == "data":
                out["digest"] = _digest(found)
            elif name == "diff":
                out["differs"] = bool(found)
            elif found not in (None, (), "", {}, False):
                out[name] = _shown(found)
        return out
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_shown(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _digest(data: Mapping[str, Any]) -> str:
    """What a module returned stays out of the journal; its digest says whether it was the same."""
    text = json.dumps(data, default=str, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
