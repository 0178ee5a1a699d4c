"""What a log line says of a start in the few words that the live view has room for."""

from __future__ import annotations

import pytest

from bringup.serving.signs import Signs


@pytest.mark.parametrize(("line", "told"), [
    ("(Worker_TP0 pid=21) INFO 07-14 09:12:44 [gpu_model_runner.py:2338] Loading model", "Loading model"),
    ("(APIServer pid=8) WARNING 07-14 09:12:44 [api.py:9] slow", "slow"),
    ("[2026-07-14 09:12:44 TP3] Load weight begin. avail mem=138.27 GB", "Load weight begin. avail mem=138.27 GB"),
    ("(Worker pid=21) RuntimeError: no", "RuntimeError: no"),
    ("Capturing CUDA graphs", "Capturing CUDA graphs"),
    ("(EngineCore_0 pid=3)", "(EngineCore_0 pid=3)"),
])
def test_what_is_told_leaves_out_what_the_logger_writes_before_it(line: str, told: str) -> None:
    signs = Signs()
    signs.read(line)
    assert signs.told == told
    assert signs.last == line


def test_shards_under_way_come_first() -> None:
    signs = Signs()
    signs.read("Loading safetensors checkpoint shards:  72% Completed | 118/163 [11:02<04:12,  6.0s/it]")
    assert signs.told == "loading 118/163 shards"
