"""How much memory a build may take on a host, and what holds it to that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bringup.agent import kernel_runner
from bringup.agent.modules import _memory

GIB = 1 << 30


def host(folder: Path, available: int, cgroup: str, **groups: tuple[str, int]) -> int:
    """What a host with so many GiB and these control groups (path with _ for /: limit, used in GiB) offers."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available << 20} kB\n")
    (folder / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, (limit, used) in groups.items():
        place = folder / "groups" / name.replace("_", "/")
        place.mkdir(parents=True, exist_ok=True)
        old = name.startswith("memory")
        text = limit if limit == "max" else str(int(limit) * GIB)
        (place / ("memory.limit_in_bytes" if old else "memory.max")).write_text(text + "\n")
        (place / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used * GIB}\n")
    return _memory.available(str(folder / "proc"), str(folder / "groups")) // GIB


def test_what_can_be_had_is_the_least_of_kernel_and_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    monkeypatch.setattr(_memory, "_units", lambda: False)
    assert host(tmp_path / "a", 64, "0::/\n") == 64
    assert host(tmp_path / "b", 64, "0::/\n", **{"": ("40", 10)}) == 30
    assert host(tmp_path / "c", 64, "", memory=("32", 30)) == 2
    assert host(tmp_path / "d", 64, "0::/a/b\n", a=("20", 4), a_b=("max", 4)) == 16
    assert host(tmp_path / "e", 64, "12:cpu,memory:/box\n1:name=systemd:/\n", memory_box=("9", 1)) == 8
    assert host(tmp_path / "f", 64, "0::/a\n", a=("3", 5)) == 0
    # a unit of its own is not in the group of the session
    monkeypatch.setattr(_memory, "_units", lambda: True)
    assert host(tmp_path / "g", 64, "0::/a\n", a=("3", 1)) == 64


@pytest.mark.parametrize(("free", "serving", "gib"), [(64, False, 62), (64, True, 48), (6, True, 4), (3, False, 1.5),
                                                      (1, True, 0.5)])
def test_a_build_leaves_something_to_the_host(free: int, serving: bool, gib: float) -> None:
    assert _memory.share(free * GIB, serving) == gib * GIB


ASK = ("import resource; print(open('/proc/self/oom_score_adj').read().strip(), "
       "resource.getrlimit(resource.RLIMIT_DATA)[0])")
COUNT = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from bringup.agent import kernel_runner
keeps = "kept = bytearray(64 << 20); print(1, flush=True); input()"
own = subprocess.Popen([sys.executable, "-c", keeps], stdin=-1, stdout=-1)
own.stdout.readline()
print([(pid == own.pid, size >> 20 >= 64) for pid, size in kernel_runner.of_session()])
own.kill()
"""


def test_the_words_before_a_command_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "_scope", lambda most: [])
    words, how = _memory.held(3 * GIB)
    said = subprocess.run([*words, sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout
    assert how == "a limit of each process" and said.split() == ["800", str(3 * GIB)]
    bound = kernel_runner.Bound(3 * GIB)
    said = subprocess.run([*bound.words(), sys.executable, "-c", ASK], capture_output=True, text=True,
                          check=True).stdout
    assert said.split() == ["800", str(3 * GIB)] or bound.by_kernel
    assert str(kernel_runner.Bound(0)) == "no bound"


def test_the_other_processes_of_the_session_are_counted() -> None:
    root = str(Path(__file__).resolve().parents[3])
    said = subprocess.run(["setsid", "--wait", sys.executable, "-c", COUNT, root], capture_output=True, text=True,
                          check=True).stdout
    assert said.strip() == "[(True, True)]"


def test_a_scope_of_systemd_holds_where_one_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "systemd-run"
    client.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ -e {tmp_path}/refuse ] && exit 1\n'
                      'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(_memory, "_units", lambda: True)
    words, how = _memory.held(3 * GIB)
    said = subprocess.run([*words, sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout
    assert how == "its control group" and said.split() == ["800", "-1"]  # its group holds it, no limit of its own
    assert f"--property=MemoryMax={3 * GIB} --property=MemorySwapMax=0 -- /bin/sh" in (tmp_path / "asked").read_text()
    (tmp_path / "refuse").touch()
    words, how = _memory.held(3 * GIB)
    assert how == "a limit of each process" and "systemd-run" not in words
