"""The other engines, in virtual environments of their own under a cache folder; none is a dependency of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("BRINGUP_BENCH", "/var/cache/bringup-bench"))
ANSIBLE = "ansible-core==2.19.*"
PYINFRA = "pyinfra>=3.3,<4"
MITOGEN = "mitogen>=0.3.30"
"""The first releases that name ansible-core 2.19 as supported are 0.3.2x; anything from here on does."""


@dataclass(frozen=True)
class Peer:
    """An environment with its versions; `why_not` says why it cannot be had."""

    folder: Path
    versions: dict[str, str]
    why_not: str | None = None

    def tool(self, name: str) -> str:
        return str(self.folder / "bin" / name)


def ansible() -> Peer:
    return _peer("ansible", [ANSIBLE], ["ansible-core"])


def mitogen() -> Peer:
    """ansible-core with Mitogen beside it."""
    return _peer("mitogen", [ANSIBLE, MITOGEN], ["ansible-core", "mitogen"])


def pyinfra() -> Peer:
    return _peer("pyinfra", [PYINFRA], ["pyinfra", "paramiko"])


def _peer(name: str, requirements: list[str], shown: list[str]) -> Peer:
    folder = CACHE / name
    if not (folder / "done").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        done = subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *requirements],
                              capture_output=True, text=True)
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
            return Peer(folder, {}, f"{' '.join(requirements)} cannot be installed: {last[-1].strip()}")
        (folder / "done").touch()
    code = "import importlib.metadata as m, sys; print(*(m.version(n) for n in sys.argv[1:]))"
    versions = subprocess.run([str(folder / "bin/python"), "-c", code, *shown], capture_output=True, text=True,
                              check=True).stdout.split()
    return Peer(folder, dict(zip(shown, versions, strict=True)))


def mitogen_strategies(peer: Peer) -> Path:
    """The folder of Mitogen's strategy plugins."""
    return next(peer.folder.glob("lib/python*/site-packages/ansible_mitogen/plugins/strategy"))
