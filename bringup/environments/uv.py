"""uv on the controller: where it is, how it is called, and the uv that a host of another kind needs."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from bringup.base.errors import InputError, StepError
from bringup.environments.indexes import PASSED
from bringup.environments.supplies import file_blob
from bringup.run.actions import Blob

_KEPT = (*PASSED, "UV_CACHE_DIR", "UV_CONFIG_FILE", "UV_KEYRING_PROVIDER", "UV_CREDENTIALS_DIR", "UV_INDEX_STRATEGY")
"""uv's variables that say where packages come from; one that says which ones (constraints) does not reach a lock."""


@lru_cache(maxsize=1)
def uv_program() -> Path:
    """The uv of this package's own environment. Raises InputError when it is not installed."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        raise InputError("uv is not installed beside this package", expected="the package `uv`",
                         next=f"{sys.executable} -m pip install uv") from None


@lru_cache(maxsize=1)
def uv_version() -> str:
    """Version of that uv, `0.13.9`."""
    out = subprocess.run([uv_program(), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"uv (\d[\w.]*)", out)
    return found[1] if found else "0"


def run_uv(words: Sequence[str], *, cwd: Path | None = None, extra: Mapping[str, str] | None = None,
           timeout: float = 900) -> subprocess.CompletedProcess[str]:
    """Run uv with the user's own index settings, nothing of an active environment leaking in. Raises StepError."""
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(("PYTHON", "VIRTUAL_ENV", "CONDA_")) and (not key.startswith("UV_") or key in _KEPT)}
    env.update({"UV_NO_PROGRESS": "1", "NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never", **(extra or {})})
    try:
        return subprocess.run([str(uv_program()), *words], cwd=cwd, env=env, text=True, capture_output=True,
                              timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise StepError(f"uv {words[0]} did not end within {timeout:.0f} s",
                        next="is the package index reachable from here?") from None


@lru_cache(maxsize=4)
def uv_blob(machine: str, cache: Path) -> Blob:
    """uv for hosts of a machine (`x86_64`, `aarch64`), as a file to send. Fetched for another kind than this one.

    Raises StepError when it cannot be had.
    """
    path = uv_program() if machine == platform.machine() and sys.platform == "linux" else _foreign(machine, cache)
    return file_blob(path)


def _foreign(machine: str, cache: Path) -> Path:
    target = cache / f"uv-{uv_version()}-{machine}"
    program = target / "bin" / "uv"
    if not program.is_file():
        done = run_uv(["pip", "install", "--python", sys.executable, "--python-platform",
                       f"{machine}-manylinux_2_28", "--no-deps", "--only-binary", ":all:", "--quiet", "--target",
                       str(target), f"uv=={uv_version()}"])
        if done.returncode != 0 or not program.is_file():
            raise StepError(f"uv for {machine} hosts cannot be fetched",
                            found=(done.stderr.strip() or "no program")[:200],
                            next="install uv on those hosts, or name it in bringup_uv")
    return program
