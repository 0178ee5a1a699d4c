"""bringup itself for a machine that has nothing of it: a plain tar with an installer, opened by tar and sh alone."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import platform
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bringup.base.errors import StepError
from bringup.bundle.manifest import Entry

INSTALL = r"""#!/bin/sh
# Installs bringup into a folder: sh install.sh FOLDER. No network is asked, nothing outside the folder is changed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -ne 1 ]; then echo "usage: sh install.sh FOLDER" >&2; exit 2; fi
wanted=@PYTHON@
if [ "$(uname -m)" != @MACHINE@ ]; then
  echo "this was packed for @MACHINE@, this machine is $(uname -m)" >&2; exit 1
fi
(cd "$here" && sha256sum --quiet -c SHA256SUMS) || { echo "damaged: copy it again" >&2; exit 1; }
if [ -e "$1/tasks.py" ]; then echo "$1 holds a project already" >&2; exit 1; fi
mkdir -p "$1"
target=$(cd "$1" && pwd)
python=$(command -v "python$wanted" || true)
if [ -z "$python" ] && [ -e "$here/python.tar.gz" ]; then
  tar -C "$target" -xzf "$here/python.tar.gz"
  mv "$target/python" "$target/.python"
  python=$target/.python/bin/python$wanted
fi
if [ -z "$python" ]; then echo "Python $wanted is needed here: none is on PATH, none was packed" >&2; exit 1; fi
tar -C "$target" -xf "$here/project.tar"
quiet="--offline --no-config --quiet"
"$here/uv" venv $quiet --no-python-downloads --python "$python" "$target/.venv"
"$here/uv" pip install $quiet --no-index --find-links "$here/wheels" --link-mode copy --cache-dir "$target/.uv-cache" \
  --python "$target/.venv/bin/python" -r "$here/requirements.txt"
rm -rf "$target/.uv-cache"
echo "bringup is in $target; put your inventory under $target/inventory, then:"
echo "  cd $target && . .venv/bin/activate && invoke --list"
"""


def write_controller(entries: Sequence[Entry], files: dict[str, Path], output: Path, *, python: str,
                     uv: Path, interpreter: Path | None) -> Path:
    """Write OUTPUT.controller.tar from what was collected; whole or not at all. Raises StepError.

    `python` is the minor version that the wheels are for, `interpreter` an archive of it that goes along.
    """
    target = output.with_name(f"{output.name}.controller.tar")
    machine = platform.machine()
    members: dict[str, Path] = {entry.path.partition("/")[2]: files[entry.path] for entry in entries
                                if entry.kind == "package"}
    members["uv"] = uv
    if interpreter is not None:
        members["python.tar.gz"] = interpreter
    texts = {"install.sh": INSTALL.replace("@PYTHON@", python).replace("@MACHINE@", machine)}
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with _told(target), tarfile.open(staged, "w", format=tarfile.PAX_FORMAT) as archive:
            texts["SHA256SUMS"] = "".join(f"{digest}  {name}\n" for name, digest in _digests(members))
            for name, text in texts.items():
                member = tarfile.TarInfo(f"bringup/{name}")
                member.size, member.mode = len(text.encode()), 0o755 if name.endswith(".sh") else 0o644
                archive.addfile(member, io.BytesIO(text.encode()))
            for name, path in sorted(members.items()):
                member = tarfile.TarInfo(f"bringup/{name}")
                member.size, member.mode = path.stat().st_size, 0o755 if name == "uv" else 0o644
                with path.open("rb") as file:
                    archive.addfile(member, file)
        os.replace(staged, target)
    finally:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
    return target


def _digests(members: dict[str, Path]) -> Iterator[tuple[str, str]]:
    for name, path in sorted(members.items()):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        yield name, digest.hexdigest()


@contextlib.contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StepError("the disk is full" if full else f"cannot be written: {error.strerror or error}",
                        where=str(target), next="free space, then run again: what was fetched is kept") from None
