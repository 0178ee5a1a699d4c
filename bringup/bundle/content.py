"""What is packed as it lies here: folders of sources, the project itself, archives of images."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bringup
from bringup.base.errors import InputError, StepError
from bringup.bundle.secrets import refuse_in, refuse_secrets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PROJECT = ("bringup", "playbooks", "roles", "envs", "kernels", "runbooks", "docs", "tasks.py", "pyproject.toml",
            "README.md")
"""Of the project; inventories, keys and what runs left behind stay at home."""
_LEFT = frozenset({"__pycache__", ".git", ".bringup", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".venv"})


@dataclass(frozen=True)
class Image:
    """An archive of `docker save`: its tags, and a digest over its layers, the same whatever engine loads it (its id is
    not)."""

    path: Path
    tags: tuple[str, ...]
    layers: str


def tar_folder(folder: Path, target: Path, *, only: Iterable[str] | None = None, left: frozenset[str] = frozenset()
               ) -> None:
    """Write a folder, or the names `only` of it, as a tar with nothing of this machine in it (owners, times).

    Each file is looked through for secrets first. Raises InputError for one that holds a secret or cannot be read.
    """
    staged = target.with_name(f"{target.name}.{os.getpid()}")
    staged.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(staged, "w", format=tarfile.PAX_FORMAT) as archive:
            # the project's own folders may be links to where it is developed: those are followed
            tops = frozenset({""} if only is None else only)
            for top in sorted(tops):
                for name, path in _walk(folder / top, top, left, tops):
                    _add(archive, name, path, folder.name, link=path.is_symlink() and name not in tops)
        os.replace(staged, target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StepError("the disk is full" if full else f"{folder.name} cannot be packed: {error.strerror or error}",
                        where=str(error.filename or staged)) from None
    finally:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)


def _walk(path: Path, name: str, left: frozenset[str], tops: frozenset[str]) -> Iterator[tuple[str, Path]]:
    if path.name in left or path.suffix == ".pyc":
        return
    if path.is_symlink() and name not in tops:
        yield name, path
    elif path.is_dir():
        for inner in sorted(path.iterdir()):
            yield from _walk(inner, f"{name}/{inner.name}" if name else inner.name, left, tops)
    elif path.exists() or path.is_symlink():
        yield name, path


def _add(archive: tarfile.TarFile, name: str, path: Path, shown: str, *, link: bool) -> None:
    member = tarfile.TarInfo(name)
    if link:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        archive.addfile(member)
        return
    seen = path.stat()
    if not stat.S_ISREG(seen.st_mode):
        return  # a socket or a pipe is no source
    refuse_secrets(path, f"{shown}/{name}")
    member.size, member.mode = seen.st_size, 0o755 if seen.st_mode & 0o100 else 0o644
    with path.open("rb") as file:
        archive.addfile(member, file)


def pack_source(path: Path, target: Path) -> None:
    """A source that the inventory names: a folder becomes a tar, a file is taken as it is (linked or copied)."""
    if path.is_dir():
        tar_folder(path, target)
        return
    refuse_secrets(path, path.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.symlink_to(path.resolve())


def pack_project(root: Path, target: Path) -> None:
    """The project as another controller needs it: package, playbooks, roles, environments with their locks."""
    tar_folder(root, target, only=[name for name in _PROJECT if (root / name).exists()], left=_LEFT)


def _own_requirements() -> list[str]:
    """What this package needs: by the pyproject.toml beside it, which a change reaches at once; else as installed."""
    file = Path(bringup.__file__).resolve().parents[1] / "pyproject.toml"
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8")).get("project") or {}
        if told.get("name") == "bringup":
            return [str(item) for item in told["dependencies"]]
        return metadata.requires("bringup") or []
    except OSError:
        return metadata.requires("bringup") or []


def requirements_here() -> list[str]:
    """`name==version` of everything that this package needs and that is installed beside it. Raises StepError."""
    out: dict[str, str] = {}
    queue: list[tuple[str, frozenset[str]]] = [("bringup", frozenset({""}))]
    while queue:
        current, extras = queue.pop()
        try:
            requires = _own_requirements() if current == "bringup" else metadata.requires(current) or []
        except metadata.PackageNotFoundError:
            raise StepError(f"{current} is not installed beside this package",
                            next="install bringup with its dependencies, or say controller: false under `bundle`"
                            ) from None
        for text in requires:
            requirement = Requirement(text)
            if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                continue
            key = canonicalize_name(requirement.name)
            if key not in out:
                try:
                    out[key] = metadata.version(requirement.name)
                except metadata.PackageNotFoundError:
                    raise StepError(f"{requirement.name}, which {current} needs, is not installed") from None
                queue.append((requirement.name, frozenset({"", *requirement.extras})))
    return [f"{key}=={version}" for key, version in sorted(out.items())]


def read_image(path: Path, where: str) -> Image:
    """An archive of one image as `docker save` writes it, complete. Raises InputError for anything else.

    Compressed archives are refused: docker's layers gain by the bundle's own compression.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            file = archive.extractfile("manifest.json")
            said: Any = json.loads(file.read()) if file else None
            if not isinstance(said, list) or len(said) != 1:
                raise InputError("the archive holds more or less than one image", where=where, found=path.name,
                                 expected="docker save IMAGE:TAG --output FILE.tar")
            if not said[0].get("RepoTags"):
                raise InputError("the archive of the image names no tag", where=where, found=path.name,
                                 expected="docker save IMAGE:TAG --output FILE.tar (by its name, not by its id)")
            names = set(archive.getnames())
            missing = [name for name in (said[0]["Config"], *said[0]["Layers"]) if name not in names]
            if missing:
                raise InputError("the archive of the image is not complete", where=where,
                                 expected=missing[0], found=f"{len(names)} files", next="save it again")
            configured = archive.extractfile(said[0]["Config"])
            content = configured.read() if configured else b""
            layers = [str(layer) for layer in json.loads(content)["rootfs"]["diff_ids"]]
    except (OSError, tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise InputError("this is no archive of an image", where=where, found=f"{path.name}: {error}",
                         expected="docker save IMAGE:TAG --output FILE.tar") from None
    refuse_in(content, f"{path.name} (its configuration)")
    return Image(path, tuple(said[0].get("RepoTags") or ()), hashlib.sha256("\n".join(layers).encode()).hexdigest())


def write_text(target: Path, text: str) -> None:
    """A small file of ours, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f"{target.name}.{os.getpid()}")
    staged.write_text(text)
    os.replace(staged, target)
