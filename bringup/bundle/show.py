"""What a bundle holds, as lines for a person and as a document."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bringup.base.text import plural
from bringup.base.text import size as size_text
from bringup.bundle.manifest import Entry, Manifest
from bringup.bundle.wanted import Wheels

NOUNS = {"wheel": "wheels", "uv": "uv", "python": "interpreters", "deb": "packages", "image": "images",
         "source": "sources", "kernel": "kernels", "package": "controller"}
"""What the files of a kind are called on a page."""


def as_document(manifest: Manifest) -> dict[str, Any]:
    """The manifest itself, and its digest."""
    return {"digest": manifest.digest, **json.loads(manifest.text())}


def as_lines(manifest: Manifest, width: int, *, files: bool = False) -> list[str]:
    """The page of `bundle.show`; with `files`, a line for each file behind it."""
    made = ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())
    out = [f"{manifest.name}   {manifest.digest[:12]}", *row("made", f"{manifest.made_at}, by {made}", width)]
    if manifest.base is not None:
        out += row("update", f"of {manifest.base.name} ({manifest.base.digest[:12]}): only what is new is packed; "
                              f"the rest lies there", width)
    out.append("")
    for one in manifest.environments:
        pythons = ", ".join(f"Python {python} ({plural(len(wheels), 'wheel')})"
                            for python, wheels in sorted(one.wheels.items()))
        out += row("environment", f"{one.name} on {one.platform}, {one.machine}, glibc {one.glibc}, {pythons}, lock "
                                   f"{one.lock[:12]}", width)
    for kind, noun in NOUNS.items():
        found = manifest.of_kind(kind)
        if found:
            out += row(noun, f"{_count(found)}{_which(kind, found, manifest)}", width)
    out.append("")
    out += row("all", _count(manifest.entries), width)
    if files:
        out += ["", *(f"{entry.sha256[:12]}  {size_text(entry.size):>8}  {entry.path}"
                      + ("" if entry.packed else f"  (in {manifest.base.name})" if manifest.base else "")
                      for entry in manifest.entries)]
    return out


def row(label: str, text: str, width: int) -> list[str]:
    """A line of such a page: what it is about, then what is said of it, folded under itself."""
    return textwrap.wrap(text, width, initial_indent=f"  {label:<13} ", subsequent_indent=" " * 16,
                         break_long_words=False, break_on_hyphens=False)


def _count(entries: Sequence[Entry]) -> str:
    text = f"{plural(len(entries), 'file')}, {size_text(sum(entry.size for entry in entries))}"
    packed = [entry for entry in entries if entry.packed]
    if len(packed) == len(entries):
        return text
    return f"{len(packed)} new of {text} ({size_text(sum(entry.size for entry in packed))} new)"


def _which(kind: str, entries: Sequence[Entry], manifest: Manifest) -> str:
    about = [entry.about for entry in entries]
    if kind in ("uv", "python"):
        return ": " + ", ".join(f"{one['version']} {one['machine']}" for one in about)
    if kind == "image":
        return ": " + ", ".join(one["tags"] or entry.path for one, entry in zip(about, entries, strict=True))
    if kind == "source":
        return ": " + ", ".join(one["name"] for one in about)
    if kind == "kernel":
        return ": " + ", ".join(f"{one['recipe']} at {one['revision'][:12]}" for one in about)
    if kind == "deb":
        return ": " + "; ".join(f"{one.about['names']} for {one.about['release']} {one.about['architecture']}"
                                for one in manifest.of_kind("debs"))
    return ""


def keep_manifest(manifest: Manifest, output: Path) -> Path:
    """Write the manifest beside a bundle, for `--since` where the bundle itself is away; its place."""
    from bringup.bundle.content import write_text

    place = output.with_name(output.name + ".json")
    write_text(place, manifest.text())
    return place


def summary(environments: Sequence[Wheels]) -> str:
    """`glm51-vllm (linux-x86_64-cuda13, Python 3.12)`, several after commas."""
    return ", ".join(f"{one.environment.name} ({one.platform.name}, Python {' '.join(one.pythons)})"
                     for one in environments)
