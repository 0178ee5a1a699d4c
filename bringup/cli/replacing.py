"""`--replace OLD=SPARE`: a spare of the inventory in the place of a node, for the verbs that start a release."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bringup.base.errors import ExitStatus, InputError
from bringup.cli.options import Option

if TYPE_CHECKING:
    from bringup.cli.running import Reading

REPLACE = Option("replace", help="OLD=SPARE: a spare of the inventory in the place of a node; may be given again",
                 many=True)


def replaced(given: Sequence[str]) -> dict[str, str]:
    """`OLD=SPARE` words as a mapping. Raises InputError."""
    out: dict[str, str] = {}
    for word in given:
        old, equals, new = word.partition("=")
        if not equals or not old.strip() or not new.strip():
            raise InputError("--replace takes OLD=SPARE", expected="--replace gpu07=gpu17", found=word)
        if old.strip() in out:
            raise InputError(f"--replace names {old.strip()} twice", found=", ".join(given))
        out[old.strip()] = new.strip()
    return out


def tell_to_write(places: Mapping[str, str], reading: Reading, status: ExitStatus) -> None:
    """Say that the inventory must have it, too, once the spare serves."""
    if not places or status not in (ExitStatus.DONE, ExitStatus.UNREACHABLE):
        return
    told = ", ".join(f"{new} in the place of {old}" for old, new in places.items())
    print(f"write     {told} into {reading.inventory.shown_as}: the next verb takes the inventory's word",
          file=sys.stderr)
