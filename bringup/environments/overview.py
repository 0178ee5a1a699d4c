"""What the locks of a project say: an overview, one lock by name, and why a package is in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from bringup.base.errors import InputError
from bringup.environments.definition import Environment, Override, load_environment, names
from bringup.environments.locks import Lock, Locked, lock_cuda, read_lock
from bringup.environments.resolve import inputs_digest

MAX_CHAINS = 4


@dataclass(frozen=True)
class LockOverview:
    """`packages` is 0 where there is no lock, `reason` then says why none can be had; `stale` where it was made from
    other requirements."""

    platform: str
    file: str
    packages: int
    cuda: str | None
    stale: bool
    reason: str | None = None


@dataclass(frozen=True)
class Overview:
    name: str
    purpose: str
    pythons: tuple[str, ...]
    locks: tuple[LockOverview, ...]
    overrides: tuple[Override, ...]


@dataclass(frozen=True)
class Reason:
    """Why a package is in a lock: chains of who asked, from the package to a requirement of ours."""

    environment: str
    platform: str
    name: str
    version: str
    marker: str
    chains: tuple[tuple[str, ...], ...]


def overviews(root: Path, only: Sequence[str] = ()) -> list[Overview]:
    """All environments of a project, or those named. Raises InputError."""
    out = []
    for environment in _environments(root, only):
        locks = []
        for platform in environment.platforms:
            file = environment.lock_file(platform)
            lock = read_lock(file, _shown(file, root)) if file.is_file() else None
            locks.append(LockOverview(
                platform.name, _shown(file, root), len({item.name for item in lock.packages}) if lock else 0,
                lock_cuda(lock) if lock else None,
                lock is not None and lock.header.get("inputs") != inputs_digest(environment), platform.not_locked))
        out.append(Overview(environment.name, environment.purpose, environment.pythons, tuple(locks),
                            environment.overrides))
    return out


def lock_named(root: Path, name: str, platform: str | None = None) -> Lock:
    """The lock of an environment (its first platform unless named), or a lock file. Raises InputError."""
    if name.endswith(".txt") or "/" in name:
        return read_lock(Path(name), name)
    environment = load_environment(root / "envs", name)
    for item in environment.platforms:
        if platform in (None, item.name):
            file = environment.lock_file(item)
            return read_lock(file, _shown(file, root))
    raise InputError(f"the environment {name} has no platform `{platform}`",
                     expected=", ".join(item.name for item in environment.platforms))


def reasons(root: Path, package: str, only: Sequence[str] = ()) -> tuple[list[Reason], list[str]]:
    """Every lock that holds the package with who asked for it, and the names of all packages of the locks."""
    wanted = canonicalize_name(package)
    found: list[Reason] = []
    known: set[str] = set()
    for environment in _environments(root, only):
        for platform in environment.platforms:
            file = environment.lock_file(platform)
            if not file.is_file():
                continue
            lock = read_lock(file, _shown(file, root))
            known |= {item.name for item in lock.packages}
            for item in lock.packages:
                if item.name == wanted:
                    chains = tuple(_chains(item.name, lock.packages))
                    found.append(Reason(environment.name, platform.name, item.name, item.version, item.marker, chains))
    return found, sorted(known)


def _chains(name: str, packages: Iterable[Locked]) -> list[tuple[str, ...]]:
    """Shortest chains first, each ending where a requirement file asks; at most MAX_CHAINS."""
    via: dict[str, list[str]] = {}
    for item in packages:
        via.setdefault(item.name, []).extend(one for one in item.via if one not in via.get(item.name, []))
    done: list[tuple[str, ...]] = []
    queue: list[tuple[str, ...]] = [(name,)]
    while queue and len(done) < MAX_CHAINS:
        chain = queue.pop(0)
        askers = via.get(chain[-1], [])
        for asker in askers:
            if asker.startswith("-r "):
                done.append((*chain, asker.removeprefix("-r ")))
            elif asker not in chain and len(chain) < 12:
                queue.append((*chain, asker))
    return done[:MAX_CHAINS]


def _environments(root: Path, only: Sequence[str]) -> list[Environment]:
    envs = root / "envs"
    return [load_environment(envs, name) for name in (only or names(envs))]


def _shown(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
