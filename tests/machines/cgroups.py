"""A control group for each machine: in one that they share, the systemd of one disturbs that of another."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path


def make(name: str) -> list[Path]:
    """Make the group in every hierarchy that systemd uses; the files that take a process's id."""
    out = []
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        out.append(group / "cgroup.procs")
    return out


def end(name: str, *, deadline: float = 10.0) -> None:
    """Kill what still runs in the group and take the group away. Raises RuntimeError when it stays."""
    limit = time.monotonic() + deadline
    while groups := [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).is_dir()]:
        for group in groups:
            with contextlib.suppress(OSError):
                (group / "cgroup.kill").write_text("1")
            for below, _folders, _files in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(below)
        if time.monotonic() > limit:
            raise RuntimeError(f"processes of {name} do not end")
        time.sleep(0.02)


def _hierarchies() -> Iterator[Path]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, where, kind, options = line.split()[:4]
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            yield Path(where)
