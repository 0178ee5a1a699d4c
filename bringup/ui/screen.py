"""Where a run's events are shown: a terminal, a pipe, or one JSON document at the end."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Protocol

from bringup.base.events import Event
from bringup.base.secrets import SCRUBBER
from bringup.ui.layout import Layout
from bringup.ui.plain import Plain
from bringup.ui.report import Collector, write_report

STAGED_VERBS = frozenset({
    "release.gc", "release.pin", "release.unpin", "provision", "start", "stop", "restart", "rollback", "preflight",
    "status", "verify", "gate", "traffic.out", "traffic.in",
})
"""Verbs whose plays are stages: a line each."""


class Part(Protocol):
    """One receiver of the screen."""

    def __call__(self, event: Event, /) -> None: ...
    def close(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Screen:
    """Passes each event to what shows it and to the reports. Use `close` when the run has ended."""

    def __init__(self, part: Part, collector: Collector, reports: Sequence[str], as_json: bool) -> None:
        self.part = part
        self.collector = collector
        self.reports = tuple(reports)
        self.as_json = as_json

    def __call__(self, event: Event, /) -> None:
        self.collector(event)
        self.part(event)

    def ask(self, question: str) -> bool | None:
        """Ask at the terminal; None where there is none. An empty answer is no."""
        if not sys.stdin.isatty() or not sys.stderr.isatty():
            return None
        self.part.pause()
        try:
            print(f"{SCRUBBER.text(question)} [y/N] ", end="", file=sys.stderr, flush=True)
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        finally:
            self.part.resume()

    def close(self) -> None:
        """End the live part, write the reports, print the JSON document where that was asked for."""
        self.part.close()
        if self.as_json:
            sys.stdout.write(self.collector.json() + "\n")
        for path in self.reports:
            write_report(self.collector, path)


class Silent:
    """Shows nothing: the JSON document comes at the end."""

    def __call__(self, event: Event, /) -> None:
        return None

    def pause(self) -> None:
        return None

    def resume(self) -> None:
        return None

    def close(self) -> None:
        return None


def open_screen(options: object, verb: str) -> Screen:
    """The screen for a verb's flags (`format`, `report`, `verbose`)."""
    reports = list(getattr(options, "report", None) or ())
    collector = Collector()
    if getattr(options, "format", "text") == "json":
        return Screen(Silent(), collector, reports, as_json=True)
    style = "stages" if verb in STAGED_VERBS else "tasks"
    verbose = bool(getattr(options, "verbose", False))
    terminal = _redraws()
    layout = Layout(style, width=line_width(), verbose=verbose, piped=not terminal)
    colour = terminal and not os.environ.get("NO_COLOR")
    if terminal:
        from bringup.ui.live import Live

        return Screen(Live(layout, sys.stdout, colour), collector, reports, as_json=False)
    return Screen(Plain(layout, sys.stdout, colour=False), collector, reports, as_json=False)


def line_width() -> int:
    """Columns of the terminal; in a pipe those that COLUMNS names, else 100."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size((80, 24)).columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() and int(columns) > 0 else 100


def _redraws() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"
