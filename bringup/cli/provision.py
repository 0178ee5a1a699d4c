"""The verb that takes bare hosts to a verified endpoint."""

from __future__ import annotations

from bringup.base.errors import ExitStatus
from bringup.cli.bundle import BUNDLE, use_bundle
from bringup.cli.options import Options, verb
from bringup.cli.serve import CHANGING, headline, read_stages


@verb((*CHANGING, BUNDLE))
def provision(options: Options) -> ExitStatus:
    """Take hosts to a verified endpoint: preflight, settings, environments, release, start, contract."""
    from bringup.cli.running import run_reading

    reading = read_stages(options, "provision")
    use_bundle(options, reading)
    return run_reading(reading, verb="provision", headline=headline(reading))
