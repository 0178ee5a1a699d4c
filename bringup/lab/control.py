"""Bring the lab up and down, and say how it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import StepError
from bringup.base.paths import Project
from bringup.lab.machines import LabFolder, Machine
from bringup.lab.models import write_models
from bringup.lab.processes import Process, alive, end, marked, read, recorded, stop_recorded, with_token
from bringup.lab.state import LabState, load, spawn, supervisor_of

START_SECONDS = 20.0
"""How long a supervisor may take until its servers listen; under 1 s is usual."""

ROUNDS = 3
"""Looks for processes of the lab while it is taken down: one that is ended may have started another just before."""


@dataclass(frozen=True)
class Down:
    """What `down` did: whether a lab ran, the processes that it ended, those that would not go."""

    ran: bool
    ended: tuple[Process, ...]
    left: tuple[Process, ...]
    purged: bool


@dataclass(frozen=True)
class MachineStatus:
    """A machine of the lab with the processes that run in it (sessions, jobs, engines)."""

    machine: Machine
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class LabStatus:
    """`uptime` is in seconds, None when the lab is down. `stale`: a record without its supervisor was found."""

    folder: LabFolder
    running: bool
    stale: bool
    pid: int | None
    uptime: float | None
    machines: tuple[MachineStatus, ...]


def up(project: Project) -> tuple[LabState, bool]:
    """Bring the lab up unless it is; returns its state and whether it was started now. Raises StepError."""
    if sys.platform != "linux":
        raise StepError("the embedded lab needs Linux", expected="loopback addresses 127.0.77.x and /proc",
                        found=sys.platform, next="name an inventory of machines: --inventory h200.yml")
    folder = LabFolder.of(project)
    with _locked(folder):
        state = load(folder)
        if state is not None and state.running:
            return state, False
        write_models(folder)
        return _start(folder), True


def down(project: Project, *, purge: bool = False) -> Down:
    """End what the lab started that is provably its own, then its supervisor; with `purge` remove its folder.

    Raises StepError when a process would not end and the folder was to be removed.
    """
    folder = LabFolder.of(project)
    if not folder.root.is_dir():
        # somebody removed the folder under a lab: its engines are known by their mark
        engines = marked(_machines(folder))
        left = end(engines)
        return Down(False, tuple(process for process in engines if process not in left), tuple(left), False)
    with _locked(folder):
        state = load(folder)
        ran = state is not None and state.running
        ended = [process for machine in _folders(folder) for process in stop_recorded(machine)]
        supervisor = read(state.pid) if ran and state is not None else supervisor_of(folder)
        left = _end_own(folder, supervisor, ended)
        if supervisor is not None:
            ran = True
            left += end([supervisor])
            left += [process for process in _end_own(folder, supervisor, ended) if process not in left]
        if purge and left:
            raise StepError("the lab's folder is kept: processes in it would not end", where=str(folder.root),
                            details=[f"{process.pid}  {process.command[:100]}" for process in left])
        if purge:
            shutil.rmtree(folder.root)
    return Down(ran, tuple(ended), tuple(left), purge)


def _end_own(folder: LabFolder, supervisor: Process | None, ended: list[Process]) -> list[Process]:
    """End the lab's processes besides its supervisor, and those that they started meanwhile. Returns what lives on."""
    left: list[Process] = []
    for _ in range(ROUNDS):
        own = [process for process in _own(folder) if supervisor is None or process.pid != supervisor.pid]
        if not own or own == left:
            break
        left = end(own)
        ended += [process for process in own if process not in left and process not in ended]
    return left


def status(project: Project) -> LabStatus:
    """How the lab is; contacts nothing and changes nothing."""
    folder = LabFolder.of(project)
    state = load(folder)
    running = state is not None and state.running
    if state is None:
        return LabStatus(folder, False, False, None, None, ())
    own = _own(folder)
    machines = tuple(
        MachineStatus(machine, tuple(process for process in own if _belongs(process, machine)))
        for machine in state.machines
    )
    uptime = time.time() - state.since if running else None
    return LabStatus(folder, running, not running, state.pid if running else None, uptime, machines)


def _start(folder: LabFolder) -> LabState:
    offset = folder.log.stat().st_size if folder.log.exists() else 0
    process = spawn(folder)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        state = load(folder)
        if state is not None and state.pid == process.pid and alive(state.pid, state.start):
            return state
        if process.poll() is not None:
            break
        time.sleep(0.02)
    else:
        process.kill()
        process.wait()
    said = folder.log.read_bytes()[offset:].decode("utf-8", "replace").splitlines()
    raise StepError("the lab did not start", where=str(folder.log), expected="three SSH servers on loopback",
                    found=said[0] if said else f"no answer within {START_SECONDS:.0f} s", details=said[1:][-6:])


def _own(folder: LabFolder) -> list[Process]:
    """Processes that are provably the lab's: recorded with pid and start time, carrying its token, or marked."""
    found: dict[int, Process] = {process.pid: process for process in marked(_machines(folder))}
    for machine in _folders(folder):
        found.update((process.pid, process) for process in recorded(machine))
    if folder.token.is_file():
        token = folder.token.read_text().strip()
        if token:
            found.update((process.pid, process) for process in with_token(token))
    return sorted(found.values(), key=lambda process: (process.start, process.pid))


def _folders(folder: LabFolder) -> list[Path]:
    return sorted(_machines(folder).glob("*"))


def _machines(folder: LabFolder) -> Path:
    return folder.machine("x").parent


def _belongs(process: Process, machine: Machine) -> bool:
    if any(process.pid == other.pid for other in recorded(machine.root)):
        return True
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return False
    return f"BRINGUP_LAB_MACHINE={machine.name}".encode() in environment.split(b"\0")


@contextlib.contextmanager
def _locked(folder: LabFolder) -> Iterator[None]:
    """One at a time brings the lab of a folder up or down; others wait."""
    try:
        folder.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StepError("the lab's folder cannot be written", where=str(folder.root),
                        found=error.strerror or str(error), next="name another one in BRINGUP_LAB") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
