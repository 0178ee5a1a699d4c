"""The verb that prints ready settings for clients of the endpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bringup.cli.options import READING, Option, Options, verb

if TYPE_CHECKING:
    from bringup.serving.contract.clients import Endpoint, Settings
    from bringup.serving.recipes.routes import Route


@verb((*READING, Option("route", help="route profile (default: coding_agent; `all` lists them)"),
       Option("client", help="only this one: openai, claude-code, roo-code or kilo-code"),
       Option("replica", help="the replica that they are pointed at (default: the first)"),
       Option("url", help="the address in front instead: http://gateway:8000")))
def clients(options: Options) -> None:
    """Print settings for OpenAI's client, Claude Code, Roo Code and Kilo Code; a key is named, never printed."""
    from bringup.cli.serve import say
    from bringup.serving.contract.clients import settings_of

    endpoint, routes = read(options)
    if options.route == "all":
        _list(options, routes)
        return
    route = _chosen(routes, options.route or next(iter(routes)))
    wanted = _wanted(options.client)
    found = [settings for settings in settings_of(endpoint, route) if settings.client in wanted]
    if options.format == "json":
        say(json.dumps({"endpoint": endpoint.url, "model": endpoint.model, "route": _plain(route), "clients": {
            settings.client: {"place": settings.place, "settings": settings.data, "notes": list(settings.notes)}
            for settings in found}}, indent=2, ensure_ascii=False))
        return
    say(f"{endpoint.model} at {endpoint.url} · route {route.name}: {route.purpose}")
    if endpoint.has_key:
        from bringup.serving.contract.clients import KEY

        say(f"the endpoint's key is expected in the environment variable {KEY}; it is not printed here")
    for settings in found:
        _show(settings)


def read(options: Options) -> tuple[Endpoint, dict[str, Route]]:
    """The endpoint of the inventory's plan and the routes of its recipe. Raises InputError."""
    from bringup.base.errors import InputError
    from bringup.base.paths import Project
    from bringup.base.text import nearest
    from bringup.cli.plan import planned_inventory
    from bringup.serving.contract.clients import Endpoint
    from bringup.serving.planner import api_key_of, make_plan
    from bringup.serving.recipes.load import find_recipe, load_library
    from bringup.serving.recipes.routes import routes_of

    project = Project.find()
    inventory, variables, lab = planned_inventory(options, project)
    key = api_key_of(inventory, variables)
    plan = make_plan(inventory, project, variables, lab=lab)
    names = [replica.name for replica in plan.replicas]
    if options.values.get("replica") and options.replica not in names:
        near = nearest(options.replica, names)
        raise InputError(f"no replica is called `{options.replica}`", expected=", ".join(names),
                         next=f"--replica {near}" if near else None)
    replica = next(r for r in plan.replicas if r.name == (options.values.get("replica") or names[0]))
    url = (options.values.get("url") or replica.endpoint).rstrip("/").removesuffix("/v1")
    if "://" not in url:
        raise InputError("--url takes an address", found=url, expected="http://HOST:PORT")
    from bringup.cli.plan import _recipes_of

    recipe = find_recipe(load_library(_recipes_of(inventory, variables, project)), plan.recipe)
    routes = routes_of(recipe)
    if not routes:
        raise InputError(f"the recipe {recipe.name} names no routes", expected="routes: NAME in the recipe",
                         next="docs/contract.md says how routes are written")
    given = {word.words[0]: word.words[-1] for word in replica.head.arguments if len(word.words) > 1}
    length = str(given.get("--max-model-len") or given.get("--context-length") or "")
    context = int(length) if length.isdigit() else recipe.context_length
    return Endpoint(url, plan.served_name, context, plan.engine, key is not None), routes


def _chosen(routes: dict[str, Route], name: str) -> Route:
    from bringup.base.errors import InputError
    from bringup.base.text import nearest

    if name not in routes:
        near = nearest(name, routes)
        raise InputError(f"the recipe has no route `{name}`", expected=", ".join(routes),
                         next=f"--route {near}" if near else None)
    return routes[name]


def _wanted(name: str | None) -> tuple[str, ...]:
    from bringup.base.errors import InputError
    from bringup.base.text import nearest
    from bringup.serving.contract.clients import NAMES

    if not name:
        return NAMES
    if name not in NAMES:
        near = next((one for one in NAMES if one.startswith(name)), None) or nearest(name, NAMES)
        raise InputError(f"no client is called `{name}`", expected=", ".join(NAMES),
                         next=f"--client {near}" if near else None)
    return (name,)


def _list(options: Options, routes: dict[str, Route]) -> None:
    from bringup.cli.serve import say

    if options.format == "json":
        say(json.dumps({name: _plain(route) for name, route in routes.items()}, indent=2, ensure_ascii=False))
        return
    width = max(len(name) for name in routes)
    for name, route in routes.items():
        wait = route.timeout
        say(f"{name:<{width}}  {route.purpose}")
        say(f"{'':<{width}}  " + ", ".join(f"{key} {_word(value)}" for key, value in route.request.items()))
        say(f"{'':<{width}}  waits {wait.first_token:g} s for the first token, {wait.whole:g} s in all ({wait.name})")


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={str(item).lower()}" for key, item in value.items())
    return str(value)


def _plain(route: Route) -> dict[str, Any]:
    wait = route.timeout
    return {"name": route.name, "purpose": route.purpose, "request": dict(route.request), "answer": route.answer,
            "timeout": {"tier": wait.name, "connect": wait.connect, "first_token": wait.first_token,
                        "between_tokens": wait.between_tokens, "whole": wait.whole}}


def _show(settings: Settings) -> None:
    from bringup.cli.serve import say

    say("")
    say(f"## {settings.client}: {settings.place}")
    say(settings.text)
    for note in settings.notes:
        say(f"# {note}")
