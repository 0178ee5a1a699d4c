"""The table of modules that playbooks may use: the general ones, and those of our own rooms.

A room adds its modules with one line in `_OWN`: the place of a function that gives ModuleSpecs. The rooms are imported
in that order, and no further than to the first that has the name asked for: no two may give the same name.
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
    """Modules by each of their names. A general one is imported when it is asked for, our own rooms one after the other
    when a name is asked for that is no general one."""

    def __init__(self) -> None:
        from bringup.run.modules.specs import general_names

        self._general = general_names()
        self._found: dict[str, ModuleSpec] = {}
        self._rooms = list(_OWN)
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
            while self._rooms:
                self._next_room()
        return self._found

    def _next_room(self) -> None:
        module, _, function = self._rooms.pop(0).partition(":")
        self._add(getattr(importlib.import_module(module), function)())

    def __getitem__(self, name: str) -> ModuleSpec:
        if name not in self._found and name in self._general:
            from bringup.run.modules.specs import general_module

            self._add([general_module(self._general[name])])
        while name not in self._found and self._rooms:
            self._next_room()
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


@lru_cache(maxsize=1)
def module_table() -> ModuleTable:
    """Every module that a playbook may name."""
    return ModuleTable()
