"""Which CUDA toolkit of a host is taken: the one that the inventory names, else the one that fits torch. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.agent.modules._cuda import NAMED
from bringup.base.errors import StepError

Toolkit = Mapping[str, Any]
"""As a host's probe tells it: home, version (`13.0.88`, empty without nvcc), why (places), headers, gcc_max."""


def numbers(text: str) -> tuple[int, ...]:
    """`13.3.0` as (13, 3, 0); text without numbers as ()."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def fitting(found: Sequence[Toolkit], wanted: str, least: str | None = None) -> Toolkit | None:
    """The toolkit of `wanted`'s own version, else of its major version, else (where nothing is wanted) the newest; at
    least `least`; None where none fits. One that the inventory names is the only one that counts."""
    named = [item for item in found if NAMED in item["why"]]
    usable = [item for item in named or found
              if item["version"] and item.get("headers") and numbers(item["version"]) >= numbers(least or "0")
              and (not wanted or numbers(item["version"])[:1] == numbers(wanted)[:1])]
    return max(usable, default=None, key=lambda item: (
        numbers(item["version"])[:2] == numbers(wanted)[:2], numbers(item["version"])))


def shown(found: Sequence[Toolkit]) -> str:
    """All toolkits of a host with the places that named them, for a person."""
    return "; ".join(f"{item['home']} {item['version'] or 'has no nvcc'}"
                     f"{'' if item.get('headers') or not item['version'] else ' without headers'} "
                     f"({', '.join(item['why'])})" for item in found) \
        or "no toolkit (CUDA_HOME, /usr/local/cuda*, nvcc on PATH)"


def demand(what: str, found: Sequence[Toolkit], wanted: str, reason: str, least: str | None = None) -> Toolkit:
    """The toolkit that fits. Raises StepError that names `what` needs it and why, what is there and what to do."""
    best = fitting(found, wanted, least)
    if best is not None:
        return best
    need = f"CUDA {wanted.split('.')[0]}.x {reason}" if wanted else "CUDA"
    need += f", at least {least}" if least else ""
    named = next((item for item in found if NAMED in item["why"]), None)
    if named is not None:
        raise StepError(f"the CUDA toolkit of {NAMED} does not fit {what}", expected=need, found=shown(found),
                        next=f"correct {NAMED} in the inventory, or leave it out: the one that fits is found")
    raise StepError(f"{what} needs a CUDA toolkit that this host does not have", expected=need, found=shown(found),
                    next=f"install a toolkit of {wanted or least or 'that version'} beside the others, or name one "
                         f"in {NAMED}")
