"""Sources on the controller: git revisions with their submodules as one tar, the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bringup.base.errors import StepError
from bringup.environments.kernels.recipe import Part, Recipe
from bringup.run.actions import Blob

_GIT_SECONDS = 1800


def source_blob(recipe: Recipe, cache: Path, mirrors: Mapping[str, str]) -> Blob:
    """The source of a recipe as one tar: its own, each submodule in its place, patches under `.bringup-patches`.

    It is kept under `cache/kernels`, named by what went in, so that a controller without a network uses what an earlier
    one fetched. `mirrors` maps the beginning of a git address to another (a mirror, a folder of bare repositories).
    Raises StepError: no such revision, a submodule that holds nothing, no network.
    """
    source = recipe.source
    folder = cache / "kernels"
    if source.folder is not None:
        data = _packed(_folder_files(source.folder), recipe)
        return Blob(hashlib.sha256(data).hexdigest(), len(data), data)
    assert source.main is not None
    key = hashlib.sha256(repr((2, source.main, sorted(source.submodules.items()), [
        (name, (recipe.folder / name).read_bytes()) for name in recipe.patches])).encode()).hexdigest()[:20]
    kept = folder / f"{recipe.name}-{source.label}-{key}.tar"
    if not kept.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        files = dict(_git_files(source.main, "", folder, mirrors))
        if not files:
            raise StepError(f"{source.main.git} holds nothing at {source.main.revision}")
        for path, part in source.submodules.items():
            inside = dict(_git_files(part, path + "/", folder, mirrors))
            if not inside:
                raise StepError(f"the submodule {path} of {recipe.name} is empty", expected=f"{part.git} at "
                                f"{part.revision}: {', '.join(part.keep) or 'everything'}",
                                next="compare `keep` in the recipe with the submodule's folders")
            files.update(inside)
        staged = kept.with_name(f".{kept.name}.{os.getpid()}")
        staged.write_bytes(_packed(files, recipe))
        staged.rename(kept)
    return Blob(_digest(kept), kept.stat().st_size, kept)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else \
            hashlib.sha256(file.read()).hexdigest()


Entry = tuple[int, bytes | str]
"""Mode and content of a file; a text is the target of a symbolic link."""


def _packed(files: Mapping[str, Entry], recipe: Recipe) -> bytes:
    """A tar with nothing in it but names, modes and contents."""
    extra: dict[str, Entry] = {f".bringup-patches/{number:02d}": (0o644, (recipe.folder / name).read_bytes())
                               for number, name in enumerate(recipe.patches)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (mode, data) in sorted({**files, **extra}.items()):
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            if isinstance(data, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, data
                archive.addfile(entry)
            else:
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _folder_files(folder: Path) -> dict[str, Entry]:
    return {path.relative_to(folder).as_posix(): (0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes())
            for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts}


def _git_files(part: Part, prefix: str, folder: Path, mirrors: Mapping[str, str]) -> Iterator[tuple[str, Entry]]:
    """The files of a revision, those of `keep` only. Submodules of it come out as nothing: git archives leave them."""
    repository = _repository(part, folder, mirrors)
    words = ["git", "-C", str(repository), "archive", "--format=tar", part.revision, *part.keep]
    done = subprocess.run(words, capture_output=True, env=_environment(), timeout=_GIT_SECONDS, check=False)
    if done.returncode != 0:
        raise StepError(f"the revision {part.revision[:12]} of {part.git} has no {', '.join(part.keep)}"
                        if part.keep else f"the revision {part.revision[:12]} of {part.git} cannot be read",
                        found=_last(done.stderr))
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive.getmembers():
            if member.issym():
                yield prefix + member.name, (0o777, member.linkname)
            elif member.isreg():
                data = archive.extractfile(member)
                assert data is not None
                yield prefix + member.name, (0o755 if member.mode & 0o100 else 0o644, data.read())


def _repository(part: Part, folder: Path, mirrors: Mapping[str, str]) -> Path:
    """A local repository that has the revision: a mirror's folder as it is, else one under the cache."""
    address = part.git
    for start in sorted(mirrors, key=len, reverse=True):
        if address.startswith(start):
            address = mirrors[start] + address[len(start):]
            break
    local = Path(address)
    if local.is_dir() and _has(local, part.revision):
        return local
    name = hashlib.sha256(part.git.encode()).hexdigest()[:12]
    repository = folder / "git" / name
    if not repository.is_dir():
        repository.mkdir(parents=True)
        _git(part, ["git", "init", "--quiet", "--bare", str(repository)])
    if not _has(repository, part.revision):
        _git(part, ["git", "-C", str(repository), "fetch", "--quiet", "--depth", "1", address, part.revision])
    return repository


def _has(repository: Path, revision: str) -> bool:
    words = ["git", "-C", str(repository), "cat-file", "-e", revision + "^{tree}"]
    return subprocess.run(words, capture_output=True, env=_environment(), check=False).returncode == 0


def _git(part: Part, words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, env=_environment(), timeout=_GIT_SECONDS, check=False)
    except FileNotFoundError:
        raise StepError("git is not on this machine", expected="git, to fetch the sources of kernels") from None
    except subprocess.TimeoutExpired:
        raise StepError(f"{part.git} did not answer within {_GIT_SECONDS // 60} minutes") from None
    if done.returncode != 0:
        raise StepError(f"{part.git} cannot be fetched at {part.revision[:12]}", found=_last(done.stderr),
                        next="name a mirror in bringup_kernel_mirrors ({https://github.com/: /mirrors/}), or carry "
                             ".bringup/cache/kernels from a machine that reaches it")


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}


def _last(said: bytes) -> str | None:
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else None
