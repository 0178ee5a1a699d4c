"""The lab's one background process: holds the addresses, serves the machines, ends when told to."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from bringup.base.errors import BringupError
from bringup.lab.addresses import Claim, claim
from bringup.lab.keys import ensure_key, write, write_known_hosts
from bringup.lab.machines import NAMES, LabFolder, Machine
from bringup.lab.processes import boot_id
from bringup.lab.server import Setting, authorized, serve
from bringup.lab.state import LabState, lab_user, load, save, start_of

WATCH_SECONDS = 2.0
"""How often the supervisor looks whether its folder is still there."""


def main(argv: list[str]) -> int:
    """Serve the lab of the folder named in argv until SIGTERM. Returns 0 then, 1 when the lab cannot be served."""
    folder = LabFolder(Path(argv[0]))
    os.umask(0o077)
    # handlers, not SIG_IGN: what is ignored stays ignored in every process of a session
    signal.signal(signal.SIGHUP, _ignore)
    signal.signal(signal.SIGINT, _ignore)
    life = folder.life.open("a")
    try:
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("another supervisor serves this folder", file=sys.stderr)
        return 1
    life.truncate(0)
    life.write(f"{os.getpid()} {start_of(os.getpid())}\n")
    life.flush()
    try:
        asyncio.run(_serve(folder, life))
    except BringupError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return 1
    return 0


def _ignore(number: int, frame: object) -> None:
    return None


def token_of(folder: LabFolder) -> str:
    """The lab's token, made when there is none."""
    if not folder.token.is_file():
        write(folder.token, secrets.token_hex(16).encode(), 0o600)
    return folder.token.read_text().strip()


def _folder_is_there(folder: LabFolder, life: TextIO) -> bool:
    """Whether the file that this supervisor holds still lies in the lab's folder: a removed lab must not live on."""
    try:
        return os.path.samestat(os.stat(folder.life), os.fstat(life.fileno()))
    except OSError:
        return False


async def _serve(folder: LabFolder, life: TextIO) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    before = load(folder)
    known = {machine.name: (machine.address, machine.port) for machine in before.machines} if before else {}
    claims = claim(len(NAMES), [known[name] for name in NAMES if name in known])
    machines = _assign(folder, claims, known)
    user_key = ensure_key(folder.user_key)
    token = token_of(folder)
    user = lab_user()
    settings = []
    servers = []
    listeners = {item.address: item.listener for item in claims}
    for machine in machines:
        machine.home.mkdir(parents=True, exist_ok=True)
        ensure_key(folder.host_key(machine.name))
        setting = Setting(machine, user, token, authorized(user_key), _interpreter_folder())
        settings.append(setting)
        servers.append(await serve(setting, listeners[machine.address], str(folder.host_key(machine.name))))
    write_known_hosts(folder, machines)
    save(folder, LabState(os.getpid(), start_of(os.getpid()), boot_id(), time.time(), user, machines))
    print(f"{time.strftime('%F %T')} serving " + ", ".join(f"{m.name} on {m.address}:{m.port}" for m in machines),
          flush=True)
    while not stop.is_set() and _folder_is_there(folder, life):
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), WATCH_SECONDS)
    for server in servers:
        server.close()
    for setting in settings:
        for session in list(setting.sessions):
            session.hang_up()
    print(f"{time.strftime('%F %T')} ended", flush=True)


def _assign(folder: LabFolder, claims: list[Claim], known: dict[str, tuple[str, int]]) -> tuple[Machine, ...]:
    """Addresses to names: a machine keeps the address that it had."""
    free = {item.address: item for item in claims}
    chosen: dict[str, Claim] = {}
    for name in NAMES:
        address = known.get(name, ("", 0))[0]
        if address in free:
            chosen[name] = free.pop(address)
    rest = iter(free.values())
    for name in NAMES:
        if name not in chosen:
            chosen[name] = next(rest)
    return tuple(Machine(name, chosen[name].address, chosen[name].port, folder.machine(name)) for name in NAMES)


def _interpreter_folder() -> str:
    """Where the interpreter lies that this package's own environment was made from: last on the machines' PATH."""
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    return str(Path(base).resolve().parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
