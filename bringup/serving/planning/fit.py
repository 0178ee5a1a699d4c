"""Does it fit: sizes of the parallel dimensions, memory, hardware, strategies. What would is `near`'s."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest, plural
from bringup.serving.planning.deployment import Deployment
from bringup.serving.recipes.render import Parts, sizes
from bringup.serving.recipes.schema import (
    EngineRecipe,
    Hardware,
    Library,
    Recipe,
    Strategy,
    StrategyOverride,
    Variant,
)
from bringup.serving.recipes.servers import part_sizes
from bringup.serving.versions import flag_value

UTILIZATION = 0.9
"""Share of a device's memory that vLLM takes by default (--gpu-memory-utilization)."""
WORKING_GB = 6.0
"""What vLLM keeps of its share on each device beside weights and cache: activations, graphs, collectives. Of a model of
this size in FP8 on 8 x H200: 0.9 of 141, 94.5 of weights, and about 26 left for the cache."""
LOAD_BYTES_PER_SECOND = 0.65e9
"""Slow end of reported loads of GLM-5 (163 shards of 9 GB in 9 to 40 minutes)."""
WARM_UP_SECONDS = 600
"""Kernels that are compiled at the first start take 10 minutes and more."""
PRECISIONS = {"nvfp4": ("blackwell",)}
MOST_NODES = 16


class Misfit(InputError):
    """A combination of known names that does not go together, or not on these devices."""


@dataclass(frozen=True)
class Choice:
    """The parts that a deployment chose, looked up."""

    recipe: Recipe
    variant: Variant
    strategy: Strategy
    hardware: Hardware
    engine: EngineRecipe | None
    features: tuple[str, ...]
    share: float | None = None
    """Of a device's memory, where the site's own `arguments` name it."""


def choose(library: Library, recipe: Recipe, deployment: Deployment) -> Choice:
    """Look up what the deployment names; refuse what the recipe does not offer. Raises InputError."""
    engine = None
    if deployment.engine != "vllm":
        engine = recipe.engines.get(deployment.engine)
        if engine is None:
            raise Misfit(f"the recipe {recipe.name} does not say how {deployment.engine} serves it",
                         where=deployment.where("engine"), expected=", ".join(["vllm", *recipe.engines]))
    hardware = _known(library.hardware, deployment.hardware, "hardware", deployment)
    variant = _variant(recipe, deployment)
    allowed = engine.strategies if engine else recipe.compatible_strategies
    name = deployment.strategy or recipe.default_strategy or allowed[0]
    strategy = _known(library.strategies, name, "strategy", deployment)
    if name not in allowed:
        raise Misfit(f"{recipe.name} on {deployment.engine} does not run as {name}",
                     where=deployment.where("strategy"), expected=", ".join(allowed))
    _gate_hardware(recipe, variant, hardware, engine, deployment)
    _gate_strategy(recipe, strategy, hardware, deployment)
    known = engine.features if engine else recipe.features
    features = deployment.features if deployment.features is not None else tuple(
        key for key in known if key not in recipe.opt_in_features)
    for feature in features:
        if feature not in known:
            near = nearest(feature, known)
            raise InputError(f"{recipe.name} on {deployment.engine} has no feature `{feature}`",
                             where=deployment.where("features"), expected=", ".join(known),
                             next=f"nearest: {near}" if near else None)
        if feature in variant.without_features:
            raise Misfit(f"the variant {variant.key} goes without {feature}", where=deployment.where("features"))
    ordered = tuple(key for key in known if key in features)
    return Choice(recipe, variant, strategy, hardware, engine, ordered, _share(deployment.arguments))


def _share(words: Sequence[str]) -> float | None:
    """The share of a device's memory that these words give the engine; None where they do not say."""
    for flag in ("--gpu-memory-utilization", "--mem-fraction-static"):
        given = flag_value(list(words), flag)
        try:
            if given and 0 < float(given) <= 1:
                return float(given)
        except ValueError:
            continue  # the engine's own help is asked before a start and names it
    return None


def _variant(recipe: Recipe, deployment: Deployment) -> Variant:
    if deployment.variant in recipe.variants:
        return recipe.variants[deployment.variant]
    same = [variant for variant in recipe.variants.values() if variant.precision == deployment.variant]
    if len(same) == 1:
        return same[0]
    near = nearest(deployment.variant, recipe.variants)
    raise InputError(f"{recipe.name} has no variant `{deployment.variant}`", where=deployment.where("variant"),
                     expected=", ".join(f"{key} ({variant.precision})" for key, variant in recipe.variants.items()),
                     next=f"variant: {near}" if near else None)


def _gate_hardware(recipe: Recipe, variant: Variant, hardware: Hardware, engine: EngineRecipe | None,
                   deployment: Deployment) -> None:
    if engine is None and hardware.brand == "Huawei":
        others = [name for name, part in recipe.engines.items() if hardware.name in part.hardware]
        raise Misfit(f"vllm alone does not run on {hardware.name}", where=deployment.where("engine"),
                     expected=", ".join(others) or "another engine")
    if variant.engines and deployment.engine not in variant.engines:
        raise Misfit(f"the variant {variant.key} is for {', '.join(variant.engines)}",
                     where=deployment.where("variant"))
    generations = PRECISIONS.get(variant.precision)
    if variant.supported_hardware and hardware.name not in variant.supported_hardware:
        raise Misfit(f"the variant {variant.key} does not run on {hardware.name}",
                     where=deployment.where("variant"), expected=", ".join(variant.supported_hardware))
    if generations and hardware.generation not in generations:
        raise Misfit(f"{variant.precision} weights run on {', '.join(generations)} only, {hardware.name} is "
                     f"{hardware.generation}", where=deployment.where("variant"))
    if recipe.hardware.get(hardware.name) == "unsupported":
        raise Misfit(f"{recipe.name} does not run on {hardware.name}", where=deployment.where("hardware"))
    if engine:
        if engine.hardware and hardware.name not in engine.hardware:
            raise Misfit(f"{recipe.name} on {engine.engine} does not run on {hardware.name}",
                         where=deployment.where("hardware"), expected=", ".join(engine.hardware))
        if engine.variants and variant.key not in engine.variants:
            raise Misfit(f"{recipe.name} on {engine.engine} does not run as variant {variant.key}",
                         where=deployment.where("variant"), expected=", ".join(engine.variants))


def _gate_strategy(recipe: Recipe, strategy: Strategy, hardware: Hardware, deployment: Deployment) -> None:
    where = deployment.where("strategy")
    told = recipe.strategy_hardware.get(strategy.name, {})
    if "unsupported" in (told.get(hardware.name), told.get(hardware.generation)):
        raise Misfit(f"{recipe.name} does not run as {strategy.name} on {hardware.name}", where=where)
    if strategy.deploy_type == "multi_node" and not hardware.scalable:
        raise Misfit(f"{strategy.name} is for several nodes, {hardware.display_name} is a machine of its own",
                     where=where)
    if strategy.deploy_type == "single_node" and hardware.gpu_count < strategy.min_gpus:
        raise Misfit(f"{strategy.name} wants {strategy.min_gpus} devices, {hardware.display_name} has "
                     f"{hardware.gpu_count}", where=where)


def memory_needed(choice: Choice) -> float:
    """Device memory that the deployment needs in all, decimal GB."""
    if choice.engine and choice.engine.vram_minimum_gb is not None:
        return choice.engine.vram_minimum_gb
    return choice.variant.vram_minimum_gb


def node_count(choice: Choice, deployment: Deployment) -> tuple[int, str]:
    """Nodes of a replica and the reason. Raises Misfit when sizes, memory and strategy do not go together."""
    hardware, strategy = choice.hardware, choice.strategy
    wanted = memory_needed(choice)
    least = max(1, math.ceil(wanted / hardware.vram_gb)) if hardware.vram_gb else 1
    nodes, reason = nodes_asked(choice, deployment, least)
    if strategy.deploy_type == "single_node" and nodes != 1:
        raise Misfit(f"{strategy.name} is for one node, {nodes} are asked for", where=deployment.where("nodes"))
    if nodes > MOST_NODES:
        raise Misfit(f"a replica of {nodes} nodes is more than recipes know", where=deployment.where("nodes"),
                     expected=f"{MOST_NODES} at most")
    if nodes < least:
        raise Misfit(
            f"{choice.recipe.name} {choice.variant.precision} needs {wanted:,.0f} GB, "
            f"{plural(nodes, 'node')} of {hardware.display_name} {'has' if nodes == 1 else 'have'} "
            f"{nodes * hardware.vram_gb:,.0f} GB",
            where=deployment.where("variant"), expected=plural(least, "node"))
    check_sizes(choice, deployment, nodes)
    _check_room(choice, deployment, nodes)
    return nodes, reason


def _check_room(choice: Choice, deployment: Deployment, nodes: int) -> None:
    """Refuse where the weights of a device leave nothing for the KV cache."""
    left = arithmetic(choice, nodes, choice.recipe.context_length)["left_per_device_gb"]
    if left is None or left > 0:
        return
    per_device = weights_per_device(choice, nodes) or 0.0
    raise Misfit(
        f"{choice.strategy.name} puts {per_device:,.1f} GB of weights on each device of "
        f"{choice.hardware.vram_gb / choice.hardware.gpu_count:,.0f} GB and leaves no room for the KV cache",
        where=deployment.where("strategy"), expected=room_told(choice))


def room_told(choice: Choice) -> str:
    """How many GB of weights a device may hold, and why."""
    device, working = choice.hardware.vram_gb / choice.hardware.gpu_count, working_gb(choice)
    kept = f", {working:g} of which the engine works in" if working else ""
    share = utilization(choice)
    return f"less than {device * share - working:,.1f} GB: the engine takes {share:.0%} of the device{kept}"


def weights_per_device(choice: Choice, nodes: int) -> float | None:
    """Decimal GB of weights on each device; None where the recipe does not say what the weights are.

    Data parallel ranks share out the routed experts (expert parallel) and repeat everything else.
    """
    weights = choice.variant.weights_gb
    if weights is None or (choice.engine and choice.engine.vram_minimum_gb is not None):
        return None
    tp, pp, dp = parallel_sizes(choice, nodes)
    world = tp * pp * dp
    share = choice.recipe.shape.expert_share
    if dp == 1:
        return weights / world
    if share is None or not expert_parallel(choice):
        return weights / (tp * pp)
    return weights * share / world + weights * (1 - share) / (tp * pp)


def expert_parallel(choice: Choice) -> bool:
    """Whether routed experts are spread over all ranks."""
    words = choice.engine.args if choice.engine else (*choice.strategy.args, *choice.recipe.base_args)
    return "--enable-expert-parallel" in words


def utilization(choice: Choice) -> float:
    """Share of a device's memory that the engine takes: what site or recipe say, else vLLM's default."""
    words = choice.engine.args if choice.engine else (*choice.recipe.base_args, *choice.variant.args)
    return choice.share or _share(words) or UTILIZATION


def working_gb(choice: Choice) -> float:
    """What the engine keeps of its share on each device beside weights and cache, decimal GB. SGLang's share is of
    weights and cache alone: the rest of the device is for this."""
    return 0.0 if choice.engine is not None and choice.engine.engine.startswith("sglang") else WORKING_GB


def nodes_asked(choice: Choice, deployment: Deployment, least: int) -> tuple[int, str]:
    """Nodes that a deployment names or its sizes make, else the fewest of the strategy from `least` on; the reason."""
    if deployment.nodes is not None:
        return deployment.nodes, "nodes in the inventory"
    if deployment.replicas:
        return len(next(iter(deployment.replicas.values()))), "size of the first replica in the inventory"
    if deployment.tensor_parallel:
        devices = deployment.tensor_parallel * (deployment.pipeline_parallel or 1)
        return max(1, math.ceil(devices / choice.hardware.gpu_count)), "parallel sizes in the inventory"
    if choice.strategy.deploy_type == "single_node":
        return 1, f"{choice.strategy.name} is for one node"
    heads = choice.recipe.shape.attention_heads
    for nodes in range(max(2, least), MOST_NODES + 1):
        tp, _, dp = parallel_sizes(choice, nodes)
        # heads that the recipe does not tell are a power of two in most models
        even = heads % tp == 0 if heads else tp & (tp - 1) == 0
        if dp > 1 or even:
            more = f" and whose devices divide {heads or 'the'} heads" if nodes > max(2, least) else ""
            return nodes, f"the fewest nodes whose memory holds {memory_needed(choice):,.0f} GB{more}"
    return max(2, least), "the fewest nodes whose memory holds it"


def check_sizes(choice: Choice, deployment: Deployment, nodes: int) -> None:
    """Refuse a tensor parallel size that does not divide the heads, and sizes that the strategy does not make."""
    tp, pp, dp = parallel_sizes(choice, nodes)
    heads = choice.recipe.shape.attention_heads
    asked_tp = deployment.tensor_parallel or tp
    for size in dict.fromkeys((asked_tp, tp)):
        if heads and dp == 1 and heads % size:
            good = [number for number in range(1, heads + 1) if heads % number == 0]
            raise Misfit(f"tensor parallel {size} does not divide the {heads} attention heads of "
                         f"{choice.recipe.name}",
                         where=deployment.where("tensor_parallel" if deployment.tensor_parallel else "strategy"),
                         expected=", ".join(str(number) for number in good))
    if deployment.tensor_parallel not in (None, tp) or deployment.pipeline_parallel not in (None, pp):
        raise Misfit(
            f"{choice.strategy.name} on {plural(nodes, 'node')} of {choice.hardware.gpu_count} devices makes tensor "
            f"parallel {tp} x pipeline {pp}",
            where=deployment.where("tensor_parallel" if deployment.tensor_parallel else "pipeline_parallel"),
            found=f"{deployment.tensor_parallel or tp} x {deployment.pipeline_parallel or pp}")
    layers = choice.recipe.shape.layers
    if layers and pp > layers:
        raise Misfit(f"pipeline {pp} is more than the {layers} layers", where=deployment.where("nodes"))


def parallel_sizes(choice: Choice, nodes: int) -> tuple[int, int, int]:
    """Tensor, pipeline and data parallel size that the strategy makes of so many nodes."""
    if choice.engine is not None:
        return part_sizes(choice.strategy, choice.hardware, nodes)
    override = choice.recipe.strategy_overrides.get(choice.strategy.name, StrategyOverride())
    return sizes(Parts(choice.recipe, choice.variant, choice.strategy, override, choice.hardware, ()), nodes)


def arithmetic(choice: Choice, nodes: int, context: int) -> Mapping[str, Any]:
    """Memory needed and there, for the plan's page.

    Keys: needed_gb, there_gb (decimal, whole replica), device_gb, weights_gb and weights_per_device_gb (None where
    the recipe does not say), working_gb of a device, left_per_device_gb for the KV cache, kv_tokens that fit there,
    kv_tokens_of_rank that one data parallel rank (so one request) has, context_length, host_memory_gb,
    load_deadline_seconds.
    """
    hardware, variant = choice.hardware, choice.variant
    tp, pp, dp = parallel_sizes(choice, nodes)
    device = hardware.vram_gb / hardware.gpu_count
    world = tp * pp * dp
    out: dict[str, Any] = {
        "needed_gb": memory_needed(choice), "there_gb": hardware.vram_gb * nodes, "device_gb": round(device, 1),
        "tensor_parallel": tp, "pipeline_parallel": pp, "data_parallel": dp, "world_size": world,
        "context_length": context, "utilization": utilization(choice), "weights_gb": variant.weights_gb,
        "weights_per_device_gb": None, "working_gb": working_gb(choice),
        "left_per_device_gb": None, "kv_tokens": None, "kv_tokens_of_rank": None,
        "host_memory_gb": choice.engine.host_memory_gb if choice.engine else None,
    }
    weights = variant.weights_gb or variant.vram_minimum_gb / 1.2
    out["load_deadline_seconds"] = round(WARM_UP_SECONDS + weights * 1e9 / LOAD_BYTES_PER_SECOND)
    per_device = weights_per_device(choice, nodes)
    if per_device is not None:
        left = device * utilization(choice) - working_gb(choice) - per_device
        out["weights_per_device_gb"] = round(per_device, 1)
        out["left_per_device_gb"] = round(left, 1)
        token = choice.recipe.shape.kv_bytes_per_token
        if token:
            # the latent cache is the same on every tensor parallel rank; a pipeline stage keeps its own layers' part,
            # a data parallel rank its own requests
            out["kv_tokens_of_rank"] = int(max(0.0, left) * 1e9 / (token / pp))
            out["kv_tokens"] = out["kv_tokens_of_rank"] * dp
    return out


def _known(entries: Mapping[str, Any], name: str, what: str, deployment: Deployment) -> Any:
    if name in entries:
        return entries[name]
    near = nearest(name, entries)
    raise InputError(f"no {what} is called `{name}`", where=deployment.where(what), expected=", ".join(entries),
                     next=f"{what}: {near}" if near else None)
