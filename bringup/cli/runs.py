"""What is kept of a run on this machine, as lines for a person."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.base.text import fold_hosts


def run_folder(name: str) -> Path:
    """The folder of a run of this project; `last` is the newest. Raises InputError."""
    runs = Project.find().state / "runs"
    folders = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    known = [path.name for path in sorted(folders, key=lambda path: path.stat().st_mtime)]
    wanted = known[-1] if name == "last" and known else name
    if wanted not in known:
        raise InputError(f"no run `{name}` is kept on this machine", expected=", ".join(known[-8:]) or "none yet",
                         found=str(runs), next="its record lies where it was typed; invoke status shows the hosts")
    return runs / wanted


def run_record(folder: Path) -> list[str]:
    """The run's stages, what failed in them, its end, and the files that it kept."""
    lines: list[str] = []
    journal = folder / "journal.jsonl"
    ended = False
    for raw in journal.read_text(encoding="utf-8", errors="replace").splitlines() if journal.is_file() else ():
        try:
            event = json.loads(raw)
        except ValueError:
            continue
        lines += _told(event)
        ended = ended or event.get("event") == "RunEnded"
    if not ended:
        lines.append("not ended: it is under way, or was cut off")
    kept = sorted(path for path in folder.rglob("*") if path.is_file() and path != journal)
    return [f"run {folder.name}", *lines, *(f"kept    {folder / path.relative_to(folder)}" for path in kept)]


def _told(event: Mapping[str, Any]) -> list[str]:
    kind = event.get("event")
    at = f"{float(event.get('at') or 0):7.1f} s  "
    if kind == "RunStarted":
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(event.get("time") or 0)))
        return [f"{event.get('verb')} · {event.get('inventory')} · by {event.get('operator')} · {when} · "
                f"{fold_hosts([str(host) for host in event.get('hosts') or ()])}"]
    if kind == "PlayStarted":
        return [f"{at}stage {event.get('index')} of {event.get('total')}  {event.get('name')}"]
    if kind == "StageSummary":
        return [f"{at}  {event.get('subject')}  {event.get('text')}"]
    if kind == "Note":
        return [f"{at}  {str(event.get('level') or 'note').upper()} {event.get('host') or ''} {event.get('text')}"]
    if kind == "TaskEnded":
        return _result(at, event.get("result") or {})
    if kind == "Ready":
        return [f"{at}ready  {', '.join(event.get('endpoints') or ())}  release {event.get('release')}"]
    if kind == "RunEnded":
        return [f"{at}ended with {event.get('status') or 0}"]
    return []


def _result(at: str, result: Mapping[str, Any]) -> list[str]:
    if result.get("status") not in ("failed", "unreachable", "lost") or result.get("ignored"):
        return []
    lines = [f"{at}  {str(result['status']).upper()}  {result.get('host')}  {result.get('task')}  "
             f"{result.get('message') or ''}"]
    return lines + [f"{'':13}| {line}" for line in result.get("output") or ()]
