"""Locking: requirements to one hashed lock per platform, resolved by uv from any machine, refused in plain words."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bringup.base.errors import BringupError, InputError, StepError
from bringup.environments.conflicts import refusal, refuse_clashes
from bringup.environments.definition import Environment, Platform
from bringup.environments.locks import Lock, merge, parse_lock, render
from bringup.environments.owners import PLACEHOLDERS, two_owners
from bringup.environments.requirements import Wanted, read_requirements
from bringup.environments.uv import run_uv, uv_version

_NETWORK = ("dns error", "failed to fetch", "error sending request", "connection refused", "timed out", "certificate")


@dataclass(frozen=True)
class Locking:
    """A lock that was made: its text, the packages (name, old version or None, new or None) that moved.

    `changed`: the text is not what the file holds.
    """

    environment: str
    platform: str
    file: Path
    text: str
    moved: tuple[tuple[str, str | None, str | None], ...]
    packages: int
    changed: bool


def lock_environment(environment: Environment, platform: Platform, *, upgrade: bool = False,
                     base: Path | None = None) -> Locking:
    """Resolve one environment for one platform, each of its Python versions, and return the lock. Writes nothing.

    Versions of the lock that is there are kept unless `upgrade`. Raises InputError when requirements cannot hold
    together, when a floor is missed or two distributions would own one import package; StepError when uv cannot
    resolve for another reason.
    """
    wanted = read_requirements(environment.requirements, base)
    check_requirements(environment, wanted)
    uv_version()  # found once, before threads ask for it
    file = environment.lock_file(platform)
    before = parse_lock(file.read_text(), str(file)) if file.is_file() else None
    with ThreadPoolExecutor(max_workers=min(4, len(environment.pythons))) as pool:
        keep = None if upgrade else before
        parts = dict(zip(environment.pythons, pool.map(
            lambda python: _resolve(environment, platform, python, wanted, keep), environment.pythons), strict=True))
    for python, part in parts.items():
        check_result(environment, platform, python, part, wanted)
    text = render(merge(parts), header(environment, platform))
    lock = parse_lock(text, str(file))
    return Locking(environment.name, platform.name, file, text, moved(before, lock), len(lock.packages),
                   before is None or before.text != text)


def check_requirements(environment: Environment, wanted: Sequence[Wanted]) -> None:
    """What can be refused before the resolver runs: clashes, empty placeholders, ranges open at the bottom."""
    overridden = {canonicalize_name(Requirement(item.requirement).name) for item in environment.overrides}
    refuse_clashes([item for item in wanted if item.name not in overridden])
    floors = {canonicalize_name(name) for name in environment.floors}
    for item in wanted:
        if item.name in PLACEHOLDERS and item.name not in environment.sources:
            raise InputError(f"{item.name} cannot be installed from the index", where=item.origin,
                             found=PLACEHOLDERS[item.name])
        bounded = any(spec.operator in ("==", "===", "~=", ">=", ">") for spec in item.requirement.specifier)
        if not bounded and item.name not in floors and item.requirement.url is None:
            raise InputError(f"{item.name} is open at the bottom: the resolver may go back years without a word",
                             where=item.origin, expected="a lower bound, or a floor in env.yml",
                             found=str(item.requirement))


def check_result(environment: Environment, platform: Platform, python: str, lock: Lock,
                 wanted: Sequence[Wanted]) -> None:
    """What is asserted of a resolution: floors, one owner for each import package. Raises InputError."""
    where = f"envs/{environment.name}/env.yml"
    found = lock.of_python(python)
    for name, floor in environment.floors.items():
        version = found.get(canonicalize_name(name))
        if version is None or Version(version) < Version(floor):
            raise InputError(f"the resolver went back below the floor of {name}", where=where,
                             expected=f"{name}>={floor}",
                             found=f"{name}=={version}" if version else "not in the result",
                             details=[f"platform {platform.name}, python {python}"],
                             next="pin both sides in requirements.in: the resolver then says what clashes")
    for top, owners in two_owners(found):
        asked = "; ".join(f"{name}=={found[name]}" for name in owners)
        raise InputError(f"two distributions would own `{top}/`", where=wanted[0].origin.file if wanted else where,
                         expected="one owner for each import package", found=asked,
                         details=[_why(lock, name) for name in owners],
                         next="leave one of them out: what is installed last would silently overwrite the other")


def _why(lock: Lock, name: str) -> str:
    via = next((item.via for item in lock.packages if item.name == name), ())
    return f"{name} is asked for by {', '.join(via) or 'your requirements'}"


def header(environment: Environment, platform: Platform) -> dict[str, str]:
    """The head of a lock: what it holds for and what it was made from."""
    out = {
        "platform": f"{platform.name} ({platform.target}, {platform.device})",
        "python": " ".join(sorted(environment.pythons, key=Version)),
        "inputs": inputs_digest(environment),
        "resolver": f"uv {uv_version()}" + (f", nothing newer than {environment.exclude_newer}"
                                            if environment.exclude_newer else ""),
    }
    if environment.overrides:
        out["overrides"] = ", ".join(item.requirement for item in environment.overrides)
    return out


def inputs_digest(environment: Environment) -> str:
    """Twelve hex digits that change when a lock must be made again."""
    parts = [item.read_text() for item in environment.requirements]
    parts += [item.requirement for item in environment.overrides]
    parts += [str(environment.exclude_newer), *sorted(environment.pythons), *environment.sources]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def write_lock(locking: Locking) -> None:
    """Put a lock in place whole."""
    locking.file.parent.mkdir(parents=True, exist_ok=True)
    staged = locking.file.with_name(f".{locking.file.name}.{os.getpid()}")
    staged.write_text(locking.text)
    os.replace(staged, locking.file)


def moved(before: Lock | None, after: Lock) -> tuple[tuple[str, str | None, str | None], ...]:
    """Packages whose versions differ: (name, before, after); several versions of one name are joined by a slash."""
    old, new = _versions(before), _versions(after)
    return tuple((name, old.get(name), new.get(name)) for name in sorted({*old, *new})
                 if old.get(name) != new.get(name))


def _versions(lock: Lock | None) -> dict[str, str]:
    out: dict[str, list[str]] = {}
    for item in lock.packages if lock else ():
        out.setdefault(item.name, []).append(item.version)
    return {name: "/".join(versions) for name, versions in out.items()}


def _resolve(environment: Environment, platform: Platform, python: str, wanted: Sequence[Wanted],
             keep: Lock | None) -> Lock:
    with tempfile.TemporaryDirectory(prefix="bringup-lock-") as place:
        folder = Path(place)
        output = folder / "out.txt"
        if keep is not None and python in keep.pythons:
            output.write_text("".join(f"{name}=={version}\n" for name, version in keep.of_python(python).items()))
        (folder / "in.txt").write_text("".join(f"{item.requirement}\n" for item in wanted))
        words = ["pip", "compile", "--python-platform", platform.target, "--python-version", python,
                 "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links", "--quiet",
                 "--output-file", str(output)]
        if not environment.sources:
            words.append("--no-build")
        if environment.exclude_newer:
            words += ["--exclude-newer", environment.exclude_newer]
        if environment.overrides:
            (folder / "overrides.txt").write_text("".join(f"{item.requirement}\n" for item in environment.overrides))
            words += ["--override", str(folder / "overrides.txt")]
        done = run_uv([*words, str(folder / "in.txt")], cwd=folder, extra=_indexes(environment))
        if done.returncode != 0:
            raise _failed(done.stderr, wanted, environment, platform, python)
        text = re.sub(r"\S*in\.txt\b", "requirements.in", output.read_text())
        return parse_lock(text, f"{environment.name}/{platform.name}/{python}")


def _indexes(environment: Environment) -> Mapping[str, str]:
    out = {}
    if environment.index:
        out["UV_DEFAULT_INDEX"] = environment.index
    if environment.extra_indexes:
        out["UV_INDEX"] = " ".join(environment.extra_indexes)
        out["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return out


def _failed(said: str, wanted: Sequence[Wanted], environment: Environment, platform: Platform,
            python: str) -> BringupError:
    low = said.lower()
    if "no solution found" not in low and any(words in low for words in _NETWORK):
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return StepError("the package index was not reached", found=lines[0] if lines else None, details=lines[1:6],
                         next="name the site's index in UV_DEFAULT_INDEX, its certificates in SSL_CERT_FILE")
    error = refusal(said, wanted)
    error.details = (*error.details, f"for {environment.name} on {platform.name}, python {python}; nothing installed")
    return error
