"""What would fit these hosts at all: every variant, strategy and number of nodes, with the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import plural
from bringup.inventory.model import Inventory
from bringup.serving.planner import Variables, deployment_of
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import MOST_NODES, Choice, arithmetic, choose, node_count
from bringup.serving.planning.pools import POOLS, pool_numbers
from bringup.serving.planning.replicas import host_groups
from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.render import Request, render
from bringup.serving.recipes.schema import Library, Recipe


@dataclass(frozen=True)
class Option:
    """One combination. `problem` None means that it fits; sizes and memory are decimal GB, None where not worked out.

    `weights_gb` lie on each device, `left_gb` is what stays there for the cache, which holds `kv_tokens` in all;
    `context` is the context asked for, `host_memory_gb` what offloaded experts take of a host's own memory.
    `replicas` is how many of it the inventory's hosts make. Of each device of `device_gb` the engine takes `share` and
    works in `working_gb`.
    """

    engine: str
    variant: str
    precision: str
    strategy: str
    nodes: int
    problem: str | None
    sizes: str = ""
    needed_gb: float | None = None
    there_gb: float | None = None
    kv_tokens: int | None = None
    replicas: int = 0
    weights_gb: float | None = None
    left_gb: float | None = None
    host_memory_gb: float | None = None
    context: int = 0
    device_gb: float | None = None
    share: float | None = None
    working_gb: float | None = None


def options_of(inventory: Inventory, variables: Variables, library: Library | None = None) -> list[Option]:
    """Every combination of the deployment's recipe on its hardware that these hosts are enough for, and why not.

    Fitting ones first, fewest nodes first. Raises InputError when the deployment itself cannot be read.
    """
    deployment = deployment_of(inventory, variables)
    shelf = library or load_library()
    recipe = find_recipe(shelf, deployment.recipe, deployment.where("recipe"))
    heads, workers = host_groups(inventory)
    hosts = len(heads) + len(workers)
    found = list(_all(shelf, recipe, deployment, hosts))
    return sorted(found, key=lambda option: (option.problem is not None, option.nodes, option.needed_gb or 0))


def _all(library: Library, recipe: Recipe, deployment: Deployment, hosts: int) -> Iterator[Option]:
    plain = replace(deployment, nodes=None, replicas=None, tensor_parallel=None, pipeline_parallel=None, features=None)
    for engine in ("vllm", *recipe.engines):
        part = recipe.engines.get(engine)
        for variant in recipe.variants.values():
            for name in (part.strategies if part else recipe.compatible_strategies):
                wanted = replace(plain, engine=engine, variant=variant.key, strategy=name)
                try:
                    choice = choose(library, recipe, wanted)
                except InputError as error:
                    yield Option(engine, variant.key, variant.precision, name, 1, error.what)
                    continue
                yield from _pools(library, choice, wanted, hosts) if choice.strategy.deploy_type == POOLS else \
                    _counts(choice, wanted, hosts)


def _counts(choice: Choice, wanted: Deployment, hosts: int) -> Iterator[Option]:
    single = choice.strategy.deploy_type == "single_node"
    counts = [1] if single else list(range(2, min(hosts, MOST_NODES) + 1))
    if not counts:
        yield _option(choice, wanted, 2, f"2 nodes at least, the inventory has {plural(hosts, 'host')}", hosts)
    for count in counts:
        try:
            node_count(choice, replace(wanted, nodes=count))
            problem = None
        except InputError as error:
            problem = error.what
        yield _option(choice, wanted, count, problem, hosts)


def _pools(library: Library, choice: Choice, wanted: Deployment, hosts: int) -> Iterator[Option]:
    """Two pools on one node, on two, or on more."""
    rendering = render(library, choice.recipe, Request(choice.variant.key, choice.strategy.name, choice.hardware.name,
                                                       choice.features))
    for count in [1, *range(2, min(hosts, MOST_NODES) + 1, 2)]:
        plain = _option(choice, wanted, count, None, hosts)
        try:
            numbers = {**arithmetic(choice, count, plain.context),
                       **pool_numbers(choice, wanted, rendering, count)}
        except InputError as error:
            yield replace(plain, problem=error.what, replicas=0)
            continue
        yield replace(plain, sizes=f"2 x {_sizes(numbers)}", needed_gb=numbers["needed_gb"],
                      kv_tokens=numbers.get("kv_tokens"), weights_gb=numbers.get("weights_per_device_gb"),
                      left_gb=numbers.get("left_per_device_gb"))


def _option(choice: Choice, wanted: Deployment, nodes: int, problem: str | None, hosts: int) -> Option:
    numbers = arithmetic(choice, nodes, wanted.context_length or choice.recipe.context_length)
    return Option(wanted.engine, choice.variant.key, choice.variant.precision, choice.strategy.name, nodes, problem,
                  _sizes(numbers), numbers["needed_gb"], numbers["there_gb"], numbers["kv_tokens"],
                  0 if problem else hosts // nodes, numbers["weights_per_device_gb"], numbers["left_per_device_gb"],
                  numbers["host_memory_gb"], numbers["context_length"], numbers["device_gb"], numbers["utilization"],
                  numbers["working_gb"])


def _sizes(numbers: Mapping[str, Any]) -> str:
    """`TP 16`, `TP 8 x PP 2`, `TP 16 x DP 2`, `DP 16`: dimensions of 1 are left out."""
    named = (("TP", "tensor_parallel"), ("PP", "pipeline_parallel"), ("DP", "data_parallel"))
    return " x ".join(f"{short} {numbers[key]}" for short, key in named if numbers[key] > 1) or "1 device"


def as_lines(options: list[Option], width: int) -> Iterator[str]:
    """A table of what fits, narrower screens without the columns that follow from others; what does not, by reason."""
    fitting = [option for option in options if option.problem is None]
    if fitting:
        rows = [_row(option) for option in fitting]
        names = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
        for spare in ("left each", "weights each", "there", "precision", "KV tokens", "replicas", "needed"):
            if _wide(rows, names) > width and spare in names:
                names.remove(spare)
        yield from _table(rows, names)
        yield f"memory in decimal GB; contexts: how many of {fitting[0].context:,} tokens the KV cache holds"
        if "host GB" in names:
            yield "host GB: what the experts that stay in the host's memory take"
        yield ""
        yield from _decided(options, width)
    yield from _reasons(options, width)


def _decided(options: Sequence[Option], width: int) -> Iterator[str]:
    """For the weights of each precision the fewest nodes that hold them, with the sum."""
    yield "fewest nodes, by the weights:"
    best: dict[str, Option] = {}
    for option in options:
        there = best.get(option.precision)
        # experts in the host's memory are another way of serving, not a smaller need
        if option.problem is None and option.host_memory_gb is None and (there is None or option.nodes < there.nodes):
            best[option.precision] = option
    wide = max((len(precision) for precision in best), default=0)
    for precision, option in best.items():
        yield from wrap(_sum(option), width, initial_indent=f"  {precision.ljust(wide)}  ",
                        subsequent_indent=" " * (wide + 4))


def _sum(option: Option) -> str:
    nodes = "one node" if option.nodes == 1 else plural(option.nodes, "node")
    text = f"{nodes} as {option.strategy} ({option.engine}): needs {_gb(option.needed_gb)} of {_gb(option.there_gb)} GB"
    if option.weights_gb is None or option.device_gb is None or option.share is None:
        return text
    working = f" - {option.working_gb:g} the engine works in" if option.working_gb else ""
    text += (f"; a device {option.share:.0%} of {option.device_gb:g} - {option.weights_gb:,.1f} weights{working} = "
             f"{option.left_gb:,.1f} GB")
    if option.kv_tokens is not None:
        text += f" for {option.kv_tokens:,} tokens in all"
    return text


def _reasons(options: Sequence[Option], width: int) -> Iterator[str]:
    """Why the others do not fit: what has to do with memory and sizes first, then what was never meant for it."""
    reasons: dict[str, int] = {}
    for option in options:
        if option.problem:
            reasons[option.problem] = reasons.get(option.problem, 0) + 1
    if reasons:
        yield ""
        yield "does not fit:"
    for reason, count in sorted(reasons.items(), key=lambda item: " GB" not in item[0]):
        yield from wrap(reason, width, initial_indent=f"  {count:>3}  ", subsequent_indent=" " * 7)


def _row(option: Option) -> dict[str, str]:
    contexts = option.kv_tokens / option.context if option.kv_tokens is not None and option.context else None
    return {
        "engine": option.engine, "variant": option.variant, "precision": option.precision,
        "strategy": option.strategy, "nodes": str(option.nodes), "sizes": option.sizes,
        "needed": _gb(option.needed_gb), "there": _gb(option.there_gb), "weights each": _gb(option.weights_gb, 1),
        "left each": _gb(option.left_gb, 1),
        "KV tokens": f"{option.kv_tokens:,}" if option.kv_tokens is not None else "-",
        "contexts": f"{contexts:.1f}" if contexts is not None else "-", "host GB": _gb(option.host_memory_gb),
        "replicas": str(option.replicas),
    }


def _gb(value: float | None, digits: int = 0) -> str:
    return f"{value:,.{digits}f}" if value is not None else "-"


_LEFT = ("engine", "variant", "precision", "strategy", "sizes")


def _wide(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> int:
    return sum(max(len(name), *(len(row[name]) for row in rows)) for name in names) + 2 * (len(names) - 1)


def _table(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> Iterator[str]:
    wide = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    for row in ({name: name for name in names}, *rows):
        yield "  ".join(row[name].ljust(wide[name]) if name in _LEFT else row[name].rjust(wide[name])
                        for name in names).rstrip()
