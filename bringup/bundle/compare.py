"""What one bundle has that another has not: by content, and by name and version where files have one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.text import plural
from bringup.base.text import size as size_text
from bringup.bundle.manifest import Carried, Entry, Manifest
from bringup.bundle.show import NOUNS, row

_WHEEL = re.compile(r"^([A-Za-z0-9._]+)-([A-Za-z0-9._!+]+)-")


@dataclass(frozen=True)
class Change:
    """A thing that both bundles may have, by its name: what it is before and after, None where it is not there."""

    kind: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Comparison:
    """`new` and `gone` are entries by content (a file that only moved is neither); `changes` the same by name and
    version; `environments` those that were added, taken out or locked anew; `same` how many files and bytes stay."""

    old: Manifest
    new_manifest: Manifest
    new: tuple[Entry, ...]
    gone: tuple[Entry, ...]
    same: tuple[int, int]
    changes: tuple[Change, ...]
    environments: tuple[Change, ...]

    @property
    def bytes(self) -> int:
        """What is to be carried to a site that has the old one."""
        return _size(self.new)


def compare(old: Manifest, new: Manifest) -> Comparison:
    """Two bundles held against each other; updates count with what they build on, as their manifests name all of it."""
    before, after = ({entry.sha256: entry for entry in one.entries} for one in (old, new))
    kept = [entry for digest, entry in after.items() if digest in before]
    fresh = tuple(entry for digest, entry in after.items() if digest not in before)
    gone = tuple(entry for digest, entry in before.items() if digest not in after)
    return Comparison(old, new, fresh, gone, (len(kept), _size(kept)), tuple(_changes(gone, fresh)),
                      tuple(_environments(old.environments, new.environments)))


def _size(entries: Iterable[Entry]) -> int:
    return sum(entry.size for entry in entries)


def _named(entry: Entry) -> tuple[str, str]:
    """Name and version of a file: `vllm` and `0.24.0` of a wheel, recipe and revision of a kernel."""
    file = entry.path.rpartition("/")[2]
    about = entry.about
    if entry.kind == "wheel" and (found := _WHEEL.match(file)):
        return found[1].replace("_", "-").lower(), found[2]
    if entry.kind in ("uv", "python"):
        minor = ".".join(about["version"].split(".")[:2])
        return (f"python {minor} {about['machine']}" if entry.kind == "python" else f"uv {about['machine']}",
                about["version"])
    if entry.kind == "kernel":
        return about["recipe"], about["revision"][:12]
    if entry.kind == "image":
        return about["tags"] or file, entry.sha256[:12]
    if entry.kind == "deb" and file.count("_") >= 2:
        return f"{file.split('_')[0]} {file.split('_')[2].removesuffix('.deb')}", file.split("_")[1]
    return about.get("name") or entry.path, entry.sha256[:12]


def _versions(entries: Iterable[Entry]) -> dict[tuple[str, str], list[str]]:
    out: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        name, version = _named(entry)
        versions = out.setdefault((entry.kind, name), [])
        if version not in versions:
            versions.append(version)
    return out


def _changes(gone: Iterable[Entry], fresh: Iterable[Entry]) -> Iterable[Change]:
    before, after = _versions(gone), _versions(fresh)
    for kind, name in sorted({*before, *after}, key=lambda item: (list(NOUNS).index(item[0])
                                                                   if item[0] in NOUNS else len(NOUNS), item)):
        was, now = before.get((kind, name)), after.get((kind, name))
        if was and now and was == now:
            now = [f"{', '.join(now)} (other files)"]
        yield Change(kind, name, ", ".join(was) if was else None, ", ".join(now) if now else None)


def _environments(old: Sequence[Carried], new: Sequence[Carried]) -> Iterable[Change]:
    before = {f"{one.name} on {one.platform}": one for one in old}
    after = {f"{one.name} on {one.platform}": one for one in new}
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if was is None or now is None or was.lock != now.lock or set(was.wheels) != set(now.wheels):
            yield Change("environment", name, _told(was), _told(now))


def _told(one: Carried | None) -> str | None:
    return None if one is None else f"lock {one.lock[:12]}, Python {', '.join(sorted(one.wheels))}"


def as_document(found: Comparison) -> dict[str, Any]:
    """As JSON."""
    def entries(rows: Sequence[Entry]) -> list[Mapping[str, Any]]:
        return [{"path": one.path, "kind": one.kind, "size": one.size, "sha256": one.sha256} for one in rows]

    return {
        "old": {"name": found.old.name, "digest": found.old.digest},
        "new": {"name": found.new_manifest.name, "digest": found.new_manifest.digest},
        "environments": [vars(one) for one in found.environments], "changes": [vars(one) for one in found.changes],
        "added": entries(found.new), "removed": entries(found.gone),
        "same": {"files": found.same[0], "bytes": found.same[1]}, "to_carry": found.bytes}


def as_lines(found: Comparison, width: int, *, files: bool = False) -> list[str]:
    """The page of `bundle.diff`; with `files`, a line for each file that came or went behind it."""
    out = [f"{found.old.name} {found.old.digest[:12]} -> {found.new_manifest.name} {found.new_manifest.digest[:12]}",
           ""]
    if not found.new and not found.gone and not found.environments:
        return [*out, *row("same", f"all {plural(found.same[0], 'file')}, {size_text(found.same[1])}", width)]
    for one in found.environments:
        out += row("environment", _line(one), width)
    last = ""
    for one in found.changes:
        label = NOUNS.get(one.kind, one.kind)
        out += row("" if label == last else label, _line(one), width)
        last = label
    out.append("")
    for label, entries in (("new", found.new), ("gone", found.gone)):
        out += row(label, f"{plural(len(entries), 'file')}, {size_text(_size(entries))}", width)
    out += row("same", f"{plural(found.same[0], 'file')}, {size_text(found.same[1])}", width)
    if files:
        out += ["", *(f"{sign} {entry.sha256[:12]}  {size_text(entry.size):>8}  {entry.path}"
                      for sign, entries in (("+", found.new), ("-", found.gone)) for entry in entries)]
    if found.new:
        out += ["", *row("to carry", f"{size_text(found.bytes)}, packed alone by invoke bundle --since "
                                     f"{found.old.name}.json", width)]
    return out


def _line(change: Change) -> str:
    if change.before is None:
        return f"{change.name}: new, {change.after}"
    if change.after is None:
        return f"{change.name}: gone, was {change.before}"
    return f"{change.name}: {change.before} -> {change.after}"
