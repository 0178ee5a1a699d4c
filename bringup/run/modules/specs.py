"""The table of the general modules: names, arguments, where their halves are.

Arguments of modules with a host half are written once, beside that half in `bringup.agent.modules`. In an
arguments table the key `*` stands for every other name (set_fact). Types: str, path, bool, int, float, list (a text is
split at commas), dict, raw (as it is), mode (text such as "0644" or "u=rw,g=r", or a number that YAML read from
octal digits: 0644 or 0o644; a decimal number such as 644 is refused).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from bringup.run.actions import HostAction, HostResult, ModuleSpec

DEBUG: Mapping[str, Mapping[str, Any]] = {
    "msg": {"type": "raw"},
    "var": {"type": "raw"},
    "verbosity": {"type": "int", "default": 0},
}
"""`msg` (anything; "Hello world!" when neither is given) or `var` (a name or expression, evaluated); not both.
With `verbosity` N the task is skipped below -v N."""

SET_FACT: Mapping[str, Mapping[str, Any]] = {
    "cacheable": {"type": "bool", "default": False},
    "*": {"type": "raw"},
}
"""Any names: values are what they render to. At least one; names must be valid variable names."""

ASSERT: Mapping[str, Mapping[str, Any]] = {
    "that": {"type": "raw", "required": True},
    "fail_msg": {"type": "raw", "aliases": ["msg"]},
    "success_msg": {"type": "raw"},
    "quiet": {"type": "bool", "default": False},
}
"""`that`: an expression or a list of them, evaluated as `when` is (not rendered first). `fail_msg` is a text or a
list of texts; the defaults are "Assertion failed" and "All assertions passed". Runs in check mode too."""

FAIL: Mapping[str, Mapping[str, Any]] = {
    "msg": {"type": "str", "default": "Failed as requested from task"},
}

META: Mapping[str, Mapping[str, Any]] = {
    "free_form": {
        "type": "str",
        "required": True,
        "choices": ["flush_handlers", "noop", "end_host", "end_play", "clear_host_errors", "clear_facts"],
    },
}

_HOST: tuple[tuple[str, str, bool, str], ...] = (
    # name, agent module, reads only, help
    ("blockinfile", "blockinfile", False, "keep a marked block of lines in a file"),
    ("command", "command", False, "run a program, no shell between"),
    ("copy", "copy", False, "put a file, a folder or a text on the host"),
    ("fetch", "fetch", True, "bring a file of the host to the controller"),
    ("file", "file", False, "files, folders, links: presence, mode, owner"),
    ("group", "group", False, "a group of accounts"),
    ("host_setting", "host_setting", False, "a setting of the host: checked, kept, changed, put back"),
    ("lineinfile", "lineinfile", False, "keep one line in a file"),
    ("package", "package", False, "distribution packages, by apt-get or dnf"),
    ("ping", "ping", True, "answer, to show that modules run"),
    ("replace", "replace", False, "replace what a pattern matches in a file"),
    ("setup", "setup", True, "gather facts of the host"),
    ("shell", "shell", False, "run a line through a shell"),
    ("slurp", "slurp", True, "the content of a file of the host, base64"),
    ("stat", "stat", True, "what a path is"),
    ("sysctl", "sysctl", False, "a kernel parameter and its line in sysctl.conf"),
    ("systemd_service", "systemd_service", False, "a systemd unit: running, enabled, masked"),
    ("tempfile", "tempfile", False, "a temporary file or folder"),
    ("template", "template", False, "put a rendered Jinja2 template on the host"),
    ("uri", "uri", False, "ask a web service"),
    ("user", "user", False, "an account"),
    ("wait_for", "wait_for", True, "wait for a port, a file or a text in it"),
)

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "package": ("apt", "dnf", "yum"),
    "systemd_service": ("systemd", "service"),
    "setup": ("gather_facts",),
}

_COLLECTIONS: Mapping[str, str | None] = {"sysctl": "ansible.posix", "host_setting": None}


def general_names() -> dict[str, str]:
    """Every name of a general module and the one that general_module() takes."""
    out = {name: row[0] for row in _HOST for name in _names_of(row[0])}
    return out | {name: spec.name for spec in _controller_modules() for name in (spec.name, *spec.aliases)}


@cache
def general_module(name: str) -> ModuleSpec:
    """A general module by its own name. Imports its host half for the table of arguments."""
    row = next((row for row in _HOST if row[0] == name), None)
    return _host_module(*row) if row else next(spec for spec in _controller_modules() if spec.name == name)


def general_modules() -> list[ModuleSpec]:
    """All general modules."""
    return [general_module(name) for name in dict.fromkeys(general_names().values())]


@lru_cache(maxsize=1)
def _controller_modules() -> list[ModuleSpec]:
    out = []
    for name, table, text in (
        ("debug", DEBUG, "print a text or a value"),
        ("set_fact", SET_FACT, "set variables of the host"),
        ("assert", ASSERT, "fail unless expressions are true"),
        ("fail", FAIL, "fail with a message"),
    ):
        out.append(ModuleSpec(name, table, aliases=(f"ansible.builtin.{name}",), reads_only=True, help=text))
    out.append(ModuleSpec("meta", META, free_form="free_form", aliases=("ansible.builtin.meta",), reads_only=True,
                          help="flush handlers, end the host or the play"))
    return out


def _names_of(name: str) -> tuple[str, ...]:
    names = (name, *_ALIASES.get(name, ()))
    collection = _COLLECTIONS.get(name, "ansible.builtin")
    return (*names, *(f"{collection}.{one}" for one in names)) if collection else names


def _host_module(name: str, agent: str, reads_only: bool, text: str) -> ModuleSpec:
    module = importlib.import_module(f"bringup.agent.modules.{agent}")
    return ModuleSpec(
        name,
        module.ARGUMENTS,
        agent=agent,
        free_form=getattr(module, "FREE_FORM", None),
        host_action=_host_action(name),
        host_result=_host_result(name),
        aliases=_names_of(name)[1:],
        reads_only=reads_only,
        help=text,
    )


def _host_action(name: str) -> HostAction | None:
    if name == "copy":
        from bringup.run.modules.copy import copy_action

        return copy_action
    if name == "template":
        from bringup.run.modules.template import template_action

        return template_action
    if name == "fetch":
        from bringup.run.modules.fetch import fetch_action

        return fetch_action
    return None


def _host_result(name: str) -> HostResult | None:
    if name == "fetch":
        from bringup.run.modules.fetch import fetch_result

        return fetch_result
    return None
