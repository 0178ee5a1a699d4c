"""Verbs of a model's weights: looked at on all hosts, brought to them."""

from __future__ import annotations

from bringup.cli.options import COMMON, Option, Options, verb

FULL = Option("full", False, "hash every file too; what is unchanged since the last time is not read again")


@verb([*COMMON, FULL], name="weights.check")
def check(options: Options) -> int:
    """Look at the model's files on all hosts: whole, of the wanted revision, equal; nothing is changed (exit 4)."""
    return _run(options, "check")


@verb([*COMMON, FULL], name="weights.fetch")
def fetch(options: Options) -> int:
    """Bring the weights that the deployment names: one host fetches, the others take from it; goes on when cut."""
    return _run(options, "fetch")


def _run(options: Options, what: str) -> int:
    from bringup.base.paths import Project
    from bringup.cli.running import run_playbook

    playbook = Project.find().root / "playbooks" / f"weights_{what}.yml"
    return int(run_playbook(options, playbook, verb=f"weights.{what}",
                            extra_vars={"weights_full": bool(options.full)}))
