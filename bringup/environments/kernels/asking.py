"""Which kernels a host is to have: those named on the command line, else by its deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, value_origin
from bringup.environments.kernels.choosing import Asked
from bringup.environments.kernels.recipe import Recipe
from bringup.environments.sizes import bytes_of

_KEYS = ("name", "revision", "options", "cpu", "jobs", "memory")


def asked_kernels(variables: Mapping[str, Any], named: Sequence[str] = ()) -> list[Asked]:
    """The kernels of a host. In a deployment `kernels` is a list of names, `name@revision`, or mappings {name,
    revision, options, cpu, jobs, memory}; names given apart take what the deployment says of
    them. Raises InputError."""
    deployment = variables.get("deployment")
    rows = deployment.get("kernels") if isinstance(deployment, Mapping) else None
    where = value_origin(deployment, "kernels")
    if rows is None:
        rows = []
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Sequence):
        raise InputError("`kernels` of the deployment takes a list", where=where, expected="names of recipes",
                         next="invoke kernel.list")
    listed = [_row(row, where) for row in rows]
    if not named:
        return listed
    out = []
    for name in named:
        base, _, revision = str(name).partition("@")
        same = next((item for item in listed if item.name == base), Asked(base))
        out.append(Asked(base, revision or same.revision, same.options, same.cpu, same.jobs, same.memory))
    return out


def _row(row: Any, where: Any) -> Asked:
    if isinstance(row, str):
        base, _, revision = row.partition("@")
        return Asked(base, revision or None)
    if not isinstance(row, Mapping) or not row.get("name"):
        raise InputError("a kernel is a name, or a mapping with `name`", where=where, found=str(row))
    for key in row:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError(f"a kernel knows no key `{key}`", where=key_origin(row, key) or where,
                             expected=", ".join(_KEYS), next=f"nearest: {near}" if near else None)
    options = row.get("options") or {}
    if not isinstance(options, Mapping):
        raise InputError("`options` of a kernel takes a mapping", where=value_origin(row, "options") or where)
    jobs = row.get("jobs")
    if jobs is not None and (not str(jobs).isdigit() or int(str(jobs)) < 1):
        raise InputError("`jobs` of a kernel takes a number from 1 on", where=value_origin(row, "jobs") or where,
                         found=str(jobs))
    memory = bytes_of(row["memory"]) if row.get("memory") is not None else None
    if row.get("memory") is not None and not memory:
        raise InputError("`memory` of a kernel takes a size", where=value_origin(row, "memory") or where,
                         expected="such as 32 GiB", found=str(row["memory"]))
    return Asked(str(row["name"]), str(row["revision"]) if row.get("revision") else None,
                 {str(name): _plain(value) for name, value in options.items()},
                 str(row["cpu"]) if row.get("cpu") else None, int(str(jobs)) if jobs is not None else None,
                 memory)


def _plain(value: Any) -> str:
    """YAML's yes and on are what upstream's switches want as ON."""
    return ("ON" if value else "OFF") if isinstance(value, bool) else str(value)


def checked(asked: Asked, recipe: Recipe) -> Recipe:
    """The recipe at the revision asked for. Raises InputError for an option, value or variant that it does not know."""
    recipe = recipe.at(asked.revision)
    for name, value in (asked.options or {}).items():
        row = recipe.options.get(name)
        if row is None:
            near = nearest(name, recipe.options)
            raise InputError(f"the recipe {recipe.name} has no option `{name}`",
                             expected=", ".join(recipe.options) or "no options",
                             next=f"nearest: {near}" if near else f"invoke kernel.list --kernel {recipe.name}")
        if row.values and value not in row.values:
            raise InputError(f"the option {name} of {recipe.name} does not take `{value}`",
                             expected=", ".join(row.values))
    if asked.cpu and recipe.variant(asked.cpu) is None:
        raise InputError(f"the recipe {recipe.name} has no CPU variant `{asked.cpu}`",
                         expected=", ".join(item.name for item in recipe.cpu) or "none: it is the same for every CPU")
    return recipe
