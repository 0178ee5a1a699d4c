"""Reading roles: their folder, files, variables and dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import YamlMap, key_origin, origin_of, value_origin
from bringup.playbook import keywords as words
from bringup.playbook.model import Node, Role, under
from bringup.playbook.reading import Place, Reading, keywords, listed, shown_path, variables

_SUFFIXES = (".yml", ".yaml", ".json", "")
_PLUGINS = ("library", "module_utils", "filter_plugins", "lookup_plugins", "test_plugins", "action_plugins",
            "callback_plugins", "strategy_plugins")
_DEEPEST = 20


def read_entry(reading: Reading, raw: Any, place: Place, where: Origin) -> list[Role]:
    """A role of a `roles:` list or of `dependencies`, after the roles that it depends on."""
    entry = raw
    if isinstance(raw, str):
        entry = YamlMap(origin_of(raw) or where)
        entry["role"] = raw
    if not isinstance(entry, YamlMap):
        reading.problem(InputError("a role is a name or a mapping with `role`", where=origin_of(raw) or where))
        return []
    name = entry.get("role", entry.get("name"))
    if not name:
        reading.problem(InputError("a role without a name", where=entry.origin))
        return []
    known = YamlMap(entry.origin)
    params: dict[str, Any] = {}
    for key, value in entry.items():
        if key in words.ROLE:
            known[key] = value
            known.key_origins[key] = entry.key_origins.get(key, entry.origin)
            known.value_origins[key] = entry.value_origins.get(key, entry.origin)
        elif key in words.REFUSED:
            reading.problem(words.unknown_keyword(key, words.ROLE, "role entry", key_origin(entry, key)))
        else:
            params[str(key)] = value
            reading.check_templates(value)
    own = keywords(reading, known, words.ROLE, "role entry")
    entry_vars = {key: value for table in own.vars for key, value in table.items()}
    inner = place.under(under(place.keywords, replace(own, vars=())))
    text = str(reading.static(name, place.play.vars, value_origin(entry, "role") or entry.origin))
    role = read_role(reading, text, inner, value_origin(entry, "role" if "role" in entry else "name") or entry.origin,
                     entry_vars=entry_vars, params=params)
    return [role] if role else []


def read_role(reading: Reading, name: str, place: Place, where: Origin, *, parts: Mapping[str, Any] | None = None,
              entry_vars: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None) -> Role | None:
    """A role with all that belongs to it. `parts` are the `tasks_from` and like arguments of an include."""
    path = _folder(reading, name, place, where)
    parts = parts or {}
    parents = (*place.role.parents, place.role) if place.role else ()
    if len(parents) > _DEEPEST:
        raise InputError("roles depend on each other in a circle", where=where,
                         found=" -> ".join(role.name for role in parents[:6]))
    _refuse_plugins(reading, path)
    role = Role(
        name=path.name,
        path=path,
        defaults=_variables(reading, path, "defaults", str(parts.get("defaults_from") or "main")),
        vars=_variables(reading, path, "vars", str(parts.get("vars_from") or "main")),
        entry_vars=entry_vars or {},
        params=params or {},
        parents=parents,
        from_include=bool(parts),
        origin=where,
    )
    inner = replace(place, role=role, folder=path / "tasks")
    _dependencies(reading, role, inner)
    role.handlers.extend(_part(reading, inner, "handlers", str(parts.get("handlers_from") or "main"),
                               required="handlers_from" in parts, where=where))
    role.tasks.extend(_part(reading, inner, "tasks", str(parts.get("tasks_from") or "main"),
                            required="tasks_from" in parts, where=where))
    return role


def _folder(reading: Reading, name: str, place: Place, where: Origin) -> Path:
    tops = [place.play.folder / "roles", *reading.roles_paths, place.play.folder]
    if place.role:
        tops.insert(0, place.role.path.parent)
    for top in dict.fromkeys(tops):
        if (top / name).is_dir():
            return (top / name).resolve()
    seen = [path.name for top in tops[:-1] if top.is_dir() for path in top.iterdir() if path.is_dir()]
    near = nearest(name, seen)
    raise InputError(f"no role `{name}`", where=where,
                     details=[f"looked in {shown_path(top)}" for top in dict.fromkeys(tops)],
                     next=f"nearest: {near}" if near else None)


def _refuse_plugins(reading: Reading, path: Path) -> None:
    for name in _PLUGINS:
        if (path / name).is_dir():
            reading.problem(InputError(f"{name} in a role are not supported", where=shown_path(path / name)))


def _file(path: Path, folder: str, name: str) -> Path | None:
    for suffix in _SUFFIXES:
        candidate = path / folder / f"{name}{suffix}"
        if candidate.is_file():
            return candidate
    return None


def _variables(reading: Reading, path: Path, folder: str, name: str) -> Mapping[str, Any]:
    files: list[Path] = []
    file = _file(path, folder, name)
    if file:
        files.append(file)
    elif (path / folder / name).is_dir():
        files.extend(sorted(one for one in (path / folder / name).rglob("*") if one.suffix in (".yml", ".yaml")))
    elif name != "main":
        raise InputError(f"no {folder}/{name} in the role", where=shown_path(path))
    out = YamlMap(Origin(shown_path(path / folder)))
    for one in files:
        raw = reading.file(one)
        if raw is None:
            continue
        if not isinstance(raw, YamlMap):
            reading.problem(InputError("a file of variables must be a mapping",
                                       where=origin_of(raw) or shown_path(one)))
            continue
        holder = YamlMap(raw.origin)
        holder["vars"] = raw
        variables(reading, holder, "vars")
        out.update(raw)
        out.key_origins.update(raw.key_origins)
        out.value_origins.update(raw.value_origins)
    return out


def _part(reading: Reading, place: Place, folder: str, name: str, *, required: bool, where: Origin) -> list[Node]:
    from bringup.playbook.includes import read_file

    assert place.role is not None
    path = place.role.path
    file = _file(path, folder, name.removesuffix(".yml").removesuffix(".yaml"))
    if file is None:
        if required:
            seen = [one.stem for one in (path / folder).glob("*.y*ml")]
            near = nearest(name, seen)
            raise InputError(f"the role `{place.role.name}` has no {folder}/{name}", where=where,
                             next=f"nearest: {near}" if near else None)
        return []
    inner = replace(place, handler=folder == "handlers", files=(), folder=path / folder)
    return read_file(reading, file.resolve(), inner, where)


def _dependencies(reading: Reading, role: Role, place: Place) -> None:
    file = _file(role.path, "meta", "main")
    raw = reading.file(file) if file else None
    if not isinstance(raw, YamlMap):
        return
    for entry in listed(raw.get("dependencies")):
        if isinstance(entry, YamlMap) and "role" not in entry and "name" not in entry:
            reading.problem(InputError("a dependency names a role", where=entry.origin,
                                       next="roles from Galaxy are not fetched here"))
            continue
        inner = replace(place, folder=place.play.folder)
        role.dependencies.extend(read_entry(reading, entry, inner, key_origin(raw, "dependencies") or raw.origin))


def allows_duplicates(reading: Reading, role: Role) -> bool:
    """What the role's meta says of running twice in a play."""
    file = _file(role.path, "meta", "main")
    raw = reading.file(file) if file else None
    return bool(isinstance(raw, YamlMap) and raw.get("allow_duplicates"))
