"""`envs/NAME/env.yml`: what an environment is for, where it runs, what it overrides and what proves it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import key_origin, load_file, value_origin
from bringup.environments.sizes import bytes_of

_KEYS = ("purpose", "python", "platforms", "exclude_newer", "index", "extra_indexes", "requirements", "overrides",
         "floors", "sources", "build", "memory_per_job", "last", "overlay", "verify")
_PROOFS = ("config", "imports", "not_imported", "shared", "commands")
_MACHINES = ("x86_64", "aarch64")
_DEVICE = re.compile(r"^(cpu|cuda\d+(\.\d+)?|rocm\d+(\.\d+)*|cann\d+(\.\d+)*)$")


@dataclass(frozen=True)
class Platform:
    """Where a lock holds: `machine` as uname prints it, glibc at least `glibc`, `device` cpu, cuda12.8, rocm7, cann8.5.

    The glibc is always named: uv's plain Linux target means 2.28 and picks old releases without a word. `not_locked`
    is why no lock can be had for it, in the resolver's words.
    """

    name: str
    machine: str
    glibc: str
    device: str = "cpu"
    not_locked: str | None = None

    @property
    def target(self) -> str:
        """uv's name of it, `x86_64-manylinux_2_28`."""
        return f"{self.machine}-manylinux_{self.glibc.replace('.', '_')}"

    @property
    def family(self) -> str:
        """cpu, cuda, rocm or cann."""
        return re.sub(r"[\d.]+$", "", self.device)

    def fits(self, machine: str, glibc: str | None) -> bool:
        """Whether a host of this machine and glibc can run what the lock names."""
        return machine == self.machine and glibc is not None and _numbers(glibc) >= _numbers(self.glibc)


@dataclass(frozen=True)
class Override:
    """A requirement that replaces what packages declare, and why."""

    requirement: str
    reason: str


@dataclass(frozen=True)
class ConfigProof:
    """AutoConfig on a config.json: `expect` is known or refused; `words` stand in the refusal."""

    file: Path
    model_type: str
    expect: str
    words: str | None = None


@dataclass(frozen=True)
class CommandProof:
    """A command of the environment that must end with 0, and words (flags) that must stand in what it prints."""

    run: tuple[str, ...]
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """An environment as its folder defines it. `pythons` are minor versions, the most wanted first.

    `overlay` is a folder whose files are laid into the environment: `site-packages/...` into its site-packages,
    others (`bin/vllm`) under its own folder; a first line `#!python` becomes its interpreter. `build` are variables
    for packages that are built from `sources`, `memory_per_job` bytes that one compiler of them may take. Every
    compiled package is imported to prove it but `not_imported` ones: import package -> why. `last` are distributions
    that lay other bytes over files of their siblings and must win: they are installed once more, behind all others;
    name -> why. `shared` are files that two distributions may own,
    whichever's bytes lie there: path or pattern in site-packages -> why.
    """

    name: str
    folder: Path
    purpose: str
    pythons: tuple[str, ...]
    platforms: tuple[Platform, ...]
    exclude_newer: str | None = None
    index: str | None = None
    extra_indexes: tuple[str, ...] = ()
    requirements: tuple[Path, ...] = ()
    overrides: tuple[Override, ...] = ()
    floors: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    build: Mapping[str, str] = field(default_factory=dict)
    memory_per_job: int = 2 << 30
    overlay: Path | None = None
    config: ConfigProof | None = None
    imports: tuple[str, ...] = ()
    not_imported: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[CommandProof, ...] = ()

    def lock_file(self, platform: Platform) -> Path:
        return self.folder / "locks" / f"{platform.name}.txt"


def names(envs: Path) -> list[str]:
    """The environments of a folder, by name."""
    return sorted(path.parent.name for path in envs.glob("*/env.yml"))


def load_environment(envs: Path, name: str, *, where: Origin | str | None = None) -> Environment:
    """Read `envs/NAME/env.yml`. Raises InputError with file and line, for a wrong name with the nearest one."""
    file = envs / name / "env.yml"
    if not file.is_file():
        near = nearest(name, names(envs))
        raise InputError(f"there is no environment `{name}`", where=where, expected=f"a folder {envs.name}/{name} with "
                         "an env.yml", next=f"nearest: {near}" if near else "invoke env.list")
    shown = f"{envs.name}/{name}/env.yml"
    data = load_file(file, shown_as=shown)
    if not isinstance(data, Mapping):
        raise InputError("a mapping is expected", where=shown)
    for key in data:
        if key not in _KEYS:
            raise InputError(f"the key `{key}` is not known", where=key_origin(data, key), expected=", ".join(_KEYS),
                             next=f"nearest: {nearest(str(key), _KEYS)}" if nearest(str(key), _KEYS) else None)
    reader = _Reader(data, shown, file.parent, envs.parent)
    reader.known_proofs()
    return Environment(
        name=name, folder=file.parent, purpose=reader.text("purpose", required=True) or "",
        pythons=reader.pythons(), platforms=reader.platforms(), exclude_newer=reader.date(),
        index=reader.text("index"), extra_indexes=tuple(reader.texts("extra_indexes")),
        requirements=tuple(file.parent / item for item in reader.texts("requirements") or ["requirements.in"]),
        overrides=reader.overrides(), floors=reader.floors(), sources=tuple(reader.texts("sources")),
        build=reader.build(), memory_per_job=reader.memory_per_job(),
        overlay=reader.overlay(), config=reader.config(), imports=reader.imports(), commands=reader.commands(),
        not_imported=reader.reasons("not_imported", "PACKAGE", "leaves imports out"),
        shared=reader.reasons("shared", "FILE", "shares files"),
        last=reader.last(),
    )


class _Reader:
    """Takes the values of one env.yml apart; each method raises InputError at the value's place."""

    def __init__(self, data: Mapping[Any, Any], shown: str, folder: Path, project: Path) -> None:
        self.data, self.shown, self.folder, self.project = data, shown, folder, project

    def wrong(self, key: str, what: str, expected: str, found: object = None) -> InputError:
        return InputError(f"`{key}` {what}", where=value_origin(self.data, key) or self.shown, expected=expected,
                          found=None if found is None else str(found))

    def text(self, key: str, *, required: bool = False) -> str | None:
        value = self.data.get(key)
        if value is None and not required:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "is missing" if value is None else "is no text", "a text", value)
        return str(value)

    def texts(self, key: str) -> list[str]:
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(i, str) for i in value):
            raise self.wrong(key, "is no list of texts", "- text", value)
        return [str(item) for item in value]

    def pythons(self) -> tuple[str, ...]:
        value = self.data.get("python")
        items = [value] if isinstance(value, str | float) else value
        if not isinstance(items, Sequence) or not items:
            raise self.wrong("python", "names no version", 'python: ["3.12", "3.11"]', value)
        for item in items:
            if not isinstance(item, str) or not re.fullmatch(r"3\.\d+", item):
                raise self.wrong("python", "holds no minor version",
                                 'a text such as "3.12" (quoted: 3.10 is 3.1)', item)
        return tuple(str(item) for item in items)

    def platforms(self) -> tuple[Platform, ...]:
        value = self.data.get("platforms")
        if not isinstance(value, Mapping) or not value:
            raise self.wrong("platforms", "names none", "linux-x86_64: {machine: x86_64, glibc: \"2.28\"}", value)
        out = []
        for name, item in value.items():
            where = key_origin(value, name) or self.shown
            if not isinstance(item, Mapping) or set(item) - {"machine", "glibc", "device", "not_locked"}:
                raise InputError(f"the platform `{name}` is not understood", where=where,
                                 expected='{machine: x86_64, glibc: "2.28", device: cpu}', found=str(item))
            machine, glibc, device = item.get("machine"), item.get("glibc"), item.get("device", "cpu")
            if machine not in _MACHINES:
                raise InputError(f"the platform `{name}` names no machine", where=where,
                                 expected=" or ".join(_MACHINES), found=str(machine))
            if not isinstance(glibc, str) or not re.fullmatch(r"2\.\d+", glibc):
                raise InputError(f"the platform `{name}` names no glibc", where=where,
                                 expected='a quoted version such as "2.28": without one the resolver takes 2.28 and '
                                 "picks old releases", found=str(glibc))
            if not isinstance(device, str) or not _DEVICE.match(device):
                raise InputError(f"the platform `{name}` names an unknown device", where=where,
                                 expected="cpu, cuda12.8, rocm7.0 or cann8.5", found=str(device))
            reason = item.get("not_locked")
            if reason is not None and (not isinstance(reason, str) or not reason.strip()):
                raise InputError(f"the platform `{name}` has no lock without a reason", where=where,
                                 expected="not_locked: the resolver's words", found=str(reason))
            out.append(Platform(str(name), machine, str(glibc), str(device), " ".join(reason.split()) if reason
                                else None))
        return tuple(out)

    def date(self) -> str | None:
        value = self.data.get("exclude_newer")
        if value is None:
            return None
        if isinstance(value, datetime.date):
            value = value.isoformat()
        if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d", value):
            raise self.wrong("exclude_newer", "is no date", "2026-07-15", value)
        return str(value)

    def overrides(self) -> tuple[Override, ...]:
        out = []
        for item in self.data.get("overrides") or []:
            if not isinstance(item, Mapping) or set(item) != {"requirement", "reason"}:
                raise self.wrong("overrides", "holds one without its reason",
                                 "- {requirement: \"transformers==5.3.0\", reason: why this holds all the same}", item)
            out.append(Override(str(item["requirement"]), str(item["reason"])))
        return tuple(out)

    def floors(self) -> dict[str, str]:
        value = self.data.get("floors") or {}
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise self.wrong("floors", "is no mapping of package to version", 'vllm: "0.24.0"', value)
        return {str(name): str(version) for name, version in value.items()}

    def build(self) -> dict[str, str]:
        value = self.data.get("build") or {}
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise self.wrong("build", "is no mapping of variables to texts", "VLLM_TARGET_DEVICE: empty", value)
        if value and not self.data.get("sources"):
            raise self.wrong("build", "has nothing to build", "sources: [the packages that are built]", value)
        for name in value:
            if str(name).startswith(("UV_", "PIP_", "PYTHON", "LD_")):
                raise self.wrong("build", "holds a variable that decides more than a build", "variables of packages",
                                 name)
        return {str(name): str(item) for name, item in value.items()}

    def memory_per_job(self) -> int:
        value = self.data.get("memory_per_job")
        if value is None:
            return 2 << 30
        found = bytes_of(value)
        if not found:
            raise self.wrong("memory_per_job", "takes a size", "such as 2 GiB or 500 MiB", value)
        return found

    def overlay(self) -> Path | None:
        text = self.text("overlay")
        if text is None:
            return None
        folder = self.path("overlay", text)
        if not folder.is_dir():
            raise self.wrong("overlay", "is no folder", "a folder with bin/ or site-packages/", text)
        return folder

    def path(self, key: str, text: str) -> Path:
        """A path given relative to the environment's folder, else to the project's."""
        for base in (self.folder, self.project):
            if (base / text).exists():
                return base / text
        raise self.wrong(key, "names a file that is not there", "a path beside env.yml or under the project", text)

    def last(self) -> dict[str, str]:
        value = self.data.get("last") or {}
        if not isinstance(value, Mapping) or not all(isinstance(item, str) and item.strip() for item in value.values()):
            raise self.wrong("last", "installs packages last without a reason", "{PACKAGE: why}", value)
        return {canonicalize_name(str(name)): str(reason) for name, reason in value.items()}

    @property
    def proofs(self) -> Mapping[Any, Any]:
        value = self.data.get("verify") or {}
        return value if isinstance(value, Mapping) else {}

    def known_proofs(self) -> None:
        value = self.data.get("verify")
        if value is not None and (not isinstance(value, Mapping) or set(value) - set(_PROOFS)):
            raise self.wrong("verify", "is not understood", ", ".join(_PROOFS), value)

    def imports(self) -> tuple[str, ...]:
        return tuple(str(item) for item in self.proofs.get("imports") or [])

    def commands(self) -> tuple[CommandProof, ...]:
        out = []
        for item in self.proofs.get("commands") or []:
            says: Any = ()
            words = item
            if isinstance(item, Mapping) and set(item) <= {"run", "says"}:
                words, says = item.get("run"), item.get("says") or ()
            if not all(isinstance(part, Sequence) and not isinstance(part, str) for part in (words, says)) or not words:
                raise self.wrong("verify", "holds a command that is not understood",
                                 "- [vllm, --version], or {run: [vllm, serve, --help], says: [--port]}", item)
            out.append(CommandProof(tuple(str(word) for word in words), tuple(str(word) for word in says)))
        return tuple(out)

    def reasons(self, key: str, of: str, does: str) -> dict[str, str]:
        value = self.proofs.get(key) or {}
        if not isinstance(value, Mapping) or not all(isinstance(item, str) and item.strip() for item in value.values()):
            raise self.wrong("verify", f"{does} without a reason", f"{key}: {{{of}: why}}", value)
        return {str(name): str(reason) for name, reason in value.items()}

    def config(self) -> ConfigProof | None:
        value = self.proofs.get("config")
        if value is None:
            return None
        needed = {"file", "model_type", "expect"}
        if not isinstance(value, Mapping) or not needed <= set(value) or set(value) - needed - {"words"} \
                or value["expect"] not in ("known", "refused"):
            raise self.wrong("verify", "has a config that is not understood",
                             "{file: config.json, model_type: glm_moe_dsa, expect: known|refused, words: ...}", value)
        words = value.get("words")
        return ConfigProof(self.path("verify", str(value["file"])), str(value["model_type"]), str(value["expect"]),
                           None if words is None else str(words))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
