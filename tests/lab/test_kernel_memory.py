"""A build whose compilers are killed for memory, as `invoke kernel.build` tells it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    done = built(tmp_path, RECIPE % {"most": most, "tries": tmp_path / "tries"}, jobs=8)
    assert done.returncode == status, done.stdout
    assert (tmp_path / "tries").read_text().split() == [word for count in tries for word in f"try with {count}".split()]
    if status:
        assert "h200-01" in done.stdout and "memory was exhausted" in done.stdout, done.stdout
        assert "jobs" in done.stdout and "Traceback" not in done.stdout


GREEDY = """\
purpose: test
uses: [compiler]
source: {folder: source}
memory_per_job: 100 MiB
commands:
  - compile: |
      for one in $(seq "$JOBS"); do python3 -c "import time; kept = bytearray(%(each)d << 20); time.sleep(4)" & done
      for one in $(seq "$JOBS"); do wait -n; done
      mkdir -p "$OUT" && cp lib.cpp "$OUT/" && cat /proc/self/oom_score_adj > "$OUT/first"
yields: [lib.cpp, first]
proof: {script: proof.py, seconds: 60}
"""


def test_c029_a_build_that_takes_more_than_it_may_is_stopped_and_goes_on_with_less(tmp_path: Path) -> None:
    # each by itself is below the bound, two together are not
    done = built(tmp_path, GREEDY % {"each": 300}, jobs=2, memory="400 MiB")
    assert done.returncode == 0, done.stdout
    assert "memory: 419 MB at most, as asked" in done.stdout and "1 at a time" in done.stdout, done.stdout
    log = output(tmp_path)
    assert "memory: 0.4 GiB at most, held by" in log and "the build took more than the 0.4 GiB" in log, log
    assert log.count("once more with 1 at a time") == 1, log
    assert next((tmp_path / "root" / "builds").glob("[0-9a-f]*/first")).read_text() == "800\n"


def test_c029_one_compiler_that_takes_more_than_it_may_gets_no_more(tmp_path: Path) -> None:
    done = built(tmp_path, GREEDY % {"each": 600}, jobs=1, memory="400 MiB")
    assert done.returncode == 1, done.stdout
    assert "memory was exhausted" in done.stdout and "MemoryError" in output(tmp_path), done.stdout
    assert not list((tmp_path / "root" / "builds").glob("[0-9a-f]*"))


def output(tmp_path: Path) -> str:
    """What the job of the build wrote."""
    return next((tmp_path / "root" / "jobs").glob("kernel-*/output")).read_text()


def built(tmp_path: Path, recipe: str, **asked: Any) -> subprocess.CompletedProcess[str]:
    """`invoke kernel.build` of a recipe on one host that is this machine."""
    project = tmp_path / "site"
    folder = project / "kernels" / "one"
    (folder / "source").mkdir(parents=True)
    for name in ("tasks.py", "playbooks", "roles", "envs"):
        (project / name).symlink_to(ROOT / name)
    (folder / "source" / "lib.cpp").write_text("int x;\n")
    (folder / "kernel.yml").write_text(recipe)
    (folder / "proof.py").write_text('print(\'{"proof": "there"}\')\n')
    inventory = tmp_path / "here.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"h200-01": {"ansible_connection": "local"}}, "vars": {
        "bringup_root": str(tmp_path / "root"), "bringup_privileged": False,
        "deployment": {"kernels": [{"name": "one", **asked}]}}}}))
    return subprocess.run([str(INVOKE), "kernel.build", "--inventory", str(inventory)], cwd=project, text=True,
                          check=False, env={**os.environ, "BRINGUP_PROJECT": str(project), "COLUMNS": "160"},
                          timeout=300, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
