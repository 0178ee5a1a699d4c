"""`invoke unlock --run ID`: clear the lock record of a run that did not finish."""

from __future__ import annotations

from pathlib import Path

from bringup.base.errors import ExitStatus, InputError
from bringup.cli.options import COMMON, Option, Options, verb

_PLAY = """
- name: unlock
  hosts: all
  gather_facts: false
  tasks:
    - name: clear what the run left
      unlock_run:
        run: "{{ unlock_run_id }}"
"""

OPTIONS = (*(option for option in COMMON if option.name not in ("check", "diff")),
           Option("run", help="the run, six hex digits as its messages show it"))


@verb(OPTIONS)
def unlock(options: Options) -> ExitStatus:
    """Clear what an unfinished run left on its hosts, after proving that nothing of it is alive."""
    from bringup.cli.running import Reading, run_reading

    run = str(options.run or "")
    if not run:
        raise InputError("which run?", next="invoke unlock --run ID; the message of the refused run names it")
    if not run.isalnum():
        raise InputError("a run is named by six hex digits", found=run)
    reading = Reading(options, Path("unlock"), {"unlock_run_id": run}, text=_PLAY)
    return run_reading(reading, verb="unlock", headline=f"run {run}")
