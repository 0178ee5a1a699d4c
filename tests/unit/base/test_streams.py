"""What a process does when nobody reads its output any more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["invoke --list", "invoke preflight --help", "bringup --list", "bringup --help"])
def test_a_list_or_a_help_whose_reader_left_ends_without_a_word(line: str, unbuffered: str) -> None:
    program, *words = line.split()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([str(Path(sys.executable).parent / program), *words], stdout=writing, text=True,
                              stderr=subprocess.PIPE, cwd=Path(__file__).parents[3], timeout=20, check=False,
                              env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    finally:
        os.close(writing)
    assert done.stderr == ""


def test_another_broken_pipe_is_told() -> None:
    code = ("from bringup.base.streams import end_quietly_without_reader\n"
            "end_quietly_without_reader()\nraise BrokenPipeError('of a socket')\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False,
                          cwd=Path(__file__).parents[3])
    assert done.returncode == 1
    assert "of a socket" in done.stderr
