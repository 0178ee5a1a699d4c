"""Requirement files with the place of each requirement, and those that cannot hold together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bringup.base.errors import InputError
from bringup.base.origin import Origin


@dataclass(frozen=True)
class Wanted:
    """One requirement and where it is written."""

    requirement: Requirement
    origin: Origin

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def range(self) -> str:
        """Name and range as a person writes it."""
        return f"{self.name}{self.requirement.specifier}"


def read_requirements(files: Iterable[Path], base: Path | None = None) -> list[Wanted]:
    """All requirements of some files, those they include with `-r` too. Raises InputError with file and line."""
    out: list[Wanted] = []
    seen: set[Path] = set()
    queue = [(file, None) for file in files]
    while queue:
        file, where = queue.pop(0)
        if file.resolve() in seen:
            continue
        seen.add(file.resolve())
        shown = _shown(file, base)
        try:
            lines = file.read_text().splitlines()
        except OSError as error:
            raise InputError(f"the requirements cannot be read: {error.strerror}", where=where or shown,
                             found=shown) from None
        for number, line in enumerate(lines, 1):
            text = re.sub(r"(^|\s)#.*$", "", line).strip()
            origin = Origin(shown, number)
            include = re.match(r"^(?:-r|--requirement)[ =]\s*(.+)$", text)
            if include:
                queue.append((file.parent / include[1].strip(), origin))  # type: ignore[arg-type]
            elif text.startswith("-"):
                raise InputError("options do not belong into requirements", where=origin, found=text,
                                 expected="a requirement; index and platform stand in env.yml")
            elif text:
                out.append(_wanted(text, origin))
    return out


def _wanted(text: str, origin: Origin) -> Wanted:
    try:
        return Wanted(Requirement(text), origin)
    except InvalidRequirement as error:
        raise InputError("the requirement is not understood", where=origin, found=text,
                         details=[str(error).splitlines()[0]]) from None


def _shown(file: Path, base: Path | None) -> str:
    if base is not None and file.is_relative_to(base):
        return str(file.relative_to(base))
    return str(file)


def clashes(wanted: Sequence[Wanted]) -> list[tuple[Wanted, Wanted]]:
    """Pairs of requirements for one package whose ranges share no version. Markers are left to the resolver."""
    found = []
    for index, first in enumerate(wanted):
        for second in wanted[index + 1:]:
            plain = first.requirement.marker is None and second.requirement.marker is None
            if first.name == second.name and plain and disjoint(first.requirement.specifier,
                                                                second.requirement.specifier):
                found.append((first, second))
    return found


def disjoint(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Whether no version satisfies both: tried at every version named, just below and just above it."""
    tries = {Version("0"), Version("99999")}
    for specifier in (*first, *second):
        text = specifier.version.removesuffix(".*")
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        release = list(version.release)
        tries |= {version, Version(f"{version.epoch}!" + ".".join(map(str, [*release, 1])))}
        tries.add(Version(f"{version.epoch}!" + ".".join(map(str, [*release[:-1], release[-1] + 1]))))
        if release[-1] > 0:
            tries.add(Version(f"{version.epoch}!" + ".".join(map(str, [*release[:-1], release[-1] - 1, 99999]))))
        elif len(release) > 1 and release[0] > 0:
            tries.add(Version(f"{version.epoch}!{release[0] - 1}.99999"))
    return not any(first.contains(version, prereleases=True) and second.contains(version, prereleases=True)
                   for version in tries)
