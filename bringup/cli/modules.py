"""The table of modules that playbooks may use: the general ones, and those of our own rooms.

A room adds its modules with one line in `_OWN`: the place of a function that gives ModuleSpecs. They are imported
when a playbook is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.run.actions import ModuleSpec

_OWN: tuple[str, ...] = (
    "bringup.run.unlocking:specs",
    "bringup.environments.specs:environment_modules",
    "bringup.environments.kernels.specs:kernel_modules",
    "bringup.weights.specs:weights_modules",
    "bringup.bundle.hosts:modules",
    # "bringup.ROOM.MODULE:function", the function returns a list of ModuleSpec
    "bringup.preflight.action:modules",
    "bringup.releases.contract:specs",
    "bringup.releases.modules:specs",
    "bringup.gates.action:specs",
)


class ModuleTable(Mapping[str, "ModuleSpec"]):
    """Modules by each of their names. A general one is imported when it is asked for, our own rooms when a name is
    asked for that is no general one."""

    def __init__(self) -> None:
        from bringup.run.modules.specs import general_names

        self._general = general_names()
        self._found: dict[str, ModuleSpec] = {}
        self._complete = False

    def _add(self, specs: Iterable[ModuleSpec]) -> None:
        for spec in specs:
            for name in (spec.name, *spec.aliases):
                self._found[name] = spec

    def _all(self) -> dict[str, ModuleSpec]:
        if not self._complete:
            from bringup.run.modules.specs import general_modules

            self._complete = True
            self._add(general_modules())
            for place in _OWN:
                module, _, function = place.partition(":")
                self._add(getattr(importlib.import_module(module), function)())
        return self._found

    def __getitem__(self, name: str) -> ModuleSpec:
        if name not in self._found and name in self._general:
            from bringup.run.modules.specs import general_module

            self._add([general_module(self._general[name])])
        return self._found[name] if name in self._found else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


@lru_cache(maxsize=1)
def module_table() -> ModuleTable:
    """Every module that a playbook may name."""
    return ModuleTable()
