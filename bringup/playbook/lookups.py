"""Lookups: values that a template fetches on the controller."""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import pass_context
from jinja2.utils import missing

from bringup.base.text import nearest
from bringup.playbook.filters import FilterError, flatten


def find_file(name: str, search: Sequence[Path], folder: str) -> Path | None:
    """A file of a role or playbook, as Ansible looks for it: `folder` inside each search folder, then the folder."""
    path = Path(os.path.expanduser(str(name)))
    if path.is_absolute():
        return path if path.exists() else None
    for base in search:
        for candidate in (base / folder / path, base / path):
            if candidate.exists():
                return candidate
    return None


def _file(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    out = []
    for term in terms:
        path = find_file(str(term), scope.search, "files")
        if path is None:
            raise FilterError(f"lookup file: {term} is not found in {_places(scope.search)}")
        text = path.read_bytes().decode("utf-8", "replace")
        if text.startswith("$ANSIBLE_VAULT;"):
            text = scope.engine.vault.open(text, str(path))
        out.append(text.rstrip() if options.get("rstrip", True) else text)
    return out


def _template(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    out = []
    for term in terms:
        path = find_file(str(term), scope.search, "templates")
        if path is None:
            raise FilterError(f"lookup template: {term} is not found in {_places(scope.search)}")
        local = options.get("template_vars") or {}
        out.append(scope.engine.file(path.read_text("utf-8"), path, scope, local=dict(local)))
    return out


def _env(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    return [os.environ.get(str(term), options.get("default", "")) for term in terms]


def _vars(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    out = []
    for term in terms:
        found = scope.find(str(term))
        if found is missing:
            if "default" not in options:
                raise FilterError(f"lookup vars: no variable named `{term}`")
            found = options["default"]
        out.append(found)
    return out


def _first_found(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    names: list[str] = []
    skip = bool(options.get("skip", False))
    for term in [*flatten(terms), {k: v for k, v in options.items() if k in ("files", "paths", "skip")}]:
        if isinstance(term, Mapping):
            files = flatten([term.get("files", [])])
            paths = flatten([term.get("paths", [])])
            skip = bool(term.get("skip", skip))
            names += [os.path.join(str(folder), str(name)) for folder in paths for name in files] if paths else files
        else:
            names.append(str(term))
    for name in names:
        for folder in ("files", "templates", "vars"):
            path = find_file(name, scope.search, folder)
            if path is not None:
                return [str(path)]
    if skip:
        return []
    raise FilterError(f"lookup first_found: none of {', '.join(names)} is found in {_places(scope.search)}")


def _pipe(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    if not scope.engine.allow_pipe:
        raise FilterError("lookup pipe runs a command on this machine and is refused; "
                          "use a task with delegate_to: localhost")
    return [subprocess.run(str(term), shell=True, check=True, capture_output=True, text=True).stdout.rstrip()
            for term in terms]


def _fileglob(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    out: list[str] = []
    for term in terms:
        for base in [*(folder / "files" for folder in scope.search), *scope.search]:
            found = sorted(name for name in glob.glob(str(base / str(term))) if os.path.isfile(name))
            if found:
                out.extend(found)
                break
    return out


def _dict(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    return [{"key": key, "value": value} for term in terms for key, value in term.items()]


def _sequence(scope: Any, terms: list[Any], options: Mapping[str, Any]) -> list[Any]:
    given: dict[str, Any] = dict(options)
    for term in terms:
        given.update(part.partition("=")[::2] for part in str(term).split() if "=" in part)
    start, stride = int(given.get("start", 1)), int(given.get("stride", 1))
    end = start + (int(given["count"]) - 1) * stride if "count" in given else int(given.get("end", start))
    form = str(given.get("format", "%d"))
    return [form % number for number in range(start, end + (1 if stride > 0 else -1), stride)]


LOOKUPS: dict[str, Callable[[Any, list[Any], Mapping[str, Any]], list[Any]]] = {
    "dict": _dict,
    "env": _env,
    "file": _file,
    "fileglob": _fileglob,
    "first_found": _first_found,
    "flattened": lambda scope, terms, options: flatten(terms),
    "items": lambda scope, terms, options: flatten(terms, levels=1),
    "list": lambda scope, terms, options: list(terms),
    "pipe": _pipe,
    "sequence": _sequence,
    "template": _template,
    "vars": _vars,
}
"""Lookups by name: (scope, terms, options) -> list of results."""



@pass_context
def lookup(context: Any, name: str, *terms: Any, wantlist: bool = False, errors: str = "strict",
           **options: Any) -> Any:
    """The result of a lookup: a value when there is one, a text joined with commas when there are several."""
    found = run_lookup(context.scope, name, list(terms), options, errors)
    if wantlist or name.rpartition(".")[2] in ("dict", "list"):
        return found
    if len(found) == 1:
        return found[0]
    return ",".join(item if isinstance(item, str) else str(item) for item in found)


@pass_context
def query(context: Any, name: str, *terms: Any, errors: str = "strict", **options: Any) -> list[Any]:
    """The results of a lookup as a list."""
    return run_lookup(context.scope, name, list(terms), options, errors)


def run_lookup(scope: Any, name: str, terms: list[Any], options: Mapping[str, Any], errors: str = "strict"
               ) -> list[Any]:
    """Run a lookup by name. Raises FilterError with the nearest name."""
    short = name[len("ansible.builtin."):] if name.startswith("ansible.builtin.") else name
    function = LOOKUPS.get(short)
    if function is None:
        near = nearest(short, LOOKUPS)
        raise FilterError(f"the lookup `{name}` is not known" + (f"; nearest: {near}" if near else ""))
    try:
        return function(scope, terms, options)
    except (FilterError, OSError, subprocess.SubprocessError):
        if errors in ("ignore", "warn"):
            return []
        raise


def _now(utc: bool = False, fmt: str | None = None) -> Any:
    moment = datetime.now(timezone.utc).replace(tzinfo=None) if utc else datetime.now()
    return moment.strftime(fmt) if fmt else moment


def _places(search: Sequence[Path]) -> str:
    return ", ".join(str(folder) for folder in search) or "no folder"


NAMES: dict[str, Any] = {"lookup": lookup, "query": query, "q": query, "now": _now}
"""Names that every template may call."""
