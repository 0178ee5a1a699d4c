"""What a resolver's refusal says, for a person: which two requirements, which ranges, which files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from bringup.base.errors import InputError
from bringup.environments.requirements import Wanted, clashes, disjoint

_SPEC = r"([A-Za-z0-9][\w.-]*)(\[[\w,-]*\])?((?:[<>=!~]=?=?[\w.*+!]+,?)+)"
_DEPENDS = re.compile(rf"{_SPEC}\s+depends?\s+on\s+{_SPEC}")
_REQUIRE = re.compile(rf"you require {_SPEC}(?: and (?:you require )?{_SPEC})?")


@dataclass(frozen=True)
class Demand:
    """Who asks for which range of a package; `who` is a place or a package with its version."""

    who: str
    name: str
    range: str


def refuse_clashes(wanted: Sequence[Wanted]) -> None:
    """Raise InputError when two of the requirements themselves cannot hold together; nothing was downloaded."""
    found = clashes(wanted)
    if not found:
        return
    first, second = found[0]
    raise InputError(
        f"two requirements for {first.name} cannot hold together: {first.range} and {second.range}", where=first.origin,
        details=[f"{item.origin}  {item.range}" for pair in found for item in pair],
        next="make one of them yield, or write an override with its reason into env.yml",
    )


def refusal(said: str, wanted: Sequence[Wanted]) -> InputError:
    """The error for a resolver's text: who wants what, then its own words."""
    own = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in said.splitlines() if line.strip()]
    pair = conflict(said, wanted)
    if pair is None:
        return InputError("the requirements have no solution", where=wanted[0].origin if wanted else None,
                          details=["the resolver says:", *own])
    first, second = pair
    return InputError(
        f"two requirements for {first.name} cannot hold together", where=wanted[0].origin.file if wanted else None,
        details=[f"{first.name}{first.range}  wanted by {first.who}", f"{second.name}{second.range}  wanted by "
                 f"{second.who}", "", "the resolver says:", *own],
        next="take versions that agree, or write an override with its reason into env.yml",
    )


def conflict(said: str, wanted: Sequence[Wanted]) -> tuple[Demand, Demand] | None:
    """The two demands for one package that share no version, from a resolver's text; None when none is told."""
    text = re.sub(r"\s+", " ", said)
    demands: list[Demand] = []
    for found in _DEPENDS.finditer(text):
        who = f"{found[1]}{found[3].rstrip(',')}"
        demands.append(Demand(_placed(who, found[1], wanted), canonicalize_name(found[4]), found[6].rstrip(",.")))
    for found in _REQUIRE.finditer(text):
        for name, spec in ((found[1], found[3]), (found[4], found[6])):
            if name:
                demands.append(Demand(_place(name, spec, wanted), canonicalize_name(name), spec.rstrip(",.")))
    demands += [Demand(str(item.origin), item.name, str(item.requirement.specifier)) for item in wanted
                if len(item.requirement.specifier)]
    for index, first in enumerate(demands):
        for second in demands[index + 1:]:
            if first.name == second.name and first.who != second.who and _disjoint(first.range, second.range):
                return first, second
    return None


def _disjoint(first: str, second: str) -> bool:
    try:
        return disjoint(SpecifierSet(first), SpecifierSet(second))
    except InvalidSpecifier:
        return False


def _placed(who: str, name: str, wanted: Sequence[Wanted]) -> str:
    for item in wanted:
        if item.name == canonicalize_name(name):
            return f"{who} ({item.origin})"
    return who


def _place(name: str, spec: str, wanted: Sequence[Wanted]) -> str:
    for item in wanted:
        if item.name == canonicalize_name(name) and _same(str(item.requirement.specifier), spec):
            return str(item.origin)
    return "your requirements"


def _same(first: str, second: str) -> bool:
    try:
        return SpecifierSet(first) == SpecifierSet(second.rstrip(",."))
    except InvalidSpecifier:
        return False
