"""`kernels/NAME/kernel.yml`: what is built from which source, with what, and how it is proven."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, load_file, origin_of, typed_text, value_origin
from bringup.environments.sizes import bytes_of

USES = ("compiler", "cuda", "cann", "torch", "python", "nccl", "gpu", "cpu")
"""What of a host may decide the content of a build; machine and glibc always do."""
_KEYS = ("purpose", "uses", "source", "revisions", "patches", "system", "run_system", "needs", "tools", "versions",
         "cuda", "compiler", "gpu", "cpu", "memory_per_job", "environment", "options", "commands", "yields", "links",
         "proof", "note")
_SOURCE = ("git", "revision", "folder", "submodules", "keep")


@dataclass(frozen=True)
class Part:
    """A git source at one revision; `keep` are the folders of it that are needed, all of it when empty."""

    git: str
    revision: str
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A git source with its submodules by path, or a `folder` beside the recipe."""

    main: Part | None = None
    folder: Path | None = None
    submodules: Mapping[str, Part] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`54e2261` or the folder's name."""
        return self.main.revision[:7] if self.main is not None else str(self.folder.name if self.folder else "")


@dataclass(frozen=True)
class Variant:
    """A build for CPUs that have all of `flags` (as /proc/cpuinfo names them), with its variables."""

    name: str
    flags: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class OptionRow:
    """A variable that a site may set: its values (empty: any text) and what it does."""

    values: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Proof:
    """`script` beside the recipe, run by the Python of the environment (`torch`) or of the agent; `seconds` at most."""

    script: str
    python: str
    seconds: int


@dataclass(frozen=True)
class Recipe:
    """One recipe at one revision. `memory_per_job` is bytes; `commands` are (name, shell text); `versions`: variable ->
    package, whose version in the Python that it is built for the variable gets."""

    name: str
    folder: Path
    purpose: str
    source: Source
    revision: str
    revisions: Mapping[str, Source]
    commands: tuple[tuple[str, str], ...]
    yields: tuple[str, ...]
    proof: Proof
    uses: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    system: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    run_system: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    cuda_least: str | None = None
    compiler_least: str | None = None
    gpu_least: str | None = None
    cpu: tuple[Variant, ...] = ()
    memory_per_job: int = 2 << 30
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, OptionRow] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def at(self, revision: str | None, where: Any = None) -> Recipe:
        """The same recipe at another of its revisions. Raises InputError with the nearest name."""
        if not revision or revision == self.revision:
            return self
        if revision not in self.revisions:
            near = nearest(revision, self.revisions)
            raise InputError(f"the recipe {self.name} has no revision `{revision}`", where=origin_of(where),
                             expected=", ".join(self.revisions), next=f"nearest: {near}" if near else None)
        return replace(self, revision=revision, source=self.revisions[revision])

    def variant(self, name: str) -> Variant | None:
        return next((item for item in self.cpu if item.name == name), None)


def names(kernels: Path) -> list[str]:
    """The recipes of a folder, by name."""
    return sorted(path.parent.name for path in kernels.glob("*/kernel.yml"))


def load_recipe(kernels: Path, name: str, *, where: Any = None) -> Recipe:
    """Read `kernels/NAME/kernel.yml`. Raises InputError with file and line, for a wrong name with the nearest one."""
    file = kernels / name / "kernel.yml"
    if not re.fullmatch(r"[\w.-]+", name) or not file.is_file():
        near = nearest(name, names(kernels))
        raise InputError(f"there is no kernel recipe `{name}`", where=where,
                         expected=f"a folder {kernels.name}/{name} with a kernel.yml",
                         next=f"nearest: {near}" if near else "invoke kernel.list")
    shown = f"{kernels.name}/{name}/kernel.yml"
    data = load_file(file, shown_as=shown)
    if not isinstance(data, Mapping):
        raise InputError("a mapping is expected", where=shown)
    return _Reader(data, shown, file.parent).recipe(name)


class _Reader:
    """Takes the values of a recipe with their kinds checked."""

    def __init__(self, data: Mapping[str, Any], shown: str, folder: Path) -> None:
        self.data = data
        self.shown = shown
        self.folder = folder

    def recipe(self, name: str) -> Recipe:
        self.known(self.data, _KEYS)
        sources = self.sources()
        first = next(iter(sources))
        return Recipe(
            name=name, folder=self.folder, purpose=self.needed(self.data, "purpose"), source=sources[first],
            revision=first, revisions=sources, commands=self.commands(), yields=self.texts(self.data, "yields"),
            proof=self.proof(), uses=self.uses(), patches=tuple(self.file(item) for item in
                                                               self.texts(self.data, "patches")),
            system=self.lists("system"), run_system=self.lists("run_system"), needs=self.lists("needs"),
            tools=self.texts(self.data, "tools"), versions=self.mapping(self.data, "versions"),
            cuda_least=self.least("cuda"), compiler_least=self.least("compiler"),
            gpu_least=self.least("gpu"), cpu=self.variants(), memory_per_job=self.bytes(),
            environment=self.mapping(self.data, "environment"), options=self.options(), links=self.links(),
            note=str(self.data.get("note") or "").strip())

    def fail(self, what: str, at: Mapping[str, Any], key: str, expected: str | None = None) -> InputError:
        return InputError(what, where=value_origin(at, key) or key_origin(at, key) or self.shown, expected=expected)

    def known(self, data: Mapping[str, Any], keys: Sequence[str]) -> None:
        for key in data:
            if key not in keys:
                near = nearest(str(key), keys)
                raise InputError(f"the key `{key}` is not known", where=key_origin(data, key) or self.shown,
                                 expected=", ".join(keys), next=f"nearest: {near}" if near else None)

    def needed(self, data: Mapping[str, Any], key: str) -> str:
        value = data.get(key)
        if value in (None, "") or isinstance(value, (Mapping, list)):
            raise InputError(f"`{key}` is missing", where=value_origin(data, key) or origin_of(data) or self.shown)
        return typed_text(data, key).strip()

    def texts(self, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = data.get(key) or []
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or any(isinstance(item, (Mapping, list)) for item in value):
            raise self.fail(f"`{key}` takes a list of texts", data, key)
        return tuple(str(item) for item in value)

    def mapping(self, data: Mapping[str, Any], key: str) -> dict[str, str]:
        value = data.get(key) or {}
        if not isinstance(value, Mapping):
            raise self.fail(f"`{key}` takes a mapping", data, key)
        return {str(name): typed_text(value, name) for name in value}

    def sub(self, key: str) -> Mapping[str, Any]:
        value = self.data.get(key) or {}
        if not isinstance(value, Mapping):
            raise self.fail(f"`{key}` takes a mapping", self.data, key)
        return value

    def lists(self, key: str) -> dict[str, tuple[str, ...]]:
        return {str(name): self.texts(self.sub(key), name) for name in self.sub(key)}

    def least(self, key: str) -> str | None:
        value = self.sub(key)
        self.known(value, ("least",))
        return self.needed(value, "least") if value else None

    def uses(self) -> tuple[str, ...]:
        out = self.texts(self.data, "uses")
        for item in out:
            if item not in USES:
                raise self.fail(f"`uses` knows no `{item}`", self.data, "uses", ", ".join(USES))
        return out

    def bytes(self) -> int:
        text = self.data.get("memory_per_job")
        if text is None:
            return 2 << 30
        found = bytes_of(text)
        if found is None:
            raise self.fail("`memory_per_job` takes a size", self.data, "memory_per_job", "such as 2 GiB or 500 MiB")
        return found

    def sources(self) -> dict[str, Source]:
        data = self.sub("source")
        if not data:
            raise InputError("`source` is missing", where=self.shown, expected="git and revision, or folder")
        self.known(data, _SOURCE)
        if data.get("folder"):
            folder = self.folder / self.needed(data, "folder")
            if not folder.is_dir():
                raise self.fail("the source folder is not there", data, "folder", str(folder))
            return {"own": Source(folder=folder)}
        rows = self.sub("revisions") or {"default": {}}
        out = {}
        for name in rows:
            row = rows[name] or {}
            self.known(row, _SOURCE)
            merged = {**data, **row}
            if not merged.get("git") or not merged.get("revision"):
                raise self.fail(f"the revision `{name}` names no git and revision", rows, name)
            submodules = {**(data.get("submodules") or {})}
            for path, more in (row.get("submodules") or {}).items():
                submodules[path] = {**submodules.get(path, {}), **more}
            out[str(name)] = Source(self.part(merged, rows, name), None, {
                str(path): self.part(item, rows, name) for path, item in submodules.items()})
        return out

    def part(self, data: Mapping[str, Any], at: Mapping[str, Any], key: str) -> Part:
        revision = str(data.get("revision") or "")
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise self.fail(f"a revision is named by its whole hash, found `{revision}`", at, key, "40 hex digits")
        keep = data.get("keep") or []
        return Part(str(data["git"]), revision, tuple(str(item) for item in keep))

    def commands(self) -> tuple[tuple[str, str], ...]:
        value = self.data.get("commands")
        if not isinstance(value, list) or not value:
            raise InputError("`commands` is missing", where=self.shown, expected="a list of `name: text`")
        out = []
        for item in value:
            if not isinstance(item, Mapping) or len(item) != 1:
                raise self.fail("a command is `name: text`", self.data, "commands")
            out += [(str(name), typed_text(item, name)) for name in item]
        return tuple(out)

    def proof(self) -> Proof:
        data = self.sub("proof")
        self.known(data, ("script", "python", "seconds"))
        python = str(data.get("python") or "agent")
        if python not in ("agent", "environment"):
            raise self.fail("`python` of a proof", data, "python", "agent or environment")
        return Proof(self.file(self.needed(data, "script")), python, int(data.get("seconds") or 600))

    def file(self, name: str) -> str:
        if not (self.folder / name).is_file():
            raise InputError("a file of the recipe is not there", where=self.shown, expected=str(self.folder / name))
        return name

    def variants(self) -> tuple[Variant, ...]:
        rows = self.sub("cpu")
        out = []
        for name in rows:
            self.known(rows[name], ("flags", "environment"))
            out.append(Variant(str(name), self.texts(rows[name], "flags"), self.mapping(rows[name], "environment")))
        return tuple(out)

    def options(self) -> dict[str, OptionRow]:
        rows = self.sub("options")
        out = {}
        for name in rows:
            self.known(rows[name], ("values", "help"))
            out[str(name)] = OptionRow(self.texts(rows[name], "values"), str(rows[name].get("help") or ""))
        return out

    def links(self) -> tuple[tuple[str, str], ...]:
        rows = self.sub("links")
        return tuple((str(pattern), str(rows[pattern])) for pattern in rows)
