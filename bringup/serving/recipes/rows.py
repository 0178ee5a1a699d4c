"""Rows: the JSON shape in which renderings are compared with upstream's, and the batch over many of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.serving.engines.facts import engine_named
from bringup.serving.recipes.load import find_recipe
from bringup.serving.recipes.render import PoolRendering, Rendering, Request
from bringup.serving.recipes.schema import Library
from bringup.serving.recipes.servers import render_for

ROUTER_INSTALL = "uv pip install vllm-router"


def row_of(rendering: Rendering) -> dict[str, Any]:
    """A rendering as upstream prints it: argv, or headArgv and workerArgvs, or prefill and decode."""
    request = rendering.request
    row: dict[str, Any] = {
        "variant": request.variant, "strategy": request.strategy, "hardware": request.hardware,
        "features": list(request.features), "nodes": request.nodes, "deployType": rendering.deploy_type,
    }
    if rendering.prefill and rendering.decode:
        row["nodeCount"] = 1
        row["prefill"] = _pool_row(rendering, rendering.prefill)
        row["decode"] = _pool_row(rendering, rendering.decode)
        row["router"] = {"install": ROUTER_INSTALL}
        row["routerConfig"] = {"policy": rendering.router_policy}
        return row
    if rendering.deploy_type == "multi_node":
        lines = [rendering.argv(node) for node in range(len(rendering.nodes))]
        row["nodeCount"] = len(lines)
        row["headArgv"] = lines[0]
        row["workerArgv"] = lines[1] if len(lines) > 1 else None
        row["workerArgvs"] = lines[1:]
    else:
        row["argv"] = rendering.argv(0)
    row["env"] = dict(rendering.env)
    return row


def _pool_row(rendering: Rendering, pool: PoolRendering) -> dict[str, Any]:
    return {
        "argv": [*rendering.command, *(word for argument in pool.arguments for word in argument.words)],
        "env": dict(pool.env), "nodes": 0, "parallelism": pool.parallelism, "tp": pool.tp,
        "dpLocal": pool.dp_local, "dpSize": pool.dp_size, "poolGpus": pool.gpus, "currentNode": 0, "startRank": 0,
    }


def render_rows(library: Library, lines: Iterable[str], file: str) -> Iterator[dict[str, Any]]:
    """Render every row of a JSONL text: {recipe, variant, strategy, hardware, features, nodes}.

    A row may also name `engine` (vllm) and its `version`. Raises InputError with file and line; a row without
    `features` takes the recipe's defaults.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = Origin(file, number)
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"is not JSON: {error}", where=where) from None
        if not isinstance(row, Mapping):
            raise InputError("a row is a mapping", where=where, expected="{recipe, variant, strategy, hardware, ...}")
        yield _render_row(library, row, where)


def _render_row(library: Library, row: Mapping[str, Any], where: Origin) -> dict[str, Any]:
    missing = [key for key in ("recipe", "strategy", "hardware") if key not in row]
    if missing:
        raise InputError(f"the row lacks {', '.join(missing)}", where=where)
    recipe = find_recipe(library, str(row["recipe"]), where)
    features = row.get("features")
    request = Request(
        variant=str(row.get("variant", "default")), strategy=str(row["strategy"]), hardware=str(row["hardware"]),
        features=tuple(str(name) for name in features) if features is not None else recipe.default_features(),
        nodes=int(row.get("nodes") or 1),
    )
    engine = engine_named(str(row.get("engine") or "vllm"), where)
    try:
        rendering = render_for(library, recipe, request, engine.name, str(row.get("version") or engine.known_version))
    except InputError as error:
        raise InputError(error.what, where=where, expected=error.expected, next=error.next) from None
    return {"recipe": recipe.name, **row_of(rendering)}
