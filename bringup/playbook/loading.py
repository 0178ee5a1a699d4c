"""Reading a playbook file: plays, imports of playbooks, and the checks that need no host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import YamlMap, origin_of, value_origin
from bringup.playbook import keywords as words
from bringup.playbook.includes import begin_include, open_include
from bringup.playbook.lookups import find_file
from bringup.playbook.model import Keywords, Module, Node, Play, Playbook, Role, Task, under, walk
from bringup.playbook.reading import Place, Reading, keywords, listed, mapping, shown_path
from bringup.playbook.roles import allows_duplicates, read_entry
from bringup.playbook.selection import Selection
from bringup.playbook.tasks import read_tasks
from bringup.playbook.templating import Engine
from bringup.playbook.values import looks_templated

_STRATEGIES = ("linear", "free")
_ORDERS = ("inventory", "sorted", "reverse_sorted", "reverse_inventory")


@dataclass(frozen=True)
class Loaded:
    """A playbook that was read and checked, and what opens its dynamic includes."""

    playbook: Playbook
    reading: Reading

    def include(self, task: Task, name: str) -> list[Node]:
        """The nodes of a dynamic include. Raises InputError when the file or role is not there or wrong."""
        nodes = open_include(self.reading, task, name)
        begin_include(self.reading, task, name)
        self.reading.raise_problems()
        return nodes


def load_playbook(path: Path, modules: Mapping[str, Module], engine: Engine, *, roles_paths: Sequence[Path] = (),
                  extra_vars: Mapping[str, Any] | None = None, selection: Selection | None = None,
                  text: str | None = None) -> Loaded:
    """Read and check a playbook, from `text` where it is given. `modules` is by name and alias.

    Raises InputError with every problem and its place.
    """
    reading = Reading(modules, engine, extra_vars or {}, selection or Selection(), tuple(roles_paths))
    if text is not None:
        reading.give(path.resolve(), text)
    plays = _plays(reading, path.resolve(), Keywords(), ())
    for play in plays:
        _check_handlers(reading, play)
    reading.raise_problems()
    reading.selection.check(reading.tags)
    return Loaded(Playbook(path, tuple(plays), tuple(reading.warnings)), reading)


def _plays(reading: Reading, path: Path, inherited: Keywords, chain: tuple[Path, ...]) -> list[Play]:
    if path in chain:
        raise InputError("the playbook imports itself", where=shown_path(path))
    raw = reading.file(path)
    shown = shown_path(path)
    if raw is None:
        raise InputError("the playbook is empty", where=shown)
    if not isinstance(raw, list):
        raise InputError("a playbook is a list of plays", where=origin_of(raw) or Origin(shown, 1),
                         next="start each play with `- name:` and `hosts:`")
    out: list[Play] = []
    for item in raw:
        try:
            entry = mapping(item, "a play", Origin(shown, 1))
            if _import_key(entry):
                out.extend(_imported(reading, entry, path, inherited, chain))
            else:
                out.append(_play(reading, entry, path, inherited))
        except InputError as error:
            reading.problem(error)
    return out


def _import_key(entry: YamlMap) -> str | None:
    return next((key for key in ("import_playbook", "ansible.builtin.import_playbook") if key in entry), None)


def _imported(reading: Reading, entry: YamlMap, path: Path, inherited: Keywords, chain: tuple[Path, ...]
              ) -> list[Play]:
    key = _import_key(entry)
    assert key is not None
    own = keywords(reading, entry, words.IMPORT_PLAYBOOK, "import_playbook")
    where = value_origin(entry, key) or entry.origin
    name = str(reading.static(entry[key], {}, where))
    target = path.parent / name
    if not target.is_file():
        near = nearest(name, [one.name for one in target.parent.glob("*.y*ml")] if target.parent.is_dir() else [])
        raise InputError(f"no playbook `{name}`", where=where, details=[f"looked in {shown_path(path.parent)}"],
                         next=f"nearest: {near}" if near else None)
    return _plays(reading, target.resolve(), under(inherited, own), (*chain, path))


def _play(reading: Reading, raw: YamlMap, path: Path, inherited: Keywords) -> Play:
    own = keywords(reading, raw, words.PLAY, "play")
    hosts_where = value_origin(raw, "hosts") or raw.origin
    play_vars: dict[str, Any] = {}
    for table in (*inherited.vars, *own.vars):
        play_vars.update(table)
    hosts = _hosts(reading, raw, play_vars, hosts_where)
    play = Play(
        name=str(raw.get("name") or hosts),
        hosts=hosts,
        origin=raw.origin,
        hosts_origin=hosts_where,
        keywords=under(replace(inherited, vars=()), replace(own, vars=())),
        vars=play_vars,
        folder=path.parent,
    )
    _play_settings(reading, raw, play)
    place = Place(play, path.parent, play.keywords)
    roles = _roles(reading, raw, place)
    play.roles = [one for role in roles for one in (*role.all_dependencies(), role)]
    seen: list[Any] = []
    role_nodes: list[Node] = []
    for role in play.roles:
        mark = (role.path, dict(role.params), dict(role.entry_vars), _first_keywords(role))
        if mark in seen and not allows_duplicates(reading, role):
            continue
        seen.append(mark)
        role_nodes.extend(role.tasks)
        play.handlers.extend(role.handlers)
    pre = read_tasks(reading, raw.get("pre_tasks"), place, value_origin(raw, "pre_tasks"))
    body = read_tasks(reading, raw.get("tasks"), place, value_origin(raw, "tasks"))
    post = read_tasks(reading, raw.get("post_tasks"), place, value_origin(raw, "post_tasks"))
    play.sections = [pre, [*role_nodes, *body], post]
    play.handlers.extend(read_tasks(reading, raw.get("handlers"), replace(place, handler=True),
                                    value_origin(raw, "handlers")))
    return play


def _first_keywords(role: Role) -> Any:
    tasks = walk(role.tasks)
    return (tasks[0].keywords.when, tasks[0].keywords.tags) if tasks else ()


def _hosts(reading: Reading, raw: YamlMap, play_vars: Mapping[str, Any], where: Origin) -> str:
    if "hosts" not in raw:
        near = nearest("hosts", [str(key) for key in raw])
        raise InputError("a play needs `hosts`", where=raw.origin, next=f"is `{near}` meant?" if near else None)
    value = raw["hosts"]
    items = [reading.static(item, play_vars, where) for item in listed(value)]
    flat = [str(part) for item in items for part in listed(item)]
    if not any(part.strip() for part in flat):
        raise InputError("`hosts` is empty", where=where)
    return ",".join(flat)


def _play_settings(reading: Reading, raw: YamlMap, play: Play) -> None:
    play.gather_facts = raw.get("gather_facts")
    play.gather_subset = raw.get("gather_subset")
    play.serial = raw.get("serial")
    play.max_fail_percentage = raw.get("max_fail_percentage")
    play.any_errors_fatal = raw.get("any_errors_fatal", False)
    play.force_handlers = raw.get("force_handlers", False)
    for key in ("gather_facts", "force_handlers", "serial", "max_fail_percentage"):
        reading.check_templates(raw.get(key))
    strategy = raw.get("strategy", "free")
    if strategy not in _STRATEGIES:
        near = nearest(str(strategy), _STRATEGIES)
        reading.problem(InputError(f"the strategy `{strategy}` is not supported",
                                   where=value_origin(raw, "strategy"), expected=" or ".join(_STRATEGIES),
                                   next=f"nearest: {near}" if near else None))
    play.strategy = str(strategy)
    order = raw.get("order")
    if order is not None and order not in _ORDERS:
        reading.problem(InputError(f"the order `{order}` is not supported", where=value_origin(raw, "order"),
                                   expected=", ".join(_ORDERS)))
    play.order = order
    play.connection = {f"ansible_{key}": raw[name] for name, key in
                       (("connection", "connection"), ("remote_user", "user"), ("port", "port")) if name in raw}
    _check_serial(reading, raw)
    play.vars_files = _vars_files(reading, raw, play)


def _check_serial(reading: Reading, raw: YamlMap) -> None:
    for item in listed(raw.get("serial")):
        text = str(item)
        if looks_templated(text) or text.removesuffix("%").isdigit():
            continue
        reading.problem(InputError("`serial` takes a number, a percentage or a list of them",
                                   where=value_origin(raw, "serial"), found=text))
    value = raw.get("max_fail_percentage")
    if value is not None and not looks_templated(str(value)):
        try:
            float(value)
        except (TypeError, ValueError):
            reading.problem(InputError("`max_fail_percentage` takes a number",
                                       where=value_origin(raw, "max_fail_percentage"), found=str(value)))


def _vars_files(reading: Reading, raw: YamlMap, play: Play) -> list[Any]:
    out: list[Any] = []
    where = value_origin(raw, "vars_files") or raw.origin
    for item in listed(raw.get("vars_files")):
        choices = listed(item)
        reading.check_templates(choices)
        literal = all(isinstance(one, str) and not looks_templated(one) for one in choices)
        if literal and not any(find_file(one, (play.folder,), "vars") for one in choices):
            reading.problem(InputError(f"no file of variables `{choices[0]}`", where=where,
                                       details=[f"looked in {shown_path(play.folder)} and its vars/"]))
        out.append(choices)
    return out


def _roles(reading: Reading, raw: YamlMap, place: Place) -> list[Role]:
    out: list[Role] = []
    where = value_origin(raw, "roles") or raw.origin
    for entry in listed(raw.get("roles")):
        try:
            out.extend(read_entry(reading, entry, place, where))
        except InputError as error:
            reading.problem(error)
    return out


def handler_names(nodes: Sequence[Node]) -> dict[str, list[Task]]:
    """Handlers by every name that reaches them: name, `role : name`, topics of `listen`."""
    out: dict[str, list[Task]] = {}
    for task in walk(nodes):
        names = {task.name, task.shown_name, *task.listen}
        if task.role:
            names.add(f"{task.role.name} : {task.name}")
        for name in names:
            out.setdefault(name, []).append(task)
    return out


def _check_handlers(reading: Reading, play: Play) -> None:
    brought = [node for place, role in reading.included.values() if place.play is play
               for one in (*role.all_dependencies(), role) for node in one.handlers]
    known = handler_names([*play.all_handlers, *brought])
    if reading.unknown_handlers or any(looks_templated(name) for name in known):
        return
    opened = [task for nodes in reading.opened.values() for task in walk(nodes)]
    for task in [*play.tasks(), *walk(play.all_handlers), *opened]:
        for name in task.keywords.notify:
            if name in known or looks_templated(name) or not _belongs(reading, task, play):
                continue
            near = nearest(name, known)
            reading.problem(InputError(
                f"no handler `{name}` in this play", where=task.origin, details=[f"notified by `{task.name}`"],
                next=f"nearest: {near}" if near else "write it under `handlers:` of the play or the role"))


def _belongs(reading: Reading, task: Task, play: Play) -> bool:
    """True for a task of this play; what a dynamic include brought is judged with the play that opened it."""
    place = reading.places.get(id(task))
    return place is None or place.play is play


