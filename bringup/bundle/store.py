"""Bundles unpacked on the controller, each file once by its digest: an update finds what an earlier one brought."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError, StepError
from bringup.base.text import size as size_text
from bringup.bundle.archive import BundleReader, Told
from bringup.bundle.kernels import lay_kernels
from bringup.bundle.manifest import Entry, Manifest
from bringup.environments.definition import load_environment
from bringup.environments.locks import read_lock
from bringup.environments.supplies import lock_digest


@dataclass(frozen=True)
class Store:
    """`root` is `.bringup/cache/bundles`: `objects/` by SHA-256, `bundles/` by the manifest's digest."""

    root: Path

    def object(self, entry: Entry) -> Path:
        return self.root / "objects" / entry.sha256[:2] / entry.sha256

    def folder(self, digest: str) -> Path:
        return self.root / "bundles" / digest[:20]

    def missing(self, manifest: Manifest) -> list[Entry]:
        """Entries whose file is not here, or not of its size."""
        return [entry for entry in manifest.entries if not _whole(self.object(entry), entry.size)]


@dataclass(frozen=True)
class Opened:
    """A bundle that can be used: `supplies` is the file that `bringup_bundle` names, `sources` a folder."""

    manifest: Manifest
    supplies: Path
    sources: Path


def open_bundles(given: Sequence[Path], store: Store, told: Told | None = None) -> Opened:
    """Unpack bundles, earlier ones first where updates are given with what they build on; the last one is used.

    What is here already, whole and proven, is not read again. Raises InputError: damaged, or the base of an update is
    neither given nor here; StepError when the disk is full.
    """
    store.root.mkdir(parents=True, exist_ok=True)
    with (store.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifests = [_unpack(path, store, told) for path in given]
        manifest = newest(manifests)
        missing = store.missing(manifest)
        if missing:
            raise _without_base(manifest, missing, given[manifests.index(manifest)])
        lay_kernels(manifest, store.object, store.root.parent)
        return _described(manifest, store)


def newest(manifests: Sequence[Manifest]) -> Manifest:
    """The bundle that no other one of those given builds on. Raises InputError where that is not one."""
    bases = {one.base.digest for one in manifests if one.base is not None}
    tops = {one.digest: one for one in manifests if one.digest not in bases}
    if len(tops) != 1:
        raise InputError("these bundles do not build on each other", found=", ".join(
            f"{one.name} ({one.digest[:12]})" for one in tops.values()), expected="one bundle, and what it builds on",
            next="invoke bundle.show FILE says what an update builds on")
    return next(iter(tops.values()))


def _unpack(path: Path, store: Store, told: Told | None) -> Manifest:
    with BundleReader(path) as bundle:
        manifest = bundle.manifest
        kept = store.folder(manifest.digest) / "bundle.json"
        if kept.is_file() and not [entry for entry in manifest.packed
                                   if not _whole(store.object(entry), entry.size)]:
            return manifest
        _room(manifest, store)
        for entry, pieces in bundle.files():
            target = store.object(entry)
            if _whole(target, entry.size):
                for _ in pieces:  # read on: what is behind it is proven as well
                    pass
                continue
            _write(target, pieces, entry, told)
        kept.parent.mkdir(parents=True, exist_ok=True)
        staged = kept.with_name(f".{kept.name}.{os.getpid()}")
        staged.write_text(manifest.text())
        os.replace(staged, kept)
    return manifest


def _write(target: Path, pieces: Iterator[bytes], entry: Entry, told: Told | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    done = 0
    try:
        with staged.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                done += len(piece)
                if told is not None:
                    told(entry, done)
        os.replace(staged, target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StepError("the disk is full: the bundle is not unpacked" if full else
                        f"the bundle cannot be unpacked: {error.strerror or error}", where=str(target.parent),
                        next="free space, then run again: what is unpacked is kept" if full else None) from None
    finally:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)


def _room(manifest: Manifest, store: Store) -> None:
    size = sum(entry.size for entry in manifest.packed if not _whole(store.object(entry), entry.size))
    seen = os.statvfs(store.root)
    free = seen.f_bavail * seen.f_frsize
    if size > free:
        raise StepError("the disk has no room for the unpacked bundle", where=str(store.root),
                        expected=f"{size_text(size)} free", found=f"{size_text(free)} free; nothing was contacted",
                        next="free space, then run again")


def _whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _without_base(manifest: Manifest, missing: Sequence[Entry], path: Path) -> InputError:
    if manifest.base is None:
        return InputError(f"{len(missing)} files of the bundle are not here", where=str(path),
                          found=missing[0].path, next="run again: they are unpacked anew")
    return InputError(f"this is an update of {manifest.base.name}, which is not here", where=str(path),
                      expected=f"the bundle {manifest.base.digest[:12]}, given before or together with it",
                      found=f"{len(missing)} of {len(manifest.entries)} files are missing, first {missing[0].path}",
                      next=f"--bundle {manifest.base.name} --bundle {path.name}")


def _described(manifest: Manifest, store: Store) -> Opened:
    """Write what the environments room reads, and lay the sources out."""
    folder = store.folder(manifest.digest)
    by_digest = {entry.sha256: entry for entry in manifest.of_kind("wheel")}
    wheels: dict[str, dict[str, dict[str, Any]]] = {}
    for carried in manifest.environments:
        pythons = wheels.setdefault(carried.lock, {})
        for python, digests in carried.wheels.items():
            pythons.setdefault(python, {}).update(
                {Path(by_digest[digest].path).name: _placed(by_digest[digest], store) for digest in digests})
    document = {
        "name": manifest.name, "digest": manifest.digest, "wheels": wheels,
        "uv": {entry.about["machine"]: {**_placed(entry, store), "version": entry.about["version"]}
               for entry in manifest.of_kind("uv")},
        "pythons": [{**_placed(entry, store), **entry.about,
                     "name": f"cpython-{entry.about['version']}-{entry.about['machine']}-{entry.sha256[:8]}"}
                    for entry in manifest.of_kind("python")],
        "others": [{**_placed(entry, store), "path": entry.path, "kind": entry.kind, "about": dict(entry.about)}
                   for entry in manifest.of_kind("deb", "debs", "image")],
    }
    supplies = folder / "supplies.json"
    staged = supplies.with_name(f".{supplies.name}.{os.getpid()}")
    staged.write_text(json.dumps(document, indent=1, sort_keys=True))
    os.replace(staged, supplies)
    return Opened(manifest, supplies, _sources(manifest, store, folder / "sources"))


def _placed(entry: Entry, store: Store) -> dict[str, Any]:
    return {"file": str(store.object(entry)), "sha256": entry.sha256, "size": entry.size}


def _sources(manifest: Manifest, store: Store, folder: Path) -> Path:
    """Each source under its own name, as it lay where the bundle was made."""
    if folder.is_dir():
        return folder
    staged = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        for entry in manifest.of_kind("source"):
            target = staged / Path(entry.about["name"]).name
            if entry.about.get("form") == "folder":
                target.mkdir()
                with tarfile.open(store.object(entry)) as archive:
                    archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # from 3.10.12, 3.11.4 on
                    archive.extractall(target, members=_inside(archive, entry))
            else:
                shutil.copyfile(store.object(entry), target)
        os.replace(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def _inside(archive: tarfile.TarFile, entry: Entry) -> Iterator[tarfile.TarInfo]:
    links: set[str] = set()
    for member in archive:
        parts = member.name.split("/")
        through = any("/".join(parts[:depth]) in links for depth in range(1, len(parts)))
        if member.name.startswith("/") or ".." in parts or through or not (
                member.isreg() or member.isdir() or member.issym()):
            raise InputError("a source holds something that would lie outside of it", where=entry.path,
                             found=member.name)
        if member.issym():
            links.add(member.name)
        yield member


def refuse_changed_locks(manifest: Manifest, root: Path, wanted: Sequence[str]) -> None:
    """Raise InputError when the bundle has nothing for an environment that is wanted, or its lock was changed since."""
    for name in wanted:
        carried = [one for one in manifest.environments if one.name == name]
        if not carried:
            raise InputError(f"the bundle {manifest.name} has no environment {name}",
                             found=", ".join(dict.fromkeys(one.name for one in manifest.environments)) or "none",
                             next=f"make a bundle for an inventory that names {name}")
        environment = load_environment(root / "envs", name)
        now = {}
        for platform in environment.platforms:
            file = environment.lock_file(platform)
            if file.is_file():
                now[platform.name] = lock_digest(read_lock(file, str(file.relative_to(root))))
        if not any(now.get(one.platform) == one.lock for one in carried):
            raise InputError(
                f"the lock of {name} is not the one that the bundle was made from",
                where=f"envs/{name}/locks/{carried[0].platform}.txt", expected=f"sha256 {carried[0].lock[:16]}... "
                f"(bundle {manifest.name} of {manifest.made_at})",
                found=f"sha256 {now[carried[0].platform][:16]}..." if carried[0].platform in now else "no such lock",
                next="make the bundle anew, or put that lock back (package/project.tar of the bundle holds it)")
