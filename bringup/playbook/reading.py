"""What one reading of a playbook shares: modules, files read, problems found; and reading keywords."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bringup.base import yaml
from bringup.base.errors import BringupError, InputError
from bringup.base.origin import Origin
from bringup.base.vault import is_vaulted
from bringup.base.yaml import YamlList, YamlMap, key_origin, origin_of, value_origin
from bringup.playbook.keywords import LOOPS, REFUSED, unknown_keyword
from bringup.playbook.model import Keywords, Module, Node, Play, Role, Task
from bringup.playbook.selection import Selection
from bringup.playbook.templating import Engine, Layer, Scope
from bringup.playbook.values import looks_templated

_COLLECTIONS = ("ansible.builtin", "ansible.legacy", "ansible.posix")
_BOOLEANS = ("any_errors_fatal", "become", "check_mode", "diff", "ignore_errors", "ignore_unreachable", "no_log",
             "run_once", "delegate_facts")
MAX_SHOWN = 12
"""Problems printed at once; the rest is counted."""


@dataclass(frozen=True)
class Place:
    """Where a list of tasks stands: its play and role, the folder of its file, what it inherits."""

    play: Play
    folder: Path
    keywords: Keywords = field(default_factory=Keywords)
    role: Role | None = None
    handler: bool = False
    files: tuple[Path, ...] = ()
    dynamic: bool = False

    @property
    def search(self) -> tuple[Path, ...]:
        """Folders where files, templates and variables of a task are looked up."""
        folders = [self.role.path, *(role.path for role in self.role.parents)] if self.role else []
        return tuple(dict.fromkeys([*folders, self.folder, self.play.folder]))

    def under(self, keywords: Keywords) -> Place:
        return replace(self, keywords=keywords)


@dataclass
class Reading:
    """State of one reading. `problems` collects what is wrong, so that a person sees all of it at once."""

    modules: Mapping[str, Module]
    engine: Engine
    extra_vars: Mapping[str, Any] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    roles_paths: tuple[Path, ...] = ()
    problems: list[InputError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    unknown_handlers: bool = False
    opened: dict[tuple[int, str], list[Node]] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    included: dict[tuple[int, str], tuple[Place, Role]] = field(default_factory=dict)
    begun: set[tuple[int, str]] = field(default_factory=set)
    kept: list[Task] = field(default_factory=list)
    _files: dict[Path, Any] = field(default_factory=dict)
    counter: int = 0

    def problem(self, error: InputError) -> None:
        """Note a problem; the same one is noted once."""
        if str(error) not in {str(one) for one in self.problems}:
            self.problems.append(error)

    def raise_problems(self) -> None:
        """Raises one InputError with every problem noted."""
        if not self.problems:
            return
        first, *rest = self.problems
        if not rest:
            raise first
        details = list(first.details)
        for error in rest[:MAX_SHOWN]:
            details.extend(error.lines())
        if len(rest) > MAX_SHOWN:
            details.append(f"... and {len(rest) - MAX_SHOWN} more")
        raise Problems(self.problems)

    def file(self, path: Path) -> Any:
        """The YAML document of a file, read once; vaulted files are opened."""
        if path not in self._files:
            shown = shown_path(path)
            try:
                text = path.read_bytes().decode("utf-8-sig")
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror or error}", where=shown) from None
            except UnicodeDecodeError as error:
                raise InputError(f"is not UTF-8 text (byte {error.start})", where=shown) from None
            if is_vaulted(text):
                text = self.engine.vault.open(text, shown).reveal()
            self._files[path] = yaml.load(text, shown)
        return self._files[path]

    def give(self, path: Path, text: str) -> None:
        """A text that stands for a file."""
        self._files[path] = yaml.load(text, shown_path(path))

    def check_templates(self, value: Any, *, condition: bool = False) -> None:
        """Compile every template inside a value."""
        try:
            if isinstance(value, str):
                if condition or looks_templated(value):
                    self.engine.check(value, condition=condition)
            elif isinstance(value, dict):
                for item in value.values():
                    self.check_templates(item, condition=condition)
            elif isinstance(value, list):
                for item in value:
                    self.check_templates(item, condition=condition)
        except InputError as error:
            self.problem(error)

    def static(self, value: Any, play_vars: Mapping[str, Any], where: Origin | None) -> Any:
        """A value rendered before any host is known: extra variables and play variables only."""
        if not isinstance(value, str) or not looks_templated(value):
            return value
        scope = Scope(self.engine, [Layer(self.extra_vars), Layer(play_vars)])
        try:
            return self.engine.render(value, scope)
        except BringupError as error:
            raise InputError(f"`{value}` must be known before hosts are: {error.what}", where=where,
                             next=error.next or "give it with --extra-vars or in the play's vars") from None


class Problems(InputError):
    """Several problems of one playbook, each with its place."""

    def __init__(self, problems: Sequence[InputError]) -> None:
        super().__init__(problems[0].what, where=problems[0].where)
        self.problems = tuple(problems)

    def lines(self) -> list[str]:
        out: list[str] = []
        for error in self.problems[:MAX_SHOWN]:
            out.extend(error.lines())
        if len(self.problems) > MAX_SHOWN:
            out.append(f"... and {len(self.problems) - MAX_SHOWN} more")
        return out


def shown_path(path: Path) -> str:
    """A path as messages show it: relative when it lies under the working folder."""
    text = os.path.relpath(path)
    return str(path) if text.startswith("..") else text


def place_of(raw: Any, default: Origin) -> Origin:
    """The place of a value, or that of what it stands in."""
    return origin_of(raw) or default


def mapping(raw: Any, what: str, where: Origin | None) -> YamlMap:
    """A mapping, or an InputError that says what was found."""
    if not isinstance(raw, YamlMap):
        raise InputError(f"{what} must be a mapping", where=origin_of(raw) or where, found=_found(raw))
    return raw


def listed(raw: Any) -> list[Any]:
    """A value as a list: None is empty, a single value stands alone."""
    if raw is None:
        return []
    return list(raw) if isinstance(raw, (list, tuple)) else [raw]


def keywords(reading: Reading, raw: YamlMap, known: frozenset[str], what: str) -> Keywords:
    """The inherited keywords of a play, block, task or role entry. Unknown keys are problems."""
    where = raw.origin
    for key in raw:
        if key not in known and not (what == "task" and _is_action(key)):
            reading.problem(unknown_keyword(key, known, what, key_origin(raw, key)))
    for name in _BOOLEANS:
        if name in raw:
            _check_bool(reading, raw, name)
    method = raw.get("become_method")
    if method not in (None, "sudo"):
        reading.problem(InputError(f"the become_method `{method}` is not supported", expected="sudo",
                                   where=value_origin(raw, "become_method")))
    for collection in listed(raw.get("collections")):
        if collection not in _COLLECTIONS:
            reading.problem(InputError(f"the collection `{collection}` is not supported",
                                       where=value_origin(raw, "collections"), expected=", ".join(_COLLECTIONS)))
    for name in ("vars", "environment", "become_user", "delegate_to", "timeout", "name", *_BOOLEANS):
        reading.check_templates(raw.get(name))
    conditions = tuple(condition(reading, item, value_origin(raw, "when") or where)
                       for item in listed(raw.get("when")))
    return Keywords(
        when=conditions,
        vars=variables(reading, raw, "vars"),
        tags=tags_of(reading, raw),
        environment=environments(reading, raw),
        timeout=raw.get("timeout"),
        become_user=raw.get("become_user"),
        delegate_to=raw.get("delegate_to"),
        notify=notify_of(reading, raw),
        module_defaults=_module_defaults(reading, raw),
        any_errors_fatal=raw.get("any_errors_fatal"),
        become=raw.get("become"),
        check_mode=raw.get("check_mode"),
        diff=raw.get("diff"),
        ignore_errors=raw.get("ignore_errors"),
        ignore_unreachable=raw.get("ignore_unreachable"),
        no_log=raw.get("no_log"),
        run_once=raw.get("run_once"),
        delegate_facts=raw.get("delegate_facts"),
    )


def condition(reading: Reading, raw: Any, where: Origin) -> Any:
    """A condition, compiled."""
    if isinstance(raw, (bool, str)):
        reading.check_templates(raw, condition=True)
        return raw
    reading.problem(InputError("a condition must be an expression", where=origin_of(raw) or where, found=_found(raw)))
    return False


def conditions(reading: Reading, raw: YamlMap, key: str) -> tuple[Any, ...]:
    """The conditions under a key."""
    return tuple(condition(reading, item, value_origin(raw, key) or raw.origin) for item in listed(raw.get(key)))


def variables(reading: Reading, raw: YamlMap, key: str) -> tuple[Mapping[str, Any], ...]:
    """The variables under a key: none or one mapping."""
    value = raw.get(key)
    if value is None:
        return ()
    if isinstance(value, YamlList) and all(isinstance(item, YamlMap) for item in value):
        return tuple(value)
    if not isinstance(value, dict):
        reading.problem(InputError(f"`{key}` must be a mapping", where=value_origin(raw, key), found=_found(value)))
        return ()
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            reading.problem(InputError(f"`{name}` is not a valid variable name", where=key_origin(value, name),
                                       expected="letters, digits and underscores, no digit first"))
    return (value,)


def environments(reading: Reading, raw: YamlMap) -> tuple[Any, ...]:
    """The `environment` keyword: mappings or templates that give one."""
    out = []
    for item in listed(raw.get("environment")):
        if isinstance(item, dict) or (isinstance(item, str) and looks_templated(item)):
            out.append(item)
        else:
            reading.problem(InputError("`environment` must be a mapping", where=value_origin(raw, "environment"),
                                       found=_found(item)))
    return tuple(out)


def tags_of(reading: Reading, raw: YamlMap) -> frozenset[str]:
    """The tags under a key, each a plain name."""
    out = set()
    for item in listed(raw.get("tags")):
        for name in str(item).split(","):
            if looks_templated(name):
                reading.problem(InputError("a template in tags is not supported", where=value_origin(raw, "tags"),
                                           found=name, next="write the tags as they are"))
            elif name.strip():
                out.add(name.strip())
    reading.tags |= out
    return frozenset(out)


def notify_of(reading: Reading, raw: YamlMap) -> tuple[Any, ...]:
    """What `notify` names."""
    out = []
    for item in listed(raw.get("notify")):
        if not isinstance(item, str):
            reading.problem(InputError("`notify` names handlers", where=value_origin(raw, "notify"),
                                       found=_found(item)))
            continue
        reading.check_templates(item)
        out.append(item)
    return tuple(out)


def _module_defaults(reading: Reading, raw: YamlMap) -> tuple[Mapping[str, Any], ...]:
    value = raw.get("module_defaults")
    if value is None:
        return ()
    if not isinstance(value, YamlMap):
        reading.problem(InputError("`module_defaults` must be a mapping", where=value_origin(raw, "module_defaults"),
                                   found=_found(value)))
        return ()
    out = YamlMap(value.origin)
    for name, args in value.items():
        module = reading.modules.get(str(name))
        if module is None:
            reading.problem(InputError(f"module_defaults: the module `{name}` is not known here",
                                       where=key_origin(value, name)))
        elif isinstance(args, YamlMap):
            out[module.name] = args
            reading.check_templates(args)
    return (out,)


def _check_bool(reading: Reading, raw: YamlMap, name: str) -> None:
    value = raw[name]
    if value is None or isinstance(value, bool) or (isinstance(value, str) and looks_templated(value)):
        return
    if isinstance(value, str) and value.lower() in ("yes", "no", "true", "false", "on", "off"):
        raw[name] = value.lower() in ("yes", "true", "on")
        return
    reading.problem(InputError(f"`{name}` takes yes or no", where=value_origin(raw, name), found=_found(value)))


def _is_action(key: object) -> bool:
    return str(key) not in REFUSED and (not str(key).startswith("with_") or str(key) in LOOPS)


def _found(raw: Any) -> str:
    kinds = ((bool, "a boolean"), (dict, "a mapping"), (list, "a list"), (str, "a text"), (int, "a number"))
    word = next((word for kind, word in kinds if isinstance(raw, kind)), type(raw).__name__)
    return "nothing" if raw is None else f"{word}: {str(raw)[:60]}"
