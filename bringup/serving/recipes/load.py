"""Read a folder of recipes in the upstream schema, with file and line in every error."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, load_file, origin_of, value_origin
from bringup.serving.recipes.schema import (
    Args,
    Closing,
    EngineRecipe,
    EngineVariant,
    Env,
    Feature,
    Hardware,
    Library,
    Mode,
    Override,
    Overrides,
    Pool,
    Recipe,
    Shape,
    Strategy,
    StrategyOverride,
    Variant,
)

DATA = Path(__file__).parent / "data"
"""Our own recipes, strategies and hardware profiles."""


@functools.lru_cache(maxsize=8)
def load_library(folder: Path | None = None) -> Library:
    """Everything in a folder (default: our own data). Raises InputError when it is no recipe folder."""
    base = Path(folder) if folder is not None else DATA
    if not (base / "models").is_dir():
        raise InputError("is no folder of recipes", where=str(base),
                         expected="models/<org>/<model>.yaml, strategies/*.yaml and taxonomy.yaml")
    taxonomy = _mapping(load_file(base / "taxonomy.yaml"), str(base / "taxonomy.yaml"))
    hardware = {str(name): _hardware(str(name), entry)
                for name, entry in _sub(taxonomy, "hardware_profiles").items()}
    strategies = {}
    for path in sorted((base / "strategies").glob("*.y*ml")):
        strategy = _strategy(_mapping(load_file(path), str(path)))
        strategies[strategy.name] = strategy
    recipes = {}
    for path in sorted((base / "models").glob("*/*.y*ml")):
        name = f"{path.parent.name}/{path.stem}"
        recipes[name] = read_recipe(path, name=name)
    return Library(str(base), recipes, strategies, hardware)


def find_recipe(library: Library, name: str, where: Origin | None = None) -> Recipe:
    """A recipe by its name, or from a file when `name` is a path. Raises InputError with the nearest name."""
    if name in library.recipes:
        return library.recipes[name]
    if name.endswith((".yml", ".yaml")):
        path = Path(name)
        if path.is_file():
            return read_recipe(path, name=f"{path.parent.name}/{path.stem}")
        raise InputError(f"there is no recipe file {name}", where=where)
    tail = {key.split("/", 1)[1].lower(): key for key in library.recipes}
    near = tail.get(name.lower()) or nearest(name, library.recipes)
    raise InputError(f"no recipe is called `{name}`", where=where,
                     expected=", ".join(library.recipes), next=f"recipe: {near}" if near else None)


def read_recipe(path: Path, *, name: str) -> Recipe:
    """A model file. Raises InputError."""
    data = _mapping(load_file(path), str(path))
    return parse_recipe(data, name)


def parse_recipe(data: Mapping[str, Any], name: str) -> Recipe:
    """A recipe from the document of a model file."""
    model = _sub(data, "model", needed=True)
    meta = _sub(data, "meta")
    return Recipe(
        name=name,
        model_id=_text(model, "model_id", name),
        architecture=_text(model, "architecture", "dense"),
        context_length=int(model.get("context_length") or 0),
        min_vllm_version=_optional(model, "min_vllm_version"),
        base_args=_words(model, "base_args"),
        base_env=_env(model, "base_env"),
        features=_features(_sub(data, "features")),
        opt_in_features=_words(data, "opt_in_features"),
        variants={str(key): _variant(str(key), entry) for key, entry in _sub(data, "variants", needed=True).items()},
        compatible_strategies=_words(data, "compatible_strategies"),
        default_strategy=_optional(data, "default_strategy"),
        hardware={str(k): str(v) for k, v in _sub(meta, "hardware").items()},
        hardware_overrides=_overrides(_sub(data, "hardware_overrides")),
        strategy_overrides={str(k): _strategy_override(v) for k, v in _sub(data, "strategy_overrides").items()},
        strategy_hardware={str(k): {str(h): str(s) for h, s in (v or {}).items()}
                           for k, v in _sub(data, "strategy_hardware").items()},
        engines={str(k): _engine(str(k), v) for k, v in _sub(data, "engines").items()},
        closing=_closing(data),
        shape=_shape(_sub(data, "shape")),
        parser_family=_optional(data, "parser_family"),
        requires={str(k): str(v) for k, v in _sub(data, "requires").items()},
        notes=_words(data, "notes"),
        origin=origin_of(data),
        raw=data,
    )


def _variant(key: str, entry: Any) -> Variant:
    data = _mapping(entry, f"variant {key}")
    weights = data.get("weights_gb")
    return Variant(
        key=key, model_id=_optional(data, "model_id"), precision=_text(data, "precision", "bf16"),
        vram_minimum_gb=float(data.get("vram_minimum_gb") or 0), args=_words(data, "extra_args"),
        env=_env(data, "extra_env"), tp=_number(data, "tp"),
        hardware_overrides=_overrides(_sub(data, "hardware_overrides")),
        supported_hardware=_words(data, "supported_hardware"),
        default_modes={str(k): str(v) for k, v in _sub(data, "default_modes").items()},
        min_vllm_version=_optional(data, "min_vllm_version"),
        weights_gb=float(weights) if weights is not None else None,
        without_features=_words(data, "without_features"), engines=_words(data, "engines"),
    )


def _features(entries: Mapping[str, Any]) -> dict[str, Feature]:
    out = {}
    for key, entry in entries.items():
        data = _mapping(entry, f"feature {key}")
        modes = {str(name): _mode(str(name), mode) for name, mode in _sub(data, "modes").items()}
        out[str(key)] = Feature(
            key=str(key), description=_text(data, "description", ""), args=_words(data, "args"),
            env=_env(data, "env"), modes=modes, default_mode=_optional(data, "default_mode"),
            hardware_overrides=_overrides(_sub(data, "hardware_overrides")), strategies=_words(data, "strategies"),
            not_with=_words(data, "not_with"),
        )
    return out


def _mode(key: str, entry: Any) -> Mode:
    data = _mapping(entry, f"mode {key}")
    return Mode(key=key, args=_words(data, "args"), variants=_words(data, "variants"),
                hardware={str(k): str(v) for k, v in _sub(data, "hardware").items()},
                hardware_overrides=_overrides(_sub(data, "hardware_overrides")))


def _overrides(entries: Mapping[str, Any]) -> Overrides:
    out = {}
    for key, entry in entries.items():
        data = _mapping(entry, f"hardware {key}")
        out[str(key)] = Override(args=_words(data, "extra_args") + _words(data, "args"),
                                 env={**_env(data, "extra_env"), **_env(data, "env")})
    return out


def _pool(entry: Any) -> Pool | None:
    if entry is None:
        return None
    data = _mapping(entry, "pool")
    nodes = data.get("nodes")
    by_hardware = {str(k): int(v) for k, v in nodes.items()} if isinstance(nodes, Mapping) else (
        {"default": int(nodes)} if nodes is not None else {})
    return Pool(args=_words(data, "vllm_args") + _words(data, "extra_args"),
                env={**_env(data, "env"), **_env(data, "extra_env")},
                parallelism=_optional(data, "parallelism"), nodes=by_hardware, tp=_number(data, "tp"))


def _strategy_override(entry: Any) -> StrategyOverride:
    data = _mapping(entry, "strategy override")
    return StrategyOverride(
        args=_words(data, "vllm_args") + _words(data, "extra_args"),
        env={**_env(data, "env"), **_env(data, "extra_env")}, tp=_number(data, "tp"),
        hardware_overrides=_overrides(_sub(data, "hardware_overrides")),
        prefill=_pool(data.get("prefill")), decode=_pool(data.get("decode")),
    )


def _strategy(data: Mapping[str, Any]) -> Strategy:
    match = _sub(data, "hardware_match")
    router = _sub(data, "router")
    return Strategy(
        name=_text(data, "name", ""), deploy_type=_text(data, "deploy_type", "single_node"),
        display_name=_text(data, "display_name", ""), args=_words(data, "vllm_args"), env=_env(data, "env"),
        parallel_flag=_text(data, "parallel_flag", "--tensor-parallel-size"),
        parallelism=_optional(data, "parallelism"), min_gpus=int(match.get("min_gpus") or 1),
        architecture=_optional(match, "architecture"), prefill=_pool(data.get("prefill")),
        decode=_pool(data.get("decode")), router_policy=_optional(router, "policy"),
    )


def _hardware(name: str, entry: Any) -> Hardware:
    data = _mapping(entry, f"hardware {name}")
    return Hardware(
        name=name, brand=_text(data, "brand", ""), generation=_text(data, "generation", ""),
        display_name=_text(data, "display_name", name), gpu_count=int(data.get("gpu_count") or 1),
        vram_gb=float(data.get("vram_gb") or 0), scalable=bool(data.get("scalable", True)),
        restricted=bool(data.get("restricted", False)),
    )


def _closing(data: Mapping[str, Any]) -> tuple[Closing, ...]:
    return tuple(Closing(args=_words(entry, "args"), feature=_optional(entry, "feature"))
                 for entry in data.get("closing") or ())


def _engine(key: str, entry: Any) -> EngineRecipe:
    data = _mapping(entry, f"engine {key}")
    vram, memory = data.get("vram_minimum_gb"), data.get("host_memory_gb")
    return EngineRecipe(
        engine=key, args=_words(data, "args"), node_args=_words(data, "node_args"),
        worker_args=_words(data, "worker_args"), node_env=_env(data, "node_env"),
        env=_env(data, "env"), features=_features(_sub(data, "features")),
        node_overrides=_overrides(_sub(data, "node_overrides")),
        variant_overrides={str(name): _engine_variant(str(name), part)
                           for name, part in _sub(data, "variant_overrides").items()},
        closing=_closing(data), strategies=_words(data, "strategies"), hardware=_words(data, "hardware"),
        variants=_words(data, "variants"), hardware_overrides=_overrides(_sub(data, "hardware_overrides")),
        vram_minimum_gb=float(vram) if vram is not None else None,
        host_memory_gb=float(memory) if memory is not None else None, min_version=_optional(data, "min_version"),
        notes=_words(data, "notes"),
    )


def _engine_variant(key: str, entry: Any) -> EngineVariant:
    data = _mapping(entry, f"variant {key}")
    return EngineVariant(_words(data, "args"), _env(data, "env"), _overrides(_sub(data, "hardware_overrides")))


def _shape(data: Mapping[str, Any]) -> Shape:
    share = data.get("expert_share")
    return Shape(
        expert_share=float(share) if share is not None else None, attention_heads=_number(data, "attention_heads"),
        layers=_number(data, "layers"), kv_bytes_per_token=_number(data, "kv_bytes_per_token"),
        experts=_number(data, "experts"),
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what}: a mapping is expected", where=origin_of(value), found=type(value).__name__)
    return value


def _sub(data: Mapping[str, Any], key: str, *, needed: bool = False) -> Mapping[str, Any]:
    value = data.get(key)
    if value is None:
        if needed:
            raise InputError(f"a recipe needs `{key}`", where=origin_of(data))
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"`{key}` takes a mapping", where=key_origin(data, key), found=str(value))
    return value


def _words(data: Mapping[str, Any], key: str) -> Args:
    value = data.get(key)
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
        raise InputError(f"`{key}` takes a list of words", where=value_origin(data, key), found=str(value))
    return tuple(_word(item) for item in value)


def _word(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item)


def _env(data: Mapping[str, Any], key: str) -> Env:
    return {str(name): _word(value) for name, value in _sub(data, key).items()}


def _text(data: Mapping[str, Any], key: str, default: str) -> str:
    value = data.get(key)
    return default if value is None else str(value)


def _optional(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return None if value is None else str(value)


def _number(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    return None if value is None else int(value)
