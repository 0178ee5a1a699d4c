"""What the lab is now: its supervisor and machines, and the variables that `inventory/lab.yml` gets from them."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import FindingError
from bringup.base.paths import Project
from bringup.environments.uv import uv_program
from bringup.lab.keys import write
from bringup.lab.machines import LabFolder, Machine, recording_of
from bringup.lab.processes import Process, alive, boot_id, read

VERSION = 1


@dataclass(frozen=True)
class LabState:
    """What a supervisor wrote when its servers listened. `start` is its start time in ticks, `since` is Unix time.

    `user` is the one account that its machines know.
    """

    pid: int
    start: int
    boot: str
    since: float
    user: str
    machines: tuple[Machine, ...]

    @property
    def running(self) -> bool:
        """Whether that very supervisor lives: the same boot, pid and start time."""
        return self.boot == boot_id() and alive(self.pid, self.start)


def load(folder: LabFolder) -> LabState | None:
    """The recorded state, of a living lab or not; None when there is none or it cannot be read."""
    try:
        data = json.loads(folder.state.read_text())
        if data["version"] != VERSION:
            return None
        machines = tuple(
            Machine(item["name"], item["address"], int(item["port"]), folder.machine(item["name"]))
            for item in data["machines"]
        )
        return LabState(int(data["pid"]), int(data["start"]), data["boot"], float(data["since"]),
                        data.get("user") or lab_user(), machines)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def supervisor_of(folder: LabFolder) -> Process | None:
    """The living supervisor of a folder, by what it wrote into the file that it locks; None when there is none."""
    try:
        pid, start = (int(word) for word in folder.life.read_text().split())
    except (OSError, ValueError):
        return None
    found = read(pid)
    return found if found is not None and found.start == start else None


def save(folder: LabFolder, state: LabState) -> None:
    """Record the state in one step."""
    data = {
        "version": VERSION, "pid": state.pid, "start": state.start, "boot": state.boot, "since": state.since,
        "user": state.user,
        "machines": [{"name": m.name, "address": m.address, "port": m.port} for m in state.machines],
    }
    write(folder.state, (json.dumps(data, indent=1) + "\n").encode(), 0o600)


def lab_user() -> str:
    """The account that a new lab's machines know: the user's own name; `lab` where the account has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "lab"


def lab_variables(project: Project) -> dict[str, dict[str, Any]]:
    """Host variables of the running lab, by host name: where each machine is reached, its key and its folder.

    Raises FindingError when the lab is not up.
    """
    folder = LabFolder.of(project)
    state = load(folder)
    if state is None or not state.running:
        raise FindingError("the lab is not up", where=str(folder.root), next="invoke lab.up")
    return {machine.name: variables_of(folder, machine, state.user) for machine in state.machines}


def variables_of(folder: LabFolder, machine: Machine, user: str) -> dict[str, Any]:
    """The variables of one machine. No ssh_config and no ssh-agent is read for it."""
    return {
        "ansible_host": machine.address,
        "ansible_port": machine.port,
        "ansible_user": user,
        "ansible_ssh_private_key_file": str(folder.user_key),
        "bringup_known_hosts": str(folder.known_hosts),
        "bringup_ssh_config": False,
        "bringup_root": str(machine.root),
        "bringup_replay": str(recording_of(machine.name)),
        "bringup_uv": str(uv_program()),
        "bringup_uv_cache": uv_cache(),
        "cluster_address": machine.address,
        "lab_models": str(folder.models),
    }


def uv_cache() -> str:
    """uv's cache of this user, which the lab's machines share: environments there are hard links into it."""
    if os.environ.get("UV_CACHE_DIR"):
        return str(Path(os.environ["UV_CACHE_DIR"]).absolute())
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return str(home / "uv")


def start_of(pid: int) -> int:
    """Start time of a living process in ticks; 0 when it is gone."""
    process = read(pid)
    return process.start if process else 0


def spawn(folder: LabFolder) -> subprocess.Popen[bytes]:
    """Start the supervisor of a folder in a session of its own, its output into the lab's log."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    with folder.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bringup.lab.supervisor", str(folder.root)], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True, cwd=folder.root, env={**os.environ, "PYTHONPATH": path},
        )
