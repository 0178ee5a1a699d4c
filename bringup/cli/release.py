"""Verbs of releases: releases, release.diff, rollback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bringup.base.errors import ExitStatus
from bringup.cli.options import COMMON, Option, Options, verb
from bringup.cli.serve import CHANGING, read_stages, run_data, run_stages, say

if TYPE_CHECKING:
    from bringup.base.events import Event


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


@verb([*CHANGING, Option("to", help="number or digest (default: the one before that was good everywhere)")])
def rollback(options: Options) -> ExitStatus:
    """Go back to an earlier good release: proven on every node first, then switched, then restarted in order."""
    return run_stages(options, "rollback", {"rollback_to": options.to or "previous"})


def _show(options: Options, event: Event, name: str) -> bool:
    from bringup.base.events import Findings

    if not isinstance(event, Findings) or name not in event.tables:
        return False
    table = event.tables[name]
    if options.format == "json":
        say(json.dumps(_records(table), indent=2, ensure_ascii=False))
    else:
        for line in columns(table):
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
