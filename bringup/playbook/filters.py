"""The filters of Ansible that the dialect has, beside Jinja2's own."""

from __future__ import annotations

import base64
import datetime
import hashlib
import itertools
import json
import os
import posixpath
import random
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import pass_environment
from jinja2.runtime import Undefined

from bringup.playbook.values import LazyDict, LazyList


class FilterError(Exception):
    """A filter was given what it cannot use."""


_TRUE = frozenset({"yes", "on", "true", "1"})
_FALSE = frozenset({"no", "off", "false", "0"})


def to_bool(value: Any) -> bool:
    """`yes`, `on`, `true`, `1` are true; their opposites false. Anything else is an error."""
    word = str(value).lower() if isinstance(value, (str, int)) else value
    if isinstance(word, str) and word in _TRUE:
        return True
    if isinstance(word, str) and word in _FALSE:
        return False
    if value is None or isinstance(value, float):
        return value == 1
    raise FilterError(f"bool: {value!r} is no boolean (yes, no, on, off, true, false, 1, 0)")


def plain(value: Any) -> Any:
    """Containers that render on access turned into ordinary ones."""
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if isinstance(value, LazyDict) or (isinstance(value, Mapping) and not isinstance(value, dict)):
        return {str(key) if isinstance(key, str) else key: plain(value[key]) for key in value}
    if isinstance(value, dict):
        return {str(key) if isinstance(key, str) else key: plain(item) for key, item in value.items()}
    if isinstance(value, (LazyList, list, tuple, set, frozenset, range)) or hasattr(value, "__next__"):
        return [plain(item) for item in value]
    return str.__str__(value) if isinstance(value, str) else value


def to_json(value: Any, **options: Any) -> str:
    for name in ("vault_to_text", "preprocess_unsafe", "profile"):
        options.pop(name, None)
    return json.dumps(plain(value), default=str, **options)


def to_nice_json(value: Any, indent: int = 4, sort_keys: bool = True, **options: Any) -> str:
    options.pop("separators", None)
    return to_json(value, indent=indent, sort_keys=sort_keys, separators=(",", ": "), **options)


def from_json(value: Any, **options: Any) -> Any:
    return json.loads(_text(value), **options)


def to_yaml(value: Any, default_flow_style: bool | None = None, **options: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Indents lists under their key as Ansible's dumper does not; kept plain."""

    return str(yaml.dump(plain(value), Dumper=Dumper, allow_unicode=True, default_flow_style=default_flow_style,
                         **options))


def to_nice_yaml(value: Any, indent: int = 4, default_flow_style: bool = False, **options: Any) -> str:
    return to_yaml(value, indent=indent, default_flow_style=default_flow_style, **options)


def from_yaml(value: Any) -> Any:
    from bringup.base import yaml as reader

    return plain(reader.load(_text(value), "from_yaml")) if isinstance(value, str) else value


def from_yaml_all(value: Any) -> Any:
    from bringup.base import yaml as reader

    return plain(reader.load_all(_text(value), "from_yaml_all")) if isinstance(value, str) else value or []


def regex_replace(value: Any = "", pattern: str = "", replacement: str = "", ignorecase: bool = False,
                  multiline: bool = False, count: int = 0, mandatory_count: int = 0) -> str:
    text, made = re.compile(pattern, _flags(ignorecase, multiline)).subn(replacement, _text(value), count=count)
    if mandatory_count and made != mandatory_count:
        raise FilterError(f"regex_replace: {pattern!r} matched {made} times, not {mandatory_count}")
    return text


def regex_search(value: Any, pattern: str, *groups: str, ignorecase: bool = False, multiline: bool = False) -> Any:
    found = re.search(pattern, _text(value), _flags(ignorecase, multiline))
    wanted: list[int | str] = []
    for group in groups:
        match = re.fullmatch(r"\\g<(\S+)>|\\(\d+)", group)
        if not match:
            raise FilterError(f"regex_search: a group is named as '\\\\1' or '\\\\g<name>', not {group!r}")
        name = match.group(1) or match.group(2)
        wanted.append(int(name) if name.isdigit() else name)
    if found is None:
        return None
    return [found.group(item) for item in wanted] if wanted else found.group()


def regex_findall(value: Any, pattern: str, multiline: bool = False, ignorecase: bool = False) -> list[Any]:
    return [list(item) if isinstance(item, tuple) else item
            for item in re.findall(pattern, _text(value), _flags(ignorecase, multiline))]


def regex_escape(value: Any, re_type: str = "python") -> str:
    if re_type == "python":
        return re.escape(_text(value))
    if re_type == "posix_basic":
        return re.sub(r"([].[^$*\\])", r"\\\1", _text(value))
    raise FilterError(f"regex_escape: the type {re_type!r} is not known (python, posix_basic)")


def ternary(value: Any, yes: Any, no: Any, none: Any = None) -> Any:
    if value is None and none is not None:
        return none
    return yes if value else no


def mandatory(value: Any, msg: str | None = None) -> Any:
    if isinstance(value, Undefined):
        if msg is not None:
            raise FilterError(str(msg))
        raise FilterError(f"the mandatory variable `{value._undefined_name}` is not defined")
    return value


def merge(low: Mapping[Any, Any], high: Mapping[Any, Any], recursive: bool, list_merge: str) -> dict[Any, Any]:
    """Two mappings merged, the second wins. `list_merge`: replace, keep, append, prepend, append_rp, prepend_rp."""
    out = dict(low)
    for key, value in high.items():
        old = out.get(key)
        if key not in out:
            out[key] = value
        elif recursive and isinstance(old, Mapping) and isinstance(value, Mapping):
            out[key] = merge(old, value, recursive, list_merge)
        elif isinstance(old, list) and isinstance(value, list):
            out[key] = _merge_lists(old, value, list_merge)
        else:
            out[key] = value
    return out


def _merge_lists(low: list[Any], high: list[Any], how: str) -> list[Any]:
    if how == "replace":
        return high
    if how == "keep":
        return low
    if how in ("append", "append_rp"):
        return (low if how == "append" else [item for item in low if item not in high]) + high
    if how in ("prepend", "prepend_rp"):
        return high + (low if how == "prepend" else [item for item in low if item not in high])
    raise FilterError(f"combine: list_merge {how!r} is not known")


def combine(*terms: Any, recursive: bool = False, list_merge: str = "replace") -> Any:
    out: dict[Any, Any] = {}
    for term in flatten(list(terms), levels=1):
        if isinstance(term, Undefined):
            term._fail_with_undefined_error()
        if not isinstance(term, Mapping):
            raise FilterError(f"combine: needs mappings, found {term!r}")
        out = merge(out, term, recursive, list_merge)
    return out


def flatten(value: Any, levels: int | None = None, skip_nulls: bool = True) -> list[Any]:
    out: list[Any] = []
    for item in value:
        if skip_nulls and item in (None, "None", "null"):
            continue
        if isinstance(item, (list, tuple)) and (levels is None or levels >= 1):
            out.extend(flatten(item, None if levels is None else levels - 1, skip_nulls))
        else:
            out.append(item)
    return out


def dict2items(value: Any, key_name: str = "key", value_name: str = "value") -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise FilterError(f"dict2items: needs a mapping, found {value!r}")
    return [{key_name: key, value_name: item} for key, item in value.items()]


def items2dict(value: Any, key_name: str = "key", value_name: str = "value") -> dict[Any, Any]:
    try:
        return {item[key_name]: item[value_name] for item in value}
    except (KeyError, TypeError):
        raise FilterError(f"items2dict: needs a list of mappings with `{key_name}` and `{value_name}`") from None


def unique(value: Iterable[Any], case_sensitive: bool = True, attribute: str | None = None) -> list[Any]:
    out: list[Any] = []
    seen: list[Any] = []
    for item in value:
        mark = item[attribute] if attribute else item
        mark = mark.lower() if isinstance(mark, str) and case_sensitive is False else mark
        if mark not in seen:
            seen.append(mark)
            out.append(item)
    return out


def union(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    return unique([*first, *second])


def intersect(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    other = list(second)
    return unique(item for item in first if item in other)


def difference(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    other = list(second)
    return unique(item for item in first if item not in other)


def symmetric_difference(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    one, two = list(first), list(second)
    return difference(union(one, two), intersect(one, two))


def extract(key: Any, container: Any, morekeys: Any = None) -> Any:
    keys = [key, *(morekeys if isinstance(morekeys, list) else [morekeys] if morekeys is not None else [])]
    for one in keys:
        container = container[one]
    return container


def subelements(value: Any, path: Any, skip_missing: bool = False) -> list[Any]:
    parts = path.split(".") if isinstance(path, str) else list(path)
    out: list[Any] = []
    for element in list(value.values()) if isinstance(value, Mapping) else value:
        found = element
        for part in parts:
            if not isinstance(found, Mapping) or part not in found:
                if skip_missing:
                    found = []
                    break
                raise FilterError(f"subelements: no key `{part}` in {element!r}")
            found = found[part]
        out.extend((element, item) for item in found)
    return out


@pass_environment
def rand(environment: Any, end: Any, start: int | None = None, step: int | None = None, seed: Any = None) -> Any:
    source = random.SystemRandom() if seed is None else random.Random(str(seed))
    if isinstance(end, int):
        return source.randrange(start or 0, end, step or 1)
    return source.choice(list(end))


def shuffle(value: Iterable[Any], seed: Any = None) -> list[Any]:
    out = list(value)
    (random.Random(str(seed)) if seed else random.SystemRandom()).shuffle(out)
    return out


def digest(value: Any, kind: str = "sha1") -> str:
    try:
        return hashlib.new(kind, _text(value).encode("utf-8", "surrogateescape")).hexdigest()
    except ValueError:
        raise FilterError(f"hash: the algorithm {kind!r} is not known") from None


def b64encode(value: Any, encoding: str = "utf-8", urlsafe: bool = False) -> str:
    raw = _text(value).encode(encoding, "surrogateescape")
    return (base64.urlsafe_b64encode if urlsafe else base64.b64encode)(raw).decode("ascii")


def b64decode(value: Any, encoding: str = "utf-8", urlsafe: bool = False) -> str:
    raw = _text(value).encode("ascii")
    return (base64.urlsafe_b64decode if urlsafe else base64.b64decode)(raw).decode(encoding, "surrogateescape")


def to_uuid(value: Any, namespace: str = "361E6D51-FAEC-444A-9079-341386DA8E2E") -> str:
    return str(uuid.uuid5(uuid.UUID(namespace), _text(value)))


def human_readable(value: Any, isbits: bool = False, unit: str | None = None) -> str:
    word = "bits" if isbits else "Bytes"
    number = float(value)
    for power, letter in ((80, "Y"), (70, "Z"), (60, "E"), (50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if (unit is None and number >= 2**power) or (unit and unit.upper() == letter):
            return f"{number / 2**power:.2f} {letter}{word[0].lower() if isbits else word[0]}"
    return f"{number:.2f} {word}"


def human_to_bytes(value: Any, default_unit: str | None = None, isbits: bool = False) -> int:
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", str(value))
    if not match:
        raise FilterError(f"human_to_bytes: {value!r} is no size")
    unit = (match.group(2) or default_unit or "B").upper()
    powers = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60, "Z": 70, "Y": 80}
    if unit[0] not in powers:
        raise FilterError(f"human_to_bytes: the unit {unit!r} is not known")
    return round(float(match.group(1)) * float(1 << powers[unit[0]]))


def strftime(pattern: str, second: Any = None, utc: bool = False) -> str:
    kind = time.gmtime if utc else time.localtime
    return time.strftime(pattern, kind(float(second)) if second is not None else kind())


def to_datetime(value: str, format: str = "%Y-%m-%d %H:%M:%S") -> datetime.datetime:
    return datetime.datetime.strptime(value, format)


def path_join(value: Any) -> str:
    return value if isinstance(value, str) else posixpath.join(*[_text(item) for item in value])


def split(value: Any, separator: str | None = None, limit: int = -1) -> list[str]:
    return _text(value).split(separator, limit)


def comment(text: Any, style: str = "plain", **options: Any) -> str:
    decoration = options.get("decoration", {"plain": "# ", "erlang": "% ", "c": "// ", "cblock": " * ",
                                            "xml": " - "}.get(style, "# "))
    start, end = {"cblock": ("/*\n", "\n */"), "xml": ("<!--\n", "\n-->")}.get(style, ("", ""))
    blank = decoration.rstrip()
    lines = [f"{decoration}{line}".rstrip() for line in _text(text).split("\n")]
    return f"{start}{blank}\n" + "\n".join(lines) + f"\n{blank}{end}"


def rekey_on_member(value: Any, key: str, duplicates: str = "error") -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for item in value.values() if isinstance(value, Mapping) else value:
        if key not in item:
            raise FilterError(f"rekey_on_member: no key `{key}` in {item!r}")
        if item[key] in out and duplicates == "error":
            raise FilterError(f"rekey_on_member: {item[key]!r} stands twice")
        out[item[key]] = item
    return out


def default(value: Any, fallback: Any = "", boolean: bool = False) -> Any:
    return fallback if isinstance(value, Undefined) or (boolean and not value) else value


def groupby(value: Iterable[Any], attribute: str) -> list[tuple[Any, list[Any]]]:
    def key(item: Any) -> Any:
        for part in attribute.split("."):
            item = item[part]
        return item

    ordered = sorted(value, key=key)
    return [(name, list(items)) for name, items in itertools.groupby(ordered, key)]


def _text(value: Any) -> str:
    if isinstance(value, Undefined):
        value._fail_with_undefined_error()
    if isinstance(value, str):
        return str.__str__(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _flags(ignorecase: bool, multiline: bool) -> int:
    return (re.IGNORECASE if ignorecase else 0) | (re.MULTILINE if multiline else 0)


def _of_text(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, *rest, **named: function(_text(value), *rest, **named)


FILTERS: dict[str, Callable[..., Any]] = {
    "b64decode": b64decode,
    "b64encode": b64encode,
    "basename": _of_text(posixpath.basename),
    "bool": to_bool,
    "checksum": lambda value: digest(value, "sha1"),
    "combinations": lambda value, count: [list(item) for item in itertools.combinations(value, count)],
    "combine": combine,
    "comment": comment,
    "d": default,
    "default": default,
    "dict2items": dict2items,
    "difference": difference,
    "dirname": _of_text(posixpath.dirname),
    "expanduser": _of_text(os.path.expanduser),
    "expandvars": _of_text(os.path.expandvars),
    "extract": extract,
    "flatten": flatten,
    "from_json": from_json,
    "from_yaml": from_yaml,
    "from_yaml_all": from_yaml_all,
    "groupby": groupby,
    "hash": digest,
    "human_readable": human_readable,
    "human_to_bytes": human_to_bytes,
    "intersect": intersect,
    "items2dict": items2dict,
    "mandatory": mandatory,
    "md5": lambda value: digest(value, "md5"),
    "normpath": _of_text(posixpath.normpath),
    "path_join": path_join,
    "permutations": lambda value, count=None: [list(item) for item in itertools.permutations(value, count)],
    "pow": pow,
    "product": lambda *lists: [list(item) for item in itertools.product(*lists)],
    "quote": lambda value: shlex.quote("" if value is None else _text(value)),
    "random": rand,
    "realpath": _of_text(os.path.realpath),
    "regex_escape": regex_escape,
    "regex_findall": regex_findall,
    "regex_replace": regex_replace,
    "regex_search": regex_search,
    "rekey_on_member": rekey_on_member,
    "relpath": lambda value, start: posixpath.relpath(_text(value), start),
    "root": lambda value, base=2: float(value) ** (1.0 / float(base)),
    "sha1": lambda value: digest(value, "sha1"),
    "shuffle": shuffle,
    "split": split,
    "splitext": lambda value: list(posixpath.splitext(_text(value))),
    "strftime": strftime,
    "subelements": subelements,
    "symmetric_difference": symmetric_difference,
    "ternary": ternary,
    "to_datetime": to_datetime,
    "to_json": to_json,
    "to_nice_json": to_nice_json,
    "to_nice_yaml": to_nice_yaml,
    "to_uuid": to_uuid,
    "to_yaml": to_yaml,
    "type_debug": lambda value: type(plain(value)).__name__,
    "union": union,
    "unique": unique,
    "zip": lambda *lists: [list(item) for item in zip(*lists, strict=False)],
    "zip_longest": lambda *lists, fillvalue=None: [list(item)
                                                   for item in itertools.zip_longest(*lists, fillvalue=fillvalue)],
}

for _name, _function in list(FILTERS.items()):
    FILTERS[f"ansible.builtin.{_name}"] = _function
