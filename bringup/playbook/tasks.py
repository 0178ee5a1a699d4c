"""Reading lists of tasks: blocks, tasks, static imports put in place, dynamic includes noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import YamlMap, YamlText, key_origin, origin_of, value_origin
from bringup.playbook import keywords as words
from bringup.playbook.arguments import canonical, from_text
from bringup.playbook.includes import INCLUDES, read_include
from bringup.playbook.lookups import find_file
from bringup.playbook.model import Block, Keywords, Loop, Module, Node, Task, under
from bringup.playbook.reading import (
    Place,
    Reading,
    condition,
    conditions,
    keywords,
    listed,
    mapping,
)
from bringup.playbook.values import looks_templated

_PREFIXES = ("ansible.builtin.", "ansible.legacy.", "ansible.posix.")
_RESERVED = frozenset({"hostvars", "groups", "group_names", "inventory_hostname", "omit", "playbook_dir", "vars"})
_FILES = {"copy": ("src", "files"), "template": ("src", "templates")}


def read_tasks(reading: Reading, raw: Any, place: Place, where: Origin | None) -> list[Node]:
    """A list of tasks and blocks. Problems are noted in the reading."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        reading.problem(InputError("a list of tasks is expected", where=origin_of(raw) or where,
                                   found=type(raw).__name__, next="start each task with `- name:`"))
        return []
    out: list[Node] = []
    for item in raw:
        try:
            task = mapping(item, "a task", where)
            out.extend(_block(reading, task, place) if "block" in task else _task(reading, task, place))
        except InputError as error:
            reading.problem(error)
    return out


def _block(reading: Reading, raw: YamlMap, place: Place) -> list[Node]:
    own = keywords(reading, raw, words.BLOCK, "block")
    inner = place.under(under(place.keywords, own))
    block = Block(
        body=read_tasks(reading, raw.get("block"), inner, value_origin(raw, "block")),
        rescue=read_tasks(reading, raw.get("rescue"), inner, value_origin(raw, "rescue")),
        always=read_tasks(reading, raw.get("always"), inner, value_origin(raw, "always")),
        has_rescue=bool(raw.get("rescue")),
        name=str(raw.get("name") or ""),
        origin=raw.origin,
    )
    return [block]


def _task(reading: Reading, raw: YamlMap, place: Place) -> list[Node]:
    action, value, where = _action(reading, raw)
    if action is None:
        return []
    own = keywords(reading, raw, words.TASK, "task")
    if "local_action" in raw:
        own = replace(own, delegate_to="localhost")
    _static_checks(reading, raw, place)
    if action in INCLUDES:
        include = read_include(reading, action, raw, value, own, place)
        return include if isinstance(include, list) else [_finish(reading, raw, include, own, place)]
    module = reading.modules[action]
    args = _arguments(reading, module, raw, value, where, own, place)
    task = Task(
        name=str(raw.get("name") or action),
        action=module.name,
        origin=raw.origin,
        args=args,
        keywords=under(place.keywords, own),
        search=place.search,
        module=module,
    )
    _check_files(reading, task, place)
    return [_finish(reading, raw, task, own, place)]


def _finish(reading: Reading, raw: YamlMap, task: Task, own: Keywords, place: Place) -> Task:
    reading.counter += 1
    task.index = reading.counter
    task.role = place.role
    task.handler = place.handler
    task.register = _register(reading, raw)
    task.loop = _loop(reading, raw)
    task.until = conditions(reading, raw, "until")
    task.retries = raw.get("retries")
    task.delay = raw.get("delay", 5)
    for key in ("retries", "delay"):
        _check_number(reading, raw, key)
    if "changed_when" in raw:
        task.changed_when = conditions(reading, raw, "changed_when")
    if "failed_when" in raw:
        task.failed_when = conditions(reading, raw, "failed_when")
    task.listen = tuple(str(item) for item in listed(raw.get("listen")))
    if task.listen and not place.handler:
        reading.problem(InputError("`listen` belongs to handlers", where=key_origin(raw, "listen")))
    task.selected = place.handler or reading.selection.wants(task.keywords.tags)
    return task


def _action(reading: Reading, raw: YamlMap) -> tuple[str | None, Any, Origin]:
    """The module or include of a task, its value and place."""
    for key in ("action", "local_action"):
        if key in raw:
            return _old_style(reading, raw, key)
    candidates = [key for key in raw if key not in words.TASK and not str(key).startswith("with_")
                  and key not in words.REFUSED]
    known = [key for key in candidates if short_name(str(key)) in INCLUDES or resolve(reading, str(key))]
    if len(known) == 1 and len(candidates) == 1:
        return _named(reading, str(known[0])), raw[known[0]], key_origin(raw, known[0]) or raw.origin
    if len(known) > 1:
        reading.problem(InputError(f"a task has one module, this one has {' and '.join(map(str, known))}",
                                   where=key_origin(raw, known[1])))
        return None, None, raw.origin
    unknown = [key for key in candidates if key not in known]
    if not candidates:
        left = [str(key) for key in raw if key in words.REFUSED]
        what = "a task without a module" if not left else None
        if what:
            reading.problem(InputError(what, where=raw.origin, next="name one: command, copy, template, ..."))
        for key in left:
            reading.problem(words.unknown_keyword(key, words.TASK, "task", key_origin(raw, key)))
        return None, None, raw.origin
    for key in unknown:
        reading.problem(_unknown(reading, str(key), key_origin(raw, key) or raw.origin, bool(known)))
    return None, None, raw.origin


def _unknown(reading: Reading, key: str, where: Origin, has_module: bool) -> InputError:
    names = {*reading.modules, *INCLUDES}
    if has_module or key in ("connection", "remote_user", "port"):
        return words.unknown_keyword(key, words.TASK, "task", where)
    near_word = nearest(key, words.TASK)
    near = nearest(short_name(key), names)
    if "." in key:
        return InputError(f"the module `{key}` is not supported", where=where,
                          next=f"nearest: {near}" if near else None)
    both = [name for name in (near, near_word) if name]
    return InputError(f"`{key}` is neither a module nor a keyword here", where=where,
                      next=f"nearest: {' or '.join(dict.fromkeys(both))}" if both else "invoke modules lists them")


def _old_style(reading: Reading, raw: YamlMap, key: str) -> tuple[str | None, Any, Origin]:
    where = key_origin(raw, key) or raw.origin
    value = raw[key]
    if isinstance(value, dict):
        rest: Any = YamlMap(where)
        rest.update({name: item for name, item in value.items() if name != "module"})
        if isinstance(value, YamlMap):
            rest.key_origins, rest.value_origins = value.key_origins, value.value_origins
        name, given = str(value.get("module", "")), rest
    else:
        name, _, text = str(value).strip().partition(" ")
        given = YamlText(text, where) if text else None
    if short_name(name) not in INCLUDES and not resolve(reading, name):
        reading.problem(_unknown(reading, name, where, False))
        return None, None, where
    return _named(reading, name), given, where


def resolve(reading: Reading, name: str) -> Module | None:
    """The module of a name, with or without its collection."""
    return reading.modules.get(name) or reading.modules.get(short_name(name))


def short_name(name: str) -> str:
    """A module's name without the collections that we know."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix):]
    return name


def _named(reading: Reading, name: str) -> str:
    short = short_name(name)
    return short if short in INCLUDES or short in reading.modules else name


def _arguments(reading: Reading, module: Module, raw: YamlMap, value: Any, where: Origin, own: Keywords,
               place: Place) -> Mapping[str, Any]:
    given = YamlMap(where)
    if isinstance(value, str):
        given.update(from_text(value, module, origin_of(value) or where))
    elif isinstance(value, dict):
        given.update(value)
        if isinstance(value, YamlMap):
            given.key_origins.update(value.key_origins)
            given.value_origins.update(value.value_origins)
            given.value_texts.update(value.value_texts)
    elif value is not None and module.free_form and not isinstance(value, list):
        given[module.free_form] = YamlText(str(value), where)
    elif value is not None:
        raise InputError(f"`{module.name}` takes a mapping of arguments", where=where,
                         found=f"{type(value).__name__}: {str(value)[:60]}")
    extra = raw.get("args")
    if isinstance(extra, YamlMap):
        for name in extra:
            given.take(name, extra)
    elif extra is not None:
        reading.problem(InputError("`args` must be a mapping", where=value_origin(raw, "args"),
                                   found=str(extra)[:60]))
    defaults = _defaults(module, own, place)
    for name, item in defaults.items():
        given.setdefault(name, item)
    given.origin = where
    args, problems = canonical(given, module, where)
    for problem in problems:
        reading.problem(problem)
    for name, item in args.items():
        if module.name == "assert" and name == "that":
            for one in listed(item):
                condition(reading, one, value_origin(args, name) or where)
        else:
            reading.check_templates(item)
    return args


def _defaults(module: Module, own: Keywords, place: Place) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for table in (*place.keywords.module_defaults, *own.module_defaults):
        out.update(table.get(module.name, {}))
    return out


def _static_checks(reading: Reading, raw: YamlMap, place: Place) -> None:
    for key in ("loop_control", "register"):
        reading.check_templates(raw.get(key))
    if "when" in raw and raw["when"] is None:
        reading.problem(InputError("`when` is empty", where=key_origin(raw, "when")))


def _register(reading: Reading, raw: YamlMap) -> str | None:
    name = raw.get("register")
    if name is None:
        return None
    if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
        reading.problem(InputError(f"`{name}` cannot be registered", where=value_origin(raw, "register"),
                                   expected="a variable name"))
        return None
    return name


def _check_number(reading: Reading, raw: YamlMap, key: str) -> None:
    value = raw.get(key)
    if value is None or (isinstance(value, str) and looks_templated(value)):
        reading.check_templates(value)
        return
    try:
        float(value)
    except (TypeError, ValueError):
        reading.problem(InputError(f"`{key}` takes a number", where=value_origin(raw, key), found=str(value)))


def _loop(reading: Reading, raw: YamlMap) -> Loop | None:
    found = [key for key in raw if key == "loop" or str(key).startswith("with_")]
    control = raw.get("loop_control")
    if not found:
        if control is not None:
            reading.problem(InputError("`loop_control` without a loop", where=key_origin(raw, "loop_control")))
        return None
    key = str(found[0])
    if len(found) > 1:
        reading.problem(InputError(f"two loops in one task: {' and '.join(map(str, found))}",
                                   where=key_origin(raw, found[1])))
    kind = "loop" if key == "loop" else words.LOOPS.get(key)
    if kind is None:
        reading.problem(words.unknown_keyword(key, words.TASK, "task", key_origin(raw, key)))
        return None
    value = raw[key]
    reading.check_templates(value)
    if kind == "loop" and not isinstance(value, list) and not (isinstance(value, str) and looks_templated(value)):
        reading.problem(InputError("`loop` takes a list or a template that gives one", where=value_origin(raw, key),
                                   found=str(value)[:60], next="{{ dict | dict2items }} makes a list of a mapping"
                                   if isinstance(value, dict) else None))
        return None
    return _loop_control(reading, raw, control, Loop(kind, value))


def _loop_control(reading: Reading, raw: YamlMap, control: Any, loop: Loop) -> Loop:
    if control is None:
        return loop
    control = mapping(control, "`loop_control`", value_origin(raw, "loop_control"))
    for key in control:
        if key not in words.LOOP_CONTROL:
            near = nearest(str(key), words.LOOP_CONTROL)
            reading.problem(InputError(f"the keyword `{key}` is not known in loop_control",
                                       where=key_origin(control, key), next=f"nearest: {near}" if near else None))
    return replace(loop, label=control.get("label"), var=str(control.get("loop_var", "item")),
                   index_var=control.get("index_var"), pause=control.get("pause", 0),
                   extended=bool(control.get("extended", False)),
                   break_when=conditions(reading, control, "break_when"))


def _check_files(reading: Reading, task: Task, place: Place) -> None:
    """A source of literal name that is on the controller must be there."""
    known = _FILES.get(task.action)
    if known is None or task.args.get("remote_src") not in (None, False, "no", "false"):
        return
    name, folder = known
    value = task.args.get(name)
    if not isinstance(value, str) or looks_templated(value) or not value:
        return
    if find_file(value, task.search, folder) is None:
        near = _nearest_file(value, task.search, folder)
        reading.problem(InputError(
            f"`{task.action}`: no file `{value}`", where=value_origin(task.args, name),
            details=[f"looked in {base / folder}" for base in task.search], next=f"nearest: {near}" if near else None))


def _nearest_file(name: str, search: tuple[Path, ...], folder: str) -> str | None:
    seen: list[str] = []
    for base in search:
        top = base / folder
        if top.is_dir():
            seen.extend(str(path.relative_to(top)) for path in sorted(top.rglob("*"))[:500] if path.is_file())
    return nearest(name, seen)
