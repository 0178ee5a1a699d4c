"""Verbs of kernels: recipes listed, built on hosts, proven again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bringup.cli.options import COMMON, FORMAT, Option, Options, verb

if TYPE_CHECKING:
    from bringup.environments.kernels.recipe import Recipe

KERNEL = Option("kernel", help="recipe under kernels/, NAME or NAME@REVISION; may be given again (default: those of "
                "the deployment)", many=True)


@verb([*COMMON, KERNEL], name="kernel.build")
def build(options: Options) -> int:
    """Build kernels once per kind of host, prove each by a computation, spread it to hosts of the same kind."""
    from bringup.base.paths import Project
    from bringup.cli.running import run_playbook

    playbook = Project.find().root / "playbooks" / "kernel_build.yml"
    return int(run_playbook(options, playbook, verb="kernel.build", extra_vars=_named(options)))


@verb([*COMMON, KERNEL], name="kernel.verify")
def verify(options: Options) -> int:
    """Prove the kernels on the hosts again: every file as built, and the computation (exit 4)."""
    from bringup.base.paths import Project
    from bringup.cli.running import run_playbook

    playbook = Project.find().root / "playbooks" / "kernel_verify.yml"
    return int(run_playbook(options, playbook, verb="kernel.verify", extra_vars=_named(options)))


@verb([KERNEL, FORMAT], name="kernel.list")
def list_(options: Options) -> int:
    """List the recipes: purpose, revisions, what names a build, CPU variants, options."""
    from bringup.base.paths import Project
    from bringup.environments.kernels.recipe import load_recipe, names

    folder = Project.find().root / "kernels"
    found = [load_recipe(folder, name) for name in options.kernel or names(folder)]
    if options.format == "json":
        print(json.dumps([_data(recipe) for recipe in found]))
        return 0
    for recipe in found:
        _show(recipe, full=bool(options.kernel))
    return 0


def _named(options: Options) -> dict[str, Any]:
    """The kernels given with --kernel, checked before anything is contacted."""
    from bringup.base.paths import Project
    from bringup.environments.kernels.recipe import load_recipe

    for name in options.kernel:
        base, _, revision = name.partition("@")
        load_recipe(Project.find().root / "kernels", base).at(revision or None)
    return {"kernel_names": list(options.kernel)} if options.kernel else {}


def _show(recipe: Recipe, *, full: bool) -> None:
    from bringup.base.text import size

    print(f"{recipe.name:<14} {recipe.purpose}")
    for name, source in recipe.revisions.items():
        where = (f"{source.main.git} {source.main.revision[:12]}" if source.main else
                 f"kernels/{recipe.name}/{source.label}")
        default = "" if name != recipe.revision or len(recipe.revisions) == 1 else " (default)"
        print(f"{'':<14}   {name:<10} {where}{default}")
    parts = ", ".join(recipe.uses) or "machine alone"
    print(f"{'':<14}   named by   source, steps, {parts}")
    if full:
        print(f"{'':<14}   memory     {size(recipe.memory_per_job)} for each compiler at a time")
    if recipe.cpu:
        print(f"{'':<14}   cpu        {', '.join(item.name for item in recipe.cpu)} (the first that the host has)")
    if recipe.note and full:
        print(f"{'':<14}   note       {recipe.note}")
    for name, row in recipe.options.items() if full else ():
        values = "|".join(row.values)
        print(f"{'':<14}   option     {name}{'=' + values if values else ''}  {row.help}")


def _data(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name, "purpose": recipe.purpose, "uses": list(recipe.uses), "note": recipe.note,
        "revisions": {name: {"git": source.main.git, "revision": source.main.revision} if source.main else
                      {"folder": source.label} for name, source in recipe.revisions.items()},
        "cpu": {item.name: list(item.flags) for item in recipe.cpu},
        "options": {name: {"values": list(row.values), "help": row.help} for name, row in recipe.options.items()},
    }
