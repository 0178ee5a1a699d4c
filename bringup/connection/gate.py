"""What the sessions of a run share: how many handshakes at a time, bastions, known hosts, parsed keys."""

from __future__ import annotations

import threading
from typing import Any

HANDSHAKES = 64
"""Handshakes at a time (one backlog and one login manager stand behind many hosts)."""

THROUGH_BASTION = 8
"""Handshakes at a time through one bastion: OpenSSH begins to refuse at 10 (MaxStartups 10:30:100)."""


class Bastion:
    """A host that others are reached through: its one connection, and its own limit."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(THROUGH_BASTION)
        self.connection: Any = None  # a fabric.Connection once somebody needed it


class Gate:
    """One per run; used by all threads."""

    def __init__(self) -> None:
        self.handshakes = threading.BoundedSemaphore(HANDSHAKES)
        self.lock = threading.Lock()
        self.keys: dict[str, Any] = {}
        self._bastions: dict[str, Bastion] = {}

    def bastion(self, key: str) -> Bastion:
        """The bastion of this name and way."""
        with self.lock:
            return self._bastions.setdefault(key, Bastion())

    def close(self) -> None:
        """Close the connections to bastions."""
        with self.lock:
            bastions, self._bastions = list(self._bastions.values()), {}
        for bastion in bastions:
            with bastion.lock:
                if bastion.connection is not None:
                    bastion.connection.close()
                    bastion.connection = None
