"""The verb that takes bare hosts to a verified endpoint."""

from __future__ import annotations

from bringup.base.errors import ExitStatus
from bringup.cli.options import Options, verb
from bringup.cli.serve import CHANGING, run_stages


@verb(CHANGING)
def provision(options: Options) -> ExitStatus:
    """Take hosts to a verified endpoint: preflight, settings, environments, release, start, contract."""
    return run_stages(options, "provision")
