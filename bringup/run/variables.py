"""What variables a task sees on a host: Ansible's precedence for what is supported, the highest first.

loop variable, magic names, --extra-vars, include and role parameters, set_fact and registered results, include_vars,
task and block variables, role variables, variable files and variables of the play, facts, inventory, role defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2.utils import missing

from bringup import __version__
from bringup.base.errors import InputError
from bringup.base.yaml import YamlMap
from bringup.inventory.model import Inventory
from bringup.playbook.jinja import StillToCome
from bringup.playbook.loading import Loaded
from bringup.playbook.lookups import find_file
from bringup.playbook.model import Play, Role, Task
from bringup.playbook.reading import listed
from bringup.playbook.templating import Engine, Layer, Pending, Scope, UndefinedFailure

if TYPE_CHECKING:
    from bringup.run.hosts import HostState

CONNECTION_NAMES = frozenset({
    "ansible_host", "ansible_port", "ansible_user", "ansible_connection", "ansible_password", "ansible_become",
    "ansible_become_user", "ansible_become_password", "ansible_become_method", "ansible_python_interpreter",
    "ansible_ssh_private_key_file", "ansible_ssh_common_args",
})
"""Names beginning with `ansible_` that are no facts: they are read while facts are still to come."""


class Facts:
    """Facts of a host, by their own name and under `ansible_facts`. While they are gathered, names of facts wait."""

    def __init__(self) -> None:
        self.top: dict[str, Any] = {}
        self.inner: dict[str, Any] = {}
        self.gathering = 0

    def update(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            short = name[len("ansible_"):] if name.startswith("ansible_") else name
            self.inner[short] = value
            self.top[name] = value

    def clear(self) -> None:
        self.top.clear()
        self.inner.clear()

    def get(self, name: str, default: Any = None) -> Any:
        if self.gathering and name.startswith("ansible_") and name not in CONNECTION_NAMES:
            raise StillToCome(name)
        if name == "ansible_facts":
            return self.inner
        return self.top.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.top, "ansible_facts"))


class Names:
    """Names that are worked out when they are read."""

    def __init__(self, values: Mapping[str, Any], made: Mapping[str, Callable[[], Any]]) -> None:
        self.values = values
        self.made = made

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.values:
            return self.values[name]
        make = self.made.get(name)
        return make() if make else default

    def __iter__(self) -> Iterator[str]:
        return iter((*self.values, *self.made))


class HostView(Mapping[str, Any]):
    """The variables of a host as `hostvars[host]` shows them."""

    def __init__(self, scope: Scope, ask: Callable[[str], None]) -> None:
        self._scope = scope
        self._ask = ask

    def __getitem__(self, name: str) -> Any:
        self._ask(name)
        found = self._scope.find(name)
        if found is missing:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._scope.names()))

    def __len__(self) -> int:
        return len(self._scope.names())

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True


class HostVars(Mapping[str, Any]):
    """`hostvars`: every host of the inventory, its variables rendered when they are read."""

    def __init__(self, names: Sequence[str], view: Callable[[str], HostView]) -> None:
        self._names = names
        self._view = view
        self._known = frozenset(names)

    def __getitem__(self, name: str) -> HostView:
        if name not in self._known and name != "localhost":
            raise KeyError(name)
        return self._view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Variables:
    """Builds scopes. `ask_other(asking host, other host, name)` may raise StillToCome for another host's value."""

    def __init__(self, inventory: Inventory, engine: Engine, loaded: Loaded, extra_vars: Mapping[str, Any],
                 options: Mapping[str, Any], state: Callable[[str], HostState],
                 ask_other: Callable[[str, str, str], None]) -> None:
        self.inventory = inventory
        self.engine = engine
        self.loaded = loaded
        self.extra = Layer(extra_vars)
        self.options = options
        self.state = state
        self.ask_other = ask_other
        self.groups = {name: inventory.group_hosts(name) for name in inventory.groups}
        self._inventory: dict[str, Layer] = {}
        self._roles: dict[int, tuple[list[Layer], list[Layer]]] = {}
        self._magic: dict[tuple[str, int, int], Names] = {}
        self._files: dict[tuple[int, str], list[Layer]] = {}
        self.play_hosts: Callable[[], tuple[str, ...]] = tuple
        self.play_hosts_all: tuple[str, ...] = ()
        self.play_batch: Callable[[], tuple[str, ...]] = tuple

    def begin_play(self) -> None:
        """Forget what belongs to one play."""
        self._magic.clear()
        self._files.clear()

    def scope(self, host: HostState, play: Play, task: Task | None = None, *, top: Sequence[Layer] = (),
              settled: bool = False) -> Scope:
        """What a task of a play sees on a host. `top` goes above everything (loop variables)."""
        role = task.role if task else None
        layers = [*top, Layer(self._magic_of(host.name, play, role), trusted=False), self.extra]
        if task:
            layers += [Layer(table) for table in reversed(task.keywords.include_params)]
            if role:
                layers += [Layer(one.params) for one in (role, *reversed(role.parents)) if one.params]
        layers += [Layer(host.values, trusted=False), Layer(host.included)]
        if task:
            layers += [Layer(table) for table in reversed(task.keywords.vars)]
        high, low = self._role_layers(role) if role else ([], [])
        layers += high
        exported = [*play.roles, *play.extra_roles]
        layers += [Layer(one.vars) for one in reversed(exported) if one.vars]
        search = task.search if task else (play.folder,)
        if play.vars_files:
            layers += self._vars_files(host, play, layers)
        layers += [Layer(play.vars), Layer(host.facts, trusted=False),  # type: ignore[arg-type]
                   self._inventory_of(host.name), Layer(play.connection)]
        layers += low
        layers += [Layer(one.defaults) for one in reversed(exported) if one.defaults]
        return Scope(self.engine, layers, search=search, settled=settled)

    def _role_layers(self, role: Role) -> tuple[list[Layer], list[Layer]]:
        found = self._roles.get(id(role))
        if found is None:
            below = role.all_dependencies()
            high = [role.entry_vars, role.vars, *(one.vars for one in reversed(below)),
                    *(one.vars for one in reversed(role.parents))]
            low = [role.defaults, *(one.defaults for one in reversed(role.parents)),
                   *(one.defaults for one in reversed(below))]
            found = ([Layer(table) for table in high if table], [Layer(table) for table in low if table])
            self._roles[id(role)] = found
        return found

    def _inventory_of(self, host: str) -> Layer:
        layer = self._inventory.get(host)
        if layer is None:
            layer = self._inventory[host] = Layer(self.inventory.variables(host))
        return layer

    def _magic_of(self, host: str, play: Play, role: Role | None) -> Any:
        key = (host, id(play), id(role))
        found = self._magic.get(key)
        if found is None:
            found = self._magic[key] = self._make_magic(host, play, role)
        return found

    def _make_magic(self, host: str, play: Play, role: Role | None) -> Names:
        sources = self.inventory.sources
        first = Path(sources[0]) if sources else Path.cwd()
        values: dict[str, Any] = {
            "inventory_hostname": host,
            "inventory_hostname_short": host.split(".")[0],
            "groups": self.groups,
            "playbook_dir": str(play.folder),
            "inventory_dir": str(first.resolve() if first.is_dir() else first.resolve().parent),
            "inventory_file": str(first.resolve()),
            "ansible_play_name": play.name,
            "ansible_play_hosts_all": list(self.play_hosts_all),
            "ansible_playbook_python": sys.executable,
            "ansible_version": {"full": "2.19.0", "major": 2, "minor": 19, "revision": 0, "string": "2.19.0"},
            "bringup_version": __version__,
            "ansible_role_names": [one.name for one in play.roles],
            "ansible_play_role_names": [one.name for one in play.roles if not one.parents],
            "role_names": [one.name for one in play.roles],
            **self.options,
        }
        if role:
            values.update(role_name=role.name, ansible_role_name=role.name, role_path=str(role.path))
            if role.parents and role.from_include:
                values.update(ansible_parent_role_names=[one.name for one in reversed(role.parents)],
                              ansible_parent_role_paths=[str(one.path) for one in reversed(role.parents)])
        made: dict[str, Callable[[], Any]] = {
            "group_names": lambda: self.inventory.group_names(host),
            "hostvars": lambda: HostVars(list(self.inventory.hosts), lambda name: self._view(host, name, play)),
            "ansible_play_hosts": lambda: list(self.play_hosts()),
            "ansible_play_batch": lambda: list(self.play_batch()),
            "play_hosts": lambda: list(self.play_batch()),
        }
        return Names(values, made)

    def _view(self, asking: str, name: str, play: Play) -> HostView:
        scope = self.scope(self.state(name), play)
        return HostView(scope, lambda variable: self.ask_other(asking, name, variable))

    def _vars_files(self, host: HostState, play: Play, above: Sequence[Layer]) -> list[Layer]:
        key = (id(play), host.name)
        done = self._files.get(key)
        if done is not None:
            return done
        out: list[Layer] = []
        scope = Scope(self.engine, [*above, Layer(play.vars), Layer(host.facts, trusted=False),  # type: ignore[arg-type]
                                    self._inventory_of(host.name)], search=(play.folder,))
        for choices in play.vars_files:
            try:
                table = self._one_vars_file(choices, scope)
            except UndefinedFailure:
                continue  # as in Ansible: a name that needs what is not known yet is left out
            if table is not None:
                out.insert(0, Layer(table))
        if not host.facts.gathering:
            self._files[key] = out
        return out

    def _one_vars_file(self, choices: Sequence[Any], scope: Scope) -> Mapping[str, Any] | None:
        names = [str(name) for choice in choices for name in listed(self.engine.render(choice, scope))]
        for name in names:
            path = find_file(name, scope.search, "vars")
            if path is not None:
                return self.variables_file(path)
        return None

    def variables_file(self, path: Path) -> Mapping[str, Any]:
        """A file of variables. Raises InputError when it is no mapping."""
        raw = self.loaded.reading.file(path)
        if raw is None:
            return {}
        if not isinstance(raw, YamlMap):
            raise InputError("a file of variables must be a mapping", where=str(path))
        return raw


def put_pending(values: dict[str, Any], name: str) -> None:
    """Mark a name as still to come, keeping what it had before."""
    old = values.get(name, missing)
    if isinstance(old, Pending):
        return
    values[name] = Pending() if old is missing else Pending(old)


