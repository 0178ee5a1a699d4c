"""The tests (`is ...`) of Ansible that the dialect has, beside Jinja2's own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from bringup.playbook.filters import FilterError, to_bool


def _result(value: Any, test: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FilterError(f"the test `{test}` needs the result of a task, found {value!r}")
    return value


def failed(value: Any) -> bool:
    return bool(_result(value, "failed").get("failed"))


def changed(value: Any) -> bool:
    result = _result(value, "changed")
    if "changed" in result:
        return bool(result["changed"])
    items = result.get("results")
    return isinstance(items, list) and any(isinstance(item, Mapping) and item.get("changed") for item in items)


def regex(value: Any = "", pattern: str = "", ignorecase: bool = False, multiline: bool = False,
          match_type: str = "search") -> bool:
    flags = (re.IGNORECASE if ignorecase else 0) | (re.MULTILINE if multiline else 0)
    return bool(getattr(re.compile(pattern, flags), match_type)(str(value)))


def match(value: Any, pattern: str = "", ignorecase: bool = False, multiline: bool = False) -> bool:
    return regex(value, pattern, ignorecase, multiline, "match")


def search(value: Any, pattern: str = "", ignorecase: bool = False, multiline: bool = False) -> bool:
    return regex(value, pattern, ignorecase, multiline, "search")


_OPERATORS: Mapping[str, str] = {
    "==": "eq", "=": "eq", "eq": "eq", "<": "lt", "lt": "lt", "<=": "le", "le": "le", ">": "gt", "gt": "gt",
    ">=": "ge", "ge": "ge", "!=": "ne", "<>": "ne", "ne": "ne",
}


def _loose(text: str) -> list[tuple[int, int | str]]:
    parts = re.findall(r"\d+|[a-zA-Z]+", text)
    # a word sorts before a number at the same place: 1.0rc1 < 1.0.1
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]


def version(value: Any, other: Any, operator: str = "eq", strict: bool | None = None,
            version_type: str | None = None) -> bool:
    """Compares versions part by part, numbers as numbers; semver and pep440 put a pre-release first."""
    if operator not in _OPERATORS:
        raise FilterError(f"version: the operator {operator!r} is not known")
    if version_type not in (None, "loose", "strict", "semver", "semantic", "pep440"):
        raise FilterError(f"version: the version_type {version_type!r} is not known")
    if value in (None, "") or other in (None, ""):
        raise FilterError("version: one of the versions is empty")
    if version_type == "pep440":
        from packaging.version import Version

        first: Any = Version(str(value))
        second: Any = Version(str(other))
    else:
        first, second = _loose(str(value)), _loose(str(other))
        if version_type in ("semver", "semantic"):
            first, second = _semantic(str(value)), _semantic(str(other))
    order = (first > second) - (first < second)
    return bool({"eq": order == 0, "ne": order != 0, "lt": order < 0, "le": order <= 0, "gt": order > 0,
                 "ge": order >= 0}[_OPERATORS[operator]])


def _semantic(text: str) -> tuple[Any, ...]:
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", text)
    if not found:
        raise FilterError(f"version: {text!r} is no semantic version")
    numbers = tuple(int(part) for part in found.group(1, 2, 3))
    return (*numbers, found.group(4) is None, _loose(found.group(4) or ""))


def truthy(value: Any, convert_bool: bool = False) -> bool:
    if convert_bool:
        try:
            value = to_bool(value)
        except FilterError:
            pass
    return bool(value)


def contains(container: Any, value: Any) -> bool:
    return value in container


def _subset(small: Any, large: Any) -> bool:
    other = list(large)
    return all(item in other for item in small)


TESTS: dict[str, Callable[..., Any]] = {
    "abs": os.path.isabs,
    "all": all,
    "any": any,
    "change": changed,
    "changed": changed,
    "contains": contains,
    "directory": os.path.isdir,
    "exists": os.path.exists,
    "failed": failed,
    "failure": failed,
    "falsy": lambda value, convert_bool=False: not truthy(value, convert_bool),
    "file": os.path.isfile,
    "finished": lambda value: bool(_result(value, "finished").get("finished", True)),
    "is_abs": os.path.isabs,
    "is_dir": os.path.isdir,
    "is_file": os.path.isfile,
    "is_link": os.path.islink,
    "issubset": _subset,
    "issuperset": lambda large, small: _subset(small, large),
    "link": os.path.islink,
    "link_exists": os.path.lexists,
    "match": match,
    "nan": lambda value: value != value,
    "reachable": lambda value: not _result(value, "reachable").get("unreachable"),
    "regex": regex,
    "search": search,
    "skip": lambda value: bool(_result(value, "skipped").get("skipped")),
    "skipped": lambda value: bool(_result(value, "skipped").get("skipped")),
    "started": lambda value: bool(_result(value, "started").get("started", True)),
    "subset": _subset,
    "succeeded": lambda value: not failed(value),
    "success": lambda value: not failed(value),
    "successful": lambda value: not failed(value),
    "superset": lambda large, small: _subset(small, large),
    "truthy": truthy,
    "unreachable": lambda value: bool(_result(value, "unreachable").get("unreachable")),
    "version": version,
    "version_compare": version,
}

for _name, _function in list(TESTS.items()):
    TESTS[f"ansible.builtin.{_name}"] = _function
