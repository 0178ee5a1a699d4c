"""What a bundle says of itself: every file with its digest, the environments it serves, what it builds on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bringup.base.errors import InputError

FORMAT = 1
NAME = "bundle.json"
"""The manifest is the first member of the archive."""
KINDS = ("wheel", "uv", "python", "deb", "debs", "image", "source", "kernel", "package")
_SAFE = re.compile(r"^[A-Za-z0-9][\w.+@=,~!-]*(/[\w.+@=,~!-]+)*$")


@dataclass(frozen=True)
class Entry:
    """A file of a bundle. `path` is its name in the archive, `sha256` hex, `size` bytes.

    `packed` is False where the file lies in the bundle that this one builds on. `about` is what its kind needs to be
    used: of a `uv` machine and version; of a `python` machine, version and soabi; of a `deb` architecture; of `debs`
    (an index of packages) architecture and names; of an `image` its tags; of a `source` its name; of a
    `kernel` recipe and revision.
    """

    path: str
    kind: str
    size: int
    sha256: str
    packed: bool = True
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Carried:
    """An environment on a platform: the SHA-256 of its lock's text, and the SHA-256 of its wheels by
    minor Python."""

    name: str
    platform: str
    machine: str
    glibc: str
    device: str
    lock: str
    wheels: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Base:
    """The bundle that an update builds on: the digest of its manifest, and its name for the person."""

    digest: str
    name: str


@dataclass(frozen=True)
class Manifest:
    """`name`: the file when it was made; `made_at`: UTC as 2026-11-30T18:00:00Z; `made_by`: program -> version."""

    name: str
    made_at: str
    made_by: Mapping[str, str]
    environments: tuple[Carried, ...]
    entries: tuple[Entry, ...]
    base: Base | None = None

    @property
    def packed(self) -> tuple[Entry, ...]:
        """The entries that are in the archive itself."""
        return tuple(entry for entry in self.entries if entry.packed)

    def of_kind(self, *kinds: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.kind in kinds)

    def text(self) -> str:
        """As it stands in the archive."""
        document = {
            "format": FORMAT, "name": self.name, "made_at": self.made_at, "made_by": dict(self.made_by),
            "environments": [vars(one) for one in self.environments], "entries": [vars(one) for one in self.entries],
            "base": None if self.base is None else vars(self.base)}
        return json.dumps(document, indent=1, sort_keys=True, default=dict) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the text: the bundle's name between sites."""
        return hashlib.sha256(self.text().encode()).hexdigest()


def parse_manifest(text: str, where: str) -> Manifest:
    """A manifest from its text. Raises InputError when it is none, or of a later format."""
    try:
        data = json.loads(text)
    except ValueError:
        raise _wrong(where, "is no JSON") from None
    if not isinstance(data, dict) or "format" not in data:
        raise _wrong(where, "says no format")
    if data["format"] != FORMAT:
        raise InputError(f"the bundle is of format {data['format']}", where=where, expected=f"format {FORMAT}",
                         next="use the bringup that made it, or a newer one")
    try:
        base = data["base"]
        made = Manifest(
            str(data["name"]), str(data["made_at"]), dict(data["made_by"]),
            tuple(_carried(item) for item in data["environments"]), tuple(_entry(item) for item in data["entries"]),
            None if base is None else Base(str(base["digest"]), str(base["name"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(where, f"is not understood ({type(error).__name__}: {error})") from None
    if len({entry.path for entry in made.entries}) != len(made.entries):
        raise _wrong(where, "names a file twice")
    return made


def _wrong(where: str, what: str) -> InputError:
    return InputError(f"this is no manifest of a bundle: it {what}", where=where,
                      expected="a file that `invoke bundle` made")


def _entry(item: Any) -> Entry:
    path, kind, sha256 = str(item["path"]), str(item["kind"]), str(item["sha256"])
    # a name decides where a file is written: nothing may climb out of the folder
    if not _SAFE.match(path) or ".." in path.split("/"):
        raise ValueError(f"a file named {path!r}")
    if kind not in KINDS or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"{path}: kind or digest")
    return Entry(path, kind, int(item["size"]), sha256, bool(item["packed"]),
                 {str(key): str(value) for key, value in item["about"].items()})


def _carried(item: Any) -> Carried:
    return Carried(str(item["name"]), str(item["platform"]), str(item["machine"]), str(item["glibc"]),
                   str(item["device"]), str(item["lock"]),
                   {str(python): tuple(map(str, names)) for python, names in item["wheels"].items()})


def safe_name(text: str) -> str:
    """A file name with every sign that an archive's member may not have replaced by a dash."""
    out = re.sub(r"[^\w.+@=,~!/-]", "-", text, flags=re.ASCII)
    return out if re.match(r"[A-Za-z0-9]", out) else f"x{out}"


def without(manifest: Manifest, base: Manifest) -> Manifest:
    """The same bundle as an update of `base`: what the base has (by digest) is named, not packed."""
    have = {entry.sha256 for entry in base.entries}
    return replace(manifest, base=Base(base.digest, base.name), entries=tuple(
        replace(entry, packed=entry.sha256 not in have) for entry in manifest.entries))
