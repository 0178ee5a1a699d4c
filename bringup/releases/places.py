"""Where a built environment lies on each host, and what it is named by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bringup.base.errors import StepError
from bringup.base.text import fold_hosts
from bringup.environments.build import FoundEnvironment, find_environments
from bringup.run.actions import Fleet


@dataclass(frozen=True)
class Place:
    """An environment on one host: its folder, its whole digest, name -> version of what is installed there, and the
    CUDA toolkit that fits it (None where the host has none).

    For containers the digest is the image's, `image` the name that this host runs it by, and `path` is empty.
    """

    path: str
    digest: str
    packages: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    cuda_home: str | None = None


def places_of(fleet: Fleet, name: str, hosts: Sequence[str]) -> dict[str, Place]:
    """Where each host has the environment. Raises StepError when one has not, or cannot use it as it is.

    In check mode an environment that is still to be built has the place that it will have.
    """
    found = find_environments(fleet, [name])
    mine: dict[str, FoundEnvironment | None] = {host: found.get(host, {}).get(name) for host in hosts}
    missing = [host for host, item in mine.items() if item is None or not (item.sound or fleet.check)]
    if missing:
        first = mine[missing[0]]
        raise StepError(f"the environment {name} is not ready", host=fold_hosts(missing),
                        found=first.reason if first is not None else "the host told nothing of it",
                        next=f"invoke env.build --env {name}")
    return {host: Place(item.path, item.digest, item.packages, cuda_home=item.cuda_home)
            for host, item in mine.items() if item is not None}


def check_version(places: Mapping[str, Place], package: str, version: str) -> None:
    """Raise StepError when a host has another version of the engine installed than the plan was made for."""
    for host, place in places.items():
        installed = place.packages.get(package)
        if installed is not None and installed.split("+")[0] != version.split("+")[0]:
            raise StepError(f"{package} {installed} is installed, the plan is made for {version}", host=host,
                            expected=f"flags and parsers that {installed} knows",
                            next=f"set engine_version: {installed} in the deployment, or lock {version}")
