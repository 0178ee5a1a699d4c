"""The frames that both sides speak: length, type, number, payload. Python 3.6.

    4 bytes  length of the payload, big endian
    1 byte   type: CONTROL (a JSON object in UTF-8), SLICE (raw bytes of a file), STDOUT, STDERR (text of a line)
    4 bytes  number: the request that the frame speaks of, or the number of the file for a SLICE

A control frame is a JSON object whose `t` says what it is; `bringup.agent.loop` lists them.
"""

import json
import struct

if False:  # for type checkers alone: importing it costs a host time
    from typing import Any

HEADER = struct.Struct(">IBI")
CONTROL, SLICE, STDOUT, STDERR = 1, 2, 3, 4
KINDS = (CONTROL, SLICE, STDOUT, STDERR)

SLICE_BYTES = 65536
"""Files go in pieces of this size, so that a cancel waits for one piece at most."""

LIMIT = 64 * 1024 * 1024
"""A longer frame means that the stream is not ours."""


class BadFrame(Exception):
    """The stream holds something that is no frame."""


def pack(kind: int, number: int, payload: bytes) -> bytes:
    """One frame as bytes."""
    return HEADER.pack(len(payload), kind, number) + payload


def control(message: "dict[str, object]", number: int = 0) -> bytes:
    """A control frame from a dict of JSON values; what JSON does not know is shown as text."""
    text = json.dumps(message, default=_shown, separators=(",", ":"))
    if "\\ud" in text:  # perhaps a lone surrogate, from a file name that is not UTF-8
        text = json.dumps(_clean(message), default=_shown, separators=(",", ":"))
    return HEADER.pack(len(text), CONTROL, number) + text.encode("ascii")


def _shown(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value, key=str)
    return str(value)


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if _lone(value) else value
    if isinstance(value, dict):
        return dict((_clean(key), _clean(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def _lone(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


class Decoder(object):
    """Cuts a stream of bytes into frames: feed() returns the list of (type, number, payload) that are whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> "list[tuple[int, int, bytes]]":
        """Raises BadFrame when the stream is not ours."""
        buffer = self._buffer
        buffer += data
        out = []
        start, size = 0, HEADER.size
        while len(buffer) - start >= size:
            length, kind, number = HEADER.unpack_from(buffer, start)
            if kind not in KINDS or length > LIMIT:
                raise BadFrame("not a frame: %r" % bytes(buffer[start:start + 40]))
            if len(buffer) - start - size < length:
                break
            start += size
            out.append((kind, number, bytes(buffer[start:start + length])))
            start += length
        if start:
            del buffer[:start]
        return out


def message(payload: bytes) -> "dict[str, Any]":
    """The dict of a control frame's payload. Raises BadFrame."""
    try:
        value = json.loads(payload.decode("utf-8"))
    except ValueError as error:
        raise BadFrame("not JSON: %s" % error)
    if not isinstance(value, dict):
        raise BadFrame("not an object")
    return value
