"""The page of `invoke status`: a line per node, then what is wrong, worst first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.cli.options import Options

if TYPE_CHECKING:
    from bringup.base.events import Event
    from bringup.base.verdicts import Finding


class StatusPage:
    """Shows the events of a status run as they come: call it with each; true for those that it showed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.shown = False
        self.findings: Sequence[Finding] = ()
        self.rows: Sequence[Sequence[str]] = ()

    def __call__(self, event: Event) -> bool:
        from bringup.base.events import Findings, StageSummary, TaskEnded

        if isinstance(event, Findings) and "status" in event.tables:
            self.findings, self.rows = event.findings, event.tables["status"]
            return True
        if isinstance(event, StageSummary) and self.rows:
            self._show(event.subject, event.text)
            self.shown = True
            return True
        # what the findings told already is not told again as a failed task
        return isinstance(event, TaskEnded) and event.result.bad and self.shown and bool(self.findings)

    def _show(self, release: str, text: str) -> None:
        from bringup.cli.serve import say

        if self.options.format == "json":
            say(json.dumps(self._document(release, text), indent=2, ensure_ascii=False))
            return
        from bringup.cli.release import fitted

        for line in fitted(narrowed(self.rows)):
            say(line)
        say("")
        for finding in self.findings:
            say(f"{finding.verdict.value.upper():5} {finding.subject:15} {finding.check:17} {finding.summary}")
            for detail in finding.details:
                say(f"{'':39} {detail}")
            if finding.mend:
                say(f"{'':39} mend  {finding.mend}")
        say(f"{release}: {text}" + ("" if self.findings else ", nothing wrong found"))

    def _document(self, release: str, text: str) -> dict[str, Any]:
        head, *rows = self.rows
        nodes, replica = [], ""
        for row in rows:
            node = dict(zip(head, row, strict=True))
            replica = node["replica"] or replica
            nodes.append({**node, "replica": replica})
        return {"release": release, "summary": text, "nodes": nodes, "findings": [
            {"check": f.check, "subject": f.subject, "verdict": f.verdict.value, "summary": f.summary,
             "details": list(f.details), "mend": f.mend} for f in self.findings]}


def narrowed(table: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """The table for this terminal: where its columns before the last are too wide, without role, then without pid, and
    without a column that tells nothing."""
    from bringup.ui.screen import line_width

    last = len(table[0]) - 1
    told = [name for at, name in enumerate(table[0])
            if at < 2 or at == last or any(row[at] not in ("-", "") for row in table[1:])]
    for spare in ("", "role", "pid", "ranks"):
        told = [name for name in told if name != spare]
        rows = [[row[at] for at, name in enumerate(table[0]) if name in told] for row in table]
        if sum(max(len(row[at]) for row in rows) + 2 for at in range(len(told) - 1)) - 2 <= line_width():
            break
    return rows
