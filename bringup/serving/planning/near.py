"""What would fit in the place of a combination that does not: the nearest one, tried out before it is named.

Near means few changes of what the site wrote. A change of the strategy is smaller than one of the weights, both are
smaller than one of the engine; more nodes than the inventory has and other hardware come last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bringup.base.errors import InputError
from bringup.base.text import plural
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import Choice, Misfit, choose, memory_needed, node_count, nodes_asked, parallel_sizes
from bringup.serving.planning.pools import POOLS, pool_nodes
from bringup.serving.recipes.render import Request, render
from bringup.serving.recipes.schema import Library, Recipe, Strategy

_STRATEGY, _OTHER_KIND, _SIZES, _WEIGHTS, _ENGINE, _TOO_MANY = 1.0, 1.0, 1.0, 1.5, 3.0, 50.0
"""What a change costs: strategy; one to or from pools or between one node and several, on top; nodes, parallel sizes or
features; weights; engine; more nodes than there are."""


@dataclass(frozen=True)
class Settled:
    """A combination that fits: its parts, nodes of a replica and why so many."""

    choice: Choice
    nodes: int
    reason: str


@dataclass(frozen=True)
class Near:
    """A combination that fits, as the site would write it, and how far it is from what was asked."""

    asked: Deployment
    settled: Settled
    cost: float


def settle(library: Library, recipe: Recipe, deployment: Deployment) -> Settled:
    """Look up and count. Raises Misfit where it does not go together, InputError for a name that nobody knows."""
    choice = choose(library, recipe, deployment)
    if choice.strategy.deploy_type != POOLS:
        return Settled(choice, *node_count(choice, deployment))
    request = Request(choice.variant.key, choice.strategy.name, choice.hardware.name, choice.features)
    return Settled(choice, *pool_nodes(choice, deployment, render(library, recipe, request)))


def settle_or_tell(library: Library, recipe: Recipe, deployment: Deployment, hosts: int | None = None) -> Settled:
    """As `settle`; a Misfit says what would fit on so many hosts (None: any number)."""
    try:
        return settle(library, recipe, deployment)
    except Misfit as error:
        raise with_nearest(error, library, recipe, deployment, hosts) from None


def with_nearest(error: Misfit, library: Library, recipe: Recipe, deployment: Deployment, hosts: int | None) -> Misfit:
    """The refusal with what would fit: in `next` the nearest, in a line of its own one that keeps the weights; where
    nothing fits this hardware, what is smallest and where it would."""
    near = nearest_fit(library, recipe, deployment, hosts)
    error.next = told(near, deployment, hosts) if near else nothing_fits(library, recipe, deployment)
    kept = _precision(recipe, deployment)
    if near and kept and near.settled.choice.variant.precision != kept:
        same = nearest_fit(library, recipe, deployment, hosts, kept)
        if same is not None and same.cost < _TOO_MANY:
            error.details = (*error.details, f"as {kept}".ljust(9) + f" {told(same, deployment, hosts)}")
    return error


def nearest_fit(library: Library, recipe: Recipe, deployment: Deployment, hosts: int | None = None,
                precision: str | None = None) -> Near | None:
    """The nearest combination on the same hardware that fits, None where none does; `precision` keeps to weights of
    one. Of equally near ones that with weights of a size nearer to those asked for, then that with fewer nodes."""
    best: tuple[tuple[float, ...], Near] | None = None
    was = recipe.variants.get(_variant_key(recipe, deployment) or "")
    for cost, asked in sorted(_candidates(library, recipe, deployment), key=lambda pair: pair[0]):
        if best is not None and cost > best[0][0]:
            break
        variant = recipe.variants[asked.variant]
        if precision is not None and variant.precision != precision:
            continue
        settled = _tried(library, recipe, asked)
        if settled is None or _alone(settled, deployment):
            continue
        full = cost + (_TOO_MANY if hosts is not None and settled.nodes > hosts else 0.0)
        other = deployment.nodes is not None and settled.nodes != deployment.nodes
        order = (full, float(other), _apart(was.vram_minimum_gb if was else 0, variant.vram_minimum_gb),
                 float(settled.nodes))
        if best is None or order < best[0]:
            best = (order, Near(asked, settled, full))
    return best[1] if best else None


def _tried(library: Library, recipe: Recipe, asked: Deployment) -> Settled | None:
    try:
        return settle(library, recipe, asked)
    except InputError:
        return None


def _alone(settled: Settled, deployment: Deployment) -> bool:
    """True for a strategy of several nodes on one, which nobody asked for."""
    strategy = settled.choice.strategy
    return strategy.deploy_type == "multi_node" and settled.nodes == 1 and strategy.name != deployment.strategy


def _apart(one: float, other: float) -> float:
    return abs(math.log(other / one)) if one > 0 and other > 0 else 0.0


def _precision(recipe: Recipe, deployment: Deployment) -> str | None:
    key = _variant_key(recipe, deployment)
    return recipe.variants[key].precision if key else None


def _variant_key(recipe: Recipe, deployment: Deployment) -> str | None:
    if deployment.variant in recipe.variants:
        return deployment.variant
    return next((key for key, variant in recipe.variants.items() if variant.precision == deployment.variant), None)


def _candidates(library: Library, recipe: Recipe, deployment: Deployment) -> Iterator[tuple[float, Deployment]]:
    """Every combination of the recipe on this hardware with its cost, each with the nodes that were asked for and with
    the fewest."""
    first, variant = _strategy(library, recipe, deployment), _variant_key(recipe, deployment)
    for engine in ("vllm", *recipe.engines):
        part = recipe.engines.get(engine)
        known = part.features if part else recipe.features
        for name in part.strategies if part else recipe.compatible_strategies:
            strategy = library.strategies.get(name)
            if strategy is None:
                continue
            moved = (_ENGINE if engine != deployment.engine else 0.0) + _moved(first, strategy)
            for key, entry in recipe.variants.items():
                plain = replace(deployment, engine=engine, strategy=name, variant=key)
                cost = moved + (_WEIGHTS if key != variant else 0.0)
                dropped = [f for f in deployment.features or () if f not in known or f in entry.without_features]
                if dropped:
                    plain = replace(plain, features=tuple(f for f in plain.features or () if f not in dropped))
                    cost += _SIZES
                yield from _sized(library, recipe, deployment, plain, cost)


def _sized(library: Library, recipe: Recipe, deployment: Deployment, plain: Deployment, cost: float
           ) -> Iterator[tuple[float, Deployment]]:
    yield cost, plain
    counted = deployment.nodes is not None or deployment.replicas is not None
    sizes = deployment.tensor_parallel is not None or deployment.pipeline_parallel is not None
    free = replace(plain, tensor_parallel=None, pipeline_parallel=None)
    if sizes:
        try:
            count = nodes_asked(choose(library, recipe, plain), deployment, 1)[0]
        except InputError:
            return
        yield cost + _SIZES, free if counted else replace(free, nodes=count)
    if sizes or counted:
        yield cost + _SIZES * (2 if sizes else 1), replace(free, nodes=None, replicas=None)


def _strategy(library: Library, recipe: Recipe, deployment: Deployment) -> Strategy | None:
    part = recipe.engines.get(deployment.engine)
    allowed = part.strategies if part else recipe.compatible_strategies
    return library.strategies.get(deployment.strategy or recipe.default_strategy or (allowed[0] if allowed else ""))


def _moved(first: Strategy | None, other: Strategy) -> float:
    if first is None or first.name == other.name:
        return 0.0
    return _STRATEGY + (_OTHER_KIND if first.deploy_type != other.deploy_type else 0.0)


def told(near: Near, deployment: Deployment, hosts: int | None = None) -> str:
    """`variant: fp8, nodes: 2   (fp8, 893 GB of 2,256 GB on 2 nodes)`: what to write, then what that makes."""
    nodes = near.settled.nodes
    words = _written(near, deployment)
    inside = _inside(near)
    if hosts is not None and nodes > hosts:
        inside.append(f"the inventory has {plural(hosts, 'host')}")
    return f"{', '.join(words)}   ({', '.join(inside)})"


def _inside(near: Near) -> list[str]:
    """What a combination makes: precision, sizes over several nodes, memory."""
    choice, nodes = near.settled.choice, near.settled.nodes
    needed = memory_needed(choice) * (2 if choice.strategy.deploy_type == POOLS else 1)
    inside = [choice.variant.precision]
    if choice.strategy.deploy_type == "multi_node":
        tp, pp, dp = parallel_sizes(choice, nodes)
        inside.append(" x ".join(f"{name} {size}" for name, size in (
            ("tensor parallel", tp), ("pipeline", pp), ("data parallel", dp)) if size > 1))
    inside.append(f"{needed:,.0f} of {choice.hardware.vram_gb * nodes:,.0f} GB on "
                  f"{'one node' if nodes == 1 else plural(nodes, 'node')}")
    return [part for part in inside if part]


def _written(near: Near, deployment: Deployment) -> list[str]:
    """The keys of `deployment:` that change."""
    choice, nodes = near.settled.choice, near.settled.nodes
    words = []
    if near.asked.engine != deployment.engine:
        words.append(f"engine: {near.asked.engine}")
    if deployment.variant not in (choice.variant.key, choice.variant.precision):
        words.append(f"variant: {choice.variant.key}")
    if choice.strategy.name != deployment.strategy:
        words.append(f"strategy: {choice.strategy.name}")
    if near.asked.features != deployment.features:
        words.append(f"features: [{', '.join(choice.features)}]")
    if (deployment.tensor_parallel or deployment.pipeline_parallel) and near.asked.tensor_parallel is None:
        tp, pp, _ = parallel_sizes(choice, nodes)
        words.append(f"tensor_parallel: {tp}, pipeline_parallel: {pp}")
    if deployment.replicas and len(next(iter(deployment.replicas.values()))) != nodes:
        words.append(f"replicas of {plural(nodes, 'host')}")
    elif deployment.nodes != nodes and (deployment.nodes is not None or not words):
        words.append(f"nodes: {nodes}")
    return words


def nothing_fits(library: Library, recipe: Recipe, deployment: Deployment) -> str:
    """Why no combination is named: what is smallest of the recipe, and the least hardware that would hold it."""
    hardware = library.hardware[deployment.hardware]
    plain = replace(deployment, nodes=None, replicas=None, tensor_parallel=None, pipeline_parallel=None, features=None)
    start = f"nothing of {recipe.name} fits {hardware.display_name}"
    best: tuple[tuple[float, float], Settled, Deployment] | None = None
    for profile in sorted(library.hardware.values(), key=lambda entry: (entry.vram_gb, entry.name)):
        if profile.restricted or profile == hardware or (best is not None and profile.vram_gb > best[0][0]):
            continue
        for cost, asked in _candidates(library, recipe, replace(plain, hardware=profile.name)):
            settled = _tried(library, recipe, asked)
            if settled is None or _alone(settled, asked) or settled.choice.strategy.deploy_type == POOLS:
                continue
            order = (settled.nodes * profile.vram_gb, cost)
            if best is None or order < best[0]:
                best = (order, settled, asked)
    if best is None:
        return f"{start}, nor any other hardware of {library.folder}: {_smallest(recipe)}"
    near = Near(best[2], best[1], best[0][1])
    written = _written(near, replace(plain, nodes=best[1].nodes))
    words = ", ".join([f"hardware: {best[1].choice.hardware.name}", *written])
    return f"{start}; the smallest that would is {words}   ({', '.join(_inside(near))})"


def _smallest(recipe: Recipe) -> str:
    variant = min(recipe.variants.values(), key=lambda entry: entry.vram_minimum_gb)
    return f"its smallest variant {variant.key} ({variant.precision}) needs {variant.vram_minimum_gb:,.0f} GB"
