"""What would fit these hosts at all: every variant, strategy and number of nodes, with the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bringup.base.errors import InputError
from bringup.base.text import plural
from bringup.inventory.model import Inventory
from bringup.serving.planner import Variables, deployment_of
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import MOST_NODES, Choice, arithmetic, choose, node_count
from bringup.serving.planning.replicas import host_groups
from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.schema import Library, Recipe


@dataclass(frozen=True)
class Option:
    """One combination. `problem` None means that it fits; sizes and memory are decimal GB, None where not worked out.

    `replicas` is how many of it the inventory's hosts make.
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
                yield from _counts(choice, wanted, hosts)


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


def _option(choice: Choice, wanted: Deployment, nodes: int, problem: str | None, hosts: int) -> Option:
    numbers = arithmetic(choice, nodes, wanted.context_length or choice.recipe.context_length)
    sizes = (f"TP {numbers['tensor_parallel']} x PP {numbers['pipeline_parallel']}"
             if numbers["data_parallel"] == 1 else f"DP {numbers['data_parallel']}")
    return Option(wanted.engine, choice.variant.key, choice.variant.precision, choice.strategy.name, nodes, problem,
                  sizes, numbers["needed_gb"], numbers["there_gb"], numbers["kv_tokens"],
                  0 if problem else hosts // nodes)


def as_lines(options: list[Option], width: int) -> Iterator[str]:
    """A table of what fits; what does not, counted by its reason."""
    fitting = [option for option in options if option.problem is None]
    if fitting:
        yield "engine     variant  strategy          nodes  sizes          needed      there   KV tokens  replicas"
    for option in fitting:
        tokens = f"{option.kv_tokens:,}" if option.kv_tokens is not None else "-"
        yield (f"{option.engine:<10} {option.variant:<8} {option.strategy:<17} {option.nodes:>5}  {option.sizes:<12} "
               f"{option.needed_gb or 0:>6,.0f} GB {option.there_gb or 0:>7,.0f} GB {tokens:>10} {option.replicas:>9}")
    reasons: dict[str, int] = {}
    for option in options:
        if option.problem:
            reasons[option.problem] = reasons.get(option.problem, 0) + 1
    if reasons:
        yield ""
        yield "does not fit:"
    for reason, count in reasons.items():
        text = f"  {count:>3}  {reason}"
        yield text if len(text) <= width else text[:width - 3] + "..."
