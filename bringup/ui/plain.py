"""Lines on a stream: what a pipe gets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from bringup.base.events import Event
from bringup.base.secrets import SCRUBBER
from bringup.base.streams import silence
from bringup.ui.layout import Layout, Shown

_COLOURS = {"head": "1", "good": "32", "bad": "31", "warn": "33", "dim": "2"}


class Plain:
    """Lines on a stream, coloured when it is a terminal that wants colour."""

    def __init__(self, layout: Layout, stream: TextIO, colour: bool) -> None:
        self.layout = layout
        self.stream = stream
        self.colour = colour
        self.deaf = False

    def __call__(self, event: Event, /) -> None:
        self.show(self.layout.lines(event))

    def show(self, lines: Sequence[Shown]) -> None:
        """Write lines. Where nobody takes them any more (`| head`, a full disk) the run goes on without: it may be in
        the middle of a start."""
        if not lines or self.deaf:
            return
        try:
            self.stream.write("".join(self.painted(line) + "\n" for line in lines))
            self.stream.flush()
        except OSError as error:
            self.deaf = True
            silence(self.stream)
            if not isinstance(error, BrokenPipeError):
                print(f"the output cannot be written ({error.strerror}); the run goes on", file=sys.stderr)

    def painted(self, line: Shown) -> str:
        text = SCRUBBER.text(line.text)
        code = _COLOURS.get(line.kind) if self.colour and text else None
        return f"\x1b[{code}m{text}\x1b[0m" if code else text

    def pause(self) -> None:
        self.show(self.layout.flush())

    def resume(self) -> None:
        return None

    def close(self) -> None:
        self.show(self.layout.flush())
