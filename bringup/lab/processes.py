"""Processes of the lab: told apart by pid with start time, and by the lab's token in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bringup.agent.processes import detached, launch, proc

TOKEN_VARIABLE = "BRINGUP_LAB_TOKEN"
"""Set in every session of the lab to the token of its folder; children inherit it."""


@dataclass(frozen=True)
class Process:
    """A process that was alive when it was read.

    `start` is its start time in clock ticks since boot (field 22 of /proc/PID/stat); with the pid it names the
    process for as long as the machine is up. `age` is in seconds.
    """

    pid: int
    start: int
    parent: int
    age: float
    command: str


def boot_id() -> str:
    """The kernel's name for this boot; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read(pid: int) -> Process | None:
    """The process, or None when there is none (or only its corpse is left)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError):
        return None
    name, _, rest = stat.rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    start = int(fields[19])
    command = words.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace") or name.partition("(")[2]
    return Process(pid, start, int(fields[1]), max(0.0, uptime - start / os.sysconf("SC_CLK_TCK")), command)


def alive(pid: int, start: int) -> bool:
    """Whether the very process lives that had this pid and start time."""
    found = read(pid)
    return found is not None and found.start == start


def with_token(token: str) -> list[Process]:
    """All processes of this user whose environment holds the lab's token, oldest first."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    return _where(lambda variables: wanted in variables)


def marked(machines: Path) -> list[Process]:
    """Engine processes of machines under this folder by the mark in their environment, oldest first.

    An engine starts with a clean environment, without the lab's token; its mark begins with its machine's folder.
    """
    wanted = f"{proc.MARK}={machines}/".encode()
    return _where(lambda variables: any(variable.startswith(wanted) for variable in variables))


def _where(fits: Callable[[list[bytes]], bool]) -> list[Process]:
    found = []
    for entry in _pids():
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if fits(environment.split(b"\0")):
            process = read(entry)
            if process is not None:
                found.append(process)
    return sorted(found, key=lambda process: (process.start, process.pid))


def recorded(machine: Path) -> list[Process]:
    """Engine processes that the detached manager's records under a machine's folder prove to be of this machine."""
    found = []
    for name in launch.names(str(machine)):
        record = launch.Place(str(machine), name).read()
        members = [seen["pid"] for seen in proc.of_session(record)]
        if record.get("boot_id") == boot_id() and proc.alive(record.get("keeper") or 0, record.get("keeper_ticks")):
            members.append(record["keeper"])
        found += [process for pid in members if (process := read(pid)) is not None]
    return found


def stop_recorded(machine: Path, grace: float = 5.0) -> list[Process]:
    """Stop the recorded engines of a machine through their manager. Returns the processes that are gone."""
    before = recorded(machine)
    for name in launch.names(str(machine)):
        place = launch.Place(str(machine), name)
        record = place.read()
        if proc.of_session(record):
            detached.stop(place, record, grace)
    return [process for process in before if not alive(process.pid, process.start)]


def end(processes: Iterable[Process], grace: float = 5.0) -> list[Process]:
    """TERM, then KILL after `grace` seconds, to these very processes. Returns those that live on."""
    left = list(processes)
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        for process in left:
            if alive(process.pid, process.start):
                with contextlib.suppress(OSError):
                    os.kill(process.pid, number)
        deadline = time.monotonic() + wait
        while left and time.monotonic() < deadline:
            left = [process for process in left if alive(process.pid, process.start)]
            if left:
                time.sleep(0.02)
    return left


def _pids() -> Iterator[int]:
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != own:
            yield int(entry)
