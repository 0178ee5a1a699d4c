"""The parts of a recipe, as frozen data: model, variants, features, strategies, hardware, engines.

The shape is that of the public vLLM recipes (models/<org>/<model>.yaml, strategies/*.yaml, taxonomy.yaml). Ours adds
`engines` (other servers than vLLM), `closing` (arguments behind the features), `shape` (sizes that the arithmetic
needs) and `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bringup.base.origin import Origin

Args = tuple[str, ...]
Env = Mapping[str, str]


@dataclass(frozen=True)
class Override:
    """Arguments and environment that one kind of hardware adds."""

    args: Args = ()
    env: Env = field(default_factory=dict)


Overrides = Mapping[str, Override]
"""By hardware name or generation (hopper, blackwell, amd)."""


@dataclass(frozen=True)
class Mode:
    """One way of a feature: a drafting method, say. `variants` empty means every variant."""

    key: str
    args: Args
    variants: tuple[str, ...] = ()
    hardware: Mapping[str, str] = field(default_factory=dict)
    hardware_overrides: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class Feature:
    """A switch of the recipe: tool calling, reasoning, speculative decoding."""

    key: str
    description: str = ""
    args: Args = ()
    env: Env = field(default_factory=dict)
    modes: Mapping[str, Mode] = field(default_factory=dict)
    default_mode: str | None = None
    hardware_overrides: Overrides = field(default_factory=dict)
    strategies: tuple[str, ...] = ()
    not_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A checkpoint of the model: its name, precision and the memory that upstream asks for (decimal GB).

    `engines` empty means every engine.
    """

    key: str
    model_id: str | None
    precision: str
    vram_minimum_gb: float
    args: Args = ()
    env: Env = field(default_factory=dict)
    tp: int | None = None
    hardware_overrides: Overrides = field(default_factory=dict)
    supported_hardware: tuple[str, ...] = ()
    default_modes: Mapping[str, str] = field(default_factory=dict)
    min_vllm_version: str | None = None
    weights_gb: float | None = None
    without_features: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pool:
    """The prefill or decode half of a disaggregated deployment. `nodes` by hardware name or `default`."""

    args: Args = ()
    env: Env = field(default_factory=dict)
    parallelism: str | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)
    tp: int | None = None


@dataclass(frozen=True)
class StrategyOverride:
    """What one recipe changes in one strategy."""

    args: Args = ()
    env: Env = field(default_factory=dict)
    tp: int | None = None
    hardware_overrides: Overrides = field(default_factory=dict)
    prefill: Pool | None = None
    decode: Pool | None = None


@dataclass(frozen=True)
class Strategy:
    """How a model is spread: deploy_type is single_node, multi_node or pd_cluster; parallelism tp_pp, tp_dp or None."""

    name: str
    deploy_type: str
    display_name: str = ""
    args: Args = ()
    env: Env = field(default_factory=dict)
    parallel_flag: str = "--tensor-parallel-size"
    parallelism: str | None = None
    min_gpus: int = 1
    architecture: str | None = None
    prefill: Pool | None = None
    decode: Pool | None = None
    router_policy: str | None = None


@dataclass(frozen=True)
class Hardware:
    """A node: brand, generation, devices, their memory together in decimal GB as the taxonomy counts."""

    name: str
    brand: str
    generation: str
    display_name: str
    gpu_count: int
    vram_gb: float
    scalable: bool = True
    restricted: bool = False


@dataclass(frozen=True)
class Closing:
    """Arguments behind the features, only with `feature` where it is named."""

    args: Args
    feature: str | None = None


@dataclass(frozen=True)
class EngineVariant:
    """What a variant adds on one engine; `hardware_overrides` on that hardware of one node."""

    args: Args = ()
    env: Env = field(default_factory=dict)
    hardware_overrides: Overrides = field(default_factory=dict)


@dataclass(frozen=True)
class EngineRecipe:
    """How another server than plain vLLM serves this model.

    `args` stand on every node; `node_args` behind them where there are several nodes, `worker_args` then on all but
    the first. Words may be $MODEL_PATH, $TP (devices of all nodes), $LOCAL (of one), $NODES, $RANK and the parsers;
    $HEAD_IP may stand inside a word. `node_env` is added where there are several nodes, `node_overrides` then by
    hardware; `variant_overrides` are by variant, each with its own by hardware.
    """

    engine: str
    args: Args
    node_args: Args = ()
    worker_args: Args = ()
    node_env: Env = field(default_factory=dict)
    node_overrides: Overrides = field(default_factory=dict)
    env: Env = field(default_factory=dict)
    features: Mapping[str, Feature] = field(default_factory=dict)
    variant_overrides: Mapping[str, EngineVariant] = field(default_factory=dict)
    closing: tuple[Closing, ...] = ()
    strategies: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    hardware_overrides: Overrides = field(default_factory=dict)
    vram_minimum_gb: float | None = None
    host_memory_gb: float | None = None
    min_version: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """Sizes of the model that the arithmetic needs; None where the recipe does not say.

    `expert_share` is the part of the parameters that lies in routed experts: data parallelism repeats only the rest.
    """

    attention_heads: int | None = None
    layers: int | None = None
    kv_bytes_per_token: int | None = None
    experts: int | None = None
    expert_share: float | None = None


@dataclass(frozen=True)
class Recipe:
    """A model and everything that is known of serving it."""

    name: str
    model_id: str
    architecture: str
    context_length: int
    min_vllm_version: str | None
    base_args: Args
    base_env: Env
    features: Mapping[str, Feature]
    opt_in_features: tuple[str, ...]
    variants: Mapping[str, Variant]
    compatible_strategies: tuple[str, ...]
    default_strategy: str | None
    hardware: Mapping[str, str]
    hardware_overrides: Overrides
    strategy_overrides: Mapping[str, StrategyOverride]
    strategy_hardware: Mapping[str, Mapping[str, str]]
    engines: Mapping[str, EngineRecipe] = field(default_factory=dict)
    closing: tuple[Closing, ...] = ()
    shape: Shape = field(default_factory=Shape)
    parser_family: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: Origin | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def default_features(self) -> tuple[str, ...]:
        """All features but the opt-in ones, in the recipe's order."""
        return tuple(key for key in self.features if key not in self.opt_in_features)


@dataclass(frozen=True)
class Library:
    """A folder of recipes: models by `org/name`, strategies, hardware profiles."""

    folder: str
    recipes: Mapping[str, Recipe]
    strategies: Mapping[str, Strategy]
    hardware: Mapping[str, Hardware]
