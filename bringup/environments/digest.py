"""The name of an environment: the digest of its lock, platform, interpreter, overlay and overrides."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.environments.definition import Environment, Platform
from bringup.environments.locks import Lock

FORMAT = 1
"""Raised when the way of building changes so that a folder built before is another environment."""


def environment_digest(environment: Environment, platform: Platform, lock: Lock, interpreter: Mapping[str, Any],
                       overlay: bytes | None, toolkit: str | None = None) -> str:
    """SHA-256 (hex) of what decides the content of an environment.

    `interpreter` has implementation, version (`3.11.2`) and abi, as the host's probe tells them; `toolkit` is the
    version of the CUDA that `sources` are built with, None where nothing is.
    """
    content = {
        "format": FORMAT,
        "lock": hashlib.sha256(lock.text.encode()).hexdigest(),
        "platform": [platform.name, platform.target, platform.device],
        "interpreter": [interpreter["implementation"], interpreter["version"], interpreter.get("abi")],
        "overlay": hashlib.sha256(overlay).hexdigest() if overlay is not None else None,
        "overrides": [item.requirement for item in environment.overrides],
        "sources": sorted(environment.sources),
    }
    if environment.build:
        content["build"] = dict(environment.build)
    if toolkit:
        content["toolkit"] = toolkit
    if environment.last:
        content["last"] = sorted(environment.last)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def overlay_tar(environment: Environment) -> tuple[bytes | None, tuple[str, ...]]:
    """The overlay as a tar with nothing in it but names, modes and contents, and the names of it in site-packages."""
    if environment.overlay is None:
        return None, ()
    files: dict[str, Path] = {}
    for path in sorted(environment.overlay.rglob("*")):
        inside = path.relative_to(environment.overlay)
        if path.is_file() and "__pycache__" not in inside.parts:
            files[inside.as_posix()] = path
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            data = files[name].read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o755 if files[name].stat().st_mode & 0o100 or name.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    tops = {name.split("/")[1] for name in files if name.startswith("site-packages/")}
    return buffer.getvalue(), tuple(sorted(tops))
