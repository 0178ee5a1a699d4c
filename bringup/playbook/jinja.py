"""The Jinja2 environment of playbooks: native types, strict, chained undefined values, compiled once per text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
from jinja2.compiler import has_safe_repr
from jinja2.nativetypes import NativeCodeGenerator, NativeEnvironment
from jinja2.runtime import Context, StrictUndefined, Undefined

SCOPE = "_bringup_scope"
"""The name under which a scope travels from one Jinja context to the next (include, import)."""


class StillToCome(Exception):
    """A value that rendering asked for is not there yet: a task that gives it has not ended. Not an error."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class MissingText(str):
    """The message of an undefined value, with what was looked for."""

    name: str
    owner: Any
    chain: tuple[str, ...]
    failure: Exception | None


class Missing(StrictUndefined):
    """An undefined value. Its attributes and items are undefined too, so that `default` sees through a chain."""

    __slots__ = ("missing_chain", "missing_failure")

    def __init__(self, hint: str | None = None, obj: Any = jinja2.utils.missing, name: str | None = None,
                 exc: type[jinja2.exceptions.TemplateRuntimeError] = jinja2.exceptions.UndefinedError) -> None:
        super().__init__(hint, obj, name, exc)
        self.missing_chain: tuple[str, ...] = ()
        self.missing_failure: Exception | None = None

    @property
    def _undefined_message(self) -> str:
        text = MissingText(self._undefined_hint or super()._undefined_message)
        text.name = self._undefined_name or ""
        text.owner = self._undefined_obj
        text.chain = self.missing_chain
        text.failure = self.missing_failure
        return text

    def __getattr__(self, name: str) -> Any:
        if name[:2] == name[-2:] == "__":
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self


class _Generator(NativeCodeGenerator):
    """Keeps the type of a constant: `{{ 5 }}` is the number."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        parts = list(group)
        if len(parts) == 1 and has_safe_repr(parts[0]):
            return repr(parts[0])
        return repr("".join(str(part) for part in parts))


def concat(values: Iterable[Any]) -> Any:
    """One node keeps its type; several are joined as text; none is the empty text."""
    out = list(values)
    if len(out) == 1:
        return out[0]
    return "".join(str(part) for part in out)


class ScopeContext(Context):
    """A Jinja context that asks a scope for names that the template does not set itself."""

    def __init__(self, environment: Any, parent: dict[str, Any], name: str | None, blocks: dict[str, Any],
                 globals: Any = None) -> None:
        scope = parent.pop(SCOPE, None)
        super().__init__(environment, parent, name, blocks, globals)
        self.scope = scope

    def resolve_or_missing(self, key: str) -> Any:
        if key in self.vars:
            return self.vars[key]
        if self.scope is not None:
            found = self.scope.find(key)
            if found is not jinja2.utils.missing:
                return found
        found = self.parent.get(key, jinja2.utils.missing)
        return found if found is not jinja2.utils.missing else self.environment.globals.get(key, found)

    def get_all(self) -> dict[str, Any]:
        everything = {**self.parent, **self.vars}
        if self.scope is not None:
            everything[SCOPE] = self.scope
        return everything


class Environment(NativeEnvironment):
    """The environment that all templates share; `overlay` gives one with other delimiters."""

    code_generator_class = _Generator
    context_class = ScopeContext
    concat = staticmethod(concat)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`a.b`: a method of Python's dict, list or text, else the item; what our subclasses add stays hidden."""
        if isinstance(obj, Undefined):
            return obj
        for base in (dict, list, str):
            if isinstance(obj, base):
                if not attribute.startswith("_") and hasattr(base, attribute):
                    return getattr(obj, attribute)
                return self.item(obj, attribute)
        if attribute.startswith("_"):
            return self.item(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            return obj
        if isinstance(obj, (dict, list, str)):
            found = self.item(obj, argument)
            if isinstance(found, Undefined) and isinstance(argument, str):
                return self.getattr(obj, argument) if hasattr(dict, argument) and isinstance(obj, dict) else found
            return found
        return super().getitem(obj, argument)

    def item(self, obj: Any, key: Any) -> Any:
        """The item of a mapping, list or text, or an undefined value."""
        try:
            return obj[key]
        except (KeyError, IndexError, TypeError, LookupError):
            return self.undefined(obj=obj, name=key)


def build_environment(filters: Mapping[str, Callable[..., Any]], tests: Mapping[str, Callable[..., Any]],
                      names: Mapping[str, Any]) -> Environment:
    """An environment with these filters, tests and global names beside Jinja's own."""
    environment = Environment(undefined=Missing, trim_blocks=True, keep_trailing_newline=True, autoescape=False,
                              extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"], cache_size=0)
    environment.filters.update(filters)
    environment.tests.update(tests)
    environment.globals.update(names)
    return environment


def compile_text(environment: Environment, text: str) -> jinja2.Template:
    """A template from text. Raises jinja2.TemplateSyntaxError."""
    return environment.from_string(str.__str__(text))


def run_template(template: jinja2.Template, environment: Environment, scope: Any,
                 local: Mapping[str, Any] | None = None) -> list[Any]:
    """The nodes that a template yields, in order. `local` are names that go before those of the scope."""
    parent: dict[str, Any] = {SCOPE: scope}
    context = ScopeContext(environment, parent, template.name, template.blocks)
    if local:
        context.vars.update(local)
    return list(template.root_render_func(context))
