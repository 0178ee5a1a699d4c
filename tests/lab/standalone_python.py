"""An interpreter as python-build-standalone ships them, made of one of this machine's: what uv is told to fetch."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

_ASK = ("import sys, sysconfig; print(sys.base_prefix, '%d.%d.%d' % sys.version_info[:3], sys._base_executable, "
        "sysconfig.get_config_var('LIBDIR'), sep='|')")
_LEFT = ("/test", "/tests", "/idlelib", "/tkinter", "/turtledemo", "/ensurepip", "/site-packages", "/dist-packages",
         "/__pycache__", "/config-")


def find_python(minor: str) -> Path | None:
    """A CPython of this minor version with a prefix of its own, or None."""
    found = shutil.which(f"python{minor}")
    places = [Path(found)] if found else []
    places += sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}"))
    for place in places:
        done = subprocess.run([place, "-I", "-c", _ASK], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.split("|")[0] not in ("/usr", "/usr/local"):
            return place
    return None


def standalone(python: Path, folder: Path) -> tuple[Path, Path]:
    """Pack an interpreter as `python/` with paths relative to itself, and the list in which uv finds it."""
    said = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, check=True).stdout.strip()
    prefix, version, program, libdir = said.split("|")
    minor = version.rpartition(".")[0]
    machine = platform.machine()
    root = folder / "python"
    for name in ("bin", "lib"):
        (root / name).mkdir(parents=True)
    # a shared library beside it is found from where the program lies, whatever the folder is called then
    data = Path(program).resolve().read_bytes()
    old = os.fsencode(libdir) + b"\0"
    new = b"$ORIGIN/../lib"
    data = data.replace(old, new + b"\0" * (len(old) - len(new)))
    target = root / "bin" / f"python{minor}"
    target.write_bytes(data)
    target.chmod(0o755)
    (root / "bin/python3").symlink_to(target.name)
    for library in Path(libdir).glob(f"libpython{minor}.so*"):
        shutil.copy2(library, root / "lib", follow_symlinks=False)
    archive = folder / f"cpython-{version}+20260101-{machine}-unknown-linux-gnu-install_only_stripped.tar.gz"

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if any(part in member.name + "/" for part in (f"{left}/" for left in _LEFT[:-1])) \
            or _LEFT[-1] in member.name or member.name.endswith(".a") else member

    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(root, "python")
        packed.add(Path(prefix) / "lib" / f"python{minor}", f"python/lib/python{minor}", filter=keep)
    parts = [int(part) for part in version.split(".")]
    listed = folder / "downloads.json"
    listed.write_text(json.dumps({f"cpython-{version}-linux-{machine}-gnu": {
        "name": "cpython", "arch": {"family": machine, "variant": None}, "os": "linux", "libc": "gnu",
        "major": parts[0], "minor": parts[1], "patch": parts[2], "prerelease": "", "url": archive.as_uri(),
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(), "variant": None, "build": "20260101"}}))
    return archive, listed
