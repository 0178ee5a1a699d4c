"""What is kept of a failed start: logs, process and port state of every node, and the cause, under the run's folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bringup.base.secrets import SCRUBBER
from bringup.base.text import duration, printable
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.causes import Cause
from bringup.serving.start import Outcome, ReplicaStart


def keep(fleet: Fleet, replica: ReplicaStart, outcome: Outcome) -> Path:
    """Write everything of this start to `.bringup/runs/ID/<replica>/`; returns that folder."""
    folder = fleet.project.run_folder(fleet.run_id) / replica.name
    folder.mkdir(parents=True, exist_ok=True)
    ports = calls.call_all(fleet, "engine_process", {
        host: {"action": "ports", "ports": list(document["ports"]), "addresses": list(document["addresses"])}
        for host, document in replica.launches.items() if document["ports"]}, changes=False, timeout=30)
    for host, document in replica.launches.items():
        watched = outcome.watched[host]
        lines = "".join(f"{clock(at)}  {printable(text)}\n" for at, text in watched.lines)
        _write(folder / f"{host}.log", lines)
        listening = ports.get(host)
        _write_json(folder / f"{host}.json", {
            "launch": {key: value for key, value in document.items() if key != "values"},
            "status": {key: value for key, value in watched.status.items() if key not in ("lines", "after")},
            "listening": listening.data.get("taken") if listening is not None and not listening.bad else None,
        })
    if outcome.cause is not None:
        _write_json(folder / "cause.json", asdict(outcome.cause))
    return folder


def _write(path: Path, text: str) -> None:
    path.write_text(SCRUBBER.text(text), encoding="utf-8")


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    _write(path, json.dumps(SCRUBBER.tree(dict(document)), indent=1, sort_keys=True, default=str) + "\n")


def clock(at: float | None) -> str:
    """A moment as the wall clock here shows it."""
    return time.strftime("%H:%M:%S", time.localtime(at)) if at else "--:--:--"


def told(cause: Cause, outcome: Outcome, kept: Path, root: Path) -> list[str]:
    """Cause, why, mend and kept, as the screen shows them."""
    lines = [f"cause    {cause.host}: {cause.what}"]
    if cause.evidence and cause.evidence != cause.what:
        moment = f"{clock(cause.at)}  " if cause.at else ""
        lines.append(f"         {moment}{printable(cause.evidence)}")
    else:
        last = outcome.watched.get(cause.host)
        tail = [text for _, text in last.lines[-3:]] if last else []
        lines += [f"         {printable(text)}" for text in tail]
    if cause.why:
        lines.append(f"why      {cause.why}")
    if cause.mend:
        lines.append(f"mend     {cause.mend}")
    shown = kept.relative_to(root) if kept.is_relative_to(root) else kept
    lines.append(f"kept     {shown}/  logs of all nodes, process and port state")
    return [SCRUBBER.text(line) for line in lines]


def failed_after(seconds: float, name: str) -> str:
    """The first words of a failed start."""
    return f"FAILED after {duration(seconds)} ({name})"
