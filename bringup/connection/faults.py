"""A fault of our own in a session's thread: it ends that host with a message, never the thread alone."""

from __future__ import annotations

import traceback
from pathlib import Path

from bringup.base.errors import UnreachableError


def fault_of(host: str, error: Exception) -> UnreachableError:
    """The error as a person should see it, with the place in our code."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
    return UnreachableError(
        "bringup itself failed while it spoke with this host", host=host,
        found=f"{type(error).__name__}: {error} ({where})", details=["this is a fault of bringup, not of the host"],
        next="run the same command again; when it comes back, report it with these lines")
