"""Render a recipe for any engine: vLLM by its own rules, other servers by the recipe's `engines` part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bringup.base.errors import InputError
from bringup.serving.plan import Argument
from bringup.serving.recipes.render import (
    Parts,
    Piece,
    PoolRendering,
    Rendering,
    Request,
    dedupe,
    look_up,
    matching,
    render,
)
from bringup.serving.recipes.schema import EngineRecipe, Hardware, Library, Override, Recipe, Strategy
from bringup.serving.versions import parser_row

MODEL = "$MODEL_PATH"
COMMANDS = {
    "sglang": ("python", "-m", "sglang.launch_server"),
    "sglang-kt": ("python", "-m", "sglang.launch_server"),
    "vllm-ascend": ("vllm", "serve", MODEL),
}
"""Program and fixed words of the engines that a recipe's `engines` part may name."""


def render_for(library: Library, recipe: Recipe, request: Request, engine: str, version: str, *,
               model_path: str | None = None) -> Rendering:
    """The recipe's layer for an engine of a version, parsers filled in from the table.

    `model_path` None leaves the model as the recipe names it: its id for vLLM, /path/to/NAME for the others.
    Raises InputError when the recipe does not know the engine or the combination's names.
    """
    if engine == "vllm":
        rendering = render(library, recipe, request)
        path = model_path or rendering.command[2]
        rendering = replace(rendering, command=(*rendering.command[:2], path))
    else:
        part = recipe.engines.get(engine)
        if part is None:
            known = ", ".join(["vllm", *recipe.engines])
            raise InputError(f"the recipe {recipe.name} does not say how {engine} serves it", expected=known,
                             where=recipe.origin)
        rendering = _render_part(library, recipe, request, part)
        path = model_path or f"/path/to/{recipe.model_id.split('/')[-1]}"
        rendering = replace(rendering, command=tuple(path if word == MODEL else word for word in rendering.command))
    return fill(rendering, {
        MODEL: (path, ""),
        "$TOOL_PARSER": _parser(engine, "tool", version),
        "$REASONING_PARSER": _parser(engine, "reasoning", version),
    })


def _parser(engine: str, kind: str, version: str) -> tuple[str, str]:
    row = parser_row(engine, kind, version)
    return row.use, row.why


def fill(rendering: Rendering, values: Mapping[str, tuple[str, str]]) -> Rendering:
    """Put values in the place of whole words; a value's reason joins the argument's."""
    nodes = tuple(tuple(_fill(argument, values) for argument in node) for node in rendering.nodes)
    return replace(rendering, nodes=nodes, prefill=_fill_pool(rendering.prefill, values),
                   decode=_fill_pool(rendering.decode, values))


def _fill_pool(pool: PoolRendering | None, values: Mapping[str, tuple[str, str]]) -> PoolRendering | None:
    if pool is None:
        return None
    return replace(pool, arguments=tuple(_fill(argument, values) for argument in pool.arguments))


def _fill(argument: Argument, values: Mapping[str, tuple[str, str]]) -> Argument:
    reasons = [argument.reason, *(values[word][1] for word in argument.words if word in values)]
    words = tuple(values[word][0] if word in values else word for word in argument.words)
    return replace(argument, words=words, reason="; ".join(reason for reason in reasons if reason))


def _render_part(library: Library, recipe: Recipe, request: Request, part: EngineRecipe) -> Rendering:
    """By the recipe's part for this engine."""
    parts = look_up(library, replace(recipe, features=part.features), request)
    nodes = request.nodes if parts.strategy.deploy_type == "multi_node" else 1
    tp, pp, dp = part_sizes(parts.strategy, parts.hardware, nodes)
    env = {**part.env, **(part.node_env if nodes > 1 else {})}
    overrides = _overrides(part, parts, nodes)
    for _, override in overrides:
        env.update(override.env)
    for feature in parts.features:
        env.update(feature.env)
    asked = set(request.features)
    strategy = f"strategy {parts.strategy.name}"
    rendered = []
    for rank in range(nodes):
        sizes = {"$TP": str(parts.hardware.gpu_count * nodes), "$LOCAL": str(parts.hardware.gpu_count),
                 "$NODES": str(nodes), "$RANK": str(rank)}
        pieces = [Piece(part.args, "recipe")]
        if nodes > 1:
            pieces.append(Piece(part.node_args, strategy))
            pieces.append(Piece(part.worker_args if rank else (), strategy))
        pieces += [Piece(override.args, name) for name, override in overrides]
        pieces += [Piece(feature.args, f"feature {feature.key}") for feature in parts.features]
        pieces += [Piece(closing.args, "recipe") for closing in part.closing
                   if closing.feature is None or closing.feature in asked]
        rendered.append(dedupe([Piece(tuple(sizes.get(word, word) for word in piece.words), piece.source)
                                for piece in pieces]))
    return Rendering(request, parts.strategy.deploy_type, COMMANDS[part.engine], tuple(rendered), env, tp=tp, pp=pp,
                     dp=dp)


def part_sizes(strategy: Strategy, hardware: Hardware, nodes: int) -> tuple[int, int, int]:
    """Tensor, pipeline and data parallel size that another engine makes of so many nodes."""
    if strategy.parallelism == "tp_dp":
        return hardware.gpu_count, 1, nodes
    return hardware.gpu_count * nodes, 1, 1


def _overrides(part: EngineRecipe, parts: Parts, nodes: int) -> list[tuple[str, Override]]:
    """What hardware, several nodes on it, the variant, and the variant on one node of it add, with where from."""
    found = [(f"hardware {name}", override) for name, override in matching(part.hardware_overrides, parts.hardware)]
    if nodes > 1:
        found += [(f"hardware {name}", override) for name, override in matching(part.node_overrides, parts.hardware)]
    own = part.variant_overrides.get(parts.variant.key)
    if own is not None:
        found.append((f"variant {parts.variant.key}", Override(own.args, own.env)))
        if nodes == 1:
            found += [(f"variant {parts.variant.key} on {name}", override)
                      for name, override in matching(own.hardware_overrides, parts.hardware)]
    return found
