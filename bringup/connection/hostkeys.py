"""known_hosts: read, checked with file and line, and added to in one go."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import os
import shlex
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import BringupError, InputError, UnreachableError
from bringup.connection.sshconfig import matches

USER_FILE = "~/.ssh/known_hosts"
SYSTEM_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")

_write_lock = threading.Lock()


@dataclass(frozen=True)
class Entry:
    """A line of a known_hosts file. `marker` is empty, `cert-authority` or `revoked`."""

    marker: str
    names: str
    key_type: str
    blob: bytes
    file: str
    line: int

    def covers(self, name: str) -> bool:
        """True when the line speaks of this host name (`host`, or `[host]:port`)."""
        if self.names.startswith("|1|"):
            return _hashed_matches(self.names, name)
        found = False
        for pattern in self.names.split(","):
            if pattern.startswith("!"):
                if matches(pattern[1:], name):
                    return False
            elif matches(pattern.lower(), name):
                found = True
        return found


@dataclass(frozen=True)
class UnknownKey:
    """A key that a server showed and no file knows. `host` is the inventory name, `name` what known_hosts calls it."""

    host: str
    name: str
    key_type: str
    blob: bytes
    file: str
    hashed: bool = False

    @property
    def fingerprint(self) -> str:
        """`SHA256:...` as ssh-keygen shows it."""
        return fingerprint(self.blob)


class UnknownHostKey(UnreachableError):
    """The server's key is not known; `key` is what it showed."""

    def __init__(self, key: UnknownKey, what: str, **fields: str) -> None:
        super().__init__(what, host=key.host, **fields)
        self.key = key


def fingerprint(blob: bytes) -> str:
    """`SHA256:...` of a public key blob, as ssh-keygen shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_name(host: str, port: int) -> str:
    """How known_hosts names a server."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def _hashed_matches(text: str, name: str) -> bool:
    try:
        _, _, salt, wanted = text.split("|")
        digest = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(digest, base64.b64decode(wanted))
    except (ValueError, binascii.Error):
        return False


def _hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def load(files: Iterable[str]) -> list[Entry]:
    """All entries of these files; one that is not there counts as empty. Raises InputError when one cannot be read."""
    out: list[Entry] = []
    for file in files:
        path = Path(file).expanduser()
        try:
            facts = path.stat()
            out += _parsed(str(path), facts.st_mtime_ns, facts.st_size)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InputError(f"known hosts cannot be read: {error.strerror}", where=str(path)) from None
    return out


@functools.lru_cache(maxsize=64)
def _parsed(path: str, stamp: int, size: int) -> tuple[Entry, ...]:
    """The entries of a file as it was at that time: many hosts ask for the same one."""
    lines = Path(path).read_text(errors="replace").splitlines()
    found = (_entry(line.strip(), path, number) for number, line in enumerate(lines, 1))
    return tuple(item for item in found if item is not None)


def _entry(line: str, file: str, number: int) -> Entry | None:
    fields = line.split()
    marker = ""
    if fields and fields[0].startswith("@"):
        marker = fields.pop(0)[1:]
    if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "cert-authority", "revoked"):
        return None
    try:
        return Entry(marker, fields[0], fields[1], base64.b64decode(fields[2], validate=True), file, number)
    except binascii.Error:
        return None


@dataclass(frozen=True)
class Policy:
    """What is known of one server, and what to do when its key is not.

    `pinned` is the inventory's word: `ssh-ed25519 AAAA...`, the base64 alone, or `SHA256:...`.
    """

    host: str
    name: str
    entries: tuple[Entry, ...]
    checking: str = "strict"
    pinned: str | None = None
    file: str = USER_FILE
    hashed: bool = False

    @property
    def known_types(self) -> list[str]:
        """Key types that the server should offer first: those that are known for it."""
        pinned = (self.pinned or "").split()
        if len(pinned) > 1:
            return [pinned[0]]
        return list(dict.fromkeys(item.key_type for item in self.entries if not item.marker))

    @property
    def authorities(self) -> list[Entry]:
        """Keys that may sign this server's key."""
        return [item for item in self.entries if item.marker == "cert-authority"]

    @property
    def certain(self) -> bool:
        """True when a key is expected, so that nobody needs to be asked."""
        return bool(self.pinned or self.known_types or self.authorities) or self.checking != "strict"

    def check(self, key_type: str, blob: bytes) -> UnknownKey | None:
        """None when the key is the known one (or checking is off); a key to be added when it may be (accept-new).

        Raises UnreachableError for a changed or revoked key, UnknownHostKey for one that a person must confirm.
        """
        shown = fingerprint(blob)
        for item in self.entries:
            if item.marker == "revoked" and item.blob == blob:
                raise UnreachableError("the host key is revoked; nothing was sent", host=self.host, found=shown,
                                       where=f"{item.file}:{item.line}", next="give that host a new key")
        if self.pinned:
            self._check_pinned(blob, shown)
            return None
        plain = [item for item in self.entries if not item.marker]
        if any(item.blob == blob for item in plain):
            return None
        if self.checking == "off":
            return None
        if plain:
            raise self._changed(plain, key_type, shown)
        unknown = UnknownKey(self.host, self.name, key_type, blob, self.file, self.hashed)
        if self.checking == "accept-new":
            return unknown
        raise UnknownHostKey(
            unknown, "the host key is not known; nothing was sent", expected=f"an entry for {self.name} in {self.file}",
            found=f"{_short(key_type)} {shown}",
            next="compare the fingerprint, then run this at a terminal and confirm it, or pin it in the inventory: "
                 f"bringup_host_key: {shown}")

    def _check_pinned(self, blob: bytes, shown: str) -> None:
        words = (self.pinned or "").split()
        wanted = words[1] if len(words) > 1 else words[0]
        if wanted.startswith("SHA256:"):
            if wanted.rstrip("=") == shown:
                return
            expected = wanted
        else:
            try:
                own = base64.b64decode(wanted, validate=True)
            except binascii.Error:
                raise InputError("bringup_host_key is no key and no SHA256 fingerprint", host=self.host,
                                 expected="ssh-ed25519 AAAA... or SHA256:...") from None
            if own == blob:
                return
            expected = fingerprint(own)
        raise UnreachableError(
            "the host key is not the one that the inventory pins; nothing was sent", host=self.host,
            expected=expected, found=shown, next="find out why, then correct bringup_host_key")

    def _changed(self, plain: Sequence[Entry], key_type: str, shown: str) -> UnreachableError:
        same = next((item for item in plain if item.key_type == key_type), plain[0])
        return UnreachableError(
            "the host key has changed; nothing was sent. The host was installed anew, or somebody is in between",
            host=self.host, expected=f"{_short(same.key_type)} {fingerprint(same.blob)}  ({same.file}:{same.line})",
            found=f"{_short(key_type)} {shown}",
            next="if it was installed anew: "
                 f"ssh-keygen -f {shlex.quote(same.file)} -R {shlex.quote(self.name)}")


def _short(key_type: str) -> str:
    return key_type.removeprefix("ssh-").upper().removeprefix("ECDSA-SHA2-") if key_type.startswith("ssh-") else "ECDSA"


def add(keys: Iterable[UnknownKey]) -> None:
    """Write keys into their known_hosts files, all of a file in one step (a new file with mode 0600, then renamed).

    Raises BringupError when a file cannot be written.
    """
    by_file: dict[str, list[UnknownKey]] = {}
    for key in keys:
        by_file.setdefault(key.file, []).append(key)
    with _write_lock:
        for file, group in by_file.items():
            if file == os.devnull:
                continue
            path = Path(os.path.realpath(Path(file).expanduser()))
            try:
                _rewrite(path, group)
            except OSError as error:
                raise BringupError(f"host keys cannot be written: {error.strerror}", where=str(path)) from None


def _rewrite(path: Path, group: Sequence[UnknownKey]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = path.read_bytes() if path.exists() else b""
    if old and not old.endswith(b"\n"):
        old += b"\n"
    there = {(item.names, item.blob) for item in load([str(path)])}
    lines = []
    for key in group:
        if (key.name, key.blob) not in there:
            there.add((key.name, key.blob))
            name = _hashed(key.name) if key.hashed else key.name
            lines.append(f"{name} {key.key_type} {base64.b64encode(key.blob).decode()}\n")
    handle, temporary = tempfile.mkstemp(prefix=".known_hosts-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(old + "".join(lines).encode())
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
