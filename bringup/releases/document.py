"""A release: the document that names what reaches the processes, its digest, and how two of them differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.agent.modules.release_store import canonical
from bringup.serving.plan import POOL_ROLES, LaunchPlan
from bringup.serving.plan_digest import ProcessTemplate

FORMAT = 1


@dataclass(frozen=True)
class Release:
    """An immutable release. `identity` is what reaches the processes; `beside` is told with it and names nothing."""

    identity: Mapping[str, Any]
    beside: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the identity."""
        return hashlib.sha256(canonical(self.identity)).hexdigest()

    @property
    def served_name(self) -> str:
        return str(self.identity["served_name"])

    @property
    def world_size(self) -> int:
        return int(self.identity["world_size"])

    def shape(self, nodes: int, role: str = "head") -> tuple[ProcessTemplate, ...]:
        """The processes of a replica of so many nodes, in start order; of one with pools those of the part whose
        first process has this role. Raises KeyError for what it has not."""
        for processes in self.identity["replicas"]:
            if len(processes) == nodes and processes[0]["role"] == role:
                return tuple(ProcessTemplate.read(process) for process in processes)
        raise KeyError(nodes)

    def document(self) -> dict[str, Any]:
        """As stored: `release.json`."""
        return {"identity": dict(self.identity), "beside": dict(self.beside)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Release:
        """From what is stored."""
        return cls(document["identity"], document["beside"])


def make(plan: LaunchPlan, shapes: Sequence[Sequence[ProcessTemplate]], environment: Mapping[str, Any],
         model: Mapping[str, Any], beside: Mapping[str, Any]) -> Release:
    """The release of a plan.

    `shapes` are the process templates of each replica, `environment` is {name, digest}, `model` is {path, manifest}
    with the path's per-host part left as a name. `beside` is operator, commit, version and host facts.
    """
    distinct: list[list[dict[str, Any]]] = []
    for shape in shapes:
        documents = [process.document() for process in shape]
        if documents not in distinct:
            distinct.append(documents)
    identity = {
        "format": FORMAT,
        "engine": plan.engine,
        "engine_version": plan.engine_version,
        "environment": dict(environment),
        "model": {"recipe": plan.recipe, **model},
        "served_name": plan.served_name,
        "world_size": sum(part.world_size for part in next(iter(plan.wholes.values()))),
        "replicas": sorted(distinct, key=len),
        "api_key_variable": plan.api_key_variable,
    }
    if plan.container is not None:
        # how it is kept says nothing of what reaches the process: docker or podman may start the same release
        identity["container"] = {key: value for key, value in plan.container.items()
                                 if key not in ("client", "client_kind")}
    return Release(identity, {
        "hardware": plan.hardware, "strategy": plan.strategy, "variant": plan.variant,
        "features": list(plan.features), "manager": plan.manager, **beside,
    })


def number_text(number: int | None) -> str:
    """`r0042`, or `r----` for one that has no number yet."""
    return f"r{number:04d}" if number is not None else "r----"


def differences(old: Release, new: Release) -> list[str]:
    """What differs, a line each, the weightiest first: `vllm 0.24.0 -> 0.24.1`, `--max-model-len 1 -> 2`."""
    a, b = old.identity, new.identity
    out = []
    if a["engine"] != b["engine"]:
        out.append(f"engine {a['engine']} {a['engine_version']} -> {b['engine']} {b['engine_version']}")
    elif a["engine_version"] != b["engine_version"]:
        out.append(f"{a['engine']} {a['engine_version']} -> {b['engine_version']}")
    out += _environment(a["environment"], b["environment"])
    out += _tree("model", a["model"], b["model"])
    for name in ("served_name", "api_key_variable"):
        if a[name] != b[name]:
            out.append(f"{name.replace('_', ' ')} {a[name] or 'none'} -> {b[name] or 'none'}")
    if a["world_size"] != b["world_size"]:
        out.append(f"ranks {a['world_size']} -> {b['world_size']}")
    if a.get("container") and b.get("container"):
        out += _tree("container", a["container"], b["container"])
    out += _processes(a["replicas"], b["replicas"])
    return out


def _environment(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    if a == b:
        return []
    before, after = (f"{str(side.get('name')).split('@', 1)[0]} {_shown(str(side.get('digest')).split(':')[-1])}"
                     for side in (a, b))
    return [f"environment {before} -> {after}"]


def short(digest: object) -> str:
    """The first 12 signs of a digest."""
    return str(digest or "")[:12] or "none"


def _tree(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{name} {key} {_shown(a.get(key))} -> {_shown(b.get(key))}"
            for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def _shown(value: object) -> str:
    text = str(value) if value not in (None, "") else "none"
    return text[:12] if len(text) == 64 else text


def _processes(a: Sequence[Any], b: Sequence[Any]) -> list[str]:
    out: dict[str, list[str]] = {}
    sides = [_by_place(side) for side in (a, b)]
    if [len(p) for p in a] != [len(p) for p in b]:
        out[f"nodes of a replica {_sizes(a)} -> {_sizes(b)}"] = []
    for where in [*sides[0], *(name for name in sides[1] if name not in sides[0])]:
        left, right = sides[0].get(where), sides[1].get(where)
        if left is None or right is None:
            continue
        for line in flag_differences(left["argv"], right["argv"]) + _tree("", left["env"], right["env"]):
            out.setdefault(line.strip(), []).append(where)
        if left["ports"] != right["ports"]:
            out.setdefault(f"ports {_list(left['ports'])} -> {_list(right['ports'])}", []).append(where)
    every = len(sides[1])
    return [line if len(where) in (0, every) else f"{line} ({', '.join(where)})" for line, where in out.items()]


def _by_place(side: Sequence[Any]) -> dict[str, Any]:
    """`head`, `node 1`, ... of the first size of replica; `prefill`, `decode` and `router` where it has pools."""
    if any(processes[0]["role"] in POOL_ROLES for processes in side):
        return {f"{p['role']} node {p['node_rank']}" if p["node_rank"] else str(p["role"]): p
                for processes in side for p in processes}
    processes = side[0] if side else []
    return {"head" if p["node_rank"] == 0 else f"node {p['node_rank']}": p for p in processes}


def _sizes(side: Sequence[Any]) -> str:
    if any(p[0]["role"] in POOL_ROLES for p in side):
        return ", ".join(p[0]["role"] for p in side)
    return ", ".join(str(len(p)) for p in side) or "none"


def _list(values: Sequence[Any]) -> str:
    return " ".join(str(v) for v in values) or "none"


def flags_of(argv: Sequence[str]) -> dict[str, str]:
    """Flags of a command line with their values joined; what stands before the first flag under `command`."""
    out: dict[str, str] = {}
    name = "command"
    words: list[str] = []
    for word in argv:
        if word.startswith("--") or (len(word) > 1 and word[0] == "-" and word[1].isalpha()):
            out[name] = " ".join(words)
            name, equals, value = word.partition("=")
            words = [value] if equals else []
        else:
            words.append(word)
    out[name] = " ".join(words)
    return out


def flag_differences(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """What differs between two command lines, a line for each flag."""
    left, right = flags_of(a), flags_of(b)
    out = []
    for name in [*left, *(n for n in right if n not in left)]:
        if name not in right:
            out.append(f"{name} {left[name]} -> left out".replace("  ", " "))
        elif name not in left:
            out.append(f"{name} {right[name]} (new)".replace("  ", " "))
        elif left[name] != right[name]:
            out.append(f"{name} {left[name]} -> {right[name]}")
    return out
