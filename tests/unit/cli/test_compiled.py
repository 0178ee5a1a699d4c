"""Compiled modules are kept: Invoke forbids it for all that it loads, and every call would compile the package anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize("command", [["invoke", "-r", str(PROJECT)], ["bringup"]])
@pytest.mark.parametrize(("forbidden", "kept"), [(False, True), (True, False)])
def test_a_call_keeps_what_it_compiled(command: list[str], forbidden: bool, kept: bool, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {gpu01: {}}}\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(tmp_path / "kept"), "BRINGUP_PROJECT": str(tmp_path)}
    if forbidden:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run([str(TOOLS / command[0]), *command[1:], "inventory", "-i", "./hosts.yml"], cwd=tmp_path,
                          env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name.partition(".")[0] for path in (tmp_path / "kept").rglob("*.pyc")}
    # one that the namespace loads, and one that the verb loads later
    assert ({"options", "patterns"} <= names) is kept, sorted(names)
