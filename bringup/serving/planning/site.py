"""The site's layer of a command: model folder, addresses, ports, interfaces, core counts, time limits, own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bringup.base.errors import InputError
from bringup.serving.engine_flags import MAY_REPEAT
from bringup.serving.engines.facts import Engine
from bringup.serving.plan import Argument
from bringup.serving.planning.deployment import Deployment
from bringup.serving.recipes.render import HEAD, INTERFACE, NODE, Rendering, split_flags

API_KEY = "$API_KEY"
"""Stands in the plan for the key of an engine that takes it as an argument only."""


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host. None is unknown: the plan then keeps the name of the value, to be filled in later."""

    address: str | None = None
    interface: str | None = None
    physical_cores: int | None = None
    numa_nodes: int | None = None
    rdma_ports: tuple[str, ...] | None = None
    rdma_left_out: tuple[str, ...] = ()
    gid_index: int | None = None


@dataclass(frozen=True)
class Node:
    """A host of a replica with its cluster address and interface, each with its reason."""

    host: str
    address: str
    address_reason: str
    interface: str
    interface_reason: str
    facts: HostFacts


@dataclass(frozen=True)
class Site:
    """What the site decides for a replica."""

    deployment: Deployment
    engine: Engine
    nodes: tuple[Node, ...]
    served_name: str
    port: int
    port_reason: str
    meeting_port: int
    meeting_reason: str
    bind: str
    bind_reason: str
    load_deadline: float

    @property
    def head(self) -> Node:
        return self.nodes[0]


@dataclass(frozen=True)
class Rdma:
    """The RDMA ports of every node of a replica, `device:port` by host, and the index of their RoCE address where each
    node has one. `reasons` are by host."""

    ports: Mapping[str, tuple[str, ...]]
    gid_index: Mapping[str, int]
    reasons: Mapping[str, str]


def rdma_of(nodes: Sequence[Node]) -> Rdma | None:
    """What the nodes agree on: RDMA when all of them have ports, an index when all of them have one."""
    ports = {node.host: node.facts.rdma_ports or () for node in nodes}
    if len(nodes) < 2 or not all(ports.values()):
        return None
    index = {node.host: node.facts.gid_index for node in nodes if node.facts.gid_index is not None}
    reasons = {}
    for node in nodes:
        left = "; ".join(node.facts.rdma_left_out)
        reasons[node.host] = f"{len(ports[node.host])} active of the highest rate" + (f"; left out: {left}" if left
                                                                                       else "")
    return Rdma(ports, index if len(index) == len(nodes) else {}, reasons)


class Words:
    """Arguments under change: a flag that is there is replaced in its place, a new one goes to the end."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = list(arguments)

    def has(self, flag: str) -> bool:
        return any(_flag(argument) == flag for argument in self.arguments)

    def value(self, flag: str) -> int | None:
        """The whole number behind a flag, None where there is none."""
        for argument in self.arguments:
            if _flag(argument) == flag:
                found = argument.words[-1].rpartition("=")[2]
                return int(found) if found.isdigit() else None
        return None

    def put(self, words: Sequence[str], reason: str) -> None:
        new = Argument(tuple(words), "site", reason)
        for index, argument in enumerate(self.arguments):
            if _flag(argument) == _flag(new):
                if argument.words != new.words:
                    self.arguments[index] = new
                return
        self.arguments.append(new)

    def explain(self, flag: str, reason: str) -> None:
        """Say more about a flag that is there."""
        for index, argument in enumerate(self.arguments):
            if _flag(argument) == flag:
                self.arguments[index] = replace(argument, reason=reason)

    def fill(self, name: str, value: str, reason: str) -> None:
        """Put a value in the place of a name inside words. The argument stays the recipe's."""
        for index, argument in enumerate(self.arguments):
            if any(name in word for word in argument.words):
                words = tuple(word.replace(name, value) for word in argument.words)
                self.arguments[index] = replace(argument, words=words, reason=f"{argument.reason}; {reason}")


def _flag(argument: Argument) -> str:
    return argument.words[0].split("=", 1)[0]


def arguments_of(site: Site, rendering: Rendering, rank: int) -> tuple[Argument, ...]:
    """A node's arguments: the recipe's, then the site's."""
    words = Words(rendering.nodes[rank])
    meeting = f"{site.head.address}, {site.head.address_reason} of {site.head.host}"
    if site.engine.name in ("sglang", "sglang-kt"):
        words.fill(f"{HEAD}:20000", f"{HEAD}:{site.meeting_port}", site.meeting_reason)
    words.fill(HEAD, site.head.address, meeting)
    _common(site, rendering, rank, words)
    if site.engine.name in ("vllm", "vllm-ascend"):
        _vllm(site, rendering, words)
    else:
        _sglang(site, rank, words)
    own_words(site, words)
    return tuple(words.arguments)


def own_words(site: Site, words: Words) -> None:
    """The inventory's own `arguments`, each flag once. Raises InputError."""
    said: dict[str, str] = {}
    for group in split_flags(site.deployment.arguments):
        name = group[0].split("=", 1)[0]
        if name in said and name not in MAY_REPEAT:
            raise InputError(f"`arguments` says {name} twice", where=site.deployment.where("arguments"),
                             found=f"{said[name]}; {' '.join(group)}", expected="a flag once",
                             next="remove one: an engine would take the last without a word")
        said[name] = " ".join(group)
        words.put(group, "arguments in the inventory")


def _common(site: Site, rendering: Rendering, rank: int, words: Words) -> None:
    common_of(site, words, serves=serves_http(site, rendering, rank))


def common_of(site: Site, words: Words, *, serves: bool = True) -> None:
    """Served name, and where it serves; the context asked for."""
    deployment = site.deployment
    if deployment.served_name:
        words.put((site.engine.served_name_flag, deployment.served_name), "served_name in the inventory")
    elif not words.has(site.engine.served_name_flag):
        words.put((site.engine.served_name_flag, site.served_name), "the recipe's name, kept as the served name")
    if serves:
        words.put(("--host", site.bind), site.bind_reason)
        words.put(("--port", str(site.port)), site.port_reason)
    if deployment.context_length:
        flag = "--max-model-len" if site.engine.name.startswith("vllm") else "--context-length"
        words.put((flag, str(deployment.context_length)), "context_length in the inventory")


def serves_http(site: Site, rendering: Rendering, rank: int) -> bool:
    """True where the node's process binds the HTTP port: the head; every node with hybrid load balancing or SGLang."""
    if rank == 0 or not site.engine.name.startswith("vllm"):
        return True
    return any(argument.words[0] == "--data-parallel-hybrid-lb" for argument in rendering.nodes[rank])


def _vllm(site: Site, rendering: Rendering, words: Words) -> None:
    deployment = site.deployment
    if words.has("--master-addr"):
        words.put(("--master-port", str(site.meeting_port)), site.meeting_reason)
        if deployment.distributed_timeout:
            words.put(("--distributed-timeout-seconds", str(deployment.distributed_timeout)),
                      "distributed_timeout in the inventory")
    if words.has("--data-parallel-address"):
        words.put(("--data-parallel-rpc-port", str(site.meeting_port)), site.meeting_reason)


def _sglang(site: Site, rank: int, words: Words) -> None:
    facts = site.nodes[rank].facts
    for flag, number, what in (("--kt-cpuinfer", facts.physical_cores, "physical cores"),
                               ("--kt-threadpool-count", facts.numa_nodes, "NUMA nodes")):
        if number and words.has(flag):
            words.put((flag, str(number)), f"{what} of the host")
        else:
            words.explain(flag, f"the recipe's; the host's {what} when the release is made")
    if site.deployment.has_api_key:
        words.put((site.engine.api_key_flag, API_KEY), "this engine takes the key as an argument only: ps shows it")
    if site.deployment.distributed_timeout:
        words.put(("--dist-timeout", str(site.deployment.distributed_timeout)), "distributed_timeout in the inventory")
    _limit(site, words, "--watchdog-timeout", SGLANG_WATCHDOG, "a first batch that still compiles is no hang")
    if not site.deployment.distributed_timeout:
        _limit(site, words, "--dist-timeout", TORCH_NCCL, "ranks may wait for one that still compiles")


def _limit(site: Site, words: Words, flag: str, usual: int, why: str) -> None:
    """A limit of the engine's own, raised above our deadline; a longer one of the recipe stays."""
    there = words.value(flag)
    wanted = above_ours(site.load_deadline, usual)
    if there is None or there < wanted:
        words.put((flag, str(wanted)), f"above our own deadline: {why}")


def environment_of(site: Site, rendering: Rendering, rank: int) -> Mapping[str, tuple[str, str]]:
    """A node's variables with their layer."""
    node = site.nodes[rank]
    env = {name: (value.replace(INTERFACE, node.interface).replace(NODE, node.address), "recipe")
           for name, value in rendering.env.items()}
    if site.engine.name == "vllm-ascend":
        _raise(env, "HCCL_CONNECT_TIMEOUT", min(HCCL_MOST, above_ours(site.load_deadline, HCCL_LEAST)))
    if site.engine.name.startswith("vllm"):
        if len(site.nodes) > 1:
            env["VLLM_HOST_IP"] = (node.address, "site")
        _raise(env, "VLLM_ENGINE_READY_TIMEOUT_S", above_ours(site.load_deadline))
    rdma = rdma_of(site.nodes) if site.engine.name != "vllm-ascend" else None
    if rdma is not None:
        # `=`: these very ports, not every port whose name begins so
        env.setdefault("NCCL_IB_HCA", ("=" + ",".join(rdma.ports[node.host]), "site"))
        # beside the process, in its work folder: which network was taken is read when it serves
        for name, value in (("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
                            ("NCCL_DEBUG_FILE", "nccl.%h.%p.log")):
            env.setdefault(name, (value, "site"))
        if rdma.gid_index:
            env.setdefault("NCCL_IB_GID_INDEX", (str(rdma.gid_index[node.host]), "site"))
    env["HF_HUB_OFFLINE"] = ("1", "site")
    for name, value in site.deployment.env.items():
        env[name] = (value, "site")
    return env


SGLANG_WATCHDOG = 300
"""Seconds: the watchdog of SGLang unless told otherwise; a batch that takes longer ends the server."""
TORCH_NCCL = 600
"""Seconds that a collective of torch waits with NCCL unless told otherwise."""
HCCL_LEAST, HCCL_MOST = 600, 7200
"""Seconds that HCCL should wait for the other ranks at least, and the most that it takes."""


def above_ours(load_deadline: float, usual: int = 0) -> int:
    """Seconds for a limit of the engine's own: twice our deadline, so that ours is the one that speaks; never under
    what it has anyway."""
    return max(usual, round(load_deadline * 2))


def _raise(env: dict[str, tuple[str, str]], name: str, seconds: int) -> None:
    """Set a limit, unless the recipe has a longer one."""
    there = env.get(name, ("", ""))[0]
    if not (there.isdigit() and int(there) >= seconds):
        env[name] = (str(seconds), "site")


ENV_REASONS = {
    "NCCL_DEBUG_FILE": "which network was taken is read from it: sockets are a failed start here",
    "NCCL_IB_GID_INDEX": "the index of the RoCE v2 address with an IPv4 address in it, found anew for each start",
    "HCCL_CONNECT_TIMEOUT": "how long ranks wait for each other; 120 s by default, too short while one still loads",
    "HCCL_IF_IP": "the address that this node offers to the others",
    "VLLM_HOST_IP": "the address that this node offers to the others",
    "VLLM_ENGINE_READY_TIMEOUT_S": "at least twice our own deadline, so that ours speaks first",
    "HF_HUB_OFFLINE": "the weights lie in the model folder; nothing may be fetched at the start",
    "VLLM_USE_RUST_FRONTEND": "the recipe's choice from vLLM 0.24.0 on",
}
"""Why a variable is set, for the plan's page."""
