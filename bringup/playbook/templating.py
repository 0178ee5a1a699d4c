"""Rendering: texts, values, conditions and files, with the place, the name and the chain in every error.

A text is compiled once, whoever renders it. A value that is still to come raises `StillToCome`, which is no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.runtime import Undefined
from jinja2.utils import missing

from bringup.base.errors import BringupError, InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.vault import Vault
from bringup.base.yaml import VaultedText, origin_of
from bringup.playbook.filters import FILTERS
from bringup.playbook.jinja import (
    Environment,
    Missing,
    MissingText,
    StillToCome,
    build_environment,
    compile_text,
    run_template,
)
from bringup.playbook.lookups import NAMES
from bringup.playbook.tests import TESTS
from bringup.playbook.values import OMIT, LazyDict, LazyList, TemplateFinder, looks_templated

_PATH = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\s*\}\}")
_NOT_NAMES = frozenset({"true", "false", "none", "True", "False", "None", "self", "super", "loop", "caller", "not",
                        "if", "else", "and", "or", "in", "is"})
_NONE = object()


class TemplateFailure(BringupError):
    """A template cannot be rendered for a host."""


class UndefinedFailure(TemplateFailure):
    """A template uses a name that is not defined."""


class Pending:
    """The value of a name whose task has not ended. `previous` is what the name had before."""

    __slots__ = ("previous",)

    def __init__(self, previous: Any = _NONE) -> None:
        self.previous = previous


class Layer:
    """Variables of one source. `trusted` says whether its texts are templates (what hosts returned never is)."""

    __slots__ = ("trusted", "values")

    def __init__(self, values: Mapping[str, Any], *, trusted: bool = True) -> None:
        self.values = values
        self.trusted = trusted


class Scope:
    """What a template of one task sees on one host: layers, the highest first.

    `search` are the folders where the task's files, templates and variables lie.
    """

    def __init__(self, engine: Engine, layers: Sequence[Layer], *, search: Sequence[Path] = (),
                 settled: bool = False) -> None:
        self.engine = engine
        self.layers = layers
        self.search = tuple(search)
        self.settled = settled  # a task that has ended is judged: what is pending has its value of before
        self._done: dict[str, Any] = {}
        self._stack: list[str] = []

    def find(self, name: str) -> Any:
        """The rendered value, or Jinja's `missing`. An undefined name inside it gives an undefined value."""
        done = self._done.get(name, _NONE)
        if done is not _NONE:
            return done
        for layer in self.layers:
            raw = layer.values.get(name, _NONE)
            if raw is _NONE:
                continue
            if isinstance(raw, Pending):
                if not self.settled:
                    raise StillToCome(name)
                if raw.previous is _NONE:
                    continue
                raw = raw.previous
            value = self._render(name, raw) if layer.trusted and self.engine.templated(raw) else raw
            self._done[name] = value
            return value
        return missing

    def _render(self, name: str, raw: Any) -> Any:
        if name in self._stack:
            circle = " -> ".join([*self._stack[self._stack.index(name):], name])
            raise TemplateFailure(f"the variable `{name}` refers to itself", where=origin_of(raw), found=circle)
        self._stack.append(name)
        try:
            value = self.value(raw)
        except UndefinedFailure as error:
            value = Missing(name=name)
            value.missing_failure = error
        finally:
            self._stack.pop()
        if isinstance(value, Missing):
            place = origin_of(raw)
            value.missing_chain = (*value.missing_chain, f"{name} ({place.short})" if place else name)
        return value

    def value(self, raw: Any) -> Any:
        """A value as a template sees it: texts rendered, containers rendered as they are read."""
        if isinstance(raw, str):
            if isinstance(raw, VaultedText):
                return self.engine.vault.open(raw, raw.origin)
            return self.engine.text(raw, self) if looks_templated(raw) else raw
        if isinstance(raw, dict) and self.engine.templated(raw):
            return LazyDict(raw, self.value)
        if isinstance(raw, (list, tuple)) and self.engine.templated(raw):
            return LazyList(list(raw), self.value)
        return raw

    def names(self) -> set[str]:
        """Every name that is defined here."""
        out: set[str] = set()
        for layer in self.layers:
            out.update(str(name) for name in layer.values)
        return out

    def child(self, *layers: Layer) -> Scope:
        """The same scope with further layers on top."""
        return Scope(self.engine, (*layers, *self.layers), search=self.search, settled=self.settled)


class Engine:
    """Compiles and renders. One for a run: `vault` opens vaulted texts, `allow_pipe` lets lookup('pipe') run."""

    def __init__(self, vault: Vault | None = None, *, allow_pipe: bool = False) -> None:
        self.vault = vault or Vault()
        self.allow_pipe = allow_pipe
        self.templated = TemplateFinder()
        self.environment = build_environment(FILTERS, TESTS, {**NAMES, "omit": OMIT})
        self._texts: dict[tuple[str, bool], Callable[[Scope], Any]] = {}
        self._files: dict[tuple[Any, ...], Environment] = {}
        self._templates: dict[tuple[Any, ...], jinja2.Template] = {}

    def check(self, text: str, *, condition: bool = False) -> None:
        """Compile a text now. Raises InputError with its place for a syntax error or an unknown filter or test."""
        self._program(text, condition)

    def text(self, text: str, scope: Scope) -> Any:
        """A text rendered: the type of a lone expression, else text. An undefined value is returned as such."""
        program = self._texts.get((text, False)) or self._program(text, False)
        return self._guard(program, text, scope)

    def render(self, raw: Any, scope: Scope) -> Any:
        """A value rendered through and through, plain containers, `omit` left out of them.

        Raises TemplateFailure, StillToCome.
        """
        if isinstance(raw, (dict, list)) and not self.templated(raw):
            return raw
        return self.final(scope.value(raw), raw, scope)

    def final(self, value: Any, raw: Any = None, scope: Scope | None = None) -> Any:
        """Plain containers instead of lazy ones; an undefined value anywhere is an error."""
        if isinstance(value, Undefined):
            self._undefined(value, raw, scope)
        if isinstance(value, dict):
            out = {}
            for key, item in value.items():
                done = self.final(item, dict.get(value, key), scope)
                if done is not OMIT:
                    out[key] = done
            return out
        if isinstance(value, (list, tuple)):
            items = [self.final(item, raw, scope) for item in value]
            return [item for item in items if item is not OMIT]
        if isinstance(value, (str, int, float, bool)) or value is None or value is OMIT:
            return value
        if isinstance(value, (set, frozenset, range)) or hasattr(value, "__next__"):
            return [self.final(item, raw, scope) for item in value]
        if isinstance(value, Mapping):
            return {key: self.final(value[key], raw, scope) for key in value}
        if type(value).__name__ == "dict_items":
            return [list(item) for item in value]
        return value if isinstance(value, bytes) else _plain(value)

    def condition(self, text: Any, scope: Scope) -> bool:
        """A condition (`when`, `that`, `until`): an expression without braces that gives a boolean.

        Raises TemplateFailure when the result is no boolean, as Ansible does since 2.19.
        """
        if isinstance(text, bool):
            return text
        if not isinstance(text, str):
            raise TemplateFailure("a condition must be an expression or a boolean", where=origin_of(text),
                                  found=repr(text))
        program = self._texts.get((text, True)) or self._program(text, True)
        value = self._guard(program, text, scope)
        if isinstance(value, Undefined):
            self._undefined(value, text, scope)
        if isinstance(value, str) and looks_templated(value):
            return self.condition(value, scope)
        if not isinstance(value, bool):
            raise TemplateFailure(f"the condition `{text}` gives {_kind(value)}, not a boolean", where=origin_of(text),
                                  found=repr(value)[:120],
                                  next="compare it, or use `| bool`, `is truthy`, `| length > 0`")
        return value

    def expression(self, text: str, scope: Scope) -> Any:
        """The value of an expression without braces; an undefined one is returned as such."""
        program = self._texts.get((text, True)) or self._program(text, True)
        return self._guard(program, text, scope)

    def file(self, text: str, path: Path, scope: Scope, *, options: Mapping[str, Any] | None = None,
             local: Mapping[str, Any] | None = None) -> str:
        """The text of a template file rendered. `options` are Jinja's delimiters and block switches."""
        environment = self._overlay(scope.search, options or {})
        key = ("file", text, tuple(sorted((options or {}).items())), scope.search)
        template = self._templates.get(key)
        if template is None:
            try:
                template = environment.from_string(text)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateFailure(_syntax(error, environment), where=Origin(str(path), error.lineno)) from None
            self._templates[key] = template
        try:
            nodes = run_template(template, environment, scope, local)
            return "".join(_file_text(node) for node in nodes)
        except StillToCome:
            raise
        except jinja2.UndefinedError as error:
            self._undefined_error(error, Origin(str(path), _template_line(error, template)), scope)
        except BringupError:
            raise
        except Exception as error:
            where = Origin(str(path), _template_line(error, template))
            raise TemplateFailure(f"cannot be rendered: {error}", where=where) from error

    def _overlay(self, search: Sequence[Path], options: Mapping[str, Any]) -> Environment:
        key = (tuple(search), tuple(sorted(options.items())))
        found = self._files.get(key)
        if found is None:
            folders = [str(part) for folder in search for part in (folder / "templates", folder)]
            made = self.environment.overlay(loader=jinja2.FileSystemLoader(folders), cache_size=400, **dict(options))
            assert isinstance(made, Environment)
            found = self._files[key] = made
        return found

    def _program(self, text: str, condition: bool) -> Callable[[Scope], Any]:
        program = self._compile(text, condition)
        self._texts[(str.__str__(text), condition)] = program
        return program

    def _compile(self, text: str, condition: bool) -> Callable[[Scope], Any]:
        source = str.__str__(text)
        if condition:
            inner = _ONE_TEMPLATE.fullmatch(source.strip())
            source = "{{ " + (inner.group(1) if inner else source) + " }}"
        if "\\" in source:
            source = _keep_backslashes(source, self.environment)
        simple = _simple(source, self.environment)
        if simple is not None:
            return simple
        try:
            template = compile_text(self.environment, source)
        except jinja2.TemplateSyntaxError as error:
            place = origin_of(text)
            if place and place.line and error.lineno > 1:
                place = Origin(place.file, place.line + error.lineno - 1)
            raise InputError(_syntax(error, self.environment), where=place, found=source.strip()[:200]) from None
        environment = self.environment

        def run(scope: Scope) -> Any:
            nodes = run_template(template, environment, scope)
            if not nodes:
                return None
            return environment.concat(nodes)

        return run

    def _guard(self, program: Callable[[Scope], Any], text: str, scope: Scope) -> Any:
        try:
            return program(scope)
        except (StillToCome, BringupError):
            raise
        except jinja2.UndefinedError as error:
            self._undefined_error(error, origin_of(text), scope)
        except RecursionError:
            raise TemplateFailure("refers to itself", where=origin_of(text), found=text[:200]) from None
        except Exception as error:
            raise TemplateFailure(f"cannot be rendered: {error}", where=origin_of(text),
                                  found=text.strip()[:200]) from error

    def _undefined(self, value: Undefined, raw: Any, scope: Scope | None) -> NoReturn:
        try:
            value._fail_with_undefined_error()
        except jinja2.UndefinedError as error:
            self._undefined_error(error, origin_of(raw), scope)
        raise AssertionError("an undefined value did not fail")

    def _undefined_error(self, error: jinja2.UndefinedError, where: Origin | None, scope: Scope | None) -> NoReturn:
        message = error.args[0] if error.args and isinstance(error.args[0], MissingText) else error.message
        if not isinstance(message, MissingText):
            raise UndefinedFailure(str(message), where=where) from None
        if isinstance(message.failure, BringupError):
            raise message.failure from None
        name = str(message.name)
        details = [f"through   {' <- '.join(message.chain)}"] if message.chain else []
        if message.owner is missing:
            known: Iterable[str] = scope.names() if scope else ()
            what = f"the variable `{name}` is not defined"
        else:
            owner = message.owner
            known = [str(key) for key in owner] if isinstance(owner, Mapping) else ()
            what = f"{_kind(owner)} has no key `{name}`"
        near = nearest(name, known)
        raise UndefinedFailure(what, where=where, details=details, next=f"nearest: {near}" if near else None) from None


_ONE_TEMPLATE = re.compile(r"\{\{((?:(?!\}\}|\{\{).)*)\}\}", re.DOTALL)


def _simple(source: str, environment: Environment) -> Callable[[Scope], Any] | None:
    """A program for what most texts are, names and paths with plain text between them, without Jinja's compiler;
    None for everything else."""
    pieces = _PATH.split(source)
    if any("{" in text or "}" in text or "\r" in text for text in pieces[::2]):
        return None
    paths = [tuple(path.split(".")) for path in pieces[1::2]]
    if any(part in _NOT_NAMES for path in paths for part in path):
        return None
    if len(paths) == 1 and not pieces[0] and not pieces[2]:
        only = paths[0]
        return lambda scope: _follow(only, scope, environment)
    texts = pieces[::2]

    def run(scope: Scope) -> str:
        out = [texts[0]]
        for path, text in zip(paths, texts[1:], strict=True):
            out.append(str(_follow(path, scope, environment)))
            out.append(text)
        return "".join(out)

    return run


def _follow(path: tuple[str, ...], scope: Scope, environment: Environment) -> Any:
    """`a.b.c` as Jinja reads it."""
    found = scope.find(path[0])
    if found is missing:
        found = environment.globals.get(path[0], missing)
    value = environment.undefined(name=path[0]) if found is missing else found
    for attribute in path[1:]:
        value = environment.getattr(value, attribute)
    return value


def _keep_backslashes(source: str, environment: Environment) -> str:
    """Double the backslashes of text literals inside `{{ }}`: as in Ansible, `'\\1'` there is a backslash and a 1."""
    out, inside = [], False
    try:
        for _, kind, text in environment.lex(source):
            if kind == "variable_begin":
                inside = True
            elif kind == "variable_end":
                inside = False
            out.append(text.replace("\\", "\\\\") if inside and kind == "string" else text)
    except jinja2.TemplateSyntaxError:
        return source  # compiling it tells what is wrong
    return "".join(out)


def _syntax(error: jinja2.TemplateSyntaxError, environment: Environment) -> str:
    message = error.message or "is not a valid template"
    for kind, table in (("filter", environment.filters), ("test", environment.tests)):
        match = re.match(rf"No {kind} named '([^']+)'", message)
        if match:
            near = nearest(match.group(1).rpartition(".")[2], table)
            return f"the {kind} `{match.group(1)}` is not known" + (f"; nearest: {near}" if near else "")
    return f"is not a valid template: {message}"


def _template_line(error: BaseException, template: jinja2.Template) -> int:
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _kind(value: Any) -> str:
    for kind, word in ((bool, "a boolean"), (dict, "a mapping"), (list, "a list"), (str, "a text"), (int, "a number"),
                       (float, "a number")):
        if isinstance(value, kind):
            return word
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _file_text(node: Any) -> str:
    if isinstance(node, Undefined):
        node._fail_with_undefined_error()
    return str(node)


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
