"""Host variables rendered outside of a run: what `invoke plan` works with, where nothing is gathered from hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bringup.base.errors import InputError
from bringup.inventory.model import Inventory
from bringup.playbook.templating import Engine, Layer, Scope, TemplateFailure


class HostVariables(Mapping[str, Any]):
    """A host's variables, each rendered when it is read. Raises InputError for one that cannot be rendered, as one that
    uses an unknown name: nothing was contacted yet."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine = engine
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        for layer in self._scope.layers:
            if name in layer.values:
                try:
                    return self._engine.render(layer.values[name], self._scope)
                except TemplateFailure as error:
                    raise as_input(error) from None
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope.names())

    def __len__(self) -> int:
        return len(self._scope.names())


def as_input(error: TemplateFailure) -> InputError:
    """What a template lacks, as wrong input: for what is rendered before a host is contacted."""
    next_ = "--ask-api-key asks for it" if "`bringup_api_key`" in error.what else error.next
    return InputError(error.what, where=error.where, expected=error.expected, found=error.found, details=error.details,
                      next=next_)


def rendered(inventory: Inventory, more: Mapping[str, Mapping[str, Any]] | None = None
             ) -> Callable[[str], Mapping[str, Any]]:
    """A function from host to its variables. `more` are variables by host that win over the inventory's."""
    engine = Engine(inventory.vault)
    done: dict[str, HostVariables] = {}

    def of(host: str) -> Mapping[str, Any]:
        if host not in done:
            magic = {"inventory_hostname": host, "inventory_hostname_short": host.split(".")[0],
                     "group_names": inventory.group_names(host)}
            layers = [Layer(inventory.extra_vars), Layer(magic), Layer((more or {}).get(host, {})),
                      Layer(inventory.variables(host))]
            done[host] = HostVariables(engine, Scope(engine, layers))
        return done[host]

    return of
