"""The live part of a terminal: the stage under way, its subjects, the last line of output; redrawn in place."""

from __future__ import annotations

import shutil
import threading
import time
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.spinner import Spinner
from rich.text import Text

from bringup.base import events
from bringup.base.secrets import SCRUBBER
from bringup.base.text import duration, plural, printable
from bringup.ui.layout import Layout
from bringup.ui.plain import Plain

_SUBJECTS = 12  # subjects shown at a time; the rest is counted


class Live:
    """Lines scroll above; below stands what is under way, a few times a second."""

    def __init__(self, layout: Layout, stream: TextIO, colour: bool) -> None:
        self.plain = Plain(layout, stream, colour)
        self.console = Console(file=stream, no_color=not colour, highlight=False, soft_wrap=True)
        self.live: RichLive | None = None
        self.lock = threading.Lock()
        self.stage: events.PlayStarted | None = None
        self.task = ""
        self.since = time.monotonic()
        self.subjects: dict[str, str] = {}
        self.last: tuple[str, str, float] | None = None
        self.spinner = Spinner("dots")

    def __call__(self, event: events.Event, /) -> None:
        with self.lock:
            self._note(event)
        lines = self.plain.layout.lines(event)
        if isinstance(event, (events.RunEnded, events.PlayEnded)):
            self.pause()
        if lines:
            if self.live is not None:
                self.console.print(Text.from_ansi("\n".join(self.plain.painted(line) for line in lines)))
            else:
                self.plain.show(lines)
        if self.stage is not None and self.live is None:
            self.resume()

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.PlayStarted):
            self.stage, self.task, self.subjects, self.last = event, "", {}, None
            self.since = time.monotonic()
        elif isinstance(event, (events.PlayEnded, events.RunEnded)):
            self.stage = None
        elif isinstance(event, events.TaskStarted):
            self.task = event.task
        elif isinstance(event, events.Progress):
            if event.done:
                self.subjects.pop(event.subject, None)
            self.subjects[event.subject] = event.text
        elif isinstance(event, events.Line):
            self.last = (event.host, event.text, time.monotonic())

    def _render(self) -> Group:
        with self.lock:
            stage, task, subjects, last = self.stage, self.task, dict(self.subjects), self.last
        if stage is None:
            return Group()
        width = shutil.get_terminal_size((80, 24)).columns - 1
        head = f"{stage.name:14.30} {plural(len(stage.hosts), 'host'):13} {duration(time.monotonic() - self.since)}"
        self.spinner.update(text=Text(f"{head}   {task}"[: width - 2]))
        rows: list[Spinner | Text] = [self.spinner]
        shown = list(subjects.items())[-_SUBJECTS:]
        rows += [Text(SCRUBBER.text(f"    {name:16} {text}")[:width]) for name, text in shown]
        if len(subjects) > len(shown):
            rows.append(Text(f"    and {len(subjects) - len(shown)} more"))
        if last is not None:
            host, text, at = last
            line = f"    last line {duration(time.monotonic() - at)} ago   {host}  {printable(text)}"
            rows.append(Text(SCRUBBER.text(line)[:width], style="" if self.console.no_color else "dim"))
        return Group(*rows)

    def pause(self) -> None:
        """Take the live part away, so that a question or a report has the screen."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        self.plain.pause()

    def resume(self) -> None:
        """Bring the live part back."""
        if self.stage is None:
            return
        self.live = RichLive(get_renderable=self._render, console=self.console, refresh_per_second=5, transient=True,
                             redirect_stdout=False, redirect_stderr=False)
        self.live.start(refresh=True)

    def close(self) -> None:
        """End the live part and print what waits."""
        self.stage = None
        self.pause()
