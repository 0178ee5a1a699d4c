"""System packages with all that they need, for another release or machine than this one, fetched by apt."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import InputError, StepError
from bringup.bundle.content import write_text
from bringup.bundle.wanted import Packages

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LINE = re.compile(r"^'([^']+)' (\S+) (\d+) (\S*)$", re.MULTILINE)


@dataclass(frozen=True)
class FetchedPackages:
    """`debs` are files of one folder, `index` the Packages file that makes it a repository for apt."""

    release: str
    architecture: str
    names: tuple[str, ...]
    debs: tuple[Path, ...]
    index: Path


def fetch_packages(wanted: Packages, machine: str, cache: Path) -> FetchedPackages:
    """Bring the packages, and what they need down to libc, for hosts of a machine. apt goes on with what was cut off
    and proves each file.

    Raises InputError when the release has no sources or no such package, StepError when apt cannot fetch.
    """
    if shutil.which("apt-get") is None:
        raise InputError("system packages are fetched by apt-get, which is not here", where=wanted.where,
                         next="make the bundle on a Debian or Ubuntu machine, or take system_packages out")
    architecture = ARCHITECTURES[machine]
    folder = cache / "system" / f"{wanted.release}-{architecture}"
    options = _prepare(folder, wanted, architecture)
    _apt(["apt-get", *options, "-q", "update"], wanted)
    chosen = ["-q", "-y", "--no-install-recommends", "install", *wanted.names]
    planned = _apt(["apt-get", *options, "--print-uris", *chosen], wanted)
    _apt(["apt-get", *options, "--download-only", *chosen], wanted)
    files = [found[2] for found in _LINE.finditer(planned)]
    archives = folder / "cache" / "archives"
    missing = [name for name in files if not (archives / name).is_file()]
    if missing or not files:
        raise StepError("apt did not bring all packages", where=str(archives), found=missing[0] if missing else
                        "nothing to fetch", next="run again")
    index = folder / "Packages"
    write_text(index, _index(options, files, archives))
    return FetchedPackages(wanted.release, architecture, wanted.names, tuple(archives / name for name in sorted(files)),
                           index)


def _prepare(folder: Path, wanted: Packages, architecture: str) -> list[str]:
    """A state for apt that knows no installed package, so that nothing is thought to be there already."""
    for inner in ("state/lists/partial", "cache/archives/partial"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    sources = folder / "sources.list"
    options = ["-o", f"Dir::State={folder / 'state'}", "-o", f"Dir::State::status={folder / 'status'}",
               "-o", f"Dir::Cache={folder / 'cache'}", "-o", f"APT::Architecture={architecture}",
               "-o", f"APT::Architectures={architecture}", "-o", "Dir::Etc::preferences=/dev/null",
               "-o", "Dir::Etc::preferencesparts=/dev/null", "-o", "Acquire::ForceHash=SHA256",
               "-o", "APT::Sandbox::User="]
    if wanted.sources:
        write_text(sources, "".join(f"{line}\n" for line in wanted.sources))
        return [*options, "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null"]
    here = _release_here()
    if wanted.release != here:
        raise InputError(f"this machine is not {wanted.release}: where its packages come from must be said",
                         where=wanted.where, found=here or "no code name in /etc/os-release",
                         next="add sources under system_packages, lines of that release's sources.list")
    return options


def _release_here() -> str | None:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME")
    except OSError:
        return None


def _apt(words: Sequence[str], wanted: Packages) -> str:
    done = subprocess.run(words, env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3600, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W: Failed", "Err:"))]
    unknown = re.search(r"Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate|"
                        r"Version '[^']+' for '([^']+)' was not found", done.stderr)
    if unknown:
        raise InputError(f"{wanted.release} has no package `{unknown[1] or unknown[2] or unknown[3]}`",
                         where=wanted.where, next="check the name, and the components of its sources")
    if done.returncode != 0 or any("Failed to fetch" in line for line in said):
        raise StepError("apt cannot fetch the system packages", found=said[0] if said else f"status {done.returncode}",
                        details=said[1:5], next="check the sources and the way to them; what was fetched is kept")
    return done.stdout


def _index(options: Sequence[str], files: Sequence[str], archives: Path) -> str:
    """A Packages file for these archives: their own control texts, with name, size and digest in the folder."""
    from bringup.bundle.download import sha256_of

    stanzas = []
    for name in sorted(files):
        path = archives / name
        done = subprocess.run(["dpkg-deb", "--field", str(path)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StepError("a fetched package cannot be read", where=str(path), found=done.stderr.strip()[:200],
                            next=f"remove {path} and run again")
        stanzas.append(f"{done.stdout.rstrip()}\nFilename: ./{name}\nSize: {path.stat().st_size}\n"
                       f"SHA256: {sha256_of(path)}\n")
    return "\n".join(stanzas)
