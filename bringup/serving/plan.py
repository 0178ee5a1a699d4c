"""A launch plan: what runs where, in which order, with which words; made without a host, shown before anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

POOL_ROLES = ("prefill", "decode")
"""Roles of engines that clients reach through a router only."""
ROUTER_ROLE = "router"


@dataclass(frozen=True)
class Argument:
    """One flag of a command with its values, the layer it comes from (`recipe` or `site`) and why it is there.

    `words` are the argv words: ("--tensor-parallel-size", "16") or ("--headless",).
    """

    words: tuple[str, ...]
    layer: str = "recipe"
    reason: str = ""


@dataclass(frozen=True)
class ProcessPlan:
    """One engine process on one node.

    `command` is the program and its fixed words (`vllm serve MODEL`, `python -m sglang.launch_server`); `env` maps a
    name to (value, layer). `ranks` are the global ranks on this node. `role` is head or worker. `http_port` is None
    where the process serves no HTTP. `ports` are all ports that it will bind, `rendezvous` the address of the head's
    meeting point or None on one node. Of a deployment with pools the role is prefill, decode or router.
    """

    host: str
    role: str
    node_rank: int
    ranks: tuple[int, ...]
    command: tuple[str, ...]
    arguments: tuple[Argument, ...]
    env: Mapping[str, tuple[str, str]]
    http_port: int | None
    ports: tuple[int, ...]
    rendezvous: tuple[str, int] | None = None

    @property
    def argv(self) -> list[str]:
        """The whole command line."""
        return [*self.command, *(word for argument in self.arguments for word in argument.words)]

    @property
    def environment(self) -> dict[str, str]:
        """The environment without layers."""
        return {name: value for name, (value, _) in self.env.items()}


@dataclass(frozen=True)
class ReplicaPlan:
    """One replica: head first, workers in rank order.

    With prefill and decode in pools of their own a replica has parts, each planned as one of these: both pools and the
    router before them. `group` is then the name of the whole, which starts, stops and goes back together.
    """

    name: str
    processes: tuple[ProcessPlan, ...]
    world_size: int
    endpoint: str
    group: str = ""

    @property
    def whole(self) -> str:
        """The name of the replica that this is, or is a part of."""
        return self.group or self.name

    @property
    def public(self) -> bool:
        """True where clients ask it: every replica, and of one with pools the router."""
        return self.head.role not in POOL_ROLES

    @property
    def head(self) -> ProcessPlan:
        return self.processes[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(process.host for process in self.processes)


@dataclass(frozen=True)
class LaunchPlan:
    """A deployment, worked out: replicas, engine and version, environment, served model name, what the contract asks.

    `image` and `container` (what the site asks of its containers) are set where a container engine keeps the processes.
    `template` per process with per-host values left as names (for the release's digest) is
    `bringup.serving.plan_digest`'s concern; `facts` holds the arithmetic that `invoke plan` prints.
    """

    recipe: str
    engine: str
    engine_version: str
    hardware: str
    strategy: str
    variant: str
    features: tuple[str, ...]
    environment: str
    manager: str
    model_path: str
    served_name: str
    replicas: tuple[ReplicaPlan, ...]
    spare: tuple[str, ...] = ()
    api_key_variable: str | None = None
    image: str | None = None
    container: Mapping[str, Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def wholes(self) -> dict[str, tuple[ReplicaPlan, ...]]:
        """Replica -> its parts in start order; a replica without pools is its own only part."""
        found: dict[str, tuple[ReplicaPlan, ...]] = {}
        for replica in self.replicas:
            found[replica.whole] = (*found.get(replica.whole, ()), replica)
        return found
