"""Tags: which tasks a run takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bringup.base.errors import InputError
from bringup.base.text import nearest

SPECIAL = frozenset({"all", "tagged", "untagged", "always", "never"})


@dataclass(frozen=True)
class Selection:
    """`--tags` and `--skip-tags` with Ansible's meaning of all, tagged, untagged, always and never."""

    tags: frozenset[str] = frozenset({"all"})
    skip: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tags: Iterable[str] = (), skip: Iterable[str] = ()) -> Selection:
        """From the values of the flags, each a list of names with commas."""
        return cls(frozenset(_names(tags)) or frozenset({"all"}), frozenset(_names(skip)))

    def wants(self, own: frozenset[str]) -> bool:
        """True when a task with these tags runs."""
        taken = bool(
            "always" in own
            or ("all" in self.tags and "never" not in own)
            or self.tags & own
            or ("tagged" in self.tags and own and "never" not in own)
            or ("untagged" in self.tags and not own)
        )
        if not taken or not self.skip:
            return taken
        if "all" in self.skip:
            return "always" in own and "always" not in self.skip
        dropped = self.skip & own or ("tagged" in self.skip and own) or ("untagged" in self.skip and not own)
        return not dropped

    def check(self, known: Iterable[str]) -> None:
        """Raises InputError for a tag that no task has."""
        names = set(known) | SPECIAL
        for flag, given in (("--tags", self.tags), ("--skip-tags", self.skip)):
            for tag in sorted(given - names):
                near = nearest(tag, names)
                raise InputError(f"{flag}: no task has the tag `{tag}`",
                                 next=f"nearest: {near}" if near else f"tags here: {_listed(sorted(names - SPECIAL))}")


def _names(values: Iterable[str]) -> list[str]:
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
