"""Requirement files tried together without an environment of their own."""

from __future__ import annotations

import platform as this
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bringup.base.errors import InputError
from bringup.environments.definition import Environment, Platform


def trial_environment(files: Sequence[Path], base: Environment | None, platforms: Sequence[str] = ()) -> Environment:
    """An environment of these files: the platforms, Pythons and overrides of `base`, else this machine's with 3.12.

    Raises InputError when a file is missing or a platform unknown.
    """
    for file in files:
        if not file.is_file():
            raise InputError("the requirements cannot be read: no such file", where=str(file))
    if base is None:
        machine = "aarch64" if this.machine() in ("arm64", "aarch64") else "x86_64"
        base = Environment("trial", Path(), "requirements tried together", ("3.12",),
                           (Platform(f"linux-{machine}", machine, "2.28"),))
    chosen = tuple(item for item in base.platforms if item.name in platforms or (not platforms and not item.not_locked))
    if not chosen:
        raise InputError(f"no such platform: {', '.join(platforms)}",
                         expected=", ".join(item.name for item in base.platforms))
    return replace(base, folder=Path("/nonexistent"), requirements=tuple(files), floors={}, platforms=chosen)
