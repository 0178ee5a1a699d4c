"""Prefill and decode in pools of their own (`pd_cluster`) with a router before them.

One node: both pools on it, half of its devices each, as upstream renders it. Two nodes: a node for each pool, all of
its devices. The router runs beside the prefill pool; clients know the router alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bringup.base.text import plural
from bringup.serving.plan import ROUTER_ROLE, Argument, ProcessPlan, ReplicaPlan
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import Choice, Misfit, room_told, utilization, working_gb
from bringup.serving.planning.ranks import world_size
from bringup.serving.planning.router import router_process
from bringup.serving.planning.site import Node, Site, Words, common_of, environment_of, own_words
from bringup.serving.recipes.render import PoolRendering, Rendering

POOLS = "pd_cluster"
MOST_NODES = 2
ORDER = ("prefill and decode side by side; when all their ranks joined and both answer /health and /v1/models, the "
         "router before them, through which a token is generated; clients come in by the router")
_ADDRESS = {"prefill": "$PREFILL_NODE_1", "decode": "$DECODE_NODE_1"}
_RPC = {"prefill": ("$PREFILL_DP_RPC_PORT", 13345), "decode": ("$DECODE_DP_RPC_PORT", 13346)}
_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"


@dataclass(frozen=True)
class Layout:
    """How one pool takes its devices: `devices` by number on its node, its ranks are `tp` x `dp`."""

    devices: tuple[int, ...]
    tp: int
    dp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.dp


def pools_of(rendering: Rendering) -> dict[str, PoolRendering]:
    """Prefill, then decode."""
    named = (("prefill", rendering.prefill), ("decode", rendering.decode))
    return {name: pool for name, pool in named if pool is not None}


def layout_of(role: str, pool: PoolRendering, local: int, nodes: int) -> Layout:
    """One node is shared in halves; on two nodes a pool has `local` devices, and tensor parallelism that took all of
    its half takes all of them."""
    first = pool.gpus if role == "decode" and nodes == 1 else 0
    share = pool.gpus if nodes == 1 else local
    dp = max(1, pool.dp_size)
    tp = share if nodes > 1 and dp == 1 and pool.tp == pool.gpus else pool.tp
    return Layout(tuple(range(first, first + min(share, tp * dp))), tp, dp)


def pool_nodes(choice: Choice, deployment: Deployment, rendering: Rendering) -> tuple[int, str]:
    """Nodes of a replica and why: what is asked for, else the fewest that hold it. Raises Misfit."""
    asked, where = deployment.nodes, "nodes"
    if asked is None and deployment.replicas:
        asked, where = len(next(iter(deployment.replicas.values()))), "replicas"
    if asked is not None and asked > MOST_NODES:
        raise Misfit(f"{choice.strategy.name} puts its two pools on one node or two, {plural(asked, 'node')} are "
                     "asked for", where=deployment.where(where), expected="1 or 2")
    told = {1: "both pools on one node, half of its devices each", 2: "a node for each pool, the router beside prefill"}
    if asked is not None:
        pool_numbers(choice, deployment, rendering, asked)
        return asked, told[asked]
    try:
        pool_numbers(choice, deployment, rendering, 1)
        return 1, told[1]
    except Misfit:
        pool_numbers(choice, deployment, rendering, 2)
        return 2, told[2]


def pool_numbers(choice: Choice, deployment: Deployment, rendering: Rendering, nodes: int) -> Mapping[str, Any]:
    """What the arithmetic says of the pools, each of which holds all of the weights.

    Raises Misfit where the devices are too few or leave no room for the cache.
    """
    local = choice.hardware.gpu_count
    each = {role: layout_of(role, pool, local, nodes) for role, pool in pools_of(rendering).items()}
    for role, layout in each.items():
        if len(layout.devices) < layout.ranks:
            raise Misfit(f"the {role} pool has {plural(layout.ranks, 'rank')} and {len(layout.devices)} devices "
                         f"of {plural(nodes, 'node')}", where=deployment.where("strategy"))
    needed, there = 2 * choice.variant.vram_minimum_gb, choice.hardware.vram_gb * nodes
    first = next(iter(each.values()))
    numbers: dict[str, Any] = {
        "tensor_parallel": first.tp, "pipeline_parallel": 1, "data_parallel": first.dp,
        "world_size": sum(layout.ranks for layout in each.values()), "needed_gb": needed, "there_gb": there,
        "start_order": ORDER, "router_policy": rendering.router_policy}
    device = choice.hardware.vram_gb / local
    weights = max((_weights(choice, layout) or 0.0 for layout in each.values()), default=0.0)
    left = device * utilization(choice) - working_gb(choice) - weights
    if weights and left <= 0:
        raise Misfit(
            f"each pool puts {weights:,.1f} GB of weights on each of its {len(first.devices)} devices of "
            f"{device:,.0f} GB and leaves no room for the KV cache", where=deployment.where("strategy"),
            expected=room_told(choice))
    if needed > there:
        raise Misfit(f"two pools of {choice.recipe.name} {choice.variant.precision} need {needed:,.0f} GB, "
                     f"{plural(nodes, 'node')} of {choice.hardware.display_name} "
                     f"{'has' if nodes == 1 else 'have'} {there:,.0f} GB", where=deployment.where("strategy"))
    if not weights:
        return numbers
    numbers.update(weights_per_device_gb=round(weights, 1), left_per_device_gb=round(left, 1), kv_tokens=None)
    token = choice.recipe.shape.kv_bytes_per_token
    if token:
        numbers["kv_tokens_of_rank"] = int(left * 1e9 / token)
        numbers["kv_tokens"] = numbers["kv_tokens_of_rank"] * first.dp
    return numbers


def _weights(choice: Choice, layout: Layout) -> float | None:
    """Decimal GB on each device of a pool; data parallel ranks share out the routed experts and repeat the rest."""
    weights, share = choice.variant.weights_gb, choice.recipe.shape.expert_share
    if weights is None:
        return None
    if layout.dp == 1 or share is None:
        return weights / layout.tp
    return weights * share / layout.ranks + weights * (1 - share) / layout.tp


def pool_replica(name: str, site: Site, renderings: Mapping[str, Rendering], local: int, lab: bool
                 ) -> tuple[ReplicaPlan, ...]:
    """The parts of a replica: prefill, decode, router. `renderings` are by host (the model may lie elsewhere on
    each), `local` is how many devices a node has."""
    parts, urls = [], {}
    head = renderings[site.head.host]
    for role in pools_of(head):
        node = site.nodes[0] if role == "prefill" else site.nodes[-1]
        rendering = renderings[node.host]
        pool = pools_of(rendering)[role]
        layout = layout_of(role, pool, local, len(site.nodes))
        process = _pool(role, pool, _on(site, node, lab), rendering, layout)
        urls[role] = f"http://{_bracketed(node.address)}:{process.http_port}"
        parts.append(ReplicaPlan(f"{name}-{role}", (process,), len(process.ranks), f"{urls[role]}/v1", name))
    router = router_process(site.head.host, site.deployment.router, head.router_policy, urls,
                            (site.bind, site.bind_reason), (site.port, site.port_reason), site.deployment.env)
    endpoint = f"http://{_bracketed(site.head.address)}:{site.port}/v1"
    return (*parts, ReplicaPlan(f"{name}-{ROUTER_ROLE}", (router,), 0, endpoint, name))


def _on(site: Site, node: Node, lab: bool) -> Site:
    """The site as one node of it: each pool is an engine of one node."""
    own = node.address if lab and not site.deployment.host else site.bind
    return replace(site, nodes=(node,), bind=own)


def _pool(role: str, pool: PoolRendering, site: Site, rendering: Rendering, layout: Layout) -> ProcessPlan:
    node = site.head
    arguments = tuple(_filled(argument, role, node.address) for argument in pool.arguments)
    words = Words(arguments)
    port = int(_value(arguments, "--port") or site.port)
    if layout.dp == 1 and layout.tp != pool.tp:
        words.put(("--tensor-parallel-size", str(layout.tp)), f"{role} has the devices of a node")
    common_of(replace(site, port=port, port_reason=f"port of {role}"), words)
    own_words(site, words)
    env = {key: (_in_words(value, role, node.address), layer)
           for key, (value, layer) in environment_of(site, replace(rendering, env=pool.env), 0).items()}
    devices = ",".join(str(number) for number in layout.devices)
    if env.get("CUDA_VISIBLE_DEVICES", (devices, ""))[0] != devices:
        env["CUDA_VISIBLE_DEVICES"] = (devices, "site")
    # a recipe's or site's own words may make other sizes than the strategy would
    ranks = world_size(site.engine, [word for argument in words.arguments for word in argument.words])
    return ProcessPlan(node.host, role, 0, tuple(range(ranks)), rendering.command, tuple(words.arguments), env, port,
                       (port, *_more_ports(words.arguments, env, layout)))


def _more_ports(arguments: Sequence[Argument], env: Mapping[str, tuple[str, str]], layout: Layout) -> list[int]:
    """The side channels, one a data parallel rank, and where data parallel ranks meet."""
    side = env.get(_SIDE_CHANNEL, ("", ""))[0]
    ports = [int(side) + rank for rank in range(layout.dp)] if side.isdigit() else []
    meeting = _value(arguments, "--data-parallel-rpc-port")
    return ports + ([int(meeting)] if meeting and meeting.isdigit() else [])


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _in_words(text: str, role: str, address: str) -> str:
    name, port = _RPC[role]
    return text.replace(_ADDRESS[role], address).replace(name, str(port))


def _filled(argument: Argument, role: str, address: str) -> Argument:
    words = tuple(_in_words(word, role, address) for word in argument.words)
    if words == argument.words:
        return argument
    return replace(argument, words=words, reason=f"{argument.reason}; {address}")


def _value(arguments: Sequence[Argument], flag: str) -> str | None:
    return next((argument.words[1] for argument in arguments if argument.words[0] == flag and len(argument.words) > 1),
                None)
