"""The lab's machines and where the lab keeps them: one folder, nothing of the lab lies outside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bringup.base.paths import Project

NAMES = ("lab-head", "lab-w1", "lab-w2")
"""The lab's machines, the head first; `inventory/lab.yml` names the same."""


@dataclass(frozen=True)
class Machine:
    """One machine of the lab: its name, loopback address, SSH port and folder (its `bringup_root`)."""

    name: str
    address: str
    port: int
    root: Path

    @property
    def home(self) -> Path:
        """HOME of its sessions."""
        return self.root / "home"


@dataclass(frozen=True)
class LabFolder:
    """Every path of a lab. `root` is `.bringup/lab` of the project, or BRINGUP_LAB."""

    root: Path

    @classmethod
    def of(cls, project: Project) -> LabFolder:
        """The folder of the project's lab; BRINGUP_LAB names another one."""
        named = os.environ.get("BRINGUP_LAB")
        return cls(Path(named).absolute() if named else project.state / "lab")

    @property
    def state(self) -> Path:
        """What the running supervisor wrote about itself and its machines (JSON)."""
        return self.root / "state.json"

    @property
    def token(self) -> Path:
        """A random text in the environment of all that the lab starts: how its processes are told from others."""
        return self.root / "token"

    @property
    def lock(self) -> Path:
        """Held by whoever brings the lab up or down."""
        return self.root / "lock"

    @property
    def life(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.root / "supervisor.lock"

    @property
    def log(self) -> Path:
        return self.root / "supervisor.log"

    @property
    def user_key(self) -> Path:
        return self.root / "keys" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def models(self) -> Path:
        """Model folders, seen by all machines of the lab as one shared file system would be."""
        return self.root / "models"

    def host_key(self, name: str) -> Path:
        return self.root / "keys" / f"host_{name}"

    def machine(self, name: str) -> Path:
        """The folder of a machine: its `bringup_root`."""
        return self.root / "machines" / name


def recording_of(name: str) -> Path:
    """The recorded host whose answers a machine replays: a folder of its own name, else the one all share."""
    folder = Path(__file__).with_name("recordings")
    own = folder / name
    return own if own.is_dir() else folder / "h200x8"
