"""What a process does when nobody reads its output any more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bringup.base.events import Note
from bringup.ui.layout import Layout
from bringup.ui.plain import Plain


def test_who_writes_nothing_is_interrupted_when_its_reader_leaves() -> None:
    code = ("import sys, time\nfrom bringup.base.streams import interrupted_without_reader\n"
            "print('up', flush=True)\n"
            "with interrupted_without_reader(sys.stdout) as left:\n"
            "    try:\n        time.sleep(30)\n"
            "    except KeyboardInterrupt:\n        sys.exit(7 if left.is_set() else 8)\n")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                               cwd=Path(__file__).parents[3])
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.5)
    assert process.poll() is None
    process.stdout.close()
    assert process.wait(5) == 7


def test_a_run_goes_on_when_its_reader_leaves() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        plain = Plain(Layout("stages"), stream, colour=False)
        for _ in range(3):
            plain(Note("still at it"))
        assert plain.deaf
