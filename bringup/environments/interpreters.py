"""Interpreters for hosts that have none as the locks want: python-build-standalone, fetched and checked by uv."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import InputError, StepError
from bringup.environments.uv import run_uv

_PASSED = ("UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS_JSON_URL")
"""Where a site keeps interpreters; uv's own variables."""
_VERSION = re.compile(r"cpython-(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class Interpreter:
    """An archive of one: `version` is 3.12.4, `soabi` what sysconfig will say, `path` the archive here."""

    path: Path
    machine: str
    version: str

    @property
    def soabi(self) -> str:
        return soabi_of(self.version, self.machine)


def newest_version(python: str, machine: str, settings: Mapping[str, str]) -> str:
    """The version of a minor Python that would be fetched for a machine, `3.12.4`; nothing is. Raises StepError."""
    return str(_known(python, machine, settings)["version"])


def soabi_of(version: str, machine: str) -> str:
    """What sysconfig of such an interpreter says."""
    major, minor = version.split(".")[:2]
    return f"cpython-{major}{minor}-{machine}-linux-gnu"


def fetch_interpreter(python: str, machine: str, cache: Path, settings: Mapping[str, str]) -> Interpreter:
    """The newest build of a minor Python for a machine (`x86_64`, `aarch64`) that uv knows, as its archive.

    uv checks the archive's digest. One that is there is taken again. Raises StepError when it cannot be had.
    """
    known = _known(python, machine, settings)
    # the name's `+` comes escaped in the address, and uv keeps the archive under a name of its own making
    version = str(known["version"])
    folder = cache / "pythons" / f"cpython-{version}-{machine}"
    ready = sorted(folder.glob("*.tar.*")) if (folder / ".complete").is_file() else []
    if not ready:
        kept, scratch = folder / "kept", folder / "scratch"
        extra = {**settings, **_mirrors(), "UV_PYTHON_DOWNLOADS": "manual", "UV_PYTHON_CACHE_DIR": str(kept)}
        done = run_uv(["python", "install", "--no-bin", "--no-config", "--install-dir", str(scratch),
                       str(known["key"])], extra=extra, timeout=1800)
        found = sorted(path for path in kept.glob("*") if path.is_file() and tarfile.is_tarfile(path)) \
            if kept.is_dir() else []
        if done.returncode != 0 or not found:
            raise _not_fetched(python, machine, done.stderr)
        suffix = ".tar.zst" if found[-1].name.endswith(".zst") else ".tar.gz"
        ready = [folder / f"cpython-{version}-{machine}{suffix}"]
        os.replace(found[-1], ready[0])
        (folder / ".complete").touch()
        _remove(scratch, kept)
    return Interpreter(ready[0], machine, version)


def given_interpreter(path: Path, where: str) -> Interpreter:
    """An archive that the inventory names: cpython-3.12.4...-x86_64...tar.gz with `python/bin/python3` in it.

    Raises InputError.
    """
    version = _VERSION.search(path.name)
    machine = next((name for name in ("x86_64", "aarch64") if name in path.name), None)
    if version is None or machine is None:
        raise InputError("the name says no version or machine", where=where, found=path.name,
                         expected="cpython-3.12.4+...-x86_64-unknown-linux-gnu-install_only.tar.gz, as published")
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if re.fullmatch(r"python/bin/python3(\.\d+)?", member.name):
                    return Interpreter(path, machine, version[1])
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"the archive of an interpreter cannot be read: {error}", where=where) from None
    raise InputError("this archive holds no interpreter", where=where, expected="python/bin/python3 in it",
                     found=path.name)


def _known(python: str, machine: str, settings: Mapping[str, str]) -> dict[str, object]:
    """What uv would install: the newest patch version, glibc, with the GIL."""
    done = run_uv(["python", "list", python, "--only-downloads", "--all-versions", "--all-platforms", "--all-arches",
                   "--output-format", "json", "--no-config"],
                  extra={**settings, **_mirrors(), "UV_PYTHON_DOWNLOADS": "manual"}, timeout=120)
    try:
        listed = json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        listed = None
    if listed is None:
        raise _not_fetched(python, machine, done.stderr)
    fitting = [item for item in listed if item["os"] == "linux" and item["libc"] == "gnu"
               and item["arch"] == machine and item["variant"] == "default" and item["implementation"] == "cpython"]
    if not fitting:
        raise StepError(f"uv knows no Python {python} for {machine}", expected="a build of python-build-standalone",
                        next="take another Python (bundle: python in the inventory), or name an archive under "
                             "bundle: interpreters")
    return dict(max(fitting, key=lambda item: tuple(item["version_parts"].values())))


def _mirrors() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED if os.environ.get(name)}


def _not_fetched(python: str, machine: str, stderr: str) -> StepError:
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    return StepError(f"Python {python} for {machine} cannot be fetched", found=said[0] if said else "no archive",
                     details=said[1:5],
                     next="name a mirror in UV_PYTHON_INSTALL_MIRROR; for a bundle an archive under bundle: "
                          "interpreters, or interpreters: hosts there when the hosts have their own")


def _remove(*folders: Path) -> None:
    import shutil

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
