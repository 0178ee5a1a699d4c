"""`invoke status --run ID`: what a run of this machine showed and kept; a run under way is followed to its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bringup.base.errors import ExitStatus, InputError
from bringup.base.paths import Project
from bringup.cli.options import Options

POLL = 0.3
"""Seconds between two looks at the journal of a run that is under way."""


_PLAY = """
- name: run
  hosts: all
  gather_facts: false
  tasks:
    - name: Read what the hosts know of it
      run_record:
        run: "{{ asked_run }}"
"""


def kept_here(name: str) -> bool:
    """Whether the run was typed in this project on this machine."""
    return name == "last" or (Project.find().state / "runs" / name).is_dir()


def ask_hosts(options: Options) -> ExitStatus:
    """Tell what the hosts know of a run that was typed elsewhere. Raises InputError for what is no run's name."""
    from bringup.cli.running import Reading, run_reading

    name = str(options.run)
    if not name.isalnum():
        raise InputError("a run is named by six hex digits", found=name)
    reading = Reading(options, Path("status"), {"asked_run": name}, text=_PLAY)
    return run_reading(reading, verb="status", headline=f"run {name}, as its hosts know it")


def run_folder(name: str) -> Path:
    """The folder of a run of this project; `last` is the newest. Raises InputError."""
    runs = Project.find().state / "runs"
    folders = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    known = [path.name for path in sorted(folders, key=lambda path: path.stat().st_mtime)]
    wanted = known[-1] if name == "last" and known else name
    if wanted not in known:
        raise InputError(f"no run `{name}` is kept on this machine", expected=", ".join(known[-8:]) or "none yet",
                         found=str(runs), next=f"ask its hosts: invoke status --run {name} --inventory NAME")
    return runs / wanted


def show_run(folder: Path, say: Callable[[str], None], *, as_json: bool = False, verbose: bool = False) -> ExitStatus:
    """Say what the run showed, line by line as it comes, then the files that it kept.

    `as_json` says one document of what is there now instead, the one that the run's own `--format json` gives.
    """
    from bringup.base import events
    from bringup.ui.layout import Layout
    from bringup.ui.replay import events_of
    from bringup.ui.report import Collector
    from bringup.ui.screen import STAGED_VERBS, line_width

    journal = folder / "journal.jsonl"
    if as_json:
        collector = Collector()
        for _, event in events_of(_lines(journal, follow=False)):
            collector(event)
        say(collector.json())
        return ExitStatus.DONE
    say(f"run {folder.name}{'  under way; Ctrl-C leaves it so' if under_way(journal) else ''}")
    layout = Layout("stages", width=line_width(), verbose=verbose, piped=True)
    ended, heard = False, 0.0
    for moment, event in events_of(_lines(journal, follow=True)):
        if isinstance(event, events.RunStarted):
            layout.style = "stages" if event.verb in STAGED_VERBS else "tasks"
            say(f"began {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}")
        for line in layout.lines(event):
            say(line.text)
        ended, heard = ended or isinstance(event, events.RunEnded), moment
    for line in layout.flush():
        say(line.text)
    if not ended:
        when = time.strftime(", last heard of at %H:%M:%S", time.localtime(heard)) if heard else ""
        say(f"cut off: it did not end, and nothing of it runs on this machine{when}")
        say("next     the same command goes on from there; invoke status says what runs")
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != journal):
        say(f"kept     {os.path.relpath(path)}")
    return ExitStatus.DONE


def under_way(journal: Path) -> bool:
    """Whether the run that writes this journal lives: it holds the kernel's lock on the file until it ends."""
    import fcntl

    try:
        with journal.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lines(journal: Path, *, follow: bool) -> Iterator[str]:
    """Whole lines; with `follow` also those to come, for as long as the run lives."""
    try:
        file = journal.open(encoding="utf-8", errors="replace")
    except OSError:
        return
    rest = ""
    with file:
        while True:
            living = follow and under_way(journal)
            for part in file:
                rest += part
                if rest.endswith("\n"):
                    yield rest
                    rest = ""
            if not living:
                return
            time.sleep(POLL)
