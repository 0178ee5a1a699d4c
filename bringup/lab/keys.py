"""The lab's own keys and known_hosts: made once, never the user's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bringup.lab.machines import LabFolder, Machine


def ensure_key(path: Path) -> str:
    """Make an ed25519 key at `path` (0600) unless there is one; return the public half as OpenSSH writes it."""
    public = path.with_name(path.name + ".pub")
    if path.is_file() and public.is_file():
        return public.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = Ed25519PrivateKey.generate()
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " bringup-lab"
    write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    write(public, text.encode() + b"\n", 0o644)
    return text


def write_known_hosts(folder: LabFolder, machines: Iterable[Machine]) -> None:
    """known_hosts of the lab: one line per machine, by address and port."""
    lines = []
    for machine in machines:
        public = " ".join(ensure_key(folder.host_key(machine.name)).split()[:2])
        lines.append(f"[{machine.address}]:{machine.port} {public}\n")
    write(folder.known_hosts, "".join(lines).encode(), 0o644)


def write(path: Path, content: bytes, mode: int) -> None:
    """Put a file in place whole: beside it first, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
