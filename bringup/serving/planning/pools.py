"""Prefill and decode in pools of their own (`pd_cluster`) with a router before them.

One node: both pools on it, half of its devices each, as upstream renders it. Two nodes: a node for each pool, all of
its devices. More: each pool is one engine over several nodes, half of them or as many as the recipe says. The router
runs beside the first node of the prefill pool; clients know the router alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bringup.base.text import plural
from bringup.serving.plan import ROUTER_ROLE, Argument, ProcessPlan, ReplicaPlan
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import MOST_NODES, Choice, Misfit, room_told, utilization, working_gb
from bringup.serving.planning.ranks import world_size
from bringup.serving.planning.router import router_process
from bringup.serving.planning.site import Site, Words, common_of, environment_of, own_words
from bringup.serving.recipes.render import PoolRendering, Rendering
from bringup.serving.recipes.schema import Pool

POOLS = "pd_cluster"
_COUNTS = (1, 2, 4, 8, MOST_NODES)
"""Nodes of a replica that are tried where nobody says how many: tensor parallel sizes divide heads."""
ORDER = ("prefill and decode side by side; when all their ranks joined and both answer /health and /v1/models, the "
         "router before them, through which a token is generated; clients come in by the router")
_ADDRESS = {"prefill": "$PREFILL_NODE_1", "decode": "$DECODE_NODE_1"}
_RPC = {"prefill": ("$PREFILL_DP_RPC_PORT", 13345), "decode": ("$DECODE_DP_RPC_PORT", 13346)}
_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"


@dataclass(frozen=True)
class Layout:
    """How one pool takes its devices: `devices` by number on each of its `nodes`, its ranks are `tp` x `dp`."""

    devices: tuple[int, ...]
    tp: int
    dp: int
    nodes: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.dp

    @property
    def there(self) -> int:
        """Devices that it has."""
        return len(self.devices) * self.nodes


def pools_of(rendering: Rendering) -> dict[str, PoolRendering]:
    """Prefill, then decode."""
    named = (("prefill", rendering.prefill), ("decode", rendering.decode))
    return {name: pool for name, pool in named if pool is not None}


def named_nodes(choice: Choice) -> dict[str, int]:
    """Nodes of each pool where the recipe says so for this hardware; empty where it does not for both."""
    override = choice.recipe.strategy_overrides.get(choice.strategy.name)
    found = {}
    for role in ("prefill", "decode"):
        pool: Pool | None = getattr(override, role, None) or getattr(choice.strategy, role, None)
        count = (pool.nodes.get(choice.hardware.name) or pool.nodes.get("default")) if pool else None
        if count:
            found[role] = count
    return found if len(found) == 2 else {}


def shares(choice: Choice, nodes: int) -> dict[str, int]:
    """Nodes of each pool, of so many of a replica; one node is shared. Raises Misfit where they cannot be halved."""
    named = named_nodes(choice)
    if nodes > 2 and sum(named.values()) == nodes:
        return named
    if nodes > 1 and nodes % 2:
        words = " and ".join(f"{count} for {role}" for role, count in named.items())
        raise Misfit(f"{nodes} nodes do not make two pools of the same size", expected="1, or an even number"
                     + (f"; or {sum(named.values())}, the recipe's {words}" if sum(named.values()) % 2 else ""))
    return dict.fromkeys(("prefill", "decode"), max(1, nodes // 2))


def layout_of(role: str, pool: PoolRendering, local: int, nodes: int, share: int = 1) -> Layout:
    """One node (`nodes` of the replica) is shared in halves; else a pool has `local` devices on each of its `share`
    nodes, and tensor parallelism that took all of its half takes all of them."""
    first = pool.gpus if role == "decode" and nodes == 1 else 0
    each = pool.gpus if nodes == 1 else local
    dp = pool.dp_size * share if pool.dp_size > 1 else 1
    tp = each * share if nodes > 1 and dp == 1 and pool.tp == pool.gpus else pool.tp
    used = each if share > 1 else min(each, tp * dp)
    return Layout(tuple(range(first, first + used)), tp, dp, share)


def layouts(choice: Choice, rendering: Rendering, nodes: int) -> dict[str, Layout]:
    """Role -> layout. Raises Misfit."""
    parts = shares(choice, nodes)
    return {role: layout_of(role, pool, choice.hardware.gpu_count, nodes, parts[role])
            for role, pool in pools_of(rendering).items()}


def pool_nodes(choice: Choice, deployment: Deployment, rendering: Rendering) -> tuple[int, str]:
    """Nodes of a replica and why: what is asked for, else the recipe's, else the fewest that hold it. Raises Misfit."""
    asked, where = deployment.nodes, "nodes"
    if asked is None and deployment.replicas:
        asked, where = len(next(iter(deployment.replicas.values()))), "replicas"
    if asked is not None:
        if asked > MOST_NODES:
            raise Misfit(f"a replica of {asked} nodes is more than recipes know", where=deployment.where(where),
                         expected=f"{MOST_NODES} at most")
        pool_numbers(choice, deployment, rendering, asked)
        return asked, _spread(choice, asked)
    own = sum(named_nodes(choice).values())
    *counts, last = (*([own] if own > 2 else []), *_COUNTS) if choice.hardware.scalable else (1,)
    for count in counts:
        try:
            pool_numbers(choice, deployment, rendering, count)
        except Misfit:
            continue
        return count, _spread(choice, count)
    pool_numbers(choice, deployment, rendering, last)
    return last, _spread(choice, last)


def _spread(choice: Choice, nodes: int) -> str:
    if nodes == 1:
        return "both pools on one node, half of its devices each"
    if nodes == 2:
        return "a node for each pool, the router beside prefill"
    each = shares(choice, nodes)
    word = "the recipe's " if each == named_nodes(choice) else ""
    return (f"{word}{plural(each['prefill'], 'node')} for prefill and {each['decode']} for decode, the router on the "
            "first of prefill")


def pool_numbers(choice: Choice, deployment: Deployment, rendering: Rendering, nodes: int) -> Mapping[str, Any]:
    """What the arithmetic says of the pools, each of which holds all of the weights.

    Raises Misfit where the devices are too few or leave no room for the cache.
    """
    local = choice.hardware.gpu_count
    try:
        each = layouts(choice, rendering, nodes)
    except Misfit as error:
        error.where = deployment.where("nodes")
        raise
    heads = choice.recipe.shape.attention_heads
    for role, layout in each.items():
        if layout.there < layout.ranks or (layout.nodes > 1 and layout.there > layout.ranks):
            raise Misfit(f"the {role} pool has {plural(layout.ranks, 'rank')} and {layout.there} devices "
                         f"of {plural(nodes if nodes == 1 else layout.nodes, 'node')}",
                         where=deployment.where("strategy"))
        if heads and heads % layout.tp:
            raise Misfit(f"tensor parallel {layout.tp} of the {role} pool does not divide the {heads} attention heads "
                         f"of {choice.recipe.name}", where=deployment.where("nodes"))
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
            f"each pool puts {weights:,.1f} GB of weights on each of its {first.there} devices of "
            f"{device:,.0f} GB and leaves no room for the KV cache", where=deployment.where("strategy"),
            expected=room_told(choice))
    if needed > there:
        raise Misfit(f"two pools of {choice.recipe.name} {choice.variant.precision} need {needed:,.0f} GB, "
                     f"{plural(nodes, 'node')} of {choice.hardware.display_name} "
                     f"{'has' if nodes == 1 else 'have'} {there:,.0f} GB", where=deployment.where("strategy"))
    for role, layout in each.items() if nodes > 1 else ():
        have = choice.hardware.vram_gb * layout.nodes
        if choice.variant.vram_minimum_gb > have:
            raise Misfit(f"the {role} pool of {choice.recipe.name} {choice.variant.precision} needs "
                         f"{choice.variant.vram_minimum_gb:,.0f} GB, {plural(layout.nodes, 'node')} of "
                         f"{choice.hardware.display_name} {'has' if layout.nodes == 1 else 'have'} {have:,.0f} GB",
                         where=deployment.where("nodes"))
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


def pool_replica(name: str, site: Site, renderings: Mapping[str, Rendering], choice: Choice, lab: bool
                 ) -> tuple[ReplicaPlan, ...]:
    """The parts of a replica: prefill, decode, router. `renderings` are by host (the model may lie elsewhere on
    each)."""
    parts, urls = [], {}
    head = renderings[site.head.host]
    count = len(site.nodes)
    each = layouts(choice, head, count)
    for role, layout in each.items():
        nodes = site.nodes[:layout.nodes] if role == "prefill" else site.nodes[count - layout.nodes:]
        own = replace(site, nodes=nodes)
        processes = tuple(_process(role, rank, _on(own, rank, lab), renderings[node.host], layout)
                          for rank, node in enumerate(nodes))
        urls[role] = f"http://{_bracketed(nodes[0].address)}:{processes[0].http_port}"
        world = sum(len(process.ranks) for process in processes)
        parts.append(ReplicaPlan(f"{name}-{role}", processes, world, f"{urls[role]}/v1", name))
    router = router_process(site.head.host, site.deployment.router, head.router_policy, urls,
                            (site.bind, site.bind_reason), (site.port, site.port_reason), site.deployment.env)
    endpoint = f"http://{_bracketed(site.head.address)}:{site.port}/v1"
    return (*parts, ReplicaPlan(f"{name}-{ROUTER_ROLE}", (router,), 0, endpoint, name))


def _on(site: Site, rank: int, lab: bool) -> Site:
    """The site of a pool's nodes, bound as that node is."""
    return replace(site, bind=site.nodes[rank].address) if lab and not site.deployment.host else site


def _process(role: str, rank: int, site: Site, rendering: Rendering, layout: Layout) -> ProcessPlan:
    """The engine of a pool on one of its nodes; the first serves, the others work for it."""
    pool, node, head = pools_of(rendering)[role], site.nodes[rank], site.head
    words = Words([_filled(argument, role, head.address) for argument in pool.arguments
                   if rank == 0 or argument.words[0] != "--port"])
    port = int(_value(words.arguments, "--port") or site.port)
    _sizes(words, site, pool, layout, rank, role)
    common_of(replace(site, port=port, port_reason=f"port of {role}"), words, serves=rank == 0)
    own_words(site, words)
    # each rank offers its own blocks: the side channel is the node's, the meeting point the head's
    env = {key: (_in_words(value, role, node.address), layer)
           for key, (value, layer) in environment_of(site, replace(rendering, env=pool.env), rank).items()}
    if layout.nodes > 1:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            env.setdefault(name, (node.interface, "site"))
    devices = ",".join(str(number) for number in layout.devices)
    if env.get("CUDA_VISIBLE_DEVICES", (devices, ""))[0] != devices:
        env["CUDA_VISIBLE_DEVICES"] = (devices, "site")
    # a recipe's or site's own words may make other sizes than the strategy would
    ranks = world_size(site.engine, [word for argument in words.arguments for word in argument.words])
    local = ranks // layout.nodes
    meeting = (head.address, int(_value(words.arguments, "--data-parallel-rpc-port") or site.meeting_port))
    ports = _more_ports(words.arguments, env, layout, rank)
    return ProcessPlan(node.host, role, rank, tuple(range(rank * local, (rank + 1) * local)), rendering.command,
                       tuple(words.arguments), env, port if rank == 0 else None,
                       (*([port] if rank == 0 else []), *ports), meeting if layout.nodes > 1 else None)


def _sizes(words: Words, site: Site, pool: PoolRendering, layout: Layout, rank: int, role: str) -> None:
    """The sizes of a pool that has other devices than upstream renders it for, and where its nodes meet."""
    reason = f"{role} has the devices of {'a node' if layout.nodes == 1 else plural(layout.nodes, 'node')}"
    if layout.dp == 1 and layout.tp != pool.tp:
        words.put(("--tensor-parallel-size", str(layout.tp)), reason)
    if layout.nodes == 1:
        return
    if layout.dp > 1:
        words.put(("--data-parallel-size", str(layout.dp)), reason)
        words.put(("--data-parallel-start-rank", str(rank * layout.dp // layout.nodes)), f"node {rank} of {role}")
    else:
        words.put(("--nnodes", str(layout.nodes)), reason)
        words.put(("--node-rank", str(rank)), f"node {rank} of {role}")
        words.put(("--master-addr", site.head.address), f"{site.head.address_reason} of {site.head.host}")
        words.put(("--master-port", str(site.meeting_port)), site.meeting_reason)
    if rank:
        words.put(("--headless",), f"{site.head.host} serves for all nodes of {role}")


def _more_ports(arguments: Sequence[Argument], env: Mapping[str, tuple[str, str]], layout: Layout, rank: int
                ) -> list[int]:
    """The side channels of a node, one a data parallel rank, and on the first node where ranks meet."""
    side = env.get(_SIDE_CHANNEL, ("", ""))[0]
    local = layout.dp // layout.nodes if layout.dp > 1 else 1
    first = rank * local if layout.dp > 1 else 0
    ports = [int(side) + first + number for number in range(local)] if side.isdigit() else []
    meeting = _value(arguments, "--data-parallel-rpc-port") or (
        _value(arguments, "--master-port") if layout.nodes > 1 else None)
    return ports + ([int(meeting)] if rank == 0 and meeting and meeting.isdigit() else [])


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
