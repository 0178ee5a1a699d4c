"""The checks, one file a subject. Importing a file registers what it holds."""

from __future__ import annotations

import importlib

_FILES = ("driver", "devices", "memory", "links", "pcie", "process", "disk", "host", "machine", "clock", "network",
          "rdma", "cables", "nccl", "pairs", "ascend", "hccn", "npu_ports", "amd", "measured", "baseline", "parity")


def load() -> dict[str, int]:
    """Import every file of checks. Returns the place of each module in the report."""
    for name in _FILES:
        importlib.import_module(f"{__name__}.{name}")
    return {f"{__name__}.{name}": place for place, name in enumerate(_FILES)}
