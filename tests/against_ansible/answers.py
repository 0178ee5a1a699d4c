"""What Ansible answered, kept by the digest of what it was asked and its version, so that it is asked once."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "answers"


def _version() -> str:
    """The version here; without Ansible, that of the kept answers: they serve as long as nothing new is asked."""
    try:
        return importlib.metadata.version("ansible-core")
    except importlib.metadata.PackageNotFoundError:
        return "2.19.14"


VERSION = _version()


def digest(folder: Path, arguments: Sequence[str]) -> str:
    """SHA-256 over the arguments and every file below a folder: path, executable bit, content."""
    sha = hashlib.sha256(json.dumps([VERSION, *arguments]).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            head = [str(path.relative_to(folder)), os.access(path, os.X_OK)]
            sha.update(json.dumps(head).encode() + hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def inventory(folder: Path, arguments: Sequence[str]) -> Any:
    """The JSON of `ansible-inventory ARGUMENTS` run in a folder; None when Ansible refuses.

    A kept answer is used unless BRINGUP_FULL is set.
    """
    kept = FOLDER / f"{digest(folder, arguments)[:32]}.json"
    if kept.exists() and not os.environ.get("BRINGUP_FULL"):
        return json.loads(kept.read_text())["answer"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": "/nonexistent/ansible.cfg", "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1"}
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-inventory"), *arguments], cwd=folder,
                          env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout) if done.returncode == 0 else None
    if answer is None and ("[ERROR]" not in done.stderr or "Traceback" in done.stderr):
        raise RuntimeError(f"ansible-inventory gave no answer:\n{done.stderr}")
    asked = {"folder": folder.name, "arguments": list(arguments), "ansible-core": VERSION, "answer": answer}
    kept.write_text(json.dumps(asked, indent=1, sort_keys=True) + "\n")
    return answer
