"""What a run was, as JSON, JUnit or HTML, from the same events that the screen showed."""

from __future__ import annotations

import dataclasses
import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bringup.base import events
from bringup.base.errors import InputError, StepError
from bringup.base.results import Result, Status
from bringup.base.secrets import SCRUBBER
from bringup.base.verdicts import Finding, Verdict

_NAMES = events.NAMES | {
    "run", "operator", "stages", "recap", "results", "parity", "notes", "ready", "summaries", "where",
} | frozenset(Status) | {"ok", "rescued", "ignored"}
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
        text = _junit(collector.tree())
    else:
        text = _html(collector.tree())
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
    out["verdict"] = finding.verdict.value
    return {name: value for name, value in out.items() if value not in (None, (), {})}


def _junit(tree: dict[str, Any]) -> str:
    root = ElementTree.Element("testsuites", name=f"bringup {tree['verb']}")
    _suite(root, "tasks", [(r["host"], r["task"], r["status"], r) for r in tree["results"]], {
        "failed": Status.FAILED.value, "error": (Status.UNREACHABLE.value, Status.LOST.value)})
    _suite(root, "checks", [(f["subject"], f["check"], f["verdict"], f) for f in tree["findings"]], {
        "failed": Verdict.FAIL.value, "error": (Verdict.UNKNOWN.value,)})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, rows: list[tuple[str, str, str, dict[str, Any]]],
           kinds: dict[str, Any]) -> None:
    if not rows:
        return
    suite = ElementTree.SubElement(root, "testsuite", name=name, tests=str(len(rows)))
    totals = {"failures": 0, "errors": 0, "skipped": 0}
    for subject, what, status, row in rows:
        case = ElementTree.SubElement(suite, "testcase", classname=subject, name=what, time=str(row.get("seconds", 0)))
        text = "\n".join(f"{key}: {row[key]}" for key in ("summary", "message", "expected", "found", "required", "mend",
                                                        "next") if row.get(key))
        if status == kinds["failed"] and not row.get("ignored"):
            totals["failures"] += 1
            ElementTree.SubElement(case, "failure", message=_clean(text.split("\n")[0])).text = _clean(text)
        elif status in kinds["error"]:
            totals["errors"] += 1
            ElementTree.SubElement(case, "error", message=_clean(text.split("\n")[0])).text = _clean(text)
        elif status in (Status.SKIPPED.value, Verdict.SKIP.value):
            totals["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=_clean(text.split("\n")[0]))
    for key, value in totals.items():
        suite.set(key, str(value))


def _clean(text: str) -> str:
    return "".join(char for char in text if char in "\t\n" or char >= " ")


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1b1b1b;
background:#fff}table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid #ddd;vertical-align:top}.fail,.unknown,.failed,.unreachable,.lost{color:#b00020;font-weight:600}
.warn{color:#8a5a00;font-weight:600}.pass,.ok{color:#226622}code{white-space:pre-wrap}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e4e4e4}td,th{border-color:#333}
.pass,.ok{color:#7cc47c}.warn{color:#e0b050}.fail,.unknown,.failed,.unreachable,.lost{color:#ff7b7b}}"""


def _html(tree: dict[str, Any]) -> str:
    rank = {"fail": 0, "unknown": 1, "warn": 2, "note": 3, "skip": 4, "pass": 5}
    findings = sorted(tree["findings"], key=lambda f: rank.get(f["verdict"], 9))
    rows = "".join(
        _row(f["verdict"], f["subject"], f["check"], f["summary"], "\n".join(f.get("details", ())), f.get("mend", ""))
        for f in findings
    )
    results = "".join(
        _row(r["status"], r["host"], r["task"], r.get("message", ""), "\n".join(r.get("output", ())), r.get("next", ""))
        for r in tree["results"]
    )
    stages = "".join(_stage(stage) for stage in tree["stages"])
    title = html.escape(f"bringup {tree['verb']} · {tree['inventory']} · run {tree['run']}")
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>",
             f"<h1>{title}</h1><p>{len(tree['hosts'])} hosts, exit status {tree['status']}, {tree['seconds']} s</p>"]
    if stages:
        parts.append(f"<ol>{stages}</ol>")
    for name, body in (("Findings", rows), ("Tasks", results)):
        if body:
            parts.append(f"<h2>{name}</h2><table>{body}</table>")
    for name, rows_of in tree["parity"].items():
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows_of)
        parts.append(f"<h2>{html.escape(str(name))}</h2><table>{body}</table>" if body else "")
    return "".join(parts) + "</html>\n"


def _stage(stage: dict[str, Any]) -> str:
    came_to = "; ".join(f"{row['subject']} {row['text']}" for row in stage["summaries"])
    return f"<li>{html.escape(stage['name'])}: {html.escape(came_to)} ({stage.get('seconds', 0)} s)</li>"


def _row(state: str, subject: str, what: str, summary: str, more: str, mend: str) -> str:
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in (subject, what, summary))
    extra = "".join(f"<div><code>{html.escape(text)}</code></div>" for text in (more, mend) if text)
    return f"<tr><td class={html.escape(state)}>{html.escape(state)}</td>{cells}<td>{extra}</td></tr>"
