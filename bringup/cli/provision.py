"""The verb that takes bare hosts to a verified endpoint."""

from __future__ import annotations

import sys

from bringup.base.errors import ExitStatus, FindingError, InputError
from bringup.cli.bundle import BUNDLE, use_bundle
from bringup.cli.options import Option, Options, verb
from bringup.cli.replacing import REPLACE, replaced, tell_to_write
from bringup.cli.serve import CHANGING, headline, plan_of, read_stages

CANARY = Option("canary", help="first only these whole replicas (group or pattern); the rest after a yes")
GO_ON = Option("go-on", False, "with --canary: go on with the rest without asking when the canary is well")


@verb((*CHANGING, BUNDLE, CANARY, GO_ON, REPLACE))
def provision(options: Options) -> ExitStatus:
    """Take hosts to a verified endpoint: preflight, settings, environments, release, start, contract."""
    if options.canary:
        if options.replace:
            raise InputError("--replace is not for a canary", next="provision with --replace, the canary afterwards")
        return _canary(options)
    if options.go_on:
        raise InputError("--go-on belongs to --canary", next="invoke provision --canary GROUP")
    return _provision(options)


def _provision(options: Options, words: str = "") -> ExitStatus:
    from bringup.cli.running import run_reading

    places = replaced(options.replace)
    reading = read_stages(options, "provision", {"bringup_replace": places} if places else None,
                          leave_out=tuple(places))
    use_bundle(options, reading)
    told = headline(reading)
    status = run_reading(reading, verb="provision", headline=f"{words} · {told}" if words else told)
    if not options.check:
        tell_to_write(places, reading, status)
    return status


def _canary(options: Options) -> ExitStatus:
    """The new release on the canary with every check of a deploy, a stop, then the rest. The canary is held against
    the same contract; who wants the gates too runs them in the stop. Raises FindingError (4) at the stop."""
    canary, rest = _parts(options)
    status = _provision(_limited(options, canary), f"canary {options.canary}")
    if status is not ExitStatus.DONE:
        return status
    if options.check:
        return _provision(_limited(options, rest), "the rest")
    if not options.go_on and not _asked(f"The canary {options.canary} is well. Provision {len(rest)} further hosts?"):
        raise FindingError(f"the canary {options.canary} is well; the rest is as it was", found=_why(),
                           next=f"invoke gate --limit '{options.canary}', then provision --canary "
                                f"'{options.canary}' --go-on")
    return _provision(_limited(options, rest), "the rest")


def _parts(options: Options) -> tuple[list[str], list[str]]:
    """The hosts of the canary and the others that are to be provisioned. Raises InputError."""
    reading = read_stages(options, "provision")
    wanted = list(reading.inventory.select(options.canary))
    hosts = list(reading.limit if reading.limit is not None else reading.inventory.hosts)
    from bringup.releases.planned import refuse_cut

    refuse_cut(plan_of(reading).replicas, wanted, "a canary")
    canary = [host for host in hosts if host in wanted]
    rest = [host for host in hosts if host not in wanted]
    if not canary or not rest:
        raise InputError(f"the canary `{options.canary}` is {'all' if canary else 'none'} of the hosts",
                         expected="whole replicas, and others that wait", next="invoke plan shows the replicas")
    return canary, rest


def _limited(options: Options, hosts: list[str]) -> Options:
    return Options({**options.values, "limit": ":".join(hosts)})


def _asked(question: str) -> bool:
    """A yes at the terminal; --yes answers the deploy's questions, not this one: a canary is made to be looked at."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _why() -> str:
    return "the answer was no" if sys.stdin.isatty() and sys.stderr.isatty() else "no terminal to ask at"
