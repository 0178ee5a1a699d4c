"""`ansible_ssh_common_args` and `ansible_ssh_extra_args`: ssh's options that are understood, the others refused."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from bringup.base.errors import InputError

SUPPORTED = frozenset({
    "addressfamily", "certificatefile", "connecttimeout", "globalknownhostsfile", "hashknownhosts", "hostkeyalias",
    "hostname", "identitiesonly", "identityagent", "identityfile", "port", "proxycommand", "proxyjump",
    "pubkeyauthentication", "passwordauthentication", "kbdinteractiveauthentication", "preferredauthentications",
    "stricthostkeychecking", "user", "userknownhostsfile",
})
"""Options of ssh_config that have an effect here."""

WITHOUT_EFFECT = frozenset({
    "batchmode", "canonicalizehostname", "checkhostip", "compression", "controlmaster", "controlpath", "controlpersist",
    "gssapiauthentication", "loglevel", "numberofpasswordprompts", "serveraliveinterval", "serveralivecountmax",
    "tcpkeepalive", "updatehostkeys", "visualhostkey", "forwardx11", "requesttty", "escapechar", "sendenv",
    "challengeresponseauthentication", "controlpersisttimeout", "connectionattempts",
})
"""Options that may stand there and change nothing: this connection has its own keepalive, and shares nothing."""

_WITH_VALUE = {"J": "proxyjump", "i": "identityfile", "p": "port", "l": "user", "F": "", "o": ""}
_FLAGS = {"C": "", "q": "", "v": "", "T": "", "x": "", "a": "", "4": "inet", "6": "inet6"}


@dataclass(frozen=True)
class SshArgs:
    """Options as ssh would take them, keys in lower case, first one wins; `config` is the file of -F."""

    options: dict[str, str] = field(default_factory=dict)
    identities: tuple[str, ...] = ()
    config: str | None = None


def parse(text: str, where: str = "ansible_ssh_common_args") -> SshArgs:
    """Options of an ssh command line. Raises InputError for one that is not understood."""
    try:
        words = iter(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{where} cannot be read: {error}", found=text) from None
    options: dict[str, str] = {}
    identities: list[str] = []
    config: str | None = None
    for word in words:
        for letter, value in _letters(word, words, where):
            if letter == "F":
                config = config or value
                continue
            if letter in ("4", "6"):
                options.setdefault("addressfamily", _FLAGS[letter])
                continue
            key, value = _option(letter, value, where)
            if key == "identityfile":
                identities.append(value)
            elif key in SUPPORTED:
                options.setdefault(key, value)
    return SshArgs(options, tuple(identities), config)


def _letters(word: str, words: Iterator[str], where: str) -> Iterator[tuple[str, str]]:
    if not word.startswith("-") or len(word) < 2:
        raise InputError(f"{where} holds `{word}`, which is no option of ssh that is understood here",
                         next="options only: -o, -J, -i, -p, -l, -F")
    rest = word[1:]
    while rest:
        letter, rest = rest[0], rest[1:]
        if letter in _WITH_VALUE:
            value = rest or next(words, "")
            if not value:
                raise InputError(f"{where}: -{letter} needs a value")
            yield letter, value
            return
        if letter not in _FLAGS:
            raise InputError(f"{where}: ssh's option -{letter} is not supported",
                             expected="-o, -J, -i, -p, -l, -F, -C, -q, -v, -4, -6",
                             next="take it out, or put what it does into ssh_config")
        if letter in ("4", "6"):
            yield letter, ""


def _option(letter: str, value: str, where: str) -> tuple[str, str]:
    key = _WITH_VALUE[letter]
    if letter == "o":
        name, separator, rest = value.partition("=")
        if not separator:
            name, _, rest = value.partition(" ")
        key, value = name.strip().lower(), rest.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        if key == "forwardagent" and value.lower() == "no":
            return "batchmode", value
        if key not in SUPPORTED and key not in WITHOUT_EFFECT:
            raise InputError(f"{where}: the ssh option {name} is not supported",
                             next="take it out, or use one that is: ProxyJump, ProxyCommand, Port, ...")
    if key in ("port", "connecttimeout") and not value.isdigit():
        raise InputError(f"{where}: {key} needs a number", found=value)
    return key, value
