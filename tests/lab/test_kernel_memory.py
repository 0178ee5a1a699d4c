"""A build whose compilers are killed for memory, as `invoke kernel.build` tells it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INVOKE = Path(sys.executable).parent / "invoke"
RECIPE = """\
purpose: test
uses: [compiler]
source: {folder: source}
memory_per_job: 100 MiB
commands:
  - compile: |
      echo "try with $JOBS" >> "%(tries)s"
      if [ "$JOBS" -gt %(most)d ]; then kill -9 $$; fi
      mkdir -p "$OUT" && cp lib.cpp "$OUT/"
yields: [lib.cpp]
proof: {script: proof.py, seconds: 60}
"""
pytestmark = pytest.mark.skipif(shutil.which("g++", path="/usr/bin") is None, reason="no /usr/bin/g++")


@pytest.mark.parametrize(("most", "status", "tries"), [(4, 0, [8, 4]), (1, 1, [8, 4])])
def test_c029_a_kill_is_out_of_memory_and_tried_once_more_with_half(tmp_path: Path, most: int, status: int,
                                                                    tries: list[int]) -> None:
    project = tmp_path / "site"
    folder = project / "kernels" / "one"
    (folder / "source").mkdir(parents=True)
    for name in ("tasks.py", "playbooks", "roles", "envs"):
        (project / name).symlink_to(ROOT / name)
    (folder / "source" / "lib.cpp").write_text("int x;\n")
    (folder / "kernel.yml").write_text(RECIPE % {"most": most, "tries": tmp_path / "tries"})
    (folder / "proof.py").write_text('print(\'{"proof": "there"}\')\n')
    inventory = tmp_path / "here.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"h200-01": {"ansible_connection": "local"}}, "vars": {
        "bringup_root": str(tmp_path / "root"), "bringup_privileged": False,
        "deployment": {"kernels": [{"name": "one", "jobs": 8}]}}}}))
    done = subprocess.run([str(INVOKE), "kernel.build", "--inventory", str(inventory)], cwd=project, text=True,
                          env={**os.environ, "BRINGUP_PROJECT": str(project), "COLUMNS": "160"}, timeout=300,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    assert (tmp_path / "tries").read_text().split() == [word for count in tries for word in f"try with {count}".split()]
    if status:
        assert "h200-01" in done.stdout and "memory was exhausted" in done.stdout, done.stdout
        assert "jobs" in done.stdout and "Traceback" not in done.stdout
