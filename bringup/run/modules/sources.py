"""Files of the controller that tasks name: where they are looked up, their digests, folders walked."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bringup.base.errors import StepError
from bringup.base.text import nearest
from bringup.run.actions import Blob


@dataclass(frozen=True)
class Digests:
    """Hex digests of one content, and its size in bytes. `md5` is None where that algorithm is switched off."""

    sha256: str
    sha1: str
    md5: str | None
    size: int


def find(name: str, kind: str, search: Sequence[Path], host: str) -> Path:
    """The file or folder that a task calls `name`: absolute, or under `kind` (files, templates) of a search folder,
    or in the folder itself. Raises StepError with the places looked at and the nearest name.
    """
    wanted = Path(os.path.expanduser(name))
    if wanted.is_absolute():
        if wanted.exists():
            return wanted
        raise StepError(f"could not find or access `{name}` on this machine", host=host,
                        next="for a file that lies on the host say remote_src: true")
    places = list(_places(search, kind))
    for place in places:
        if (place / wanted).exists():
            return place / wanted
    known = [str(path.relative_to(place)) for place in places if place.name == kind and place.is_dir()
             for path in sorted(place.rglob("*"))[:500]]
    near = nearest(name, known)
    raise StepError(f"could not find or access `{name}`", host=host,
                    details=["looked in", *(f"  {place}" for place in places)],
                    next=f"did you mean {near}?" if near else None)


def _places(search: Sequence[Path], kind: str) -> Iterator[Path]:
    seen: set[Path] = set()
    for folder in search:
        bases = [folder.parent] if folder.name in ("tasks", "handlers") else []
        for base in (*bases, folder):
            for place in (base / kind, base):
                if place not in seen:
                    seen.add(place)
                    yield place


def digests_of(data: bytes) -> Digests:
    """Digests of a content in memory."""
    return Digests(hashlib.sha256(data).hexdigest(), hashlib.sha1(data).hexdigest(), _md5(data), len(data))


def _md5(data: bytes) -> str | None:
    try:
        return hashlib.md5(data).hexdigest()
    except ValueError:
        return None


def digests_of_file(path: Path) -> Digests:
    """Digests of a file; read once for all hosts as long as its size and time stay."""
    found = path.stat()
    return _digests_at(str(path), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digests_at(path: str, size: int, mtime: int) -> Digests:
    long, short = hashlib.sha256(), hashlib.sha1()
    try:
        third: Any = hashlib.md5()
    except ValueError:
        third = None
    count = 0
    with open(path, "rb") as source:
        while part := source.read(1 << 20):
            count += len(part)
            long.update(part)
            short.update(part)
            if third is not None:
                third.update(part)
    return Digests(long.hexdigest(), short.hexdigest(), third.hexdigest() if third is not None else None, count)


def entry_of(path: Path, name: str) -> tuple[dict[str, Any], Blob]:
    """What the host half is told of a file under `name`, and the blob that it may ask for."""
    digests = digests_of_file(path)
    mode = f"0{stat.S_IMODE(path.stat().st_mode):03o}"
    return entry(name, digests, mode), Blob(digests.sha256, digests.size, path)


def entry(name: str, digests: Digests, mode: str | None = None) -> dict[str, Any]:
    """The description of one content, as `bringup.agent.modules.copy` reads it."""
    return {"name": name, "digest": digests.sha256, "sha1": digests.sha1, "md5": digests.md5, "size": digests.size,
            "mode": mode}


def tree_of(folder: Path, prefix: str, follow: bool) -> tuple[dict[str, Any], list[Blob]]:
    """A folder as the host half reads it: files, folders and links by relative name.

    Links are followed with `follow`, except those that lead back to a folder above; the others are copied as links.
    """
    files: list[dict[str, Any]] = []
    folders: list[str] = []
    links: list[list[str]] = []
    blobs: dict[str, Blob] = {}

    def walk(path: Path, name: str, above: tuple[Path, ...]) -> None:
        for child in sorted(path.iterdir()):
            inner = f"{name}/{child.name}" if name else child.name
            real = child.resolve()
            if child.is_symlink() and (not follow or not child.exists() or (child.is_dir() and real in above)):
                links.append([inner, os.readlink(child)])
            elif child.is_dir():
                folders.append(inner)
                walk(child, inner, (*above, real))
            elif child.is_file():
                made, blob = entry_of(child, inner)
                files.append(made)
                blobs[blob.digest] = blob

    walk(folder, prefix, (folder.resolve(),))
    return {"files": files, "folders": folders, "links": links}, list(blobs.values())
