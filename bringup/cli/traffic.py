"""Verbs of the site's load balancer: clients away from a replica, and back."""

from __future__ import annotations

from bringup.base.errors import ExitStatus
from bringup.cli.options import Option, Options, verb
from bringup.cli.serve import CHANGING

REPLICA = Option("replica", help="this replica alone; may be given again (default: all of them)", many=True)


@verb((*CHANGING, REPLICA), name="traffic.out")
def out(options: Options) -> ExitStatus:
    """Lead clients away from replicas (traffic_out) and let requests in flight finish; nothing is stopped."""
    return _move(options, "out")


@verb((*CHANGING, REPLICA), name="traffic.in")
def back(options: Options) -> ExitStatus:
    """Ask replicas for their contract, then lead clients to them (traffic_in)."""
    return _move(options, "in")


def _move(options: Options, direction: str) -> ExitStatus:
    from bringup.cli.running import run_reading
    from bringup.cli.serve import headline, read_stages

    reading = read_stages(options, f"traffic_{direction}", {"traffic_replicas": list(options.replica)})
    return run_reading(reading, verb=f"traffic.{direction}", headline=headline(reading))
