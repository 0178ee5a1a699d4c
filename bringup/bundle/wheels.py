"""The wheels that a lock needs for an interpreter on a platform: where the index has them, as uv chooses them.

A package that an environment builds from its source comes as that source, with wheels of all that its build requires.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from bringup.base.errors import StepError
from bringup.bundle.download import Wanted
from bringup.environments.definition import Environment, Platform
from bringup.environments.locks import Lock
from bringup.environments.uv import run_uv

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def wheels_of(environment: Environment, lock: Lock, python: str, platform: Platform,
              settings: Mapping[str, str]) -> list[Wanted]:
    """The wheels of a lock for a minor Python on a platform, each with address, digest (one of the lock's) and size;
    of a package that is built there, its source.

    Nothing is downloaded. Raises StepError when the index is not reached or serves other files than the lock names.
    """
    versions = lock.of_python(python)
    if not versions:
        return []
    built = set(versions) & {canonicalize_name(name) for name in environment.sources}
    packages = _resolved([f"{name}=={version}" for name, version in versions.items()], python, platform.target,
                         _indexes(environment, settings), built)
    hashes: dict[str, set[str]] = {}
    for item in lock.packages:
        if versions.get(item.name) == item.version:
            hashes[item.name] = {value.removeprefix("sha256:") for value in item.hashes}
    out = []
    for name in sorted(versions):
        found = [wheel for wheel in packages.get(name, []) if wheel.sha256 in hashes[name]]
        if not found:
            offered = packages.get(name, [])
            what = "source" if name in built else "wheel"
            raise StepError(f"the index has no {what} of {name}=={versions[name]} that the lock names",
                            where=lock.file, expected=f"{platform.target}, Python {python}, a hash of the lock",
                            found=offered[0].name if offered else "none for this platform",
                            next="the index was changed since: invoke env.lock, or name the index that has it")
        out.append(found[0])
    return out


def wheels_named(requirements: Sequence[str], python: str, target: str, settings: Mapping[str, str]) -> list[Wanted]:
    """The wheels of pinned requirements (`name==version`) without a lock: what the index serves now. As above."""
    packages = _resolved(requirements, python, target, settings, set())
    out = []
    for requirement in requirements:
        name = canonicalize_name(requirement.partition("==")[0])
        if not packages.get(name):
            raise StepError(f"the index has no wheel of {requirement} for {target}, Python {python}")
        out.append(packages[name][0])
    return out


def wheels_to_build(source: Path, environment: Environment, python: str, platform: Platform,
                    settings: Mapping[str, str]) -> list[Wanted]:
    """The wheels that building a source requires (build-system.requires of its pyproject.toml, and theirs).

    Raises StepError when the source cannot be read, or the index has no such wheels.
    """
    requires = _build_requires(source)
    if not requires:
        return []
    found = _resolved(requires, python, platform.target, _indexes(environment, settings), set(), alone=False)
    return [wheels[0] for _, wheels in sorted(found.items()) if wheels]


def _build_requires(source: Path) -> list[str]:
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/pyproject.toml"):
                    file = archive.extractfile(member)
                    told = tomllib.loads(file.read().decode()) if file else {}
                    return [str(item) for item in (told.get("build-system") or {}).get("requires", ["setuptools"])]
    except (OSError, tarfile.TarError, ValueError) as error:
        raise StepError(f"the source {source.name} cannot be read: {error}", where=str(source),
                        expected="a .tar.gz with a pyproject.toml") from None
    return ["setuptools", "wheel"]  # what a build without pyproject.toml gets, PEP 517


def _indexes(environment: Environment, settings: Mapping[str, str]) -> dict[str, str]:
    out = dict(settings)
    if environment.index:
        out["UV_DEFAULT_INDEX"] = environment.index
    if environment.extra_indexes:
        out["UV_INDEX"] = " ".join([*settings.get("UV_INDEX", "").split(), *environment.extra_indexes])
    return out


def _resolved(requirements: Sequence[str], python: str, target: str, settings: Mapping[str, str], built: Set[str], *,
              alone: bool = True) -> dict[str, list[Wanted]]:
    """Package -> wheels that uv would take for a target, the best first; of those in `built` the source, and where
    anything is built at all, of those without a wheel. Without `alone`, what they require too."""
    with tempfile.TemporaryDirectory(prefix="bringup-bundle-") as place:
        folder = Path(place)
        (folder / "wanted.txt").write_text("".join(f"{item}\n" for item in requirements))
        done = run_uv(["pip", "compile", *(["--no-deps"] if alone else []), *([] if built else ["--no-build"]),
                       "--no-header", "--quiet", "--format", "pylock.toml",
                       "--python-platform", target, "--python-version", python, "--index-strategy",
                       "unsafe-best-match", "--output-file", str(folder / "pylock.toml"), str(folder / "wanted.txt")],
                      cwd=folder, extra=settings)
        if done.returncode != 0:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise StepError("the index does not say where the wheels are", found=said[0] if said else "no output",
                            details=said[1:6], next="name the site's index in UV_DEFAULT_INDEX, its certificates in "
                            "SSL_CERT_FILE; what was fetched is kept")
        document = tomllib.loads((folder / "pylock.toml").read_text())
        out: dict[str, list[Wanted]] = {}
        for item in document.get("packages") or []:
            name = canonicalize_name(item["name"])
            files = [] if name in built else item.get("wheels") or []
            if not files and built and "sdist" in item:  # such an environment builds whatever has no wheel
                files = [item["sdist"]]
            out[name] = [_wanted(file, folder) for file in files]
        return out


def _wanted(wheel: Mapping[str, Any], folder: Path) -> Wanted:
    url = wheel.get("url") or ""
    if not url:
        path = Path(str(wheel["path"]))
        url = (path if path.is_absolute() else folder / path).resolve().as_uri()
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])
    return Wanted(str(wheel.get("name") or name), url, str(wheel["hashes"]["sha256"]),
                  int(wheel["size"]) if wheel.get("size") else None)
