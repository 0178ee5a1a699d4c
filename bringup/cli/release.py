"""Verbs of releases: releases, release.diff, release.pin, release.unpin, release.gc, rollback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError
from bringup.cli.options import COMMON, Option, Options, verb
from bringup.cli.replacing import REPLACE, replaced, tell_to_write
from bringup.cli.serve import CHANGING, headline, read_stages, run_data, say

if TYPE_CHECKING:
    from bringup.base.events import Event

KEEP = 5
"""Newest releases that `release.gc` leaves when nothing else is said; `bringup.releases.keeping` says the same."""


@verb(COMMON)
def releases(options: Options) -> ExitStatus:
    """List the releases on the hosts: number, digest, state, when, by whom, what differs."""
    return run_data(read_stages(options, "releases"), "releases", lambda event: _show(options, event, "releases"))


@verb([Option("old", help="number or digest", positional=True), Option("new", help="number or digest", positional=True),
       *COMMON], name="release.diff")
def release_diff(options: Options) -> ExitStatus:
    """Show what differs between two releases in what reaches the processes."""
    reading = read_stages(options, "releases", {"releases_between": [options.old, options.new]})
    return run_data(reading, "release.diff", lambda event: _show(options, event, "differences"))


@verb([*CHANGING, Option("to", help="number or digest (default: the one before that was good everywhere)"),
       Option("even-if-bad", False, "with --to: also one known to be bad or rolled back from"),
       REPLACE, Option("rehearse", False, "everything but the switch and the restart; says what it proved")])
def rollback(options: Options) -> ExitStatus:
    """Go back to an earlier good release: proven on every node first, then switched, then restarted in order."""
    if options.even_if_bad and not options.to:
        raise InputError("--even-if-bad goes with --to: it says which one", next="invoke releases")
    more: dict[str, Any] = {"rollback_to": options.to or "previous", "rollback_even_if_bad": bool(options.even_if_bad)}
    places = replaced(options.replace)
    if places:
        more["bringup_replace"] = places
    reading = read_stages(options, "rehearse" if options.rehearse else "rollback", more, leave_out=tuple(places))
    from bringup.cli.running import run_reading

    status = run_reading(reading, verb="rollback", headline=headline(reading))
    if not options.rehearse and not options.check:
        tell_to_write(places, reading, status)
    return status


@verb([*COMMON, Option("keep", str(KEEP), f"newest releases that stay in any case (default {KEEP})")],
      name="release.gc")
def release_gc(options: Options) -> ExitStatus:
    """Remove old releases and environments that nothing uses; never one in use, pinned or the last good."""
    keep = options.number("keep")
    return _on_stores(options, "release.gc", "release_gc", {"release_keep": KEEP if keep is None else keep})


@verb([Option("release", help="number or digest", positional=True), *COMMON,
       Option("reason", help="why, shown by invoke releases")], name="release.pin")
def release_pin(options: Options) -> ExitStatus:
    """Pin a release: release.gc never removes it."""
    return _on_stores(options, "release.pin", "release_pin", {
        "release_name": options.release, "release_pinned": True, "release_reason": options.reason or ""})


@verb([Option("release", help="number or digest", positional=True), *COMMON], name="release.unpin")
def release_unpin(options: Options) -> ExitStatus:
    """Take a release's pin away."""
    return _on_stores(options, "release.unpin", "release_pin", {
        "release_name": options.release, "release_pinned": False, "release_reason": ""})


def _on_stores(options: Options, name: str, playbook: str, more: dict[str, Any]) -> ExitStatus:
    from bringup.cli.running import run_reading

    return run_reading(read_stages(options, playbook, more, whole=False), verb=name)


def _show(options: Options, event: Event, name: str) -> bool:
    from bringup.base.events import Findings

    if not isinstance(event, Findings) or name not in event.tables:
        return False
    table = event.tables[name]
    if options.format == "json":
        say(json.dumps(_records(table), indent=2, ensure_ascii=False))
    else:
        for line in fitted(table, free=2 if name == "releases" else 1):
            say(line)
    return True


def _records(table: Sequence[Sequence[str]]) -> list[dict[str, str]] | list[str]:
    head, *rows = table
    if len(head) == 1:
        return [row[0] for row in rows]
    return [dict(zip(head, row, strict=True)) for row in rows]


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines, its columns aligned; the last one runs free."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]


def fitted(table: Sequence[Sequence[str]], free: int = 1) -> list[str]:
    """The same for this terminal: where a line would be too long for it, the last `free` columns get lines of their
    own."""
    import textwrap

    from bringup.ui.screen import line_width

    lines, width = columns(table), line_width()
    if len(table[0]) <= free or max(len(line) for line in lines) <= width:
        return lines
    out = []
    for row, line in zip(table, columns([list(row[:-free]) for row in table]), strict=True):
        out.append(line)
        for text in row[-free:]:
            out += textwrap.wrap(text, max(width, 20), initial_indent="    ", subsequent_indent="      ",
                                 break_on_hyphens=False)
    return out
