"""Whether a release can start today: environment or image, weights by manifest, driver and ports, on every node.

Nothing is changed. `problems` keep a node from starting; `notes` are told and keep nothing from anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.text import fold_hosts
from bringup.releases.document import Release
from bringup.releases.history import HostStore
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls

Launches = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Replica -> host -> launch document."""


@dataclass(frozen=True)
class Problem:
    """Why one host cannot start it, and what mends that."""

    host: str
    check: str
    text: str
    mend: str = ""


@dataclass(frozen=True)
class Proof:
    """What was looked at on `hosts`: (check, what holds) in `held`."""

    hosts: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held: tuple[tuple[str, str], ...] = ()


Manifests = Mapping[tuple[str, str], Mapping[str, Any] | None]
"""(host, model folder) -> manifest, as this run saw it already."""


def can_start(fleet: Fleet, release: Release, launches: Launches, manager: str, stores: Mapping[str, HostStore],
              seen: Manifests | None = None) -> Proof:
    """Prove on every node that the release can start now. What is in `seen` is not asked again."""
    flat = {host: document for nodes in launches.values() for host, document in nodes.items()}
    problems = [Problem(host, _kind(text), text, mend) for nodes in launches.values()
                for host, text, mend in prove(fleet, nodes, manager)]
    weights, told = _weights(fleet, release, flat, seen or {})
    drivers, notes, driver_told = _drivers(fleet, release.digest, flat, stores)
    problems += [p for p in weights if not any(q.host == p.host and q.check == "weights" for q in problems)] + drivers
    failed = {problem.check for problem in problems}
    boxed = any(document.get("container") for document in flat.values())
    held = [("environment", "image there" if boxed else "environment sound, program there"),
            ("port", "ports free or ours"),
            ("weights", told), ("driver", driver_told)]
    return Proof(tuple(flat), tuple(problems), notes, tuple(h for h in held if h[1] and h[0] not in failed))


def prove(fleet: Fleet, launches: Mapping[str, Mapping[str, Any]], manager: str,
          ending: Mapping[str, Sequence[str]] | None = None) -> list[tuple[str, str, str]]:
    """Whether each node could start its process now: (host, what is wrong, what mends it), in rank order. The ports of
    processes that are `ending` (host -> names) count as free."""
    results = calls.call_all(fleet, "engine_process", {
        host: {"action": "prove", "name": document["name"], "launch": document, "manager": manager,
               "ending": list((ending or {}).get(host, ()))}
        for host, document in launches.items()}, changes=False)
    out = []
    for host in calls.in_rank_order(launches):
        result = results[host]
        if result.bad:
            out.append((host, calls.first_line(result), str(result.next or "")))
        else:
            out += [(host, str(p["found"]), str(p.get("next") or "")) for p in result.data.get("problems", ())]
    return out


def _kind(text: str) -> str:
    """Which proof a host's own words belong to."""
    if re.match(r"port \d", text):
        return "port"
    return "weights" if text.endswith("is not there") and "/bin/" not in text else "environment"


def _weights(fleet: Fleet, release: Release, flat: Mapping[str, Mapping[str, Any]], seen: Manifests
             ) -> tuple[list[Problem], str]:
    """The model's files against the release's manifest: digests of the small ones, names and sizes of the shards."""
    wanted = release.identity["model"].get("manifest")
    paths = {host: str(document["model_path"]) for host, document in flat.items()
             if str(document.get("model_path") or "").startswith("/")}
    if not wanted or not paths:
        return [], ""
    out = []
    found = {host: seen[host, path] for host, path in paths.items() if (host, path) in seen}
    asked = {host: {"peers": [], "model": path} for host, path in paths.items() if host not in found}
    for host, result in calls.call_all(fleet, "engine_facts", asked, changes=False, timeout=300).items():
        if result.bad:
            out.append(Problem(host, "weights", f"{paths[host]}: {calls.first_line(result)}"))
        else:
            found[host] = result.data.get("model")
    for host, manifest in found.items():
        if manifest is None:
            out.append(Problem(host, "weights", f"{paths[host]} is not there", "bring the weights back"))
        elif manifest != wanted:
            out.append(Problem(host, "weights",
                               f"{paths[host]} is not as the release has it: {_differing(wanted, manifest)}",
                               "bring these weights back, or provision a release of the present ones"))
    shards = wanted.get("shards")
    return out, f"weights as the release has them{f' ({shards} shards)' if shards else ''}"


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if found.get("shards") != wanted.get("shards"):
        return f"{found.get('shards')} shards, {wanted.get('shards')} then"
    words = {"weights": "names or sizes of shards", "template": "the chat template", "files": "configuration files"}
    return ", ".join(text for key, text in words.items() if found.get(key) != wanted.get(key)) or "another manifest"


def _drivers(fleet: Fleet, digest: str, flat: Mapping[str, Mapping[str, Any]], stores: Mapping[str, HostStore]
             ) -> tuple[list[Problem], dict[str, tuple[str, ...]], str]:
    """Drivers now against those under which the release was last good on each host."""
    results = calls.call_all(fleet, "live_process", {host: {"action": "host"} for host in flat}, changes=False)
    problems: list[Problem] = []
    notes: dict[str, list[str]] = {}
    seen: dict[str, list[str]] = {}
    for host, result in results.items():
        if result.bad:
            problems.append(Problem(host, "driver", calls.first_line(result)))
            continue
        now = result.data["drivers"]
        then = (stores[host].approved.get(digest) or {}).get("drivers") if host in stores else None
        problems += [Problem(host, "driver", text, mend) for text, mend in driver_problems(now, then or {})]
        for name in sorted({*now, *(then or now)}):
            if then and now.get(name) and then.get(name) and now[name] != then[name]:
                notes.setdefault(f"{name} {then[name]} when it was last good, {now[name]} today", []).append(host)
        seen.setdefault(", ".join(f"{name} {version}" for name, version in sorted(now.items())), []).append(host)
    told = "; ".join(f"{text or 'no device driver'}{f' on {fold_hosts(hosts)}' if len(seen) > 1 else ''}"
                     for text, hosts in seen.items())
    return problems, {text: tuple(hosts) for text, hosts in notes.items()}, told


def driver_problems(now: Mapping[str, str], then: Mapping[str, str]) -> list[tuple[str, str]]:
    """What of the drivers keeps a release from starting that was good under `then`: (what, mend).

    A missing driver, an older one, or an NVIDIA library that is not of the loaded module.
    """
    out = []
    for name, version in then.items():
        if name not in now:
            out.append((f"the driver {name} {version} is not there any more", "load or install the driver"))
        elif _numbers(now[name]) < _numbers(version):
            out.append((f"the driver {name} is {now[name]}, older than {version} under which it was good",
                        f"install {name} {version} again"))
    module, library = now.get("nvidia"), now.get("nvidia library")
    if module and library and _numbers(library)[:len(_numbers(module))] != _numbers(module)[:len(_numbers(library))]:
        out.append((f"library {library} does not match the loaded module {module}", "sudo reboot"))
    return out


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
