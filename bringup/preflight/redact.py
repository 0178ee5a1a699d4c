"""Names, addresses, serial numbers and accounts taken out of recorded hosts, so that a recording can be given away.

The same thing is replaced by the same stand-in on every host of a capture, and in its own form, so that a redacted
recording is read and judged as the original.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from bringup.preflight.answers import Answer, Answers

_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_GID = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}(?![0-9a-fA-F:])")
_IPV6 = re.compile(r"(?<![0-9a-zA-Z:.])(?:[0-9a-fA-F]{1,4}:){1,7}(?::?[0-9a-fA-F]{1,4}){1,7}(?![0-9a-zA-Z:.])")
_MAC = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}(?![0-9a-fA-F:])")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_GUID = re.compile(r"\b0x[0-9a-fA-F]{16}\b|(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}(?![0-9a-fA-F:])")
_SERIAL = re.compile(r"(?im)^(.*(?:\bserial (?:number|no)\b|\bvendor SN\b)[^:\n]*:[ \t]*)(\S+)|(\bserial=)(\S+)")
_SWITCH = re.compile(r"(?m)^(lldp\.[^=\s]+\.chassis\.name=)(\S[^\n]*)|(^System Name TLV\s*\n\s*)(\S[^\n]*)")
_HOME = re.compile(r"/home/([A-Za-z_][\w.-]*)")
_KEPT_NAMES = {"localhost", "root", "ubuntu", "none", "all", "head", "workers", "host"}
_PLAIN_NAME = re.compile(r"^[A-Za-z0-9][\w.-]+$")


class Redactor:
    """Stand-ins of one capture. `names` are the hosts' names in the inventory, in its order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.hosts: dict[str, str] = {}
        self.accounts: dict[str, str] = {}
        self.addresses: set[str] = set()
        self._seen: dict[str, dict[str, str]] = {}
        for name in names:
            self.hosts[name] = f"host{len(self.hosts) + 1:02d}"

    def learn(self, answers: Answers) -> None:
        """Take in the names, addresses and accounts of a host, before any host is redacted."""
        try:
            found = json.loads(answers.get("net.names").stdout or "{}")
        except ValueError:
            found = {}
        own = str(found.get("hostname") or "") if isinstance(found, dict) else ""
        stand = self.hosts.get(answers.host, "")
        for name in (own, own.split(".")[0]):
            if name and name not in self.hosts and name.lower() not in _KEPT_NAMES and not _is_address(name):
                self.hosts[name] = stand or f"host{len(self.hosts) + 1:02d}"
        for text in _texts(answers):
            for account in _HOME.findall(text):
                if account not in self.accounts and account.lower() not in _KEPT_NAMES:
                    self.accounts[account] = f"user{len(self.accounts) + 1}"
        login = answers.site.get("login", "")
        if login and login not in self.accounts and login.lower() not in _KEPT_NAMES:
            self.accounts[login] = f"user{len(self.accounts) + 1}"
        for probe in ("net.addresses", "net.reach", "net.names"):
            self.addresses.update(_IPV4.findall(answers.get(probe).stdout))
        for text in answers.get("net.hosts_file").files.values():
            self.addresses.update(_IPV4.findall(text))

    def answers(self, given: Answers) -> Answers:
        """The host under its stand-in name, every text of it redacted."""
        items = {probe: self._answer(answer) for probe, answer in given.items.items()}
        return replace(given, host=self.hosts.get(given.host, given.host), items=items,
                       site={key: self.text(value) for key, value in given.site.items()})

    def _answer(self, answer: Answer) -> Answer:
        return replace(
            answer, stdout=self.text(answer.stdout), stderr=self.text(answer.stderr), skipped=self.text(answer.skipped),
            files={path: self.text(text) for path, text in answer.files.items()},
            errors={path: self.text(text) for path, text in answer.errors.items()})

    def text(self, text: str) -> str:
        """A text with its stand-ins."""
        if not text:
            return text
        text = _SERIAL.sub(self._serial, text)
        text = _SWITCH.sub(lambda m: (m.group(1) or m.group(3)) + self._number(
            "switch", m.group(2) or m.group(4), "switch{:02d}"), text)
        text = _UUID.sub(lambda m: self._number("uuid", m.group(0), "00000000-0000-0000-0000-{:012d}"), text)
        text = _GID.sub(self._gid, text)
        text = _MAC.sub(self._mac, text)
        text = _GUID.sub(self._guid, text)
        text = _IPV6.sub(self._ipv6, text)
        text = _IPV4.sub(lambda m: self._ipv4(m.group(0)), text)
        for names in (self.hosts, self.accounts):
            for name in sorted(names, key=len, reverse=True):
                if len(name) > 1 and _PLAIN_NAME.match(name) and not _is_address(name):
                    # `gpu` may be part of any word, `rack7-gpu01` is a name wherever it stands
                    telling = len(name) > 4 and any(letter.isdigit() for letter in name)
                    before, after = ("A-Za-z0-9", "A-Za-z0-9") if telling else (r"\w.-", r"\w-")
                    text = re.sub(rf"(?<![{before}]){re.escape(name)}(?![{after}])", names[name], text)
        return text

    def _number(self, kind: str, value: str, form: str) -> str:
        seen = self._seen.setdefault(kind, {})
        return seen.setdefault(value.lower(), form.format(len(seen) + 1))

    def _serial(self, match: re.Match[str]) -> str:
        lead, value = (match.group(1), match.group(2)) if match.group(2) else (match.group(3), match.group(4))
        if value.upper() in ("N/A", "[N/A]", "NA", "UNKNOWN", "-"):
            return match.group(0)
        return lead + self._number("serial", value, "165{:010d}")

    def _mac(self, match: re.Match[str]) -> str:
        value = match.group(0)
        parts = value.lower().split(":")
        if set(parts) <= {"00"} or set(parts) == {"ff"}:
            return value
        number = int(self._number("mac", value, "{:d}"))
        return ":".join(["02"] + ["00"] * (len(parts) - 3) + [f"{number >> 8 & 255:02x}", f"{number & 255:02x}"])

    def _guid(self, match: re.Match[str]) -> str:
        value = match.group(0)
        if set(value.lower()) <= set("0x:f"):
            return value
        number = int(self._number("guid", value, "{:d}"))
        return (f"0x02000000{number:08x}" if value.startswith("0x") else
                f"0200:0000:{number >> 16:04x}:{number & 65535:04x}")

    def _gid(self, match: re.Match[str]) -> str:
        parts = match.group(0).lower().split(":")
        if all(part == "0000" for part in parts):
            return match.group(0)
        if parts[:6] == ["0000"] * 5 + ["ffff"]:
            address = str(ipaddress.IPv4Address(int(parts[6] + parts[7], 16)))
            self.addresses.add(address)
            number = int(ipaddress.IPv4Address(self._ipv4(address)))
            return ":".join([*parts[:6], f"{number >> 16:04x}", f"{number & 65535:04x}"])
        number = int(self._number("gid", match.group(0), "{:d}"))
        return ":".join([*parts[:4], "0200", "0000", f"{number >> 16:04x}", f"{number & 65535:04x}"])

    def _ipv6(self, match: re.Match[str]) -> str:
        if _GID.fullmatch(match.group(0)):
            return match.group(0)  # has its stand-in
        try:
            address = ipaddress.IPv6Address(match.group(0))
        except ValueError:
            return match.group(0)
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            return match.group(0)
        return self._number("ipv6", str(address), "fe80::200:{:x}" if address.is_link_local else "2001:db8::{:x}")

    def _ipv4(self, text: str) -> str:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or address.is_multicast or text.startswith("255."):
            return text
        # four numbers may be a version: only what is private or was seen as an address is one
        if text not in self.addresses and (not address.is_private or text.endswith(".0")):
            return text
        network, _, last = text.rpartition(".")
        first = {"10": "10.200", "192": "192.168", "172": "172.31"}.get(network.split(".")[0], "198.18") \
            if address.is_private else "198.18"
        number = int(self._number(f"net {first}", network, "{:d}"))
        return f"{first}.{(199 + number) % 256}.{last}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _texts(answers: Answers) -> Iterable[str]:
    for answer in answers.items.values():
        yield answer.stdout
        yield answer.stderr
        yield from answer.files.values()


def redacted(given: Mapping[str, Answers], tell: Callable[[str], None] | None = None) -> list[Answers]:
    """Hosts with stand-ins for everything that names them. `tell` hears what was replaced, in numbers."""
    redactor = Redactor(given)
    for answers in given.values():
        redactor.learn(answers)
    out = [redactor.answers(answers) for answers in given.values()]
    if tell is not None:
        tell(f"{len(redactor.hosts)} names, {len(redactor.accounts)} accounts and every address, serial number and "
             "identifier were replaced; command lines stay but for known secrets: read them before you give them away")
    return out
