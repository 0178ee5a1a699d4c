"""A run's report as one HTML page that needs nothing beside it."""

from __future__ import annotations

import html
from typing import Any

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1b1b1b;
background:#fff}table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid #ddd;vertical-align:top}.fail,.unknown,.failed,.unreachable,.lost{color:#b00020;font-weight:600}
.warn{color:#8a5a00;font-weight:600}.pass,.ok{color:#226622}code{white-space:pre-wrap}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e4e4e4}td,th{border-color:#333}
.pass,.ok{color:#7cc47c}.warn{color:#e0b050}.fail,.unknown,.failed,.unreachable,.lost{color:#ff7b7b}}"""


def page(tree: dict[str, Any]) -> str:
    """The text of the file; `tree` is what `--format json` prints."""
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
