"""Render a recipe: (recipe, variant, strategy, hardware, features, nodes) to argument lists and environment.

A pure function in upstream's order: base, variant, strategy with its sizes, the recipe's changes to the strategy,
hardware, features, closing; then of each flag the last one stays, where it last stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.serving.plan import Argument
from bringup.serving.recipes.schema import (
    Feature,
    Hardware,
    Library,
    Override,
    Overrides,
    Pool,
    Recipe,
    Strategy,
    StrategyOverride,
    Variant,
)

T = TypeVar("T")
HEAD = "$HEAD_IP"
INTERFACE = "$IFACE_NAME"
NODE = "$NODE_IP"
_FABRIC_GENERATION = ("gb200", "gb300")
_FABRIC_ENV = frozenset({"NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE", "UCX_NET_DEVICES",
                         "VLLM_USE_NCCL_SYMM_MEM"})


@dataclass(frozen=True)
class Request:
    """What is to be rendered. `features` in the order asked for."""

    variant: str
    strategy: str
    hardware: str
    features: tuple[str, ...]
    nodes: int = 1


@dataclass(frozen=True)
class Piece:
    """Words and the part of the recipe that they come from."""

    words: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class PoolRendering:
    """The prefill or decode half: how its devices are used beside its command."""

    arguments: tuple[Argument, ...]
    env: Mapping[str, str]
    parallelism: str
    tp: int
    dp_local: int
    dp_size: int
    gpus: int


@dataclass(frozen=True)
class Rendering:
    """One command per node (`nodes[0]` is the head), or two pools. `env` is the same on every node.

    `tp`, `pp`, `dp` are the sizes of the parallel dimensions over the whole deployment.
    """

    request: Request
    deploy_type: str
    command: tuple[str, ...]
    nodes: tuple[tuple[Argument, ...], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    prefill: PoolRendering | None = None
    decode: PoolRendering | None = None
    router_policy: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1

    def argv(self, node: int) -> list[str]:
        """The command line of a node."""
        return [*self.command, *_words(self.nodes[node])]


@dataclass(frozen=True)
class Parts:
    """What a request names, looked up."""

    recipe: Recipe
    variant: Variant
    strategy: Strategy
    override: StrategyOverride
    hardware: Hardware
    features: tuple[Feature, ...]


def look_up(library: Library, recipe: Recipe, request: Request) -> Parts:
    """The parts that a request names. Raises InputError with the nearest name."""
    variant = _named(recipe.variants, request.variant, "variant")
    strategy = _named(library.strategies, request.strategy, "strategy")
    hardware = _named(library.hardware, request.hardware, "hardware")
    features = tuple(_named(recipe.features, name, "feature") for name in request.features)
    override = recipe.strategy_overrides.get(strategy.name, StrategyOverride())
    return Parts(recipe, variant, strategy, override, hardware, features)


def render(library: Library, recipe: Recipe, request: Request) -> Rendering:
    """Render for vLLM. Raises InputError for an unknown name; a combination that does not fit is rendered too."""
    parts = look_up(library, recipe, request)
    command = ("vllm", "serve", parts.variant.model_id or recipe.model_id)
    if parts.strategy.deploy_type == "pd_cluster":
        return Rendering(request, "pd_cluster", command, prefill=_pool(parts, "prefill"),
                         decode=_pool(parts, "decode"), router_policy=parts.strategy.router_policy)
    nodes = request.nodes if parts.strategy.deploy_type == "multi_node" else 1
    tp, pp, dp = sizes(parts, nodes)
    env = _environment(parts)
    rendered = tuple(_node(parts, nodes, rank) for rank in range(nodes))
    return Rendering(request, parts.strategy.deploy_type, command, rendered, env, tp=tp, pp=pp, dp=dp)


def sizes(parts: Parts, nodes: int) -> tuple[int, int, int]:
    """Tensor, pipeline and data parallel size of the whole deployment."""
    local = local_size(parts)
    strategy = parts.strategy
    if strategy.parallelism == "tp_pp":
        return local, nodes, 1
    if strategy.parallelism == "tp_dp":
        return local, 1, nodes
    if strategy.parallel_flag == "--data-parallel-size":
        return 1, 1, local * nodes
    return local * nodes, 1, 1


def local_size(parts: Parts) -> int:
    """Devices of one node that the strategy uses.

    A `tp` of the recipe holds where the node has that many; plain tensor parallel on one node takes one device when
    the variant fits it, else all.
    """
    hardware = parts.hardware
    wanted = parts.variant.tp or parts.override.tp
    if wanted:
        return min(wanted, hardware.gpu_count)
    fits_one = 0 < parts.variant.vram_minimum_gb <= hardware.vram_gb / hardware.gpu_count
    if parts.strategy.name == "single_node_tp" and fits_one:
        return 1
    return hardware.gpu_count


def _node(parts: Parts, nodes: int, rank: int) -> tuple[Argument, ...]:
    recipe, strategy = parts.recipe, parts.strategy
    pieces = [Piece(recipe.base_args, "recipe"), Piece(variant_override(parts).args, f"variant {parts.variant.key}"),
              Piece(strategy.args, f"strategy {strategy.name}"),
              *_parallel(parts, nodes, rank),
              Piece(parts.override.args, f"recipe's {strategy.name}"),
              *_hardware_args(parts), *_feature_args(parts)]
    return dedupe(pieces)


def _parallel(parts: Parts, nodes: int, rank: int) -> list[Piece]:
    strategy = parts.strategy
    tp, pp, dp = sizes(parts, nodes)
    source = f"strategy {strategy.name}"
    flag = strategy.parallel_flag
    if strategy.deploy_type != "multi_node":
        return [Piece((flag, str(dp if flag == "--data-parallel-size" else tp)), source)]
    if flag == "--data-parallel-size":
        local = local_size(parts)
        words = [flag, str(dp), "--data-parallel-size-local", str(local), "--data-parallel-address", HEAD]
        if rank:
            words += ["--data-parallel-start-rank", str(local * rank)]
        return [Piece(tuple(words), source)]
    words = [flag, str(tp)]
    if pp > 1:
        words += ["--pipeline-parallel-size", str(pp)]
    if strategy.parallelism == "tp_dp":
        words += ["--data-parallel-size", str(dp), "--data-parallel-size-local", "1", "--data-parallel-address", HEAD]
        words += ["--data-parallel-start-rank", str(rank), "--headless"] if rank else []
        return [Piece(tuple(words), source)]
    words += ["--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", HEAD]
    if rank:
        words.append("--headless")
    return [Piece(tuple(words), source)]


def _hardware_args(parts: Parts) -> list[Piece]:
    return [Piece(override.args, f"hardware {name}") for name, override in hardware_overrides(parts)]


def hardware_overrides(parts: Parts) -> list[tuple[str, Override]]:
    """What the hardware adds: a strategy's own replaces the recipe's and what the variant says of the generation."""
    own = matching(parts.override.hardware_overrides, parts.hardware)
    if own:
        return own
    generation = parts.variant.hardware_overrides.get(parts.hardware.generation)
    return [*matching(parts.recipe.hardware_overrides, parts.hardware),
            *([(parts.hardware.generation, generation)] if generation else [])]


def variant_override(parts: Parts) -> Override:
    """The variant's own words and what it says of the very hardware, which stand together."""
    exact = parts.variant.hardware_overrides.get(parts.hardware.name, Override())
    return Override(parts.variant.args + exact.args, {**parts.variant.env, **exact.env})


def matching(overrides: Overrides, hardware: Hardware) -> list[tuple[str, Override]]:
    """The overrides of the generation, then of the very hardware."""
    return [(name, overrides[name]) for name in (hardware.generation, hardware.name) if name in overrides]


def _feature_args(parts: Parts) -> list[Piece]:
    out = []
    for feature in parts.features:
        if feature.strategies and parts.strategy.name not in feature.strategies:
            continue
        out.append(Piece(feature_words(parts, feature), f"feature {feature.key}"))
    asked = {feature.key for feature in parts.features}
    out += [Piece(closing.args, "recipe") for closing in parts.recipe.closing
            if closing.feature is None or closing.feature in asked]
    return out


def feature_words(parts: Parts, feature: Feature) -> tuple[str, ...]:
    """A feature's words: those of the mode that the variant takes, as the hardware changes them."""
    if not feature.modes:
        return _changed(feature.args, feature.hardware_overrides, parts.hardware)
    key = parts.variant.default_modes.get(feature.key) or feature.default_mode or next(iter(feature.modes))
    mode = feature.modes.get(key)
    if mode is None or not _mode_fits(parts, mode.variants, mode.hardware):
        mode = next((other for other in feature.modes.values()
                     if _mode_fits(parts, other.variants, other.hardware)), None)
    if mode is None:
        return ()
    return feature.args + _changed(mode.args, mode.hardware_overrides, parts.hardware)


def _mode_fits(parts: Parts, variants: tuple[str, ...], hardware: Mapping[str, str]) -> bool:
    if variants and parts.variant.key not in variants:
        return False
    return hardware.get(parts.hardware.name, hardware.get(parts.hardware.generation)) != "unsupported"


def _changed(args: tuple[str, ...], overrides: Overrides, hardware: Hardware) -> tuple[str, ...]:
    found = matching(overrides, hardware)
    return found[-1][1].args if found else args


def _environment(parts: Parts) -> dict[str, str]:
    env: dict[str, str] = {**parts.recipe.base_env, **variant_override(parts).env, **parts.strategy.env,
                           **parts.override.env}
    for _, override in hardware_overrides(parts):
        env.update(override.env)
    for feature in parts.features:
        env.update(feature.env)
    return env


def _pool(parts: Parts, name: str) -> PoolRendering:
    base = getattr(parts.strategy, name) or Pool()
    own = getattr(parts.override, name) or Pool()
    gpus = max(1, parts.hardware.gpu_count // 2)
    parallelism = own.parallelism or base.parallelism or "tp"
    local = parts.hardware.gpu_count
    tp, dp = (1, local) if parallelism == "dep" else (own.tp or gpus, 1)
    node = f"${name.upper()}_NODE_1"
    source = f"strategy {parts.strategy.name}"
    words: tuple[str, ...]
    if parallelism == "dep":
        words = ("--data-parallel-size", str(dp), "--data-parallel-size-local", str(local),
                 "--data-parallel-start-rank", "0", "--data-parallel-address", node,
                 "--data-parallel-rpc-port", f"${name.upper()}_DP_RPC_PORT", "--enable-expert-parallel")
    else:
        words = ("--tensor-parallel-size", str(tp))
        if parallelism == "tep":
            words += ("--enable-expert-parallel",)
    pieces = [Piece(parts.recipe.base_args, "recipe"),
              Piece(variant_override(parts).args, f"variant {parts.variant.key}"),
              Piece(base.args, source), Piece(words, source), Piece(own.args, f"recipe's {parts.strategy.name}"),
              *_hardware_args(parts), *_feature_args(parts)]
    first = 0 if name == "prefill" else gpus
    env: dict[str, str] = {**parts.recipe.base_env, **variant_override(parts).env, **base.env}
    env["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + index) for index in range(gpus))
    env.update(parts.override.env)
    env.update(own.env)
    for _, override in hardware_overrides(parts):
        env.update(override.env)
    if parts.hardware.name not in _FABRIC_GENERATION:
        env = {key: value for key, value in env.items() if key not in _FABRIC_ENV}
    return PoolRendering(dedupe(pieces), env, parallelism, tp, local if parallelism == "dep" else 0, dp, gpus)


def dedupe(pieces: Iterable[Piece]) -> tuple[Argument, ...]:
    """Flags with their values; of a flag that stands twice the last stays, where it stood last."""
    found: dict[str, Argument] = {}
    for piece in pieces:
        for words in split_flags(piece.words):
            key = words[0].split("=", 1)[0]
            found.pop(key, None)
            found[key] = Argument(words, "recipe", piece.source)
    return tuple(found.values())


def split_flags(words: Iterable[str]) -> list[tuple[str, ...]]:
    """Words grouped to flags: each begins with a dash and takes what follows up to the next flag."""
    out: list[list[str]] = []
    for word in words:
        if is_flag(word) or not out:
            out.append([word])
        else:
            out[-1].append(word)
    return [tuple(group) for group in out]


def is_flag(word: str) -> bool:
    """True for `--name`, `--name=value` and `-n`; False for values, negative numbers too."""
    return word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


def _words(arguments: Iterable[Argument]) -> list[str]:
    return [word for argument in arguments for word in argument.words]


def _named(entries: Mapping[str, T], name: str, what: str) -> T:
    if name not in entries:
        near = nearest(name, entries)
        raise InputError(f"no {what} is called `{name}`", expected=", ".join(entries),
                         next=f"{what}: {near}" if near else None)
    return entries[name]
