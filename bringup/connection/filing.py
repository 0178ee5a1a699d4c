"""Files as frames: slices that go out between other frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bringup.agent import frames
from bringup.connection.messages import Request


def frames_of(request: Request, blob: Any, number: int) -> Iterator[bytes]:
    """The frames of a file, its `number` in this session: its head, then slices. One that cannot be read here is told
    as such."""
    head = {"t": "blob", "digest": blob.digest, "size": blob.size, "file": number, "become": request.become}
    if isinstance(blob.source, bytes):
        yield frames.control(head, request.id)
        for start in range(0, len(blob.source), frames.SLICE_BYTES):
            yield frames.pack(frames.SLICE, number, blob.source[start:start + frames.SLICE_BYTES])
        return
    try:
        handle = Path(blob.source).open("rb")  # noqa: SIM115 - closed by the `with` below
    except OSError as error:
        head["error"] = f"{blob.source} cannot be read: {error.strerror or error}"
        yield frames.control(head, request.id)
        return
    with handle:
        yield frames.control(head, request.id)
        left = blob.size
        while left > 0:
            piece = handle.read(min(left, frames.SLICE_BYTES))
            # a file that shrank meanwhile is filled up: its digest will not fit, and the host says so
            piece = piece or b"\0" * min(left, frames.SLICE_BYTES)
            left -= len(piece)
            yield frames.pack(frames.SLICE, number, piece)
