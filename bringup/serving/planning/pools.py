"""Prefill and decode in pools of their own (`pd_cluster`): both on one node, half of its devices each; a plan to read.

bringup does not run it: its start order is told, its router is upstream's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bringup.base.errors import InputError
from bringup.serving.plan import Argument, ProcessPlan, ReplicaPlan
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import Choice, utilization
from bringup.serving.planning.site import Site, Words, common_of, environment_of, own_words
from bringup.serving.recipes.render import PoolRendering, Rendering

POOLS = "pd_cluster"
ORDER = ("prefill and decode side by side; when both answer /health and /v1/models, the router before them; traffic "
         "comes in by the router")
_ADDRESS = {"prefill": "$PREFILL_NODE_1", "decode": "$DECODE_NODE_1"}
_RPC = {"prefill": ("$PREFILL_DP_RPC_PORT", 13345), "decode": ("$DECODE_DP_RPC_PORT", 13346)}


def pools_of(rendering: Rendering) -> dict[str, PoolRendering]:
    """Prefill, then decode."""
    named = (("prefill", rendering.prefill), ("decode", rendering.decode))
    return {name: pool for name, pool in named if pool is not None}


def pool_numbers(choice: Choice, deployment: Deployment, rendering: Rendering) -> Mapping[str, Any]:
    """What the arithmetic says of each pool, which holds all of the weights on its half of the devices.

    Raises InputError where they leave no room for the cache.
    """
    pool = next(iter(pools_of(rendering).values()))
    device = choice.hardware.vram_gb / choice.hardware.gpu_count
    numbers: dict[str, Any] = {
        "tensor_parallel": pool.tp, "pipeline_parallel": 1, "data_parallel": max(1, pool.dp_size),
        "world_size": 2 * pool.gpus, "needed_gb": 2 * choice.variant.vram_minimum_gb, "start_order": ORDER,
        "router_policy": rendering.router_policy}
    weights = choice.variant.weights_gb
    if weights is None:
        return numbers
    each = weights / pool.gpus
    left = device * utilization(choice) - each
    if left <= 0:
        raise InputError(
            f"each pool puts {each:,.1f} GB of weights on each of its {pool.gpus} devices of {device:,.0f} GB and "
            "leaves no room for the KV cache", where=deployment.where("strategy"),
            expected=f"less than {utilization(choice):.0%} of the device",
            next="a smaller variant, or hardware with more memory: invoke plan --options")
    numbers.update(weights_per_device_gb=round(each, 1), left_per_device_gb=round(left, 1), kv_tokens=None)
    token = choice.recipe.shape.kv_bytes_per_token
    if token:
        numbers["kv_tokens"] = int(left * 1e9 / token) * max(1, pool.dp_size)
    return numbers


def pool_replica(name: str, site: Site, rendering: Rendering) -> ReplicaPlan:
    """Both processes of a node: prefill, then decode."""
    node = site.head
    processes: list[ProcessPlan] = []
    for rank, (role, pool) in enumerate(pools_of(rendering).items()):
        first = rank * pool.gpus
        arguments = tuple(_filled(argument, role, node.address) for argument in pool.arguments)
        words = Words(arguments)
        port = int(_value(arguments, "--port") or site.port)
        common_of(replace(site, port=port, port_reason=f"port of {role}"), words)
        own_words(site, words)
        env = {key: (_in_words(value, role, node.address), layer)
               for key, (value, layer) in environment_of(site, replace(rendering, env=pool.env), 0).items()}
        ports = [port, *(int(env[key][0]) for key in ("VLLM_NIXL_SIDE_CHANNEL_PORT",) if key in env)]
        processes.append(ProcessPlan(node.host, role, rank, tuple(range(first, first + pool.gpus)), rendering.command,
                                     tuple(words.arguments), env, port, tuple(ports)))
    return ReplicaPlan(name, tuple(processes), sum(len(process.ranks) for process in processes),
                       f"http://{node.address}:{site.port}/v1")


def _in_words(text: str, role: str, address: str) -> str:
    name, port = _RPC[role]
    return text.replace(_ADDRESS[role], address).replace(name, str(port))


def _filled(argument: Argument, role: str, address: str) -> Argument:
    words = tuple(_in_words(word, role, address) for word in argument.words)
    if words == argument.words:
        return argument
    return replace(argument, words=words, reason=f"{argument.reason}; {address}")


def _value(arguments: tuple[Argument, ...], flag: str) -> str | None:
    return next((argument.words[1] for argument in arguments if argument.words[0] == flag and len(argument.words) > 1),
                None)
