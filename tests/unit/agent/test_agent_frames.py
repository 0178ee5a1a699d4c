from __future__ import annotations

import itertools
import random

import pytest

from bringup.agent import bootstrap, frames


def test_frames_come_back_whole_however_the_stream_is_cut() -> None:
    rng = random.Random(7)
    sent = [(frames.CONTROL, 0, b"{}"), (frames.SLICE, 4_000_000_000, bytes(rng.randbytes(70_000))),
            (frames.STDOUT, 3, b""), (frames.STDERR, 9, "für".encode())]
    stream = b"".join(frames.pack(*item) for item in sent)
    for sizes in ([1], [7, 8, 9, 10], [65536], [len(stream)]):
        decoder, got, at = frames.Decoder(), [], 0
        for size in itertools.cycle(sizes):
            if at >= len(stream):
                break
            got += decoder.feed(stream[at:at + size])
            at += size
        assert got == sent


def test_a_stream_that_is_not_ours_is_refused() -> None:
    with pytest.raises(frames.BadFrame):
        frames.Decoder().feed(b"Last login: Mon Nov 30 from 198.18.0.1\r\n")
    with pytest.raises(frames.BadFrame):
        frames.Decoder().feed(frames.HEADER.pack(frames.LIMIT + 1, frames.CONTROL, 1))


def test_control_frames_carry_what_json_does_not_know() -> None:
    frame = frames.control({"t": "result", "raw": b"\xff\xfe", "name": "caf\udce9", "set": {2, 1}, "o": object}, 5)
    kind, number, payload = frames.Decoder().feed(frame)[0]
    told = frames.message(payload)
    assert (kind, number) == (frames.CONTROL, 5)
    assert told["raw"] == "\ufffd\ufffd"
    assert told["name"] == "caf\ufffd"
    assert told["set"] == [1, 2]
    assert told["o"].startswith("<class")
    str(told).encode("utf-8")  # nothing in it breaks a terminal or a file


def test_the_payload_is_the_same_every_time_and_small() -> None:
    first = bootstrap.payload()
    bootstrap._cache.clear()
    assert bootstrap.payload() == first
    assert len(first) < 40_000
    line = bootstrap.line("m" * 32)
    assert "'" not in line and "\n" not in line and len(line) < 500


def test_a_module_goes_with_the_files_that_it_imports() -> None:
    assert bootstrap.needed_by("copy")[0] == "modules.copy"
    assert "modules._files" in bootstrap.needed_by("copy")
    assert "modules._modes" in bootstrap.needed_by("template")  # through copy and _files
    process = bootstrap.needed_by("engine_process")
    assert "processes.__init__" in process and "processes.detached" in process
    with pytest.raises(OSError):
        bootstrap.needed_by("no_such_module")
