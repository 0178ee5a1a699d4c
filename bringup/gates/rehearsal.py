"""The rollback rehearsal: everything of a rollback but the restart."""

from __future__ import annotations

import time

from bringup.base.errors import FindingError
from bringup.base.verdicts import Finding, Verdict
from bringup.gates.definition import Line
from bringup.gates.ground import Came, Ground, setting
from bringup.releases.choosing import choose_release
from bringup.releases.targets import rollback_target


def rehearsal(ground: Ground, line: Line) -> Came:
    """Prove on every node that the release before could start today, and rehearse the switch.

    `first_release: allowed` lets a first release pass, which has nothing behind it. Measures: proved (1 or 0), seconds
    of the rehearsal, rollback (those and the older release's last start).
    """
    hosts = [host for nodes in ground.members.values() for host in nodes]
    try:
        target = rollback_target(ground.survey.history, hosts)
    except FindingError as error:
        if str(setting(line, "first_release", "refused")) != "allowed":
            raise
        found = Finding(f"gate.{line.name}", ground.label, Verdict.WARN,
                        f"{error.what}: this release has nothing behind it")
        return Came({"proved": 1.0, "seconds": 0.0, "rollback": None}, "no earlier release", [found])
    began = time.monotonic()
    choose_release(ground.fleet, {"to": "previous", "prove": True, "rehearse": True})
    seconds = time.monotonic() - began
    entry = target.entry
    last = entry.seconds if entry is not None else None
    name = entry.label if entry is not None else "nothing"
    return Came({"proved": 1.0, "seconds": round(seconds, 2), "rollback": round(seconds + last, 2) if last else None},
                f"{name} could start on all {len(hosts)} hosts; proven in {seconds:.1f} s")
