"""Who we say we are: the named key before the agent's keys, the usual keys, then the password."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from bringup.base.secrets import Secret
from bringup.connection.gate import Gate

USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass
class Credentials:
    """What may be tried for one server, in order, and what became of each try."""

    user: str
    named: tuple[str, ...] = ()
    password: Secret | None = None
    use_agent: bool = True
    agent_socket: str | None = None
    only_named: bool = False
    usual: bool = True
    gate: Gate = field(default_factory=Gate)
    tried: list[str] = field(default_factory=list)

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Try one after the other; called by paramiko's SSHClient. Raises paramiko.AuthenticationException."""
        for name, key in self._keys():
            try:
                rest = transport.auth_publickey(self.user, key)
            except paramiko.BadAuthenticationType as error:
                self.tried.append(f"{name}: the server takes {', '.join(error.allowed_types)} only")
                break
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise
                if not transport.is_active():
                    self.tried.append(f"{name}: the server hung up ({error})")
                    raise
                self.tried.append(f"{name}: refused")
                continue
            if not rest:
                return []
            self.tried.append(f"{name}: accepted, and the server wants {', '.join(rest)} too")
            break
        if self.password is not None:
            try:
                transport.auth_password(self.user, self.password.reveal())
                return []
            except paramiko.BadAuthenticationType as error:
                self.tried.append(f"password: the server takes {', '.join(error.allowed_types)} only")
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise
                self.tried.append("password: refused")
        raise paramiko.AuthenticationException("nothing that was tried was accepted")

    def _keys(self) -> Iterator[tuple[str, Any]]:
        for path in self.named:
            yield from self._from_file(path)
        if self.use_agent:
            wanted = self._public_blobs() if self.only_named else None
            for key in self._agent_keys():
                if wanted is None or key.asbytes() in wanted:
                    yield f"ssh-agent key {key.comment or key.get_name()}", key
        if not self.named and self.usual:
            for name in USUAL:
                file = Path("~/.ssh").expanduser() / name
                if file.is_file():
                    yield from self._from_file(str(file))

    def _from_file(self, path: str) -> Iterator[tuple[str, Any]]:
        try:
            key = self._load(path)
        except FileNotFoundError:
            self.tried.append(f"key {path}: there is no such file")
            return
        except OSError as error:
            self.tried.append(f"key {path}: {error.strerror}")
            return
        except paramiko.PasswordRequiredException:
            self.tried.append(f"key {path}: is encrypted; load it into ssh-agent (ssh-add {path})")
            return
        except (paramiko.SSHException, ValueError) as error:
            self.tried.append(f"key {path}: cannot be read ({error})")
            return
        yield f"key {path}", key

    def _load(self, path: str) -> Any:
        """The parsed key, with its certificate where one lies beside it; parsed once per process."""
        full = os.path.expanduser(path)
        stamp = f"{full} {os.stat(full).st_mtime_ns}"
        with self.gate.lock:
            if stamp in self.gate.keys:
                return self.gate.keys[stamp]
        key = _parse(full)
        certificate = Path(f"{full}-cert.pub")
        if certificate.is_file():
            key.load_certificate(str(certificate))
        with self.gate.lock:
            self.gate.keys[stamp] = key
        return key

    def _agent_keys(self) -> list[Any]:
        if self.agent_socket is not None and self.agent_socket.lower() == "none":
            return []
        before = os.environ.get("SSH_AUTH_SOCK")
        if not before:
            return []
        return list(paramiko.Agent().get_keys())

    def _public_blobs(self) -> set[bytes]:
        out = set()
        for path in self.named:
            public = Path(os.path.expanduser(path) + ".pub")
            if public.is_file():
                words = public.read_text(errors="replace").split()
                if len(words) > 1:
                    out.add(base64.b64decode(words[1]))
        return out


def _parse(path: str) -> Any:
    head = Path(path).read_bytes()[:64]
    if b"OPENSSH PRIVATE KEY" in head or b"ENCRYPTED" in head:
        for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
            try:
                return kind.from_private_key_file(path)
            except paramiko.PasswordRequiredException:
                raise
            except paramiko.SSHException as error:
                problem = error
        raise problem
    kind = paramiko.ECDSAKey if b"EC PRIVATE KEY" in head else paramiko.RSAKey
    return kind.from_private_key_file(path)
