"""A bridge with a /24 of its own out of 198.18.0.0/15, and network namespaces on it."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
LOCKS = Path("/run/lock/bringup-tests")
POOL = ipaddress.IPv4Network("198.18.0.0/15")
"""The range for measurements between networks (RFC 2544): routed nowhere."""


def ip(*arguments: str, check: bool = True) -> str:
    """Run `ip`; its output. Raises RuntimeError with what it said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Subnet:
    """A /24 that no other run holds; the lock goes with the process."""

    network: ipaddress.IPv4Network
    lock: IO[str]

    @property
    def gateway(self) -> str:
        return str(self.network[1])

    def address(self, index: int) -> str:
        """Address of machine `index`, counted from 1: .11 and on."""
        return str(self.network[10 + index])

    def release(self) -> None:
        self.lock.close()


def take_subnet() -> Subnet:
    """The first free /24 from 198.19.255.0 downwards. Raises RuntimeError when all 512 are taken."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    used = list(_used())
    for network in reversed(list(POOL.subnets(new_prefix=24))):
        lock = (LOCKS / f"{network.network_address}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        if any(network.overlaps(other) for other in used):
            lock.close()
            continue
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return Subnet(network, lock)
    raise RuntimeError(f"no free /24 is left in {POOL}")


def _used() -> Iterator[ipaddress.IPv4Network]:
    for link in json.loads(ip("-json", "-4", "address", "show")):
        for own in link.get("addr_info", ()):
            yield ipaddress.IPv4Interface(f"{own['local']}/{own['prefixlen']}").network


def bridge_name(identity: str) -> str:
    return f"bt{identity}"


def link(identity: str, index: int) -> str:
    """The bridge's end of the cable to a machine."""
    return f"bv{identity}n{index}"


def namespace(identity: str, index: int) -> str:
    return f"bringup-{identity}-{index}"


def take_away(identity: str, size: int) -> None:
    """Delete the bridge, links and namespaces of a cluster, those that are there."""
    for index in range(1, size + 1):
        ip("link", "delete", link(identity, index), check=False)
        ip("netns", "delete", namespace(identity, index), check=False)
    ip("link", "delete", bridge_name(identity), check=False)


@dataclass
class Bridge:
    """A bridge of one cluster; `identity` makes its names unique (15 characters at most for a link)."""

    identity: str
    subnet: Subnet
    _wires: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return bridge_name(self.identity)

    def up(self) -> None:
        ip("link", "add", self.name, "type", "bridge")
        ip("address", "add", f"{self.subnet.gateway}/24", "dev", self.name)
        ip("link", "set", self.name, "up")

    def link(self, index: int) -> str:
        return link(self.identity, index)

    def namespace(self, index: int) -> str:
        return namespace(self.identity, index)

    def plug(self, index: int) -> None:
        """Make the machine's namespace and its cable, address and default route."""
        space, end = self.namespace(index), self.link(index)
        ip("netns", "add", space)
        ip("link", "add", end, "type", "veth", "peer", "name", "host0", "netns", space)
        ip("link", "set", end, "master", self.name, "up")
        ip("-n", space, "address", "add", f"{self.subnet.address(index)}/24", "dev", "host0")
        ip("-n", space, "link", "set", "host0", "up")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "route", "add", "default", "via", self.subnet.gateway)

    def end_wires(self) -> None:
        """End what holds frames back."""
        for index in list(self._wires):
            self._end_slow_wire(index)

    def cut(self, index: int) -> None:
        """Take the cable off the bridge: packets vanish both ways, no connection is closed."""
        ip("link", "set", self._port(index), "nomaster")

    def mend(self, index: int) -> None:
        ip("link", "set", self._port(index), "master", self.name)

    def delay(self, index: int, milliseconds: float) -> None:
        """Make each round trip over a cable longer by that much; 0 ends it. By netem where the kernel has it."""
        end = self.link(index)
        subprocess.run(["tc", "qdisc", "delete", "dev", end, "root"], capture_output=True)
        self._end_slow_wire(index)
        if not milliseconds:
            return
        command = ["tc", "qdisc", "add", "dev", end, "root", "netem", "delay", f"{milliseconds}ms", "limit", "100000"]
        if subprocess.run(command, capture_output=True).returncode:
            self._slow_wire(index, milliseconds)

    def _port(self, index: int) -> str:
        return self._tap(index) if index in self._wires else self.link(index)

    def _tap(self, index: int) -> str:
        return f"bw{self.identity}n{index}"

    def _slow_wire(self, index: int, milliseconds: float) -> None:
        end, tap, space = self.link(index), self._tap(index), self.namespace(index)
        ip("netns", "exec", space, sys.executable, str(HERE / "whole_frames.py"), "host0")
        wire = subprocess.Popen([sys.executable, str(HERE / "slow_wire.py"), end, tap, str(milliseconds / 2)],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert wire.stdout is not None
        if wire.stdout.readline() != b"up\n":
            raise RuntimeError(f"no frame can be held back on {end}: slow_wire.py ended with {wire.wait()}")
        self._wires[index] = wire
        ip("link", "set", end, "nomaster")
        ip("link", "set", tap, "master", self.name, "up")

    def _end_slow_wire(self, index: int) -> None:
        wire = self._wires.pop(index, None)
        if wire is not None:
            wire.kill()
            wire.communicate()
            ip("link", "set", self.link(index), "master", self.name)
