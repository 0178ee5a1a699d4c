"""What could not be read: never a pass."""

from __future__ import annotations


class Unread(Exception):
    """A fact that could not be read, with the reason.

    `absent` is True when the tool or file is not there at all: a check may then be skipped instead of unknown.
    """

    def __init__(self, reason: str, *, absent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.absent = absent
