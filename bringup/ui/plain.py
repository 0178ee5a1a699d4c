"""Lines on a stream: what a pipe gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from bringup.base.events import Event
from bringup.base.secrets import SCRUBBER
from bringup.ui.layout import Layout, Shown

_COLOURS = {"head": "1", "good": "32", "bad": "31", "warn": "33", "dim": "2"}


class Plain:
    """Lines on a stream, coloured when it is a terminal that wants colour."""

    def __init__(self, layout: Layout, stream: TextIO, colour: bool) -> None:
        self.layout = layout
        self.stream = stream
        self.colour = colour

    def __call__(self, event: Event, /) -> None:
        self.show(self.layout.lines(event))

    def show(self, lines: Sequence[Shown]) -> None:
        if lines:
            self.stream.write("".join(self.painted(line) + "\n" for line in lines))
            self.stream.flush()

    def painted(self, line: Shown) -> str:
        text = SCRUBBER.text(line.text)
        code = _COLOURS.get(line.kind) if self.colour and text else None
        return f"\x1b[{code}m{text}\x1b[0m" if code else text

    def pause(self) -> None:
        self.show(self.layout.flush())

    def resume(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        self.show(self.layout.flush())
