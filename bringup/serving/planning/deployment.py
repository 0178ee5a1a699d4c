"""`deployment:` of the inventory, read strictly: unknown keys and wrong kinds are errors with file and line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, value_origin
from bringup.serving.planning.router import RouterWishes, read_router
from bringup.serving.planning.watch import WatchWishes, read_watch
from bringup.weights.wanted import parse_weights

MANAGERS = ("systemd", "docker", "podman", "detached")
IN_CONTAINERS = ("docker", "podman")
_KEYS = ("recipe", "recipes", "engine", "engine_version", "hardware", "strategy", "variant", "features", "environment",
         "environments", "manager", "model_path", "served_name", "nodes", "tensor_parallel", "pipeline_parallel",
         "replicas", "host", "port", "master_port", "data_parallel_rpc_port", "api_key", "arguments", "env",
         "context_length", "load_deadline", "distributed_timeout", "kernels", "image", "image_archive",
         "container", "set_env", "check_flags", "weights", "watcher", "router")
_CONTAINER_KEYS = ("client", "user", "shm_gb", "mounts", "options")


@dataclass(frozen=True)
class ContainerWishes:
    """What a site asks of its containers.

    `client` is the program (default: the manager's name), `user` is `account` (the engines' account) or `image` (the
    image's own), `shm_gb` the size of /dev/shm where it is not the host's, `mounts` are `/path[:/inside[:rw]]`,
    `options` further words of `docker run`.
    """

    client: str | None = None
    user: str = "account"
    shm_gb: int = 32
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deployment:
    """What a site asks for. None means: worked out, with its reason in the plan.

    `load_deadline` and `distributed_timeout` are seconds; `arguments` are further words of the command line, `env`
    further variables; `replicas` maps a name to its hosts, head first; `set_env` are scripts whose
    variables the engine gets (None: those that its kind needs); `check_flags` holds the command against the help of
    the installed engine.
    """

    recipe: str
    model_path: str
    environment: str
    engine: str = "vllm"
    hardware: str = "h200"
    strategy: str | None = None
    variant: str = "default"
    features: tuple[str, ...] | None = None
    environments: tuple[str, ...] = ()
    manager: str = "systemd"
    recipes: str | None = None
    engine_version: str | None = None
    served_name: str | None = None
    nodes: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    replicas: Mapping[str, tuple[str, ...]] | None = None
    host: str | None = None
    port: int | None = None
    master_port: int | None = None
    data_parallel_rpc_port: int | None = None
    has_api_key: bool = False
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    context_length: int | None = None
    load_deadline: float | None = None
    distributed_timeout: int | None = None
    set_env: tuple[str, ...] | None = None
    check_flags: bool = True
    image: str | None = None
    image_archive: str | None = None
    container: ContainerWishes = field(default_factory=ContainerWishes)
    watcher: WatchWishes | None = None
    router: RouterWishes = field(default_factory=RouterWishes)
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False)
    origin: Origin | None = field(default=None, compare=False)

    def where(self, key: str) -> Origin | None:
        """Where a key was written, else the place of `deployment:`."""
        return self.origins.get(key, self.origin)


def read_deployment(value: Any, where: Origin | None = None, written: Any = None) -> Deployment:
    """The deployment in a variable's value. Raises InputError with file and line.

    `written` is the value before templating, for its places, which rendering loses.
    """
    if value is None:
        raise InputError("the inventory holds no `deployment:`", where=where,
                         expected="deployment: {recipe, engine, hardware, strategy, environment, model_path, ...}",
                         next="see docs/serving.md")
    if not isinstance(value, Mapping):
        raise InputError("`deployment` takes a mapping", where=where, found=type(value).__name__)
    written = written if isinstance(written, Mapping) else value
    where = getattr(written, "origin", None) or where
    for key in value:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError(f"`deployment` knows no key `{key}`", where=key_origin(written, key) or where,
                             expected=", ".join(_KEYS), next=f"nearest: {near}" if near else None)
    read = _Reader(value, where, written)
    if value.get("weights") is not None:
        parse_weights(value["weights"], read.at("weights"), os.environ, written.get("weights"))
    manager = read.text("manager") or "systemd"
    if manager not in MANAGERS:
        raise InputError(f"no manager is called `{manager}`", where=read.at("manager"), expected=" or ".join(MANAGERS),
                         next=f"manager: {nearest(manager, MANAGERS) or MANAGERS[0]}")
    image = _image_of(read, manager)
    return Deployment(
        recipe=read.needed("recipe"), model_path=read.needed("model_path"),
        environment=(read.text("environment") or "") if image else read.needed("environment"),
        set_env=read.texts("set_env"), check_flags=read.truth("check_flags", True),
        image=image, image_archive=read.text("image_archive"),
        container=_container_of(read, manager),
        engine=read.text("engine") or "vllm", hardware=read.text("hardware") or "h200",
        strategy=read.text("strategy"), variant=read.text("variant") or "default", features=read.texts("features"),
        environments=read.texts("environments") or (), manager=manager, recipes=read.text("recipes"),
        engine_version=read.text("engine_version"), served_name=read.text("served_name"), nodes=read.number("nodes"),
        tensor_parallel=read.number("tensor_parallel"), pipeline_parallel=read.number("pipeline_parallel"),
        replicas=read.replicas(), host=read.text("host"), port=read.port("port"),
        master_port=read.port("master_port"), data_parallel_rpc_port=read.port("data_parallel_rpc_port"),
        has_api_key=value.get("api_key") not in (None, ""), arguments=read.texts("arguments") or (), env=read.env(),
        context_length=read.number("context_length"), load_deadline=read.number("load_deadline"),
        distributed_timeout=read.number("distributed_timeout"),
        watcher=read_watch(value.get("watcher"), read.at("watcher")),
        router=read_router(value.get("router"), read.at("router")),
        origins={str(key): place for key in value if (place := value_origin(written, key)) is not None}, origin=where,
    )


def _image_of(read: _Reader, manager: str) -> str | None:
    image = read.text("image")
    if manager in IN_CONTAINERS and not image:
        raise InputError(f"the manager {manager} needs an `image`", where=read.at("manager"),
                         expected="image: NAME@sha256:DIGEST, or NAME:TAG with image_archive")
    if manager not in IN_CONTAINERS:
        for key in ("image", "image_archive", "container"):
            if read.data.get(key) not in (None, ""):
                raise InputError(f"`{key}` is for containers, the manager is {manager}", where=read.at(key),
                                 next=f"manager: {IN_CONTAINERS[0]}")
        return None
    if image and "@sha256:" in image and read.text("image_archive"):
        raise InputError("an image of an archive has no digest of a registry", where=read.at("image"), found=image,
                         next=f"image: {image.split('@', 1)[0]}   (known by its layers)")
    return image


def _container_of(read: _Reader, manager: str) -> ContainerWishes:
    value = read.data.get("container")
    if value is None:
        return ContainerWishes()
    if not isinstance(value, Mapping):
        raise InputError("`container` takes a mapping", where=read.at("container"), found=str(value),
                         expected=", ".join(_CONTAINER_KEYS))
    for key in value:
        if key not in _CONTAINER_KEYS:
            near = nearest(str(key), _CONTAINER_KEYS)
            raise InputError(f"`container` knows no key `{key}`", where=key_origin(value, key) or read.at("container"),
                             expected=", ".join(_CONTAINER_KEYS), next=f"nearest: {near}" if near else None)
    inner = _Reader(value, read.at("container"), value)
    user = inner.text("user") or "account"
    if user not in ("account", "image"):
        raise InputError("`container: user` takes account or image", where=inner.at("user"), found=user)
    mounts = inner.texts("mounts") or ()
    for mount in mounts:
        parts = mount.split(":")
        if not mount.startswith("/") or len(parts) > 3 or parts[2:] not in ([], ["ro"], ["rw"]):
            raise InputError("a mount is /path, /path:/inside or /path:/inside:rw", where=inner.at("mounts"),
                             found=mount)
    options = inner.texts("options") or ()
    for option in options:
        if option.split("=", 1)[0] in _OURS:
            raise InputError(f"`{option}` is set by bringup", where=inner.at("options"),
                             expected="options beside " + ", ".join(sorted(_OURS)))
    return ContainerWishes(inner.text("client"), user, inner.number("shm_gb") or 32, mounts, options)


_OURS = frozenset({"--name", "--label", "-l", "--restart", "--rm", "--detach", "-d", "--env-file", "--entrypoint",
                   "--user", "-u", "--workdir", "-w", "--pull", "--stop-signal", "--stop-timeout"})
"""Options of `docker run` that keep the promises of every manager: no restart, known by labels, secrets from a file."""


class _Reader:
    """Takes values of one mapping with their kind checked."""

    def __init__(self, data: Mapping[str, Any], where: Origin | None, written: Mapping[str, Any]) -> None:
        self.data = data
        self.where = where
        self.written = written

    def at(self, key: str) -> Origin | None:
        return value_origin(self.written, key) or self.where

    def text(self, key: str) -> str | None:
        value = self.data.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, (Mapping, list, tuple)):
            raise InputError(f"`{key}` takes a text", where=self.at(key), found=str(value))
        return str(value)

    def truth(self, key: str, default: bool) -> bool:
        value = self.data.get(key)
        if value is None:
            return default
        text = str(value).lower()
        if text not in ("true", "false", "yes", "no"):
            raise InputError(f"`{key}` takes true or false", where=self.at(key), found=str(value))
        return text in ("true", "yes")

    def needed(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise InputError(f"`deployment` lacks `{key}`", where=self.where)
        return value

    def number(self, key: str) -> int | None:
        value = self.data.get(key)
        if value is None or value == "":
            return None
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1 or isinstance(value, bool):
            raise InputError(f"`{key}` takes a whole number from 1 on", where=self.at(key), found=str(value))
        return number

    def port(self, key: str) -> int | None:
        number = self.number(key)
        if number is not None and number > 65535:
            raise InputError(f"`{key}` takes a port", where=self.at(key), expected="1 to 65535", found=str(number))
        return number

    def texts(self, key: str) -> tuple[str, ...] | None:
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InputError(f"`{key}` takes a list", where=self.at(key), found=str(value), next=f"{key}: [{value}]")
        return tuple(str(item) for item in value)

    def env(self) -> dict[str, str]:
        value = self.data.get("env") or {}
        if not isinstance(value, Mapping):
            raise InputError("`env` takes a mapping of variables", where=self.at("env"), found=str(value))
        return {str(key): str(item) for key, item in value.items()}

    def replicas(self) -> dict[str, tuple[str, ...]] | None:
        value = self.data.get("replicas")
        if value is None:
            return None
        if not isinstance(value, Mapping) or not value:
            raise InputError("`replicas` takes a mapping of names to lists of hosts", where=self.at("replicas"),
                             expected="replicas: {r1: [gpu01, gpu02]}", found=str(value))
        out: dict[str, tuple[str, ...]] = {}
        for name, hosts in value.items():
            place = value_origin(value, name) or self.at("replicas")
            if isinstance(hosts, str) or not isinstance(hosts, Sequence) or not hosts:
                raise InputError(f"the replica `{name}` takes a list of hosts, head first", where=place,
                                 found=str(hosts))
            out[str(name)] = tuple(str(host) for host in hosts)
        return out
