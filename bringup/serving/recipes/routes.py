"""Route profiles of a recipe: what a client sends for which work, how long it waits, what must come back."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, load_file, origin_of
from bringup.serving.recipes.schema import Recipe

DATA = Path(__file__).parent / "data" / "routes"
_ROUTE = ("purpose", "timeout", "request", "answer")
_TIMEOUT = ("connect", "first_token", "between_tokens", "whole")


@dataclass(frozen=True)
class Timeout:
    """A tier of patience, in seconds."""

    name: str
    connect: float
    first_token: float
    between_tokens: float
    whole: float


@dataclass(frozen=True)
class Route:
    """`request` is what goes beside model and messages; `answer` the JSON schema of `as_answer` of what comes back."""

    name: str
    purpose: str
    timeout: Timeout
    request: Mapping[str, Any]
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def extra(self) -> Mapping[str, Any]:
        """The part that is no parameter of OpenAI's and goes as `extra_body`."""
        return {key: value for key, value in self.request.items() if key == "chat_template_kwargs"}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The part that every client knows."""
        return {key: value for key, value in self.request.items() if key != "chat_template_kwargs"}


def routes_of(recipe: Recipe) -> dict[str, Route]:
    """The recipe's routes by name; empty where it names none. Raises InputError for a file that is not of the form.

    A recipe says `routes: NAME` (a file of our routes) or `routes: FILE` (beside the recipe).
    """
    name = recipe.raw.get("routes")
    if not name:
        return {}
    path = DATA / f"{name}.yaml"
    if str(name).endswith((".yml", ".yaml")):
        beside = Path(recipe.origin.file).parent if recipe.origin is not None else Path()
        path = beside / str(name)
    if not path.is_file():
        near = nearest(str(name), [file.stem for file in DATA.glob("*.yaml")])
        raise InputError(f"there are no routes `{name}`", where=key_origin(recipe.raw, "routes"),
                         next=f"routes: {near}" if near else None)
    return load_routes(path)


@functools.lru_cache(maxsize=8)
def load_routes(path: Path) -> dict[str, Route]:
    """A file of routes. Raises InputError with file and line."""
    data = _keys(load_file(path), ("timeouts", "routes"), str(path))
    tiers = {}
    for name, entry in (data.get("timeouts") or {}).items():
        values = _keys(entry, _TIMEOUT, f"the timeout {name}")
        try:
            tiers[str(name)] = Timeout(str(name), *(float(values[key]) for key in _TIMEOUT))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the timeout {name} needs seconds for {', '.join(_TIMEOUT)}", where=origin_of(entry),
                             found=str(error)) from None
    return {str(name): _route(str(name), entry, tiers) for name, entry in (data.get("routes") or {}).items()}


def _route(name: str, entry: Any, tiers: Mapping[str, Timeout]) -> Route:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    data = _keys(entry, _ROUTE, f"the route {name}")
    missing = [key for key in _ROUTE if key not in data]
    if missing:
        raise InputError(f"the route {name} lacks {', '.join(missing)}", where=origin_of(entry))
    tier = tiers.get(str(data["timeout"]))
    if tier is None:
        near = nearest(str(data["timeout"]), tiers)
        raise InputError(f"the route {name} has no timeout `{data['timeout']}`", where=key_origin(data, "timeout"),
                         expected=", ".join(tiers), next=f"timeout: {near}" if near else None)
    try:
        Draft202012Validator.check_schema(data["answer"])
    except SchemaError as error:
        raise InputError(f"the answer of the route {name} is no JSON schema: {error.message}",
                         where=key_origin(data, "answer")) from None
    return Route(name, str(data["purpose"]), tier, dict(data["request"]), data["answer"])


def _keys(value: Any, known: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} takes a mapping", where=origin_of(value), found=type(value).__name__)
    for key in value:
        if key not in known:
            near = nearest(str(key), known)
            raise InputError(f"{what} knows no `{key}`", where=key_origin(value, key), expected=", ".join(known),
                             next=f"nearest: {near}" if near else None)
    return value
