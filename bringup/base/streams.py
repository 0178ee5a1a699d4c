"""Output streams whose reader may leave: `| head`, a closed terminal, a full disk."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO


def silence(stream: TextIO) -> None:
    """Turn a stream whose reader is gone to nowhere, so that what is still buffered does not raise at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def end_quietly_without_reader() -> None:
    """From now on a program whose standard output lost its reader (`invoke --list | head -1`) ends without a word.

    Verbs see to that themselves; this is for what is printed around them: lists and helps.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, BrokenPipeError) and not _has_reader(sys.stdout):
            silence(sys.stdout)
        else:
            before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_flush)


def _flush() -> None:
    """What is still buffered, before Python flushes it and complains."""
    with contextlib.suppress(ValueError):
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            silence(sys.stdout)


def _has_reader(stream: TextIO) -> bool:
    try:
        watch = select.poll()
        watch.register(stream.fileno(), 0)
        return not watch.poll(0)
    except (OSError, ValueError):
        return True


@contextlib.contextmanager
def interrupted_without_reader(stream: TextIO) -> Iterator[threading.Event]:
    """Interrupt the main thread, as Ctrl-C does, once nobody can read the stream any more, also while nothing is
    written to it. The event says that this happened."""
    left, ended = threading.Event(), threading.Event()
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        yield left
        return
    watch = select.poll()
    watch.register(number, 0)  # errors alone, which are reported always

    def look() -> None:
        while not ended.is_set():
            if watch.poll(250):
                if not ended.is_set():
                    left.set()
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    threading.Thread(target=look, daemon=True, name="reader").start()
    try:
        yield left
    finally:
        ended.set()
