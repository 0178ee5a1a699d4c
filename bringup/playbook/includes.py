"""Imports, put in place while reading, and includes, opened while running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import YamlMap, key_origin, value_origin
from bringup.playbook import keywords as words
from bringup.playbook.arguments import split_words, unquote
from bringup.playbook.lookups import find_file
from bringup.playbook.model import Include, Keywords, Node, Role, Task, under
from bringup.playbook.reading import Place, Reading, keywords, shown_path
from bringup.playbook.values import looks_templated

INCLUDES = frozenset({"import_tasks", "include_tasks", "import_role", "include_role", "include_vars"})
_TASKS = frozenset({"file", "apply"})
_ROLE = frozenset({"name", "role", "tasks_from", "vars_from", "defaults_from", "handlers_from", "apply", "public",
                   "allow_duplicates", "rolespec_validate"})
_VARS = frozenset({"file", "name"})
_DEEPEST = 30


def read_include(reading: Reading, action: str, raw: YamlMap, value: Any, own: Keywords, place: Place
                 ) -> list[Node] | Task:
    """The nodes that a static import brings, or the task that a dynamic include is."""
    where = key_origin(raw, action) or raw.origin
    args = _arguments(reading, action, value, raw, where)
    task = Task(name=str(raw.get("name") or action), action=action, origin=raw.origin, args=args,
                keywords=under(place.keywords, own), search=place.search)
    if action == "import_tasks":
        return import_tasks(reading, args, own, place, where)
    if action == "import_role":
        return _import_role(reading, args, own, place, where)
    task.include = Include(
        what=action.partition("_")[2],
        apply=_apply(reading, args, where),
        allow_duplicates=bool(args.get("allow_duplicates", True)),
        public=bool(args.get("public", False)),
    )
    reading.places[id(task)] = place
    reading.kept.append(task)
    _look_ahead(reading, task, where)
    return task


def _arguments(reading: Reading, action: str, value: Any, raw: YamlMap, where: Origin) -> YamlMap:
    known = {"tasks": _TASKS, "role": _ROLE, "vars": _VARS}[action.partition("_")[2]]
    out = YamlMap(where)
    extra = raw.get("args")
    if isinstance(value, str):
        for word in split_words(value):
            key, equals, item = word.partition("=")
            if equals and key in known:
                out[key] = unquote(item)
            else:
                out["file" if "file" in known else "name"] = unquote(value) if " " not in value else word
    elif isinstance(value, dict):
        out.update(value)
        if isinstance(value, YamlMap):
            out.key_origins.update(value.key_origins)
            out.value_origins.update(value.value_origins)
    if isinstance(extra, dict):
        out.update(extra)
    for key in [key for key in out if key not in known]:
        near = nearest(str(key), known)
        reading.problem(InputError(f"`{action}` has no argument `{key}`", where=out.key_origins.get(key, where),
                                   next=f"nearest: {near}" if near else None))
    if "role" in out:
        out["name"] = out.pop("role")
    if not (out.get("file") or out.get("name")):
        reading.problem(InputError(f"`{action}` needs a name", where=where))
    reading.check_templates(dict(out))
    return out


def _apply(reading: Reading, args: YamlMap, where: Origin) -> Mapping[str, Any]:
    value = args.get("apply")
    if value is None:
        return {}
    if not isinstance(value, YamlMap):
        reading.problem(InputError("`apply` must be a mapping of keywords", where=value_origin(args, "apply") or where))
        return {}
    return value


def import_tasks(reading: Reading, args: YamlMap, own: Keywords, place: Place, where: Origin) -> list[Node]:
    """The tasks of another file in place of the import."""
    name = str(reading.static(args.get("file"), place.play.vars, where) or "")
    path = tasks_file(name, place, where)
    return read_file(reading, path, place.under(under(place.keywords, own)), where)


def tasks_file(name: str, place: Place, where: Origin) -> Path:
    """The file that an import or include of tasks names. Raises InputError with the nearest name."""
    folders = [place.folder]
    if place.role:
        folders += [place.role.path / "tasks", *(role.path / "tasks" for role in place.role.parents)]
    folders.append(place.play.folder)
    for folder in folders:
        for candidate in (folder / name, folder / "tasks" / name):
            if candidate.is_file():
                return candidate.resolve()
    seen = [path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.suffix == ".yml"]
    near = nearest(name, seen)
    raise InputError(f"no file of tasks `{name}`", where=where,
                     details=[f"looked in {shown_path(folder)}" for folder in dict.fromkeys(folders)],
                     next=f"nearest: {near}" if near else None)


def read_file(reading: Reading, path: Path, place: Place, where: Origin) -> list[Node]:
    """The tasks of a file. A file that brings itself in statically is an error."""
    from bringup.playbook.tasks import read_tasks

    if path in place.files and not place.dynamic:
        raise InputError(f"{shown_path(path)} imports itself", where=where,
                         details=[f"through {shown_path(one)}" for one in place.files])
    if len(place.files) > _DEEPEST:
        raise InputError(f"files of tasks are nested deeper than {_DEEPEST}", where=where)
    inner = replace(place, folder=path.parent, files=(*place.files, path))
    return read_tasks(reading, reading.file(path), inner, Origin(shown_path(path), 1))


def _import_role(reading: Reading, args: YamlMap, own: Keywords, place: Place, where: Origin) -> list[Node]:
    from bringup.playbook.roles import read_role

    name = str(reading.static(args.get("name"), place.play.vars, where) or "")
    role = read_role(reading, name, place.under(under(place.keywords, own)), where, parts=args)
    if role is None:
        return []
    place.play.extra_roles.append(role)
    add_handlers(place, role)
    return [*(node for one in role.all_dependencies() for node in one.tasks), *role.tasks]


def _look_ahead(reading: Reading, task: Task, where: Origin) -> None:
    """Check what a dynamic include of literal name will bring."""
    name = task.args.get("file") or task.args.get("name")
    assert task.include is not None
    if task.include.what == "vars":
        _check_vars_file(reading, task, where)
        return
    if not isinstance(name, str) or looks_templated(name):
        reading.unknown_handlers = reading.unknown_handlers or task.include.what == "role"
        return
    try:
        open_include(reading, task, name, ahead=True)
    except InputError as error:
        reading.problem(error)


def _check_vars_file(reading: Reading, task: Task, where: Origin) -> None:
    name = task.args.get("file")
    if isinstance(name, str) and not looks_templated(name) and find_file(name, task.search, "vars") is None:
        reading.problem(InputError(f"no file of variables `{name}`", where=where,
                                   details=[f"looked in {shown_path(folder / 'vars')}" for folder in task.search]))


def open_include(reading: Reading, task: Task, name: str, *, ahead: bool = False) -> list[Node]:
    """The nodes that an include brings under this name. The same for all hosts, so read once.

    `ahead` is the check before the run: a file that includes itself under a condition ends there.
    """
    place = reading.places[id(task)]
    assert task.include is not None
    key = (id(task), name)
    if key in reading.opened:
        return reading.opened[key]
    if task.include.what == "tasks":
        path = tasks_file(name, place, task.origin)
        if ahead and path in place.files:
            return []
    reading.opened[key] = []
    reading.opened[key] = _open(reading, task, name, place)
    return reading.opened[key]


def _open(reading: Reading, task: Task, name: str, place: Place) -> list[Node]:
    from bringup.playbook.roles import read_role

    assert task.include is not None
    apply = task.include.apply
    given = keywords(reading, apply, words.BLOCK, "block") if isinstance(apply, YamlMap) else Keywords()
    # an include is a task of its own: what it says is for it alone, except its variables and `apply`
    own_vars = task.keywords.vars[len(place.keywords.vars):]
    inherited = replace(place.keywords, include_params=(*place.keywords.include_params, *own_vars))
    inner = replace(place, keywords=under(inherited, given), dynamic=True)
    if task.include.what == "tasks":
        return read_file(reading, tasks_file(name, place, task.origin), inner, task.origin)
    role = read_role(reading, name, inner, task.origin, parts=task.args)
    if role is None:
        return []
    reading.included[id(task), name] = (place, role)
    if task.include.public:
        place.play.extra_roles.append(role)
    return [*(node for one in role.all_dependencies() for node in one.tasks), *role.tasks]


def begin_include(reading: Reading, task: Task, name: str) -> None:
    """What an included role brings to its play when a host comes to it: its handlers, once."""
    found = reading.included.get((id(task), name))
    if found is not None and (id(task), name) not in reading.begun:
        reading.begun.add((id(task), name))
        add_handlers(*found)


def add_handlers(place: Place, role: Role) -> None:
    """The handlers of a role and of what it depends on, behind those that the play has."""
    for one in (*role.all_dependencies(), role):
        place.play.late_handlers.extend(one.handlers)
