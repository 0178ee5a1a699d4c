"""The checks, one file a subject. Importing a file registers what it holds."""

from __future__ import annotations

import importlib

_FILES = ("driver", "devices", "memory", "links", "pcie", "process", "disk", "host", "clock", "network", "rdma",
          "ascend", "amd", "parity")


def load() -> None:
    """Import every file of checks, in the order of the report."""
    for name in _FILES:
        importlib.import_module(f"{__name__}.{name}")
