"""Arguments of modules: read from mappings and `key=value` texts, checked against the module's table, converted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import YamlMap, key_origin, origin_of, value_origin
from bringup.playbook.filters import FilterError, to_bool
from bringup.playbook.model import Module
from bringup.playbook.values import OMIT, looks_templated

ANY = "*"
"""In an arguments table: every other name."""

_SYMBOLIC = re.compile(r"[ugoa]*([-+=]([rwxXst]*|[ugo]))+(,[ugoa]*([-+=]([rwxXst]*|[ugo]))+)*")


def split_words(text: str) -> Iterator[str]:
    """Words of a `key=value` text: blanks split, except within quotes and within `{{ }}` or `{% %}`."""
    word, quote, depth = "", "", 0
    for index, char in enumerate(text):
        pair = text[index:index + 2]
        if pair in ("{{", "{%"):
            depth += 1
        elif text[index - 1:index + 1] in ("}}", "%}") and depth:
            depth -= 1
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char.isspace() and depth <= 0:
            if word:
                yield word
            word = ""
            continue
        word += char
    if word:
        yield word


def unquote(text: str) -> str:
    """A text without the quotes around it."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def from_text(text: str, module: Module, origin: Origin) -> dict[str, Any]:
    """Arguments from a free text: `key=value` words, and for modules with a free form the rest of it."""
    from bringup.base.yaml import YamlText

    out: dict[str, Any] = {}
    if module.free_form is None or module.name == "meta":
        rest = []
        for word in split_words(text):
            key, equals, value = word.partition("=")
            if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                out[key] = YamlText(unquote(value), origin)
            else:
                rest.append(word)
        if rest and module.free_form:
            out[module.free_form] = YamlText(" ".join(rest), origin)
        elif rest:
            raise InputError(f"`{module.name}` takes `key=value` words or a mapping", where=origin,
                             found=" ".join(rest)[:80])
        return out
    kept = str.__str__(text)
    for word in split_words(text):
        key, equals, value = word.partition("=")
        if equals and key in module.arguments and key != module.free_form and key.isidentifier():
            out[key] = YamlText(unquote(value), origin)
            kept = kept.replace(word, "", 1)
    line = kept.strip()
    if line:
        out[module.free_form] = YamlText(line, origin)
    return out


def canonical(args: Mapping[str, Any], module: Module, origin: Origin) -> tuple[dict[str, Any], list[InputError]]:
    """Arguments under their canonical names, and what is wrong with them before anything is rendered."""
    names = _names(module)
    out = YamlMap(origin)
    problems: list[InputError] = []
    for key, value in args.items():
        where = key_origin(args, key) or origin_of(value) or origin
        name = names.get(str(key))
        if name is None and ANY in module.arguments:
            name = str(key)
        if name is None:
            near = nearest(str(key), names)
            problems.append(InputError(f"`{module.name}` has no argument `{key}`", where=where,
                                       next=f"nearest: {near}" if near else f"it takes {', '.join(sorted(names))}"))
            continue
        if name in out:
            problems.append(InputError(f"`{module.name}` is given `{name}` twice, once as `{key}`", where=where))
            continue
        out[name] = value
        out.key_origins[name] = where
        out.value_origins[name] = value_origin(args, key) or where
        typed = args.value_texts.get(key) if isinstance(args, YamlMap) else None
        if typed is not None:
            out.value_texts[name] = typed
        problem = literal_problem(module, name, value, out.value_origins[name], typed)
        if problem:
            problems.append(problem)
    for name, table in module.arguments.items():
        if table.get("required") and name not in out and name != ANY:
            problems.append(InputError(f"`{module.name}` needs the argument `{name}`", where=origin))
    return out, problems


def literal_problem(module: Module, name: str, value: Any, where: Origin, typed: str | None = None
                    ) -> InputError | None:
    """What is wrong with a value that needs no rendering; None when nothing is or a template decides."""
    if isinstance(value, str) and looks_templated(value):
        return None
    if isinstance(value, (dict, list)) and _holds_template(value):
        return None
    table = module.arguments.get(name) or module.arguments.get(ANY, {})
    try:
        converted = convert(value, table, typed)
    except InputError as error:
        return InputError(f"`{module.name}`: argument `{name}` {error.what}", where=where, expected=error.expected,
                          found=error.found, next=error.next)
    return _choice_problem(module, name, converted, table, where)


def complete(args: Mapping[str, Any], module: Module, origin: Origin) -> dict[str, Any]:
    """Rendered arguments converted to their types, defaults filled in. Raises InputError for a wrong value."""
    out: dict[str, Any] = {}
    for name, value in args.items():
        if value is OMIT:
            continue
        table = module.arguments.get(name) or module.arguments.get(ANY, {})
        where = value_origin(args, name) or origin
        try:
            converted = convert(value, table, args.value_texts.get(name) if isinstance(args, YamlMap) else None)
        except InputError as error:
            raise InputError(f"`{module.name}`: argument `{name}` {error.what}", where=where,
                             expected=error.expected, found=error.found, next=error.next) from None
        problem = _choice_problem(module, name, converted, table, where)
        if problem:
            raise problem
        out[name] = converted
    for name, table in module.arguments.items():
        if name == ANY or name in out:
            continue
        if table.get("required"):
            raise InputError(f"`{module.name}` needs the argument `{name}`", where=origin)
        if table.get("default") is not None:
            out[name] = table["default"]
    return out


def convert(value: Any, table: Mapping[str, Any], typed: str | None = None) -> Any:
    """A value as the type that the table names; `typed` is the word behind a number or boolean. Raises InputError."""
    kind = table.get("type", "str")
    if value is None or kind == "raw":
        return value
    return _CONVERTERS[kind](value, typed)


def _choice_problem(module: Module, name: str, value: Any, table: Mapping[str, Any], where: Origin
                    ) -> InputError | None:
    choices = table.get("choices")
    if not choices or value is None:
        return None
    given = value if isinstance(value, list) else [value]
    for item in given:
        if item not in choices:
            near = nearest(str(item), [str(choice) for choice in choices])
            return InputError(f"`{module.name}`: argument `{name}` is one of {', '.join(map(str, choices))}",
                              where=where, found=str(item), next=f"nearest: {near}" if near else None)
    return None


def _names(module: Module) -> dict[str, str]:
    names = {name: name for name in module.arguments if name != ANY}
    for name, table in module.arguments.items():
        for alias in table.get("aliases", ()):
            names[alias] = name
    return names


def _holds_template(value: Any) -> bool:
    if isinstance(value, str):
        return looks_templated(value)
    if isinstance(value, dict):
        return any(_holds_template(item) for item in value.values())
    return isinstance(value, list) and any(_holds_template(item) for item in value)


def _str(value: Any, typed: str | None) -> str:
    if isinstance(value, (dict, list)):
        raise InputError("takes a text", found=json.dumps(value, default=str)[:80])
    if isinstance(value, str):
        return value
    return str(value) if typed is None else typed  # `3.10` and `no` stay what they are


def _bool(value: Any, typed: str | None) -> bool:
    if isinstance(value, bool):
        return value
    try:
        if isinstance(value, str) and value.lower() in ("y", "t", "n", "f"):
            return value.lower() in ("y", "t")
        if isinstance(value, float) and value in (0.0, 1.0):
            return bool(value)
        return to_bool(value)
    except FilterError:
        raise InputError("takes yes or no", found=str(value)) from None


def _int(value: Any, typed: str | None) -> int:
    try:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, float) and value != int(value):
            raise ValueError
        return int(value)
    except (ValueError, TypeError):
        raise InputError("takes a whole number", found=str(value)) from None


def _float(value: Any, typed: str | None) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (ValueError, TypeError):
        raise InputError("takes a number", found=str(value)) from None


def _list(value: Any, typed: str | None) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")] if value else []
    if isinstance(value, (int, float)):
        return [str(value)]
    raise InputError("takes a list", found=str(value)[:80])


def _dict(value: Any, typed: str | None) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            try:
                found = json.loads(value)
            except ValueError:
                raise InputError("takes a mapping", found=value[:80]) from None
            return dict(found)
        pairs = [part.partition("=") for part in split_words(value.replace(",", " "))]
        if pairs and all(equals for _, equals, _ in pairs):
            return {key: unquote(item) for key, _, item in pairs}
    raise InputError("takes a mapping", found=str(value)[:80])


def _mode(value: Any, typed: str | None) -> str:
    if isinstance(value, str):
        text = value.strip()
        if text == "preserve" or re.fullmatch(r"0?o?[0-7]{1,5}", text) or _SYMBOLIC.fullmatch(text):
            return text
        raise InputError("takes a mode such as \"0644\" or u=rw,g=r", found=value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("takes a mode such as \"0644\" or u=rw,g=r", found=str(value))
    if typed is None or re.match(r"0[0-7o]", typed):
        return f"{value:04o}"
    raise InputError(f"is the decimal number {value}, not a mode: the mode would be {value:04o}", found=typed,
                     next=f'write "0{typed}"')


_CONVERTERS: Mapping[str, Callable[[Any, str | None], Any]] = {
    "str": _str, "path": _str, "bool": _bool, "int": _int, "float": _float, "list": _list, "dict": _dict,
    "mode": _mode,
}
