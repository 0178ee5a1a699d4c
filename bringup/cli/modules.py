"""The table of modules that playbooks may use: the general ones, and those of our own rooms.

A room adds its modules with one line in `_OWN`: the place of a function that gives ModuleSpecs. They are imported
when a playbook is read.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.run.actions import ModuleSpec

_OWN: tuple[str, ...] = (
    "bringup.environments.specs:environment_modules",
    # "bringup.ROOM.MODULE:function", the function returns a list of ModuleSpec
    "bringup.preflight.action:modules",
    "bringup.releases.contract:specs",
    "bringup.releases.modules:specs",
)


@lru_cache(maxsize=1)
def module_table() -> dict[str, ModuleSpec]:
    """Every module by its name and by each of its other names."""
    from bringup.run.modules.specs import general_modules

    specs = list(general_modules())
    for place in _OWN:
        module, _, function = place.partition(":")
        specs.extend(getattr(importlib.import_module(module), function)())
    out: dict[str, ModuleSpec] = {}
    for spec in specs:
        for name in (spec.name, *spec.aliases):
            out[name] = spec
    return out
