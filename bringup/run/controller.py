"""Modules that run on the controller: debug, set_fact, assert, fail and the dynamic includes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jinja2.runtime import Undefined

from bringup.base.errors import StepError
from bringup.playbook.arguments import convert
from bringup.playbook.lookups import find_file
from bringup.playbook.model import Task
from bringup.playbook.reading import listed
from bringup.playbook.templating import Engine, Scope, UndefinedFailure

if TYPE_CHECKING:
    from bringup.run.prepare import Settings

NOT_DEFINED = "VARIABLE IS NOT DEFINED!"


def _debug(engine: Engine, task: Task, scope: Scope, settings: Settings) -> dict[str, Any]:
    args = task.args
    verbosity = int(convert(engine.render(args.get("verbosity", 0), scope), {"type": "int"}))
    if verbosity > settings.verbosity:
        return {"changed": False, "skipped": True, "skipped_reason": "Verbosity threshold not met.",
                "skip_reason": "Verbosity threshold not met."}
    if "var" in args and "msg" in args:
        raise StepError("debug takes `msg` or `var`, not both", where=task.origin)
    if "var" in args:
        return {"changed": False, **_debug_var(engine, args["var"], scope)}
    return {"changed": False, "msg": engine.render(args.get("msg", "Hello world!"), scope)}


def _debug_var(engine: Engine, text: Any, scope: Scope) -> dict[str, Any]:
    shown = str(text)
    try:
        value = engine.expression(shown, scope) if isinstance(text, str) else engine.render(text, scope)
        value = NOT_DEFINED if isinstance(value, Undefined) else engine.final(value, text, scope)
    except UndefinedFailure:
        value = NOT_DEFINED
    return {shown: value}


def _set_fact(engine: Engine, task: Task, scope: Scope, settings: Settings) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value in task.args.items():
        if name == "cacheable":
            continue
        shown = str(engine.render(name, scope))
        if not shown.isidentifier():
            raise StepError(f"`{shown}` is not a valid variable name", where=task.origin)
        facts[shown] = engine.render(value, scope)
    if not facts:
        raise StepError("set_fact sets nothing", where=task.origin, next="give it a name and a value")
    return {"changed": False, "ansible_facts": facts}


def _assert(engine: Engine, task: Task, scope: Scope, settings: Settings) -> dict[str, Any]:
    args = task.args
    for condition in listed(args.get("that")):
        if not engine.condition(condition, scope):
            message = args.get("fail_msg")
            shown = "Assertion failed" if message is None else engine.render(message, scope)
            return {"changed": False, "failed": True, "msg": shown, "assertion": condition, "evaluated_to": False,
                    "expected": str(condition)}
    message = args.get("success_msg")
    return {"changed": False, "msg": "All assertions passed" if message is None else engine.render(message, scope)}


def _fail(engine: Engine, task: Task, scope: Scope, settings: Settings) -> dict[str, Any]:
    return {"changed": False, "failed": True,
            "msg": engine.render(task.args.get("msg", "Failed as requested from task"), scope)}


def _include(engine: Engine, task: Task, scope: Scope, settings: Settings) -> dict[str, Any]:
    assert settings.open_include is not None
    name = str(engine.render(task.args.get("file") or task.args.get("name"), scope))
    return {"changed": False, "include": name, "_nodes": settings.open_include(task, name)}


def _include_vars(engine: Engine, task: Task, scope: Scope, settings: Settings) -> dict[str, Any]:
    assert settings.variables_file is not None
    name = str(engine.render(task.args.get("file"), scope))
    path = find_file(name, task.search, "vars")
    if path is None:
        raise StepError(f"no file of variables `{name}`", where=task.origin,
                        details=[f"looked in {folder}" for folder in task.search])
    table: Any = settings.variables_file(path)
    under = task.args.get("name")
    return {"changed": False, "ansible_included_vars": {str(under): table} if under else table,
            "ansible_included_var_files": [str(path)]}


CONTROLLER: dict[str, Callable[[Engine, Task, Scope, Settings], dict[str, Any]]] = {
    "debug": _debug,
    "set_fact": _set_fact,
    "assert": _assert,
    "fail": _fail,
    "include_role": _include,
    "include_tasks": _include,
    "include_vars": _include_vars,
}
"""Modules by name: (engine, task, scope, settings) -> raw result. Raise BringupError, StillToCome."""

