"""What a run was, as JSON, JUnit or HTML, from the same events that the screen showed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bringup.base import events
from bringup.base.errors import InputError, StepError
from bringup.base.results import Result, Status
from bringup.base.secrets import SCRUBBER
from bringup.base.verdicts import Finding, Verdict

_NAMES = events.NAMES | {
    "run", "operator", "stages", "recap", "results", "parity", "notes", "ready", "summaries", "where", "counts",
    "blocks",
} | frozenset(Status) | frozenset(verdict.value for verdict in Verdict) | {"ok", "rescued", "ignored"}
"""Keys of the report, which no secret masks."""


class Collector:
    """Keeps what a report needs: results that are no plain ok, findings, stages, the end."""

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.ended: events.RunEnded | None = None
        self.ready: events.Ready | None = None
        self.results: list[Result] = []
        self.findings: list[Finding] = []
        self.tables: dict[str, Any] = {}
        self.stages: list[dict[str, Any]] = []
        self.notes: list[events.Note] = []

    def __call__(self, event: events.Event, /) -> None:
        if isinstance(event, events.RunStarted):
            self.started = event
        elif isinstance(event, events.RunEnded):
            self.ended = event
        elif isinstance(event, events.Ready):
            self.ready = event
        elif isinstance(event, events.TaskEnded):
            self.results.append(event.result)
        elif isinstance(event, events.Findings):
            # a second look (after mends) takes the place of the first
            anew = {(finding.check, finding.subject) for finding in event.findings}
            self.findings = [one for one in self.findings if (one.check, one.subject) not in anew]
            self.findings.extend(event.findings)
            self.tables.update(event.tables)
        elif isinstance(event, events.PlayStarted):
            self.stages.append({"name": event.name, "hosts": list(event.hosts), "summaries": []})
        elif isinstance(event, events.StageSummary) and self.stages:
            self.stages[-1]["summaries"].append({"subject": event.subject, "text": event.text})
        elif isinstance(event, events.PlayEnded) and self.stages:
            self.stages[-1]["seconds"] = round(event.seconds, 3)
        elif isinstance(event, events.Note):
            self.notes.append(event)

    def tree(self) -> dict[str, Any]:
        """The whole report as a tree of JSON values, scrubbed."""
        started, ended, ready = self.started, self.ended, self.ready
        tree = {
            "verb": started.verb if started else "",
            "inventory": started.inventory if started else "",
            "run": started.run_id if started else "",
            "operator": started.operator if started else "",
            "hosts": list(started.hosts) if started else [],
            "check": started.check if started else False,
            "status": ended.status if ended else None,
            "seconds": round(ended.seconds, 3) if ended else None,
            "recap": ended.recap if ended else {},
            "stages": self.stages,
            "results": [_result(result) for result in self.results],
            "findings": [_finding(finding) for finding in self.findings],
            "counts": {verdict.value: sum(1 for one in self.findings if one.verdict is verdict) for verdict in Verdict},
            "parity": self.tables,
            "notes": [{"host": note.host, "level": note.level, "text": note.text} for note in self.notes],
            "ready": dataclasses.asdict(ready) if ready else None,
        }
        scrubbed = SCRUBBER.tree(tree, _NAMES)
        assert isinstance(scrubbed, dict)
        return scrubbed

    def json(self) -> str:
        """The report as one JSON document."""
        return json.dumps(self.tree(), indent=2, default=str)


def check_reports(paths: Sequence[str]) -> None:
    """Raise InputError before the run for a report that could not be written after it."""
    for path in paths:
        folder = os.path.dirname(path) or "."
        if not path.endswith((".json", ".xml", ".html")):
            raise InputError(f"--report {path}: the ending says the kind", expected=".json, .xml (JUnit) or .html")
        if not os.path.isdir(folder):
            raise InputError(f"--report {path}: there is no folder `{folder}`", next=f"mkdir -p {folder}")
        if os.path.isdir(path):
            raise InputError(f"--report {path}: that is a folder", expected="a file")
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise InputError(f"--report {path}: this account may not write it")


def write_report(collector: Collector, path: str) -> None:
    """Write a report; its ending says the kind. Raises StepError when the file cannot be written."""
    if path.endswith(".json"):
        text = collector.json() + "\n"
    elif path.endswith(".xml"):
        from bringup.ui.report_junit import junit

        text = junit(collector.tree())
    else:
        from bringup.ui.report_page import page

        text = page(collector.tree())
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StepError(f"the report cannot be written: {error.strerror or error}", where=path) from None


def _result(result: Result) -> dict[str, Any]:
    out: dict[str, Any] = {
        "host": result.host, "task": result.task, "status": result.status.value, "seconds": round(result.seconds, 4),
        "where": str(result.origin) if result.origin else None, "module": result.module,
    }
    if result.item is not None:
        out["item"] = result.item
    if result.ignored or result.rescued:
        out["ignored" if result.ignored else "rescued"] = True
    if result.no_log:
        out["no_log"] = True
        return out
    for name in ("message", "expected", "found", "next"):
        if getattr(result, name):
            out[name] = getattr(result, name)
    if result.output:
        out["output"] = list(result.output)
    return out


def _finding(finding: Finding) -> dict[str, Any]:
    out = {field.name: getattr(finding, field.name) for field in dataclasses.fields(finding)}
    out.update(verdict=finding.verdict.value, blocks=finding.blocks)
    return {name: value for name, value in out.items() if value not in (None, (), {})}
