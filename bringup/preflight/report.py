"""The report as lines of text: worst first, equal findings of many hosts in one line, what is fine in one line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from bringup.base.events import Findings
from bringup.base.text import fold_hosts, plural, printable
from bringup.base.verdicts import Finding, Verdict

_ORDER = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.NOTE)
_SUBJECT, _CHECK = 16, 18
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_WIDE, _SUBJECT_MOST = 110, 32
"""From so many columns on the column of subjects is as wide as they need, up to so much."""


def lines(findings: Sequence[Finding], tables: Mapping[str, Sequence[Sequence[str]]] | None = None, *, width: int = 80,
          title: str = "", verbose: bool = False, closing: bool = True) -> list[str]:
    """The report, colourless, no line longer than `width` unless a word is; `closing` adds the line of counts."""
    out = [*textwrap.wrap(title, width), ""] if title else []
    shown = [finding for finding in findings if finding.verdict in _ORDER
             or (verbose and finding.verdict is Verdict.SKIP)]
    groups = folded(shown)
    longest = max((len(_subjects([finding.subject for finding in group])) for group in groups), default=0)
    column = min(max(longest, _SUBJECT), _SUBJECT_MOST) if width >= _WIDE else _SUBJECT
    for group in groups:
        out += _block(group, width, column)
    if shown and closing:
        out.append("")
    for name, rows in (tables or {}).items():
        out += _table(name, rows, width)
    if closing:
        out += textwrap.wrap(summary(findings), width, subsequent_indent="     ")
    return out


def report_lines(event: Findings, *, width: int = 80, verbose: bool = False, closing: bool = True) -> list[str]:
    """The lines of a Findings event."""
    return lines(event.findings, event.tables, width=width, title=event.title, verbose=verbose, closing=closing)


def folded(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings in groups that say the same, worst first; within a verdict in the order of the checks."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.verdict, finding.check, _general(finding.summary, finding.subject), finding.mend is None)
        groups.setdefault(key, []).append(finding)
    order = {verdict: rank for rank, verdict in enumerate((*_ORDER, Verdict.SKIP))}
    return sorted(groups.values(), key=lambda group: order[group[0].verdict])


def _general(text: str, subject: str) -> str:
    """A summary without the own name and addresses, so that `gpu01 resolves to ...` of many hosts is one line."""
    text = _ADDRESS.sub("\0", text)
    for host in subject.split(" > "):
        text = text.replace(host.strip(), "\0")
    return text


def _block(group: Sequence[Finding], width: int, column: int) -> list[str]:
    first = group[0]
    subject = _subjects([finding.subject for finding in group])
    word = {"pass": "PASS", "unknown": "UNKN", "skip": "SKIP"}.get(first.verdict.value, first.verdict.value.upper())
    head = f"{word:<4}  {subject:<{column}} {first.check:<{_CHECK}} "
    indent = 6 + column + 1
    body = printable(first.summary)
    others = [finding.summary for finding in group[1:] if finding.summary != first.summary]
    if others and len(group) < 4:
        body += "  (" + "; ".join(map(printable, others)) + ")"
    elif others:
        body += "  (the others alike)"
    if len(subject) > column or len(first.check) > _CHECK:
        # a long subject gets the line to itself, so that the summary keeps its column
        out = [f"{word:<4}  {subject}  {first.check}"] if len(subject) > column else []
        lead = " " * indent if out else f"{word:<4}  {subject:<{column}} {first.check}  "
    else:
        out, lead = [], head
    hang = " " * indent
    room = width - len(lead)
    if room < 28:
        out.append(lead.rstrip())
        out += _wrap(body, width, hang, hang)
    else:
        out += _wrap(body, width, lead, hang)
    for detail in first.details:
        out += _wrap(printable(detail), width, hang, hang + "  ")
    if first.verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN):
        if first.found is not None and first.required is not None and first.found not in first.summary:
            out += _wrap(f"found   {first.found}, required {first.required}", width, hang, hang + "        ")
        if first.mend:
            out += _wrap(f"mend    {first.mend}", width, hang, hang + "        ")
    return out


def _wrap(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                         break_on_hyphens=False, drop_whitespace=True) or [first.rstrip()]


def _subjects(subjects: Sequence[str]) -> str:
    pairs = [subject for subject in subjects if " > " in subject]
    if not pairs:
        return fold_hosts(list(dict.fromkeys(subjects)))
    if len(pairs) == 1:
        return pairs[0]
    left = fold_hosts(list(dict.fromkeys(pair.split(" > ")[0] for pair in pairs)))
    right = fold_hosts(list(dict.fromkeys(pair.split(" > ")[1] for pair in pairs)))
    return f"{left} > {right}"


def _table(name: str, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    if rows and rows[0][0] == "from \\ to":
        return _matrix(name, rows, width)
    out = []
    columns = [max((len(row[index]) for row in rows if index < len(row)), default=0) for index in (0, 1)]
    for number, row in enumerate(rows):
        lead = f"{name:<8} " if number == 0 else " " * 9
        text = f"{lead}{row[0]:<{columns[0]}}  {row[1]:<{min(columns[1], 40)}}"
        if len(row) > 2 and row[2]:
            text += f"    {row[2]}"
        out += _wrap(printable(text.rstrip()), width, "", " " * 11)
    return out


def _matrix(name: str, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A line for each host; where that does not fit, the range of each host's cells (reports hold the whole)."""
    cells = [max(len(str(row[index])) for row in rows) for index in range(len(rows[0]))]
    if sum(cells) + 2 * len(cells) + 2 <= width:
        return [name, *("  " + "  ".join(f"{cell:>{cells[index]}}" if index else f"{cell:<{cells[0]}}"
                                         for index, cell in enumerate(row)).rstrip() for row in rows)]
    out = [f"{name}, least and most of each host (--report FILE.html has the matrix)"]
    for row in rows[1:]:
        numbers = sorted(float(cell) for cell in row[1:] if cell.replace(".", "", 1).isdecimal())
        out.append(f"  {row[0]:<{cells[0]}}  " + (f"{numbers[0]:g} to {numbers[-1]:g}" if numbers else "-"))
    return out


def summary(findings: Sequence[Finding]) -> str:
    """`pass 1,299 of 1,304 checks on 16 hosts; 3 fail, 1 warn, 1 skip (container.*: the manager is systemd)`."""
    count = {verdict: sum(1 for finding in findings if finding.verdict is verdict) for verdict in Verdict}
    hosts = {host.strip() for finding in findings for host in finding.subject.split(" > ")}
    good = count[Verdict.PASS] + count[Verdict.NOTE]
    judged = sum(count.values()) - count[Verdict.SKIP]
    parts = [f"{count[verdict]:,} {verdict.value}" for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN)
             if count[verdict]]
    text = f"pass {good:,} of {judged:,} checks on {plural(len(hosts), 'host')}"
    if count[Verdict.SKIP]:
        parts.append(f"{count[Verdict.SKIP]:,} skipped (-v says why)")
    return text + ("; " + ", ".join(parts) if parts else "")


def as_data(findings: Sequence[Finding], tables: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, object]:
    """The report as a tree for `--format json`."""
    return {
        "findings": [
            {"check": f.check, "subject": f.subject, "verdict": f.verdict.value, "summary": f.summary,
             "details": list(f.details), "required": f.required, "found": f.found, "source": f.source, "mend": f.mend,
             "blocks": f.blocks, "data": dict(f.data)}
            for f in findings],
        "tables": {name: [list(row) for row in rows] for name, rows in tables.items()},
        "counts": {verdict.value: sum(1 for f in findings if f.verdict is verdict) for verdict in Verdict},
    }
