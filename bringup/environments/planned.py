"""What a host gets: for each environment the platform, lock and interpreter that fit it, and the digest of all that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bringup.agent.modules._cuda import NAMED
from bringup.base.errors import InputError, StepError
from bringup.environments.definition import Environment, Platform
from bringup.environments.digest import environment_digest, overlay_tar
from bringup.environments.locks import Lock, lock_cuda, read_lock
from bringup.environments.supplies import Supplies
from bringup.environments.toolkits import demand, fitting
from bringup.run.actions import Blob

FAMILIES: Mapping[str, str] = {"h20": "cuda", "h100": "cuda", "h200": "cuda", "b200": "cuda", "gb200": "cuda",
                               "b300": "cuda", "gb300": "cuda", "mi300x": "rocm", "mi325x": "rocm", "mi355x": "rocm",
                               "ascend-a2": "cann", "ascend-a3": "cann"}
"""`hardware` of a deployment -> family of devices that a platform may ask for; cpu platforms fit everywhere."""


DRIVERS: Mapping[str, int] = {"11": 450, "12": 525, "13": 580}
"""CUDA major version -> least driver branch, as NVIDIA's release notes say (minor version compatibility)."""


@dataclass(frozen=True)
class HostFacts:
    """What a host's probe said: machine, glibc (None where it is another libc), interpreters, uv and its version,
    the loaded NVIDIA driver (None where none is loaded), the CUDA toolkits."""

    machine: str
    glibc: str | None
    interpreters: tuple[Mapping[str, Any], ...]
    uv: str | None
    uv_version: str | None
    free: int | None
    driver: str | None = None
    cuda: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> HostFacts:
        return cls(str(data["machine"]), data.get("glibc"), tuple(data.get("interpreters") or ()), data.get("uv"),
                   data.get("uv_version"), data.get("free"), data.get("driver"),
                   tuple(data.get("cuda") or ()))


@dataclass(frozen=True)
class Prepared:
    """An environment with its locks and overlay read, ready for any host."""

    environment: Environment
    locks: Mapping[str, Lock]
    overlay: bytes | None
    overlay_names: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """One environment for one host. `item` is what the host module takes; `blobs` is what that needs."""

    name: str
    digest: str
    platform: Platform
    python: str
    item: Mapping[str, Any]
    blobs: tuple[Blob, ...]


def prepare(environment: Environment, base: Path) -> Prepared:
    """Read an environment's locks and overlay. Raises InputError when no lock is there."""
    locks = {}
    for platform in environment.platforms:
        file = environment.lock_file(platform)
        if file.is_file():
            locks[platform.name] = read_lock(file, str(file.relative_to(base)) if file.is_relative_to(base) else None)
    if not locks and not all(platform.not_locked for platform in environment.platforms):
        raise InputError(f"the environment {environment.name} is not locked", where=f"envs/{environment.name}/locks",
                         expected=", ".join(platform.name + ".txt" for platform in environment.platforms),
                         next=f"invoke env.lock --env {environment.name}")
    overlay, tops = overlay_tar(environment)
    return Prepared(environment, locks, overlay, tops)


def plan_for(prepared: Prepared, facts: HostFacts, hardware: str | None, supplies: Supplies | None = None) -> Planned:
    """Choose platform and interpreter for a host and name the result; with supplies, an interpreter that they have
    wheels for. Raises StepError when nothing fits it."""
    environment = prepared.environment
    platform = _platform(prepared, facts, hardware)
    lock = prepared.locks[platform.name]
    interpreter = _interpreter(environment, lock, facts, supplies)
    toolkit = _toolkit(environment, platform, lock, facts)
    digest = environment_digest(environment, platform, lock, interpreter, prepared.overlay,
                                str(toolkit["version"]) if toolkit and environment.sources else None)
    blobs = [_blob(lock.text.encode())]
    overlay = None
    if prepared.overlay is not None:
        blobs.append(_blob(prepared.overlay))
        overlay = {"digest": blobs[-1].digest, "size": blobs[-1].size}
    item = {
        "name": environment.name, "digest": digest, "python": interpreter["path"], "version": interpreter["version"],
        "lock": blobs[0].digest, "packages": lock.of_python(interpreter["version"]),
        "overrides": [canonicalize_name(Requirement(one.requirement).name) for one in environment.overrides],
        "overlay": overlay, "overlay_names": list(prepared.overlay_names), "sources": list(environment.sources),
        "build": dict(environment.build), "cuda_home": toolkit["home"] if toolkit else None,
        "memory_per_job": environment.memory_per_job, "last": sorted(environment.last),
        "verify": _verify(environment),
    }
    return Planned(environment.name, digest, platform, interpreter["version"], item, tuple(blobs))


def _platform(prepared: Prepared, facts: HostFacts, hardware: str | None) -> Platform:
    family = FAMILIES.get(hardware or "")
    fitting = [platform for platform in prepared.environment.platforms
               if platform.fits(facts.machine, facts.glibc) and platform.family in ("cpu", family)]
    fitting.sort(key=lambda platform: platform.family == "cpu")
    if not fitting:
        have = f"{facts.machine}, glibc {facts.glibc or 'none (another libc)'}, {family or 'no known devices'}"
        raise StepError(f"the environment {prepared.environment.name} has no platform for this host", found=have,
                        expected=", ".join(f"{p.target} {p.device}" for p in prepared.environment.platforms),
                        next=f"add the platform to envs/{prepared.environment.name}/env.yml and lock it: "
                             "invoke env.lock")
    held = {p.name: _too_new(prepared.locks[p.name], facts.driver) for p in fitting if p.name in prepared.locks}
    for platform in fitting:
        if held.get(platform.name, "not locked") is None:
            return platform
    if held:
        name, needed = next(iter(held.items()))
        raise StepError(f"the environment {prepared.environment.name} is for a newer driver than this host has",
                        expected=needed, found=f"driver {facts.driver}; nothing was downloaded",
                        next=f"update the driver, or lock {prepared.environment.name} for an older CUDA "
                             f"(a platform beside {name})")
    reason = fitting[0].not_locked
    if reason is not None:
        raise StepError(f"the environment {prepared.environment.name} cannot be had on {fitting[0].name}", found=reason,
                        expected="a platform that is locked: " + (", ".join(prepared.locks) or "none is"),
                        next="name another environment in the deployment: invoke env.list")
    raise StepError(f"the environment {prepared.environment.name} is not locked for {fitting[0].name}",
                    expected=f"envs/{prepared.environment.name}/locks/{fitting[0].name}.txt",
                    next=f"invoke env.lock --env {prepared.environment.name}")


def _toolkit(environment: Environment, platform: Platform, lock: Lock, facts: HostFacts) -> Mapping[str, Any] | None:
    """The CUDA toolkit of an environment, that of the CUDA in its lock. None where none fits and nothing is compiled
    by it here; raises StepError where packages are built from source, or the inventory names one that does not fit."""
    cuda = lock_cuda(lock)
    if platform.family != "cuda" or cuda is None:
        return None
    if not environment.sources and not any(NAMED in item["why"] for item in facts.cuda):
        return fitting(facts.cuda, cuda)
    return demand(f"the environment {environment.name}", facts.cuda, ".".join(cuda.split(".")[:2]),
                  f"as its lock {platform.name} is made for ({cuda})")


def _too_new(lock: Lock, driver: str | None) -> str | None:
    """What the CUDA of a lock needs where the driver has less, else None; without a driver nothing is known."""
    cuda = lock_cuda(lock)
    if cuda is None or driver is None:
        return None
    least = DRIVERS.get(cuda.split(".")[0])
    if least is None or int(driver.split(".")[0]) >= least:
        return None
    return f"driver {least} or newer for CUDA {cuda}"


def lacking_pythons(prepared: Prepared, facts: HostFacts, hardware: str | None, supplies: Supplies | None
                    ) -> list[str]:
    """The minor Pythons that an environment can have on a host, the most wanted first; none where one of the host's
    own fits. Raises StepError."""
    lock = prepared.locks[_platform(prepared, facts, hardware).name]
    wanted = _wanted_pythons(prepared.environment, lock, supplies)
    return [] if any(_minor(found["version"]) in wanted for found in facts.interpreters) else wanted


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _wanted_pythons(environment: Environment, lock: Lock, supplies: Supplies | None) -> list[str]:
    carried = lock.pythons if supplies is None else supplies.pythons_of(lock)
    return [python for python in environment.pythons if python in lock.pythons and python in carried]


def _interpreter(environment: Environment, lock: Lock, facts: HostFacts, supplies: Supplies | None = None
                 ) -> Mapping[str, Any]:
    wanted = _wanted_pythons(environment, lock, supplies)
    for python in wanted:
        for found in facts.interpreters:
            if found["version"].split(".")[:2] == python.split("."):
                return found
    have = ", ".join(f"{one['path']} ({one['version']})" for one in facts.interpreters)
    raise StepError(f"no Python for the environment {environment.name} on this host",
                    expected="CPython " + " or ".join(wanted), found=have or "none of them on PATH",
                    next=f"apt-get install python{wanted[0]}, or name one in bringup_environment_python"
                    if supplies is None else "make a bundle with the interpreter, or with wheels for the hosts' own")


def _verify(environment: Environment) -> dict[str, Any]:
    out: dict[str, Any] = {"imports": list(environment.imports), "not_imported": sorted(environment.not_imported),
                           "shared": sorted(environment.shared),
                           "commands": [{"run": list(one.run), "says": list(one.says)} for one in environment.commands]}
    if environment.config is not None:
        proof = environment.config
        try:
            content = json.loads(proof.file.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"the model configuration cannot be read: {error}", where=str(proof.file)) from None
        out["config"] = {"content": content, "model_type": proof.model_type, "expect": proof.expect,
                         "words": proof.words}
    return out


def _blob(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data), data)


def all_pythons(prepared: Sequence[Prepared]) -> list[str]:
    """Minor versions that any of the environments can use, each once."""
    return list(dict.fromkeys(python for one in prepared for python in one.environment.pythons))
