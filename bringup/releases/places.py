"""Where a built environment lies on each host, and what it is named by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bringup.base.errors import StepError
from bringup.base.text import fold_hosts
from bringup.run.actions import Fleet


@dataclass(frozen=True)
class Place:
    """An environment on one host: its folder, its digest there, and the digest that is equal on all hosts.

    `identity` is what a release is named by (the lock's digest); `digest` also tells platform and interpreter.
    """

    path: str
    digest: str
    identity: str


def places_of(fleet: Fleet, name: str, hosts: Sequence[str]) -> Mapping[str, Place]:
    raise StepError(name, host=fold_hosts(list(hosts)))
