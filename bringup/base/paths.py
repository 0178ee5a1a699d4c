"""Where things lie: on the controller under the project, on a host under `bringup_root`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

DEFAULT_ROOT = "/opt/bringup"
"""`bringup_root` of a host when the inventory names none."""


@dataclass(frozen=True)
class Project:
    """The project's folder on the controller: where inventory/, playbooks/, roles/ and envs/ lie."""

    root: Path

    @classmethod
    def find(cls) -> Project:
        """The folder named by BRINGUP_PROJECT, else the nearest one upwards with a `tasks.py` and `playbooks/`."""
        named = os.environ.get("BRINGUP_PROJECT")
        if named:
            return cls(Path(named).resolve())
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / "tasks.py").is_file() and (folder / "playbooks").is_dir():
                return cls(folder)
        return cls(Path(__file__).resolve().parents[2])

    @property
    def state(self) -> Path:
        """`.bringup/`: runs, the lab, known hosts of the lab; never in version control."""
        return self.root / ".bringup"

    def run_folder(self, run_id: str) -> Path:
        """Where a run keeps its journal and what it collected."""
        return self.state / "runs" / run_id


@dataclass(frozen=True)
class HostPaths:
    """Every path of ours on a host, derived from its `bringup_root`."""

    root: PurePosixPath

    @property
    def envs(self) -> PurePosixPath:
        return self.root / "envs"

    @property
    def releases(self) -> PurePosixPath:
        return self.root / "releases"

    @property
    def current(self) -> PurePosixPath:
        """The symbolic link that names the release in use."""
        return self.root / "current"

    @property
    def jobs(self) -> PurePosixPath:
        return self.root / "jobs"

    @property
    def state(self) -> PurePosixPath:
        """Lock, record of the run, journal, machine id."""
        return self.root / "state"

    @property
    def processes(self) -> PurePosixPath:
        """Pid records and logs of engine processes that the `detached` manager keeps."""
        return self.root / "processes"

    @property
    def cache(self) -> PurePosixPath:
        return self.root / "cache"
