"""Output streams whose reader may leave: `| head`, a closed terminal, a full disk."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import TextIO


def silence(stream: TextIO) -> None:
    """Turn a stream whose reader is gone to nowhere, so that what is still buffered does not raise at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


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
