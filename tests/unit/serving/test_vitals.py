"""What grows while an engine loads: read on this host, compared, told; and deadlines that it moves."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import engine_vitals
from bringup.serving import start as starting
from bringup.serving.signs import Signs
from bringup.serving.start import Watched
from bringup.serving.vitals import Vitals, growth, of_ranks, rank_of, told

GB = 10 ** 9
NVIDIA = "935, 40000\n936, 2000\n935, 1000\n937, [N/A]\n\n"
NPU = """\
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 935440        |                          | 141                     |
| 0       1                 | 929405        | python3                  | 58780                   |
| 1       0                 | 929405        |                          | 20                      |
| No running processes found in NPU 3                                                            |
"""


def look(at: float, *processes: dict[str, Any], files: int = 0) -> Vitals:
    return Vitals.read({"at": at, "files": files, "processes": processes}, range(8), 4)


def process(pid: int = 1, command: str = "VLLM::Worker_TP0", cpu: float = 0, read: int = 0, memory: int = 0,
            device: int | None = None) -> dict[str, Any]:
    return {"pid": pid, "command": command, "cpu": cpu, "read": read, "memory": memory, "device": device}


def test_tools_of_devices_are_read() -> None:
    assert engine_vitals.of_nvidia(NVIDIA) == {935: 41000 << 20, 936: 2000 << 20}
    assert engine_vitals.of_npu(NPU) == {935440: 141 << 20, 929405: 58800 << 20}


def test_a_tool_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '7, 12'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(engine_vitals, "KFD", str(tmp_path / "none"))
    assert engine_vitals.device_memory([7]) == ({7: 12 << 20}, "nvidia-smi")
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(engine_vitals, "_WAIT", 0.3)
    began = time.monotonic()
    assert engine_vitals.device_memory([7]) == ({}, "silent")
    assert time.monotonic() - began < 30


def test_the_amd_driver_tells_by_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/vram_1001").write_text("1000\n")
    (tmp_path / "7/vram_1002").write_text("200\n")
    (tmp_path / "7/pasid").write_text("3\n")
    monkeypatch.setattr(engine_vitals, "KFD", str(tmp_path))
    assert engine_vitals.device_memory([7, 8]) == ({7: 1200}, "kfd")


def test_a_process_that_reads_and_one_that_waits(tmp_path: Path) -> None:
    big = tmp_path / "weights"
    big.write_bytes(b"x" * (64 << 20))
    code = ("import sys; sys.stdin.readline(); held = open(sys.argv[1], 'rb').read(); print('read'); "
            "sys.stdin.readline()")
    child = subprocess.Popen([sys.executable, "-c", code, str(big)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        ticks = float(os.sysconf("SC_CLK_TCK"))
        before = engine_vitals.of_process(child.pid, ticks)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "read\n"
        now = engine_vitals.of_process(child.pid, ticks)
        assert before is not None and now is not None
        grown = growth(look(1.0, before), look(2.0, now))
        assert grown.read >= 64 << 20 and grown.memory >= 60 << 20 and grown.strong
        still = growth(look(2.0, now), look(3.0, engine_vitals.of_process(child.pid, ticks) or {}))
        assert not still.strong and not still.busy
    finally:
        child.kill()
        child.communicate()
    assert engine_vitals.of_process(child.pid, ticks) is None


def test_compiled_files_are_counted(tmp_path: Path) -> None:
    for name in ("compiled/a/b.cubin", "home-bringup/.cache/c.so", "help/d.txt"):
        (tmp_path / "cache" / name).parent.mkdir(parents=True)
        (tmp_path / "cache" / name).write_text("")
    assert engine_vitals.cached_files(str(tmp_path)) == 2
    assert engine_vitals.cached_files(str(tmp_path / "none")) == 0


@pytest.mark.parametrize(("title", "ranks", "rank"), [
    ("VLLM::Worker_TP3", range(8), 3), ("VLLM::Worker_PP1_TP2", range(4, 8), 6), ("VLLM::Worker", [5], 5),
    ("VLLM::Worker", [4, 5], None), ("sglang::scheduler_TP5", range(4, 8), 5), ("VLLM::Worker_DP1_TP2", range(4, 8), 6),
    ("VLLM::EngineCore", [0], 0), ("/usr/bin/python3 -m vllm", range(4), None), ("sglang::detokenizer", [0], None),
    ("VLLM::Worker_TP9", range(4), None), ("VLLM::Worker_TP1_EP1", range(4), 1)])
def test_the_rank_in_a_title(title: str, ranks: Any, rank: int | None) -> None:
    assert rank_of(title, list(ranks), 4) == rank


def test_words_for_80_and_160_columns() -> None:
    before = look(10.0, process(1, device=80 * GB), process(2, "VLLM::Worker_TP1", device=82 * GB))
    now = look(20.0, process(1, read=19 * GB, device=90 * GB),
               process(2, "VLLM::Worker_TP1", read=1 * GB, device=92 * GB))
    assert told(now, growth(before, now)) == "92.0 GB a device, reading 2.0 GB/s"
    assert of_ranks(now) == ("rank 0: 90.0 GB on its device, 19.0 GB read; "
                             "rank 1: 92.0 GB on its device, 1.0 GB read")
    watched = Watched(Signs(shards=(118, 163)), grows=(told(now, growth(before, now)), of_ranks(now)))
    assert watched.told.startswith("loading 118/163 shards, 92.0 GB a device, reading 2.0 GB/s, rank 0: 90.0 GB")
    silent = Watched(Signs(last="INFO 11-30 14:00:00 [a.py:1] Capturing graphs"), grows=("3.1 GB in memory", ""))
    assert silent.told == "3.1 GB in memory, Capturing graphs"
    assert told(now, growth(now, look(30.0, process(1, read=19 * GB))), 25.0).endswith("nothing grows for 25 s")


def test_compilers_and_spinning() -> None:
    before = look(0.0, process(1))
    compiling = look(5.0, process(1), process(2, "/usr/local/cuda/bin/cicc -arch=sm_90"))
    assert growth(before, compiling).busy and not growth(before, compiling).strong
    assert "1 compiler at work" in told(compiling, growth(before, compiling))
    spinning = look(5.0, process(1, cpu=5.0))
    assert growth(before, spinning).busy and not growth(before, spinning).strong
    assert "1.0 cores busy" in told(spinning, growth(before, spinning))
    assert growth(before, look(5.0, process(1), files=3)).strong


spec = importlib.util.spec_from_file_location("local_fleet", Path(__file__).parent / "local_fleet.py")
assert spec is not None and spec.loader is not None
local = sys.modules.setdefault("local_fleet", importlib.util.module_from_spec(spec))
spec.loader.exec_module(local)


class _Loading:
    """A replica of one node of which the figures are these, one look after the other."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Any) -> None:
        self.fleet = local.LocalFleet(tmp_path, ("n1",))
        document = {"name": "r1-n1", "replica": "r1", "node": "n1", "node_rank": 0, "ranks": [0], "role": "head",
                    "world_size": 1, "argv": ["engine"], "release": "a" * 64}
        replica = starting.ReplicaStart("r1", {"n1": document}, "detached", starting.Deadlines(load=100.0))
        self.start = starting.Starting(self.fleet, replica)
        self.clock = self.start.began
        monkeypatch.setattr(starting.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(engine_vitals, "run", lambda task: {"changed": False, **next(figures)})

    def after(self, seconds: float) -> Any:
        self.clock += seconds
        self.start._look()
        return self.start._overdue([], None)


def test_bytes_read_move_the_deadline_and_a_standstill_does_not(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    reads = iter([0, GB, 2 * GB, 2 * GB, 2 * GB])
    loading = _Loading(tmp_path, monkeypatch, ({"at": float(number * 60), "processes": [process(read=read)]}
                                               for number, read in enumerate(reads)))
    assert [loading.after(60) for _ in range(4)] == [None] * 4
    cause = loading.after(60)
    assert cause is not None and cause.key == "stall" and "1 m 40 s" in cause.what


def test_processor_time_alone_makes_the_wait_twice_as_long_at_most(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    loading = _Loading(tmp_path, monkeypatch, ({"at": float(number * 60), "processes": [process(cpu=60.0 * number)]}
                                               for number in range(9)))
    told_at = [loading.after(60) for _ in range(4)]
    assert told_at[:3] == [None] * 3 and told_at[3] is not None and "3 m 20 s" in told_at[3].what
