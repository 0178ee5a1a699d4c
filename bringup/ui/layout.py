"""Events as lines of text, without colour: what a pipe gets and what a terminal prints above its live part.

Two layouts: `stages` for our own verbs (a line per stage), `tasks` for any playbook (a line per task, then
Ansible's recap). Colour is laid over a line by its kind, so it carries nothing that a word does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from bringup.base import events
from bringup.base.errors import ExitStatus
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural, printable
from bringup.ui.failures import failure_blocks
from bringup.ui.wrapping import cut, hung

_RECAP = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored")
_REPEAT = 10.0  # seconds between two lines of progress of one subject in a pipe
_TALK = frozenset({"debug", "set_fact", "assert"})  # modules that do nothing on the host


@dataclass(frozen=True)
class Shown:
    """A line to print; kind is plain, head, good, bad, warn or dim."""

    text: str
    kind: str = "plain"


@dataclass
class _Stage:
    name: str
    index: int
    total: int
    hosts: int
    told: bool = False  # its own lines say what came of it
    summaries: list[events.StageSummary] = field(default_factory=list)
    counts: dict[Status, set[str]] = field(default_factory=dict)
    skip_reasons: list[str] = field(default_factory=list)
    told_reasons: list[str] = field(default_factory=list)  # what debug tasks of the roles said


class Layout:
    """Turns each event into the lines that it prints. Failures wait a moment, so that equal ones fold."""

    def __init__(self, style: str, *, width: int = 80, verbose: bool = False, piped: bool = True) -> None:
        self.style = style
        self.width = max(width, 60)
        self.verbose = verbose
        self.piped = piped
        self.stage: _Stage | None = None
        self.failures: list[Result] = []
        self.failures_since = 0.0
        self.pending: dict[tuple[str, str], tuple[events.TaskStarted, list[Result]]] = {}
        self.progress: dict[str, tuple[str, float]] = {}

    def lines(self, event: events.Event) -> list[Shown]:
        """The lines for one event."""
        out: list[Shown] = []
        if self.failures and (self._flushes(event) or time.monotonic() - self.failures_since > 1):
            out += self.flush()
        handler = getattr(self, f"_{type(event).__name__}", None)
        if handler is not None:
            out += list(handler(event))
        return out

    def flush(self) -> list[Shown]:
        """The failures that wait."""
        blocks = failure_blocks(self.failures)
        self.failures = []
        return [Shown(part, "bad" if number == 0 else "plain") for block in blocks
                for number, line in enumerate(block) for part in self._fit(line)]

    def _fit(self, line: str) -> list[str]:
        """A line cut to the terminal's width; in a pipe it stays whole, so that it can be searched for."""
        return [line] if self.piped else hung(line, self.width)

    @staticmethod
    def _flushes(event: events.Event) -> bool:
        return isinstance(event, (events.PlayStarted, events.PlayEnded, events.RunEnded, events.Ready, events.Note))

    def _RunStarted(self, event: events.RunStarted) -> Iterator[Shown]:
        check = " · check: nothing is changed" if event.check else ""
        if self.style == "stages":
            head = f"bringup {event.verb} · {event.inventory} · run {event.run_id} · by {event.operator}{check}"
            yield from (Shown(part, "head") for part in self._fit(head))
            if event.headline:
                yield from (Shown(part) for part in self._fit(event.headline))
            yield Shown("")
        else:
            hosts = plural(len(event.hosts), "host")
            head = f"bringup {event.verb} · {event.inventory} · {hosts} · run {event.run_id}{check}"
            yield from (Shown(part, "head") for part in self._fit(head))

    def _PlayStarted(self, event: events.PlayStarted) -> Iterator[Shown]:
        self.stage = _Stage(event.name, event.index, event.total, len(event.hosts))
        self.progress = {}
        if self.style != "stages":
            yield Shown("")
            yield Shown(f"PLAY {event.name} · {fold_hosts(event.hosts) or 'no hosts'}", "head")

    def _StageSummary(self, event: events.StageSummary) -> Iterator[Shown]:
        if self.stage is not None:
            self.stage.summaries.append(event)
        if self.style != "stages":
            yield Shown(f"  {event.subject}  {event.text}")

    def _PlayEnded(self, event: events.PlayEnded) -> Iterator[Shown]:
        if self.style != "stages" or self.stage is None:
            yield from self._unfinished()
            return
        if self.stage.told:
            self.stage = None
            return
        rows = [(s.subject, s.text) for s in self.stage.summaries] or [
            (plural(self.stage.hosts, "host"), self._stage_text(self.stage))
        ]
        took = duration(event.seconds)
        for number, (subject, text) in enumerate(rows):
            head = f"{self.stage.index:3d} {self.stage.name:14.30}" if number == 0 else " " * 18
            lead = f"{head} {subject:13} "
            last = number == len(rows) - 1
            room = self.width - len(lead) - len(took) - 2
            parts = cut(text, max(room, 20))
            for line_number, part in enumerate(parts):
                first = lead if line_number == 0 else " " * len(lead)
                ends = last and line_number == len(parts) - 1
                yield Shown(f"{first}{part:{max(room, 20)}}  {took}" if ends else f"{first}{part}")
        self.stage = None

    def _stage_text(self, stage: _Stage) -> str:
        counts = {status: len(hosts) for status, hosts in stage.counts.items()}
        bad = [f"{counts[s]} {s.value}" for s in (Status.FAILED, Status.UNREACHABLE, Status.LOST) if counts.get(s)]
        if bad:
            return ", ".join(bad)
        if counts.get(Status.CHANGED):
            return f"{counts[Status.CHANGED]} changed"
        if not counts.get(Status.OK) and (counts.get(Status.SKIPPED) or stage.told_reasons):
            reasons = list(dict.fromkeys(stage.told_reasons or stage.skip_reasons))
            return "skipped" + (f": {'; '.join(reasons)}" if reasons else "")
        return "ok" if counts else "nothing to do"

    def _TaskStarted(self, event: events.TaskStarted) -> Iterator[Shown]:
        self.pending[(event.task, str(event.origin))] = (event, [])
        yield from ()

    def _TaskEnded(self, event: events.TaskEnded) -> Iterator[Shown]:
        result = event.result
        if self.stage is not None and result.status is Status.OK and result.module.rpartition(".")[2] in _TALK:
            # says why nothing is done; a stage of nothing else did nothing
            self.stage.told_reasons += [result.message] if result.message and result.item is None else []
        elif self.stage is not None and not result.ignored and not result.rescued:
            self.stage.counts.setdefault(result.status, set()).add(result.host)
            if result.status is Status.SKIPPED and result.message:
                self.stage.skip_reasons.append(result.message)
        if result.status in (Status.FAILED, Status.UNREACHABLE, Status.LOST):
            if not self.failures:
                self.failures_since = time.monotonic()
            self.failures.append(result)
        if result.item is not None and not self.verbose:
            return
        yield from self._diff(result)
        if self.verbose:
            yield Shown(f"  {result.status.value:11} {result.host}  {result.task}{_item(result)}  "
                        f"{duration(result.seconds)}{_brief(result)}", "dim")
        if self.style != "stages" and result.item is None:
            yield from self._count(result)

    def _count(self, result: Result) -> Iterator[Shown]:
        key = (result.task, str(result.origin))
        entry = self.pending.get(key)
        if entry is None:
            return
        entry[1].append(result)
        if len(entry[1]) >= len(entry[0].hosts):
            del self.pending[key]
            yield self._task_line(*entry)
            yield from _said(entry[1])

    def _unfinished(self) -> Iterator[Shown]:
        for started, results in self.pending.values():
            if results:
                yield self._task_line(started, results)
                yield from _said(results)
        self.pending = {}

    def _task_line(self, started: events.TaskStarted, results: list[Result]) -> Shown:
        by: dict[str, list[str]] = {}
        for result in results:
            word = "ignored" if result.ignored else result.status.value
            by.setdefault(word, []).append(result.host)
        parts = []
        for word in ("ok", "changed", "skipped", "ignored", "failed", "unreachable", "lost"):
            if word in by:
                hosts = f" {fold_hosts(sorted(by[word]))}" if len(by) > 1 and word != "ok" else ""
                parts.append(f"{word} {len(by[word])}{hosts}")
        kind = "bad" if {"failed", "unreachable", "lost"} & by.keys() else "good" if "changed" in by else "plain"
        word = "HANDLER" if started.handler else "TASK"
        return Shown(f"{word} {started.task}  {' · '.join(parts)}", kind)

    def _diff(self, result: Result) -> Iterator[Shown]:
        if result.no_log:
            return
        for entry in result.diff:
            from bringup.ui.diff import diff_lines

            for line in diff_lines(entry, result.host):
                kind = "good" if line.startswith("+") else "bad" if line.startswith("-") else "dim"
                yield Shown(line, kind)

    def _Line(self, event: events.Line) -> Iterator[Shown]:
        if self.verbose:
            yield Shown(f"    {event.host}  {printable(event.text)}", "dim")

    def _Progress(self, event: events.Progress) -> Iterator[Shown]:
        text, since = self.progress.get(event.subject, ("", 0.0))
        now = time.monotonic()
        if event.brief or text == event.text or not self.piped or (not event.done and text and now - since < _REPEAT):
            return
        self.progress[event.subject] = (event.text, now)
        yield Shown(f"    {event.subject}  {event.text}", "dim")

    def _Note(self, event: events.Note) -> Iterator[Shown]:
        host = f"{event.host}  " if event.host else ""
        word, kind = ("WARN  ", "warn") if event.level == "warn" else ("NOTE  ", "plain")
        for number, line in enumerate(event.text.splitlines() or [""]):
            text = f"{word if number == 0 else '      '}{host}{line}"
            yield from (Shown(part, kind) for part in cut(text, self.width, "", "      "))

    def _Findings(self, event: events.Findings) -> Iterator[Shown]:
        from bringup.preflight.report import report_lines

        alone = self.stage is None or self.stage.total == 1
        if alone and self.stage is not None:
            self.stage.told = True
        if not alone:
            # a stage among others: what is wrong or worth knowing; its own line says that the rest passed
            event = replace(event, title="", tables={})
        for line in report_lines(event, width=self.width, verbose=self.verbose, closing=alone):
            kind = {"FAIL": "bad", "UNKN": "bad", "WARN": "warn"}.get(line[:4], "plain")
            yield Shown(line, kind)

    def _Ready(self, event: events.Ready) -> Iterator[Shown]:
        if self.stage is not None:
            self.stage.told = True
        first, more = event.endpoints[0], len(event.endpoints) - 1
        others = f" and {more} more" if more else ""
        was = f"   was {event.previous}" if event.previous else ""
        ready = f"ready    {first}{others}   model {event.model}   release {event.release}{was}"
        yield from (Shown(part, "good") for part in self._fit(ready))
        for line in (*(f"changed  {change}" for change in event.changes), *event.next):
            yield from (Shown(part) for part in self._fit(line))

    def _RunEnded(self, event: events.RunEnded) -> Iterator[Shown]:
        yield from self._unfinished()
        if event.status == ExitStatus.INTERRUPTED and self.style == "stages" and self.stage is not None:
            where = f"interrupted in stage {self.stage.index}, {self.stage.name}: what was finished stays, the same " \
                    "command goes on from there; invoke status says what runs"
            yield from (Shown(part) for part in self._fit(where))
        if self.style != "stages":
            yield Shown("")
            width = max((len(host) for host in event.recap), default=0)
            for host, counts in event.recap.items():
                words = " ".join(f"{name}={counts.get(name, 0)}" for name in _RECAP)
                bad = counts.get("failed", 0) or counts.get("unreachable", 0)
                yield Shown(f"{host:{width}} : {words}", "bad" if bad else "plain")
        for line in event.next:
            yield from (Shown(part) for part in self._fit(line))
        yield Shown(f"{_ending(event.status)} after {duration(event.seconds)}", "good" if event.status == 0 else "bad")


_ENDINGS: Mapping[int, str] = {
    ExitStatus.DONE: "done",
    ExitStatus.STEP: "a step failed (1)",
    ExitStatus.INPUT: "the input is wrong (2)",
    ExitStatus.UNREACHABLE: "a host was unreachable or lost (3)",
    ExitStatus.FINDING: "stopped by a finding (4)",
    ExitStatus.LOCKED: "another run holds the hosts (5)",
    ExitStatus.SERVED: "the endpoint served before this run and does not now (6)",
    ExitStatus.INTERRUPTED: "interrupted (130)",
}


def _ending(status: int) -> str:
    return _ENDINGS.get(ExitStatus(status), f"ended with {status}")


def _said(results: list[Result]) -> Iterator[Shown]:
    """What `debug` has to say, equal texts of many hosts once."""
    by: dict[str, list[str]] = {}
    for result in results:
        if result.module == "debug" and result.message and not result.no_log and result.status is Status.OK:
            by.setdefault(result.message, []).append(result.host)
    for text, hosts in by.items():
        lead = f"    {fold_hosts(sorted(hosts))}  "
        for number, line in enumerate(text.splitlines()):
            yield Shown(f"{lead if number == 0 else ' ' * len(lead)}{printable(line)}")


def _item(result: Result) -> str:
    return f" ({result.item})" if result.item is not None else ""


def _brief(result: Result) -> str:
    if result.no_log:
        return "  (hidden: no_log)"
    return f"  {printable(result.message.splitlines()[0])}" if result.message else ""
