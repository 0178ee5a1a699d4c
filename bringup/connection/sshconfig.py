"""ssh_config as OpenSSH reads it: Host, Match, Include, the first value wins. `ssh -G` is the judge."""

from __future__ import annotations

import functools
import getpass
import glob
import hashlib
import ipaddress
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bringup.base.errors import InputError
from bringup.base.origin import Origin

_MANY = ("identityfile", "certificatefile")
_DEPTH = 16
_LINE = re.compile(r"^\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*)$")


@dataclass
class Settings:
    """What holds for one host name: single options by lower-case name, and those that may stand several times."""

    options: dict[str, str] = field(default_factory=dict)
    many: dict[str, list[str]] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """An option's value; None when it is not set."""
        return self.options.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """A yes-or-no option."""
        value = self.options.get(name)
        return default if value is None else value.lower() in ("yes", "true")


def resolve(host: str, config: str | None, given: Mapping[str, str] | None = None,
            identities: tuple[str, ...] = ()) -> Settings:
    """The settings of a host name as it stands on ssh's command line.

    `config`: "" reads the user's file and the system's, a path only that file, None nothing. `given` are options that
    come first (the command line's). Tokens (`%h`, `%d`, ...) are filled in. Raises InputError for an unreadable file.
    """
    settings = Settings(dict(given or {}), {"identityfile": list(identities)} if identities else {})
    reader = _Reader(host, settings)
    reader.read_all(config, final=False)
    full = _canonical(host, settings)
    if full is not None:
        settings.options["hostname"] = reader.current = full
        reader.read_all(config, final=True)
    elif reader.wants_final or (settings.get("canonicalizehostname") or "no").lower() in ("yes", "always"):
        name = _expand(settings.options.get("hostname", "%h"), _tokens(host, host, settings))
        reader.current = name.lower() if settings.options.get("hostname") else host
        reader.read_all(config, final=True)
    _fill_in(host, settings)
    return settings


def _canonical(host: str, settings: Settings) -> str | None:
    """The full name of a short one, when CanonicalizeHostname asks for it and a domain of CanonicalDomains has it.

    Raises InputError when none has it and CanonicalizeFallbackLocal forbids to go on.
    """
    mode = (settings.get("canonicalizehostname") or "no").lower()
    jumps = settings.get("proxyjump") or settings.get("proxycommand") or "none"
    if mode not in ("yes", "always") or (mode == "yes" and jumps.lower() != "none"):
        return None
    name = _expand(settings.get("hostname") or host, {"h": host, "%": "%"})
    if name.endswith("."):
        return name.rstrip(".")
    if name.count(".") > int(settings.get("canonicalizemaxdots") or 1) or _is_address(name):
        return None
    for domain in (settings.get("canonicaldomains") or "").split():
        full = f"{name}.{domain}"
        try:
            socket.getaddrinfo(f"{full}.", None, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError):
            continue
        return full.lower()
    if not settings.flag("canonicalizefallbacklocal", True):
        raise InputError(f"the name {name} is in none of the CanonicalDomains of ssh_config",
                         found=settings.get("canonicaldomains"), next="set HostName or ansible_host")
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Reader:
    def __init__(self, host: str, settings: Settings) -> None:
        self.original = host
        self.current = host
        self.settings = settings
        self.wants_final = False

    def read_all(self, config: str | None, final: bool) -> None:
        if config is None:
            return
        if config:
            path = Path(config).expanduser()
            if not path.is_file():
                raise InputError(f"the ssh configuration {config} cannot be read",
                                 next="check -F or bringup_ssh_config")
            self.read(path, final, True, 0, user=True)
            return
        for path, user in ((Path("~/.ssh/config").expanduser(), True), (Path("/etc/ssh/ssh_config"), False)):
            if path.is_file():
                self.read(path, final, True, 0, user)

    def read(self, path: Path, final: bool, active: bool, depth: int, user: bool) -> None:
        """One file; `active` is False inside a block that does not match: then nothing of it counts."""
        if depth > _DEPTH:
            raise InputError(f"too many nested Include lines ({_DEPTH})", where=str(path))
        try:
            facts = path.stat()
            lines = _parsed(str(path), facts.st_mtime_ns, facts.st_size)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
        allowed = active
        for key, rest, words, where in lines:
            if key == "host":
                active = allowed and _host_list(list(words), self.current)
            elif key == "match":
                active = self.matches(list(words), final, where) and allowed
            elif key == "include":
                for item in words:
                    self.include(item, final, active, depth, user)
            elif active and words:
                self.store(key, rest, words)

    def include(self, item: str, final: bool, active: bool, depth: int, user: bool) -> None:
        pattern = os.path.expandvars(os.path.expanduser(item))
        if not pattern.startswith("/"):
            pattern = os.path.join(os.path.expanduser("~/.ssh") if user else "/etc/ssh", pattern)
        for name in sorted(glob.glob(pattern)):
            if os.path.isfile(name):
                self.read(Path(name), final, active, depth + 1, user)

    def store(self, key: str, rest: str, words: tuple[str, ...]) -> None:
        if key in _MANY:
            values = self.settings.many.setdefault(key, [])
            if words[0] not in values:
                values.append(words[0])
        elif key == "proxyjump" or key == "proxycommand":
            # the two exclude each other: the first one seen wins
            if "proxyjump" not in self.settings.options and "proxycommand" not in self.settings.options:
                self.settings.options[key] = rest if key == "proxycommand" else words[0]
        else:
            several = ("userknownhostsfile", "globalknownhostsfile", "canonicaldomains")
            value = " ".join(words) if key in several else words[0]
            self.settings.options.setdefault(key, value)

    def matches(self, words: list[str], final: bool, where: Origin) -> bool:
        result = True
        todo = list(words)
        if not todo:
            raise InputError("Match without a condition", where=where)
        while todo:
            word = todo.pop(0)
            negated = word.startswith("!")
            name, _, value = word.lstrip("!").partition("=")
            name = name.lower()
            if name == "all":
                found = True
            elif name in ("canonical", "final"):
                self.wants_final = self.wants_final or (name == "final" and not final)
                found = final
            else:
                argument = value or (todo.pop(0) if todo else "")
                if not argument:
                    raise InputError(f"Match {name} needs a value", where=where)
                found = self.condition(name, argument, result, where)
            if found == negated:
                result = False
        return result

    def condition(self, name: str, argument: str, so_far: bool, where: Origin) -> bool:
        options = self.settings.options
        user = getpass.getuser()
        tokens = _tokens(self.original, self.current, self.settings)
        if name == "host":
            given = options.get("hostname")
            return _pattern_list(argument, (_expand(given, tokens) if given else self.current).lower())
        if name == "originalhost":
            return _pattern_list(argument, self.original.lower())
        if name == "user":
            return _pattern_list(argument, options.get("user", user))
        if name == "localuser":
            return _pattern_list(argument, user)
        if name == "tagged":
            return _pattern_list(argument, options.get("tag", ""))
        if name == "exec":
            if not so_far:
                return False  # OpenSSH does not run it either when an earlier condition failed
            command = _expand(argument, {**tokens, "h": _expand(options.get("hostname", self.current), tokens)})
            done = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, timeout=30, check=False)
            return done.returncode == 0
        raise InputError(f"Match {name} is not supported", where=where,
                         expected="all, final, canonical, host, originalhost, user, localuser, tagged, exec")


@functools.lru_cache(maxsize=256)
def _parsed(path: str, stamp: int, size: int) -> tuple[tuple[str, str, tuple[str, ...], Origin], ...]:
    """The lines of a file as it was at that time (keyword, rest, words, place): many hosts ask for the same one."""
    out = []
    for number, line in enumerate(Path(path).read_text(errors="surrogateescape").splitlines(), 1):
        match = _LINE.match(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        where = Origin(path, number)
        rest = match.group(2).strip()
        out.append((match.group(1).lower(), rest, tuple(_words(rest, where)), where))
    return tuple(out)


def _words(rest: str, where: Origin) -> list[str]:
    """Split as OpenSSH does: quotes, and a `#` that begins a word ends the line."""
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise InputError(f"cannot be read: {error}", where=where) from None
    for index, word in enumerate(words):
        if word.startswith("#"):
            return words[:index]
    return words


def _host_list(patterns: list[str], host: str) -> bool:
    found = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if matches(pattern[1:], host):
                return False
        elif matches(pattern, host):
            found = True
    return found


def _pattern_list(text: str, value: str) -> bool:
    return _host_list(text.split(","), value)


def matches(pattern: str, text: str) -> bool:
    """OpenSSH's patterns: `*` and `?`, nothing else."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    expression = "".join(".*" if letter == "*" else "." if letter == "?" else re.escape(letter) for letter in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _tokens(original: str, current: str, settings: Settings) -> dict[str, str]:
    options = settings.options
    user = getpass.getuser()
    local = socket.gethostname()
    port = options.get("port", "22")
    remote = options.get("user", user)
    jump = options.get("proxyjump", "")
    digest = hashlib.sha1(f"{local}{current}{port}{remote}{jump}".encode()).hexdigest()
    return {"%": "%", "C": digest, "d": os.path.expanduser("~"), "h": current, "i": str(os.getuid()),
            "k": options.get("hostkeyalias", original), "L": local.split(".")[0], "l": local, "n": original, "p": port,
            "r": remote, "u": user, "j": jump}


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match.group(1), match.group(0)), text)


def _fill_in(host: str, settings: Settings) -> None:
    options = settings.options
    name = _expand(options.get("hostname", host), {"h": host, "%": "%"})
    options["hostname"] = name
    tokens = _tokens(host, name, settings)
    for key in ("proxycommand", "proxyjump", "userknownhostsfile", "globalknownhostsfile", "identityagent"):
        if key in options and not (key == "proxycommand" and options[key].lower() == "none"):
            options[key] = _path(_expand(options[key], tokens)) if "file" in key else _expand(options[key], tokens)
    for key in _MANY:
        if key in settings.many:
            settings.many[key] = [_path(_expand(value, tokens)) for value in settings.many[key]]


def _path(text: str) -> str:
    """`~` and `${NAME}` filled in, in each of several paths."""
    filled = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match.group(1), ""), text)
    return " ".join(os.path.expanduser(part) for part in filled.split(" "))
