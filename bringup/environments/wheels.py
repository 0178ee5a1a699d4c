"""Wheels of a lock fetched on the controller, for hosts that reach no package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from bringup.base.errors import StepError
from bringup.environments.definition import Platform
from bringup.environments.locks import Lock
from bringup.environments.uv import run_uv
from bringup.run.actions import Blob

_COMPLETE = ".complete"


def fetch_wheels(lock: Lock, python: str, platform: Platform, cache: Path, settings: Mapping[str, str]
                 ) -> dict[str, Blob]:
    """File name -> blob of every wheel that a lock needs for an interpreter (`3.11.2`) on a platform.

    They are kept under `cache`, by lock and interpreter. `settings` is what `package_settings` gives. Each file's
    hash is one of the lock's. Raises StepError.
    """
    minor = ".".join(python.split(".")[:2])
    key = hashlib.sha256(f"{lock.text}\0{minor}\0{platform.target}".encode()).hexdigest()[:20]
    folder = cache / "wheels" / key
    if not (folder / _COMPLETE).is_file():
        _download(lock, minor, platform, folder, cache, settings)
        (folder / _COMPLETE).touch()
    allowed = {value.removeprefix("sha256:") for item in lock.packages for value in item.hashes}
    out = {}
    for path in sorted(folder.glob("*.whl")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in allowed:
            raise StepError("a fetched wheel is not the one that the lock names", where=str(path), found=digest,
                            next=f"remove {folder} and run again")
        out[path.name] = Blob(digest, path.stat().st_size, path)
    return out


def _download(lock: Lock, minor: str, platform: Platform, folder: Path, cache: Path,
              settings: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = lock.of_python(minor)
    lines = []
    for item in lock.packages:
        if wanted.get(item.name) == item.version:
            lines.append(" ".join([f"{item.name}=={item.version}", *(f"--hash={value}" for value in item.hashes)]))
    listed = folder / "wanted.txt"
    listed.write_text("\n".join(lines) + "\n")
    tag = minor.replace(".", "")
    words = ["download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
             "--disable-pip-version-check", "--no-input", "--python-version", minor, "--implementation", "cp",
             "--abi", f"cp{tag}", "--abi", "abi3", "--abi", "none", "--dest", str(folder)]
    highest = int(platform.glibc.split(".")[1])
    for glibc in range(highest, 4, -1):
        words += ["--platform", f"manylinux_2_{glibc}_{platform.machine}"]
    for alias in ("manylinux2014", "manylinux2010", "manylinux1"):
        words += ["--platform", f"{alias}_{platform.machine}"]
    python, env = _pip(cache)
    done = subprocess.run([python, "-m", "pip", *words, "-r", str(listed)], env={**env, **_as_pip(settings)},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=3600, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise StepError("the wheels cannot be fetched here either", found=said[0] if said else None, details=said[1:6],
                        next="name the site's index in UV_DEFAULT_INDEX, its certificates in SSL_CERT_FILE")


def _as_pip(settings: Mapping[str, str]) -> dict[str, str]:
    """The same index, certificates and offline mode in pip's names; no configuration file of pip is read."""
    out = {"PIP_CONFIG_FILE": os.devnull}
    index = settings.get("UV_DEFAULT_INDEX") or settings.get("UV_INDEX_URL")
    extra = settings.get("UV_INDEX") or settings.get("UV_EXTRA_INDEX_URL")
    for name, value in (("PIP_INDEX_URL", index), ("PIP_EXTRA_INDEX_URL", extra),
                        ("PIP_CERT", settings.get("SSL_CERT_FILE")), ("PIP_FIND_LINKS", settings.get("UV_FIND_LINKS"))):
        if value:
            out[name] = value
    if settings.get("UV_OFFLINE"):
        out["PIP_NO_INDEX"] = "1"
    out.update({name: value for name, value in settings.items() if name.lower().endswith("_proxy")})
    return out


@lru_cache(maxsize=1)
def _pip(cache: Path) -> tuple[str, dict[str, str]]:
    """An interpreter with pip and the environment to call it with; pip is fetched where this one has none."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    has = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, env=env, check=False)
    if has.returncode == 0:
        return sys.executable, env
    target = cache / "pip"
    if not (target / "pip").is_dir():
        done = run_uv(["pip", "install", "--python", sys.executable, "--quiet", "--target",
                       str(target), "pip>=24"])
        if done.returncode != 0:
            raise StepError("pip is needed to fetch wheels and cannot be installed",
                            found=(done.stderr.strip() or "no output").splitlines()[0])
    return sys.executable, {**env, "PYTHONPATH": str(target)}
