"""A nightly gate as a systemd service and its timer."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bringup.base.errors import InputError

_TIME = re.compile(r"^([01]?\d|2[0-3]):([0-5]\d)$")


def units(name: str, project: Path, inventories: Sequence[str], at: str, skip: Sequence[str], gates: str,
          limit: str | None) -> dict[str, str]:
    """File name -> text. Raises InputError for a time that is none."""
    match = _TIME.match(at)
    if match is None:
        raise InputError("--at takes a time of the day", found=at, expected="HH:MM")
    words = [str(Path(sys.executable).parent / "invoke"), "gate"]
    for inventory in inventories:
        words += ["--inventory", inventory]
    words += ["--gates", gates, "--yes", "--again"]
    if limit:
        words += ["--limit", limit]
    for one in skip:
        words += ["--skip", one]
    words += ["--report", f".bringup/gates/{name}.html", "--report", f".bringup/gates/{name}.xml"]
    command = " ".join(shlex.quote(word) for word in words).replace("%", "%%")
    unit = f"bringup-gate-{re.sub(r'[^A-Za-z0-9_.-]', '-', name)}"
    return {
        f"{unit}.service": f"""[Unit]
Description=bringup gates of {name}
After=network-online.target

[Service]
Type=oneshot
WorkingDirectory={project}
ExecStart={command}
# 4 is a closed gate: the unit then fails, so that whatever watches units tells it
""",
        f"{unit}.timer": f"""[Unit]
Description=bringup gates of {name}, each night

[Timer]
OnCalendar=*-*-* {int(match.group(1)):02d}:{match.group(2)}:00
RandomizedDelaySec=120
Persistent=true

[Install]
WantedBy=timers.target
""",
    }
