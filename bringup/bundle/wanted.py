"""What a deployment needs to be brought up without a network: read from its inventory, no host is contacted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, value_origin
from bringup.bundle.content import Image, read_image
from bringup.bundle.kernels import Kernel, kernels_of
from bringup.environments.build import wanted_names
from bringup.environments.definition import Environment, Platform, load_environment
from bringup.environments.locks import Lock
from bringup.environments.planned import FAMILIES, Prepared, prepare

_KEYS = ("python", "platforms", "interpreters", "system_packages", "images", "sources", "controller")
HOST_MACHINES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("h20", "h100", "h200", "b200", "b300", "mi300x", "mi325x", "mi355x"), ("x86_64",)),
    **dict.fromkeys(("gb200", "gb300"), ("aarch64",))}
"""`hardware` -> machines that its boards are sold in, by the vendors' data sheets: HGX and OAM boards sit beside x86_64
hosts, Grace is aarch64. Ascend comes with either. `platforms` under `bundle` has the last word."""
_PACKAGE_KEYS = ("release", "names", "sources")


@dataclass(frozen=True)
class Wheels:
    """An environment on one platform, and the minor Pythons whose wheels are wanted."""

    environment: Environment
    platform: Platform
    lock: Lock
    pythons: tuple[str, ...]


@dataclass(frozen=True)
class Packages:
    """System packages: `release` is the hosts' code name (bookworm), `sources` lines of sources.list for it (none:
    this machine's own), `machines` as uname prints them."""

    release: str
    names: tuple[str, ...]
    sources: tuple[str, ...]
    machines: tuple[str, ...]
    where: Origin | str


@dataclass(frozen=True)
class Needs:
    """All of it. `interpreters` is None where hosts have their own, else the archives that are given (none: uv fetches
    them). `settings` are the indexes, certificates and proxies that hold for the hosts."""

    hosts: tuple[str, ...]
    wheels: tuple[Wheels, ...]
    interpreters: tuple[Path, ...] | None
    packages: tuple[Packages, ...]
    images: tuple[Image, ...]
    sources: tuple[Path, ...]
    controller: bool
    kernels: tuple[Kernel, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.platform.machine for item in self.wheels))


def needs_of(root: Path, hosts: Sequence[str], variables: Callable[[str], Mapping[str, Any]],
             platforms: Sequence[str] = (), pythons: Sequence[str] = ()) -> Needs:
    """What the hosts of an inventory need. `platforms` and `pythons`, where given, are taken instead of the
    inventory's. Raises InputError with the place in the inventory.
    """
    wheels: dict[tuple[str, str], Wheels] = {}
    sections = [_section(variables(host)) for host in hosts]
    prepared: dict[str, Prepared] = {}
    for host, section in zip(hosts, sections, strict=True):
        hardware = (variables(host).get("deployment") or {}).get("hardware")
        for name in wanted_names(variables(host)):
            if name not in prepared:
                prepared[name] = prepare(load_environment(root / "envs", name), root)
            for one in _wheels(prepared[name], str(hardware or ""), section, platforms, pythons):
                wheels.setdefault((one.environment.name, one.platform.name), one)
    _all_known(platforms, prepared.values())
    machines = tuple(dict.fromkeys(item.platform.machine for item in wheels.values()))
    return Needs(
        tuple(hosts), tuple(wheels.values()), _interpreters(sections, root),
        tuple(dict.fromkeys(found for section in sections for found in _packages(section, machines))),
        _images(hosts, variables, sections, root), _files(sections, "sources", root),
        all(bool(section.get("controller", True)) for section in sections), kernels_of(root, hosts, variables))


def _section(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    section = variables.get("bundle")
    if section is None:
        return {}
    where = value_origin(variables, "bundle")
    if not isinstance(section, Mapping):
        raise InputError("`bundle` is no mapping", where=where, expected=", ".join(_KEYS), found=str(section))
    for key in section:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError(f"the key `{key}` is not known under `bundle`", where=key_origin(section, key) or where,
                             expected=", ".join(_KEYS), next=f"nearest: {near}" if near else None)
    return section


def _wheels(prepared: Prepared, hardware: str, section: Mapping[str, Any], platforms: Sequence[str],
            pythons: Sequence[str]) -> Iterator[Wheels]:
    environment = prepared.environment
    family = FAMILIES.get(hardware)
    named = platforms or _texts(section, "platforms")
    chosen = [item for item in environment.platforms if item.family in ("cpu", family)]
    if named:
        chosen = [item for item in chosen if item.name in named]
    else:  # where a machine's devices have a platform of their own, hosts take that one
        own = {item.machine for item in chosen if item.family != "cpu"}
        chosen = [item for item in chosen if item.family != "cpu" or item.machine not in own]
        if own and (usual := [item for item in chosen if item.machine in HOST_MACHINES.get(hardware, own)]):
            chosen = usual
        chosen = [item for item in chosen if item.name in prepared.locks] or chosen
    if not chosen:
        raise InputError(f"the environment {environment.name} has no platform for these hosts",
                         where=f"envs/{environment.name}/env.yml",
                         expected=", ".join(named) or f"{family or 'cpu'} ({hardware or 'no hardware named'})",
                         found=", ".join(f"{item.name} ({item.device})" for item in environment.platforms))
    for platform in chosen:
        lock = prepared.locks.get(platform.name)
        if lock is None:
            raise InputError(f"the environment {environment.name} is not locked for {platform.name}",
                             expected=f"envs/{environment.name}/locks/{platform.name}.txt",
                             next=f"invoke env.lock --env {environment.name}")
        yield Wheels(environment, platform, lock, _pythons(environment, lock, section, pythons))


def _pythons(environment: Environment, lock: Lock, section: Mapping[str, Any], given: Sequence[str]
             ) -> tuple[str, ...]:
    """The minor Pythons to carry wheels for: those named, of this environment; else its most wanted one."""
    can = [python for python in environment.pythons if python in lock.pythons]
    named = list(given) or _texts(section, "python")
    chosen = [python for python in can if python in named] if named else can[:1]
    if not chosen:
        raise InputError(f"the environment {environment.name} does not run on Python {', '.join(named) or 'any'}",
                         where=lock.file, expected=" or ".join(can) or "a Python in its lock")
    return tuple(chosen)


def _all_known(platforms: Sequence[str], prepared: Any) -> None:
    known = sorted({item.name for one in prepared for item in one.environment.platforms})
    for name in platforms:
        if name not in known:
            near = nearest(name, known)
            raise InputError(f"no environment of this deployment has the platform `{name}`",
                             expected=", ".join(known), next=f"--platform {near}" if near else None)


def _texts(section: Mapping[str, Any], key: str) -> list[str]:
    value = section.get(key)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise InputError(f"`{key}` is no list of texts", where=value_origin(section, key), found=str(value),
                         expected='["3.12"] (quoted: 3.10 is the number 3.1)' if key == "python" else "- text")
    return list(value)


def _interpreters(sections: Sequence[Mapping[str, Any]], root: Path) -> tuple[Path, ...] | None:
    values = [section.get("interpreters") for section in sections]
    if values and all(value == "hosts" for value in values):
        return None
    for section, value in zip(sections, values, strict=True):
        if isinstance(value, str) and value not in ("hosts", "bring"):
            raise InputError("`interpreters` is not understood", where=value_origin(section, "interpreters"),
                             expected="bring, hosts, or a list of archives", found=value)
    return _files([section for section, value in zip(sections, values, strict=True) if not isinstance(value, str)],
                  "interpreters", root)


def _files(sections: Sequence[Mapping[str, Any]], key: str, root: Path) -> tuple[Path, ...]:
    """Files and folders that the inventory names, relative to the project. Raises InputError."""
    out: dict[Path, None] = {}
    for section in sections:
        for text in _texts(section, key):
            path = Path(text).expanduser()
            path = path if path.is_absolute() else root / path
            if not path.exists():
                raise InputError(f"`bundle: {key}` names a file that is not there",
                                 where=value_origin(section, key), found=str(path))
            out[path] = None
    return tuple(out)


def _images(hosts: Sequence[str], variables: Callable[[str], Mapping[str, Any]],
            sections: Sequence[Mapping[str, Any]], root: Path) -> tuple[Image, ...]:
    """The archives that the inventory names, read; each image that a deployment runs must be in one of them."""
    found = tuple(read_image(path, str(path)) for path in _files(sections, "images", root))
    carried = {tag for image in found for tag in image.tags}
    for host in hosts:
        deployment = variables(host).get("deployment") or {}
        image = str(deployment.get("image") or "")
        if not image or image in carried:
            continue
        where = value_origin(deployment, "image") or host
        if "@sha256:" in image:
            raise InputError("an image named by a registry's digest cannot be carried: an archive has none",
                             where=where, found=image,
                             next=f"image: {image.split('@', 1)[0]}, with a tag (it is known by its layers)")
        raise InputError(f"the deployment runs the image {image}, which no archive holds", where=where,
                         expected="its archive under `bundle: images`", found=", ".join(sorted(carried)) or "none",
                         next=f"docker pull {image} && docker save {image} --output image.tar, then "
                              "bundle: {images: [image.tar]}")
    return found


def _packages(section: Mapping[str, Any], machines: Sequence[str]) -> Iterator[Packages]:
    value = section.get("system_packages")
    if value is None:
        return
    where = value_origin(section, "system_packages") or "bundle"
    if not isinstance(value, Mapping) or set(value) - set(_PACKAGE_KEYS) or not value.get("names"):
        raise InputError("`system_packages` is not understood", where=where, found=str(value),
                         expected="{release: bookworm, names: [numactl]}, and sources: lines of sources.list")
    release = value.get("release")
    if not isinstance(release, str) or not re.fullmatch(r"[a-z][\w-]*", release):
        raise InputError("`system_packages` names no release of the hosts", where=where,
                         expected="release: bookworm (VERSION_CODENAME in the hosts' /etc/os-release)",
                         found=str(release))
    names = _texts(value, "names")
    for name in names:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+(=[\w.+:~-]+)?", name):
            raise InputError(f"`{name}` is no name of a system package", where=where)
    yield Packages(release, tuple(names), tuple(_texts(value, "sources")), tuple(machines), where)
