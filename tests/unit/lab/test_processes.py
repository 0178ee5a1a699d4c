"""Processes are told by pid and start time, records that do not fit are no proof."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from bringup.lab.processes import TOKEN_VARIABLE, alive, boot_id, end, read, recorded, with_token


def test_a_process_is_known_by_pid_and_start(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, TOKEN_VARIABLE: "tok-1"},
                             start_new_session=True)
    try:
        # its command line is there a moment after the process is
        until = time.monotonic() + 10
        while (found := read(child.pid)) is None or (found.command != "sleep 600" and time.monotonic() < until):
            time.sleep(0.01)
        assert found.command == "sleep 600" and found.parent == os.getpid()
        assert alive(child.pid, found.start) and not alive(child.pid, found.start + 1)
        assert [process.pid for process in with_token("tok-1")] == [child.pid]
        assert with_token("tok") == []
        folder = tmp_path / "processes" / "r1-0"
        folder.mkdir(parents=True)
        good = {"pid": child.pid, "keeper": child.pid, "keeper_ticks": found.start, "boot_id": boot_id(),
                "session": os.getsid(child.pid)}
        for record, proven in ((good, True), ({**good, "keeper_ticks": found.start - 5}, False),
                               ({**good, "boot_id": "other"}, False)):
            (folder / "record.json").write_text(json.dumps(record))
            assert (child.pid in [process.pid for process in recorded(tmp_path)]) == proven
        (folder / "record.json").write_text("{")
        assert recorded(tmp_path) == []
        # a corpse that nobody reaped yet is no living process
        assert end([found], grace=5) == []
        assert read(child.pid) is None
    finally:
        child.kill()
        child.wait()


def test_a_process_that_ignores_term_is_killed() -> None:
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"],
                             stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        found = read(child.pid)
        assert found is not None and end([found], grace=0.3) == []
    finally:
        child.kill()
        child.wait()
