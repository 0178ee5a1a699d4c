"""What was carried here for hosts that reach nothing: wheels by lock, uv and interpreters by machine.

The variable `bringup_bundle` names a file that says where they lie on the controller; `bringup.bundle` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError, StepError
from bringup.environments.locks import Lock
from bringup.run.actions import Blob


@dataclass(frozen=True)
class CarriedPython:
    """An interpreter as an archive: `version` 3.12.4, `name` of its folder on a host; without its blob it is only
    foreseen."""

    version: str
    machine: str
    soabi: str
    name: str
    blob: Blob | None


@dataclass(frozen=True)
class Supplies:
    """`wheels`: SHA-256 of a lock's text -> minor Python -> file name -> blob. `uv`: machine -> version and blob."""

    name: str
    wheels: Mapping[str, Mapping[str, Mapping[str, Blob]]]
    uv: Mapping[str, tuple[str, Blob]]
    pythons: tuple[CarriedPython, ...]

    def pythons_of(self, lock: Lock) -> tuple[str, ...]:
        """Minor Pythons whose wheels were carried for a lock. Raises StepError when the lock was not carried."""
        carried = self.wheels.get(lock_digest(lock))
        if carried is None:
            raise StepError(f"the bundle {self.name} has nothing for this lock", where=lock.file,
                            expected="the lock that the bundle was made from, on a platform that it carries",
                            next=f"invoke bundle.show {self.name} says what it carries; make a bundle for this one")
        return tuple(carried)

    def wheels_for(self, lock: Lock, python: str) -> Mapping[str, Blob]:
        """File name -> blob for an interpreter given as `3.12` or `3.12.4`. Raises StepError."""
        self.pythons_of(lock)
        return self.wheels[lock_digest(lock)].get(".".join(python.split(".")[:2]), {})

    def interpreter(self, minors: Sequence[str], machine: str) -> CarriedPython | None:
        """The first of these minor Pythons that was carried for a machine."""
        for minor in minors:
            for one in self.pythons:
                if one.machine == machine and one.version.split(".")[:2] == minor.split("."):
                    return one
        return None


def lock_digest(lock: Lock) -> str:
    """SHA-256 (hex) of a lock's text."""
    return hashlib.sha256(lock.text.encode()).hexdigest()


def supplies_of(variables: Mapping[str, Any]) -> Supplies | None:
    """What `bringup_bundle` of a host names; None where it names nothing. Raises InputError."""
    named = variables.get("bringup_bundle")
    if not named:
        return None
    path = Path(str(named))
    try:
        data = json.loads(path.read_text())
        return Supplies(
            str(data["name"]),
            {lock: {python: {name: _blob(item) for name, item in files.items()} for python, files in pythons.items()}
             for lock, pythons in data["wheels"].items()},
            {machine: (str(item["version"]), _blob(item)) for machine, item in data["uv"].items()},
            tuple(CarriedPython(item["version"], item["machine"], item["soabi"], item["name"], _blob(item))
                  for item in data["pythons"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the unpacked bundle cannot be read: {error}", where=str(path),
                         next="give the bundle again: --bundle FILE") from None


def file_blob(path: Path) -> Blob:
    """A file of this machine as something to send."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return Blob(digest.hexdigest(), path.stat().st_size, path)


def _blob(item: Mapping[str, Any]) -> Blob:
    return Blob(str(item["sha256"]), int(item["size"]), Path(item["file"]))
