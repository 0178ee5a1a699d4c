"""A command line that cannot be read: exit 2, the nearest right word, the command to type; through the real program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def typed(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True,
                          timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("words", "first", "next"), [
    (("provison",), "there is no verb `provison`; nearest: provision", "invoke --list"),
    (("release.dif", "r0001", "r0002"), "there is no verb `release.dif`; nearest: release.diff", "invoke --list"),
    (("--help", "provison"), "there is no verb `provison`; nearest: provision", "invoke --list"),
    (("provision", "--inventry", "h200"), "`provision` has no flag `--inventry`; nearest: --inventory",
     "invoke provision --help"),
    (("preflight", "--tear=deep"), "`preflight` has no flag `--tear`; nearest: --tier", "invoke preflight --help"),
    (("--lisst",), "there is no flag `--lisst`; nearest: --list", "invoke --list"),
    (("preflight", "--tier"), "--tier is given without its value", "invoke preflight --help"),
    (("provision", "--inventory"), "--inventory is given without its value", "invoke provision --help"),
    (("provision", "-i", "lab", "-i"), "-i is given without its value", "invoke provision --help"),
    (("playbook",), "'playbook' did not receive required positional arguments: 'file'", "invoke playbook --help"),
])
def test_an_unreadable_line_is_an_input_error(words: tuple[str, ...], first: str, next: str) -> None:
    status, out, err = typed(*words)
    lines = err.splitlines()
    assert (status, lines[0], lines[1].split(maxsplit=1), lines[-1]) == (
        2, first, ["next", next], "nothing was contacted")
    assert out == ""


@pytest.mark.parametrize("words", [("--list",), ("provision", "--help"), ("--help", "provision"), ("runbook", "--help"),
                                   ("--complete", "--", "inv", "prov"), ("inventory", "-i", "lab", "-i", "lab")])
def test_a_readable_line_is_left_to_invoke(words: tuple[str, ...]) -> None:
    status, out, err = typed(*words)
    assert (status, err) == (0, "") and out
