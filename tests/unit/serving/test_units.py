"""The text of a unit."""

from __future__ import annotations

import os
from pathlib import Path

from bringup.agent.processes import launch, systemd

DOCUMENT = {"name": "r1-gpu01", "replica": "r1", "node": "gpu01", "role": "head", "node_rank": 0, "release": "c" * 64}


def unit(root: str) -> list[str]:
    return systemd.unit_text(DOCUMENT, root + "/run.sh", root + "/work", root + "/s.env", "bringup", 30,
                             root + "|r1|1", root + "/cache/home").splitlines()


def test_what_a_unit_must_have() -> None:
    lines = unit("/opt/bringup")
    assert lines[0] == systemd.HEADER
    for wanted in ("User=bringup", "KillMode=control-group", "Restart=no", "LimitMEMLOCK=infinity",
                   "TimeoutStopSec=30", 'ExecStart=/bin/sh "/opt/bringup/run.sh"',
                   "EnvironmentFile=-/opt/bringup/s.env", 'Environment="HOME=/opt/bringup/cache/home"'):
        assert wanted in lines
    assert "[Install]" not in lines


def test_a_root_with_signs_that_systemd_reads() -> None:
    lines = unit('/srv/a b%n"$x')
    assert 'ExecStart=/bin/sh "/srv/a b%%n\\"$$x/run.sh"' in lines
    assert 'WorkingDirectory=/srv/a b%%n"$x/work' in lines
    assert 'Environment="BRINGUP_PROCESS=/srv/a b%%n\\"$x|r1|1"' in lines


def test_the_home_of_an_engine_is_one_that_its_account_may_write(tmp_path: Path) -> None:
    place = launch.Place(str(tmp_path), "r1-gpu01")
    own = ("ops", os.getuid(), os.getgid(), str(tmp_path))
    assert launch.home(place, own) == str(tmp_path)
    shared = str(tmp_path / "cache/home-bringup")
    assert launch.home(place, ("bringup", os.getuid() + 1, os.getgid(), str(tmp_path))) == shared, "it is another's"
    assert launch.home(place, ("bringup", os.getuid(), os.getgid(), str(tmp_path / "nowhere"))) == shared
