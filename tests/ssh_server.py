"""OpenSSH servers of the tests: on loopback, as the account that runs them, with keys of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from bringup.connection.messages import Target

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def make_key(path: Path, kind: str = "ed25519", *more: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path), *more], check=True)
    return path


class SshServer:
    """`sshd -D` with its own configuration; `log` is what it said."""

    def __init__(self, folder: Path, *lines: str, host_keys: tuple[str, ...] = ("ed25519",), port: int | None = None,
                 address: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.address = address
        self.port = port or free_port()
        self.host_keys = [make_key(folder / f"host_{kind}", kind) if not (folder / f"host_{kind}").exists()
                          else folder / f"host_{kind}" for kind in host_keys]
        self.client_key = folder / "client"
        if not self.client_key.exists():
            make_key(self.client_key)
        shutil.copy(folder / "client.pub", folder / "authorized_keys")
        self.known_hosts = folder / "known_hosts"
        self.lines = lines
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SshServer:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        config = self.folder / "sshd_config"
        config.write_text("\n".join([
            *self.lines, f"ListenAddress {self.address}", f"Port {self.port}",
            *(f"HostKey {key}" for key in self.host_keys), f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "StrictModes no", "UsePAM no", "PidFile none", "PasswordAuthentication no", "LogLevel VERBOSE", "UseDNS no",
            "PermitRootLogin yes",
        ]) + "\n")
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)],
                                        stderr=(self.folder / "sshd.log").open("wb"))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with socket.socket() as sock:
                if sock.connect_ex((self.address, self.port)) == 0:
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"sshd did not start: {self.log[-800:]}")

    def __exit__(self, *exc: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(5)

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def known(self, name: str | None = None, key: int = 0, marker: str = "") -> str:
        """A known_hosts line for one of its keys."""
        kind, blob = self.host_keys[key].with_suffix(".pub").read_text().split()[:2]
        return f"{marker}{name or f'[{self.address}]:{self.port}'} {kind} {blob}\n"

    def trust(self) -> SshServer:
        self.known_hosts.write_text(self.known())
        return self

    def target(self, **more: Any) -> Target:
        fields: dict[str, Any] = {
            "host": "node1", "address": self.address, "port": self.port, "user": getpass.getuser(),
            "key_file": str(self.client_key), "known_hosts": str(self.known_hosts), "ssh_config": None,
            "root": str(self.folder / "root"),
        }
        fields.update(more)
        return Target(**fields)
