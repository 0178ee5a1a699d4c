"""The host half, with real processes: side by side, deadlines, what hangs, what is missing."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bringup.agent import questions
from bringup.agent.modules import probe
from bringup.agent.task import Task
from bringup.preflight.parsers import processes
from bringup.preflight.probes import PROBES, Questions, chosen


def ask(probes: list[dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str], dict[str, Any]]:
    lines: list[str] = []
    result = probe.run(Task({"probes": probes}, line=lambda text, stream: lines.append(text)))
    return {answer["id"]: answer for answer in result["answers"]}, lines, result


def test_all_run_side_by_side() -> None:
    began = time.monotonic()
    found, _, _ = ask([{"id": f"p{n}", "argv": ["sh", "-c", "sleep 0.5; echo done"]} for n in range(20)])
    assert time.monotonic() - began < 4
    assert {answer["stdout"] for answer in found.values()} == {"done\n"}
    assert [answer["rc"] for answer in found.values()] == [0] * 20


def test_output_status_and_what_is_missing() -> None:
    found, lines, result = ask(
        [
            {"id": "both", "argv": ["sh", "-c", "printf 'a\\377b'; echo err >&2; exit 18"]},
            {"id": "gone", "argv": ["there-is-no-such-tool"]},
            {"id": "denied", "argv": ["/etc/passwd"]},
        ]
    )
    assert (found["both"]["rc"], found["both"]["stdout"], found["both"]["stderr"]) == (18, "a\ufffdb", "err\n")
    assert found["gone"]["missing"] is True and found["gone"]["rc"] == 127
    assert found["denied"]["missing"] is False and found["denied"]["rc"] == 126
    assert [line.split()[0] for line in lines] == ["clock", "clock"]
    assert result["changed"] is False and result["clock"]["ended"] >= result["clock"]["started"]


def test_a_deadline_keeps_what_was_printed_and_ends_the_group() -> None:
    began = time.monotonic()
    found, _, _ = ask(
        [
            {"id": "slow", "argv": ["sh", "-c", "echo first; sleep 60 & sleep 60"], "deadline": 0.5},
            {"id": "deaf", "argv": ["sh", "-c", "trap '' TERM; echo deaf; sleep 60"], "deadline": 0.5},
            {"id": "fine", "argv": ["echo", "x"]},
        ]
    )
    assert time.monotonic() - began < 6
    assert found["slow"]["timed_out"] and found["slow"]["stdout"] == "first\n"
    assert found["deaf"]["timed_out"] and found["deaf"]["stdout"] == "deaf\n"
    assert not found["fine"]["timed_out"] and found["fine"]["stdout"] == "x\n"


def test_what_cannot_be_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    real = subprocess.Popen

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = real(*args, **kwargs)
        started.append(process.pid)
        return process

    monkeypatch.setattr(probe.subprocess, "Popen", popen)
    monkeypatch.setattr(probe._Child, "_signal", lambda self, number: None)
    began = time.monotonic()
    found, _, _ = ask(
        [{"id": "stuck", "argv": ["sleep", "60"], "deadline": 0.3}, {"id": "fine", "argv": ["echo", "x"]}]
    )
    assert time.monotonic() - began < 5
    assert found["stuck"]["timed_out"] and found["stuck"]["abandoned"] == "S"
    assert found["fine"]["stdout"] == "x\n"
    os.kill(started[0], 9)
    os.waitpid(started[0], 0)


def test_a_daemon_that_keeps_the_pipe_is_not_waited_for() -> None:
    began = time.monotonic()
    found, _, _ = ask([{"id": "daemon", "argv": ["sh", "-c", "setsid sleep 3 & echo up"]}])
    assert time.monotonic() - began < 2.5
    assert found["daemon"]["stdout"] == "up\n" and not found["daemon"]["timed_out"]


def test_a_log_keeps_its_end() -> None:
    found, _, _ = ask([{"id": "log", "argv": ["sh", "-c", "seq 1 200000"], "limit": 100000, "keep": "tail"}])
    assert found["log"]["truncated"] and found["log"]["stdout"].endswith("200000\n")
    assert len(found["log"]["stdout"]) < 300000


def test_files() -> None:
    found, _, _ = ask(
        [
            {"id": "some", "read": ["/proc/meminfo", "/proc/sys/kernel/os*", "/proc/there/is/none"]},
            {"id": "none", "read": ["/proc/there/is/none"]},
        ]
    )
    assert "MemTotal" in found["some"]["files"]["/proc/meminfo"]
    assert "/proc/sys/kernel/osrelease" in found["some"]["files"]
    assert found["none"]["missing"] is True


def test_a_question_that_fails_does_not_end_the_others() -> None:
    found, _, _ = ask([{"id": "odd", "ask": "there is none"}, {"id": "fine", "ask": "disk", "with": {"paths": ["/"]}}])
    assert found["odd"]["rc"] == 1 and "KeyError" in found["odd"]["stderr"]
    assert json.loads(found["fine"]["stdout"])[0]["size"] > 0


def test_every_probe_can_be_asked_here() -> None:
    given = Questions(
        names=["localhost"],
        peers={"self": "127.0.0.1"},
        paths=["/"],
        run_paths=["/tmp"],
        model_path="/nonexistent",
        user="root",
    )
    requests = [one.request(given.given(one.ask)) for one in chosen(platform=None)]
    began = time.monotonic()
    found, _, _ = ask(requests)
    assert time.monotonic() - began < 30
    assert set(found) == {one["id"] for one in requests}
    for one in PROBES:
        if one.ask and one.tier == "fast":
            assert found[one.id]["rc"] in (0, 1) and "Error:" not in found[one.id]["stderr"], found[one.id]
    table = processes.processes(found["proc.processes"]["stdout"])
    assert table[os.getpid()].parent == os.getppid()


def test_a_listener_is_seen_with_its_process() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        found = processes.listeners(questions.answer("listeners", {})["stdout"])
    mine = [one for one in found if one.port == port]
    assert mine and mine[0].address == "127.0.0.1" and mine[0].pids == (os.getpid(),)


def test_a_process_of_ours_shows_its_mark_and_no_secret() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(30)", "--api-key", "abc123secret"],
        env={**os.environ, "BRINGUP_PROCESS": "/opt/bringup|r1-0|n1"},
    )
    try:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            table = processes.processes(questions.answer("processes", {})["stdout"])
            if child.pid in table and table[child.pid].mark:
                break
        assert table[child.pid].mark == "/opt/bringup|r1-0|n1"
        assert "abc123secret" not in table[child.pid].command
        assert "--api-key ********" in table[child.pid].command
    finally:
        child.kill()
        child.wait()


def shard(path: Path, length: int = 4, *, cut: int = 0) -> None:
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}
    ).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * length
    path.write_bytes(data[: len(data) - cut])


def test_weights(tmp_path: Path) -> None:
    shard(tmp_path / "model-1.safetensors")
    shard(tmp_path / "model-2.safetensors", cut=3)
    (tmp_path / "model-3.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5368709120\n"
    )
    (tmp_path / "model-4.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "model-5.safetensors").write_bytes(b"ab")
    shard(tmp_path / "model-7.safetensors", cut=60)
    (tmp_path / "x.incomplete").write_bytes(b"12345")
    (tmp_path / "config.json").write_text('{"model_type": "glm_moe_dsa"}')
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps(
            {"metadata": {"total_size": 24}, "weight_map": {"a": "model-1.safetensors", "b": "model-6.safetensors"}}
        )
    )
    found = json.loads(questions.answer("weights", {"path": str(tmp_path)})["stdout"])
    files = found["files"]
    assert files["model-1.safetensors"]["size"] == files["model-1.safetensors"]["expected"]
    assert files["model-2.safetensors"]["expected"] - files["model-2.safetensors"]["size"] == 3
    assert files["model-3.safetensors"] == {"size": 73, "pointer": True, "expected": 5368709120}
    assert files["model-4.safetensors"]["error"] == "no safetensors header"
    assert files["model-5.safetensors"]["error"] == "shorter than a header"
    assert files["model-6.safetensors"] == {"error": "missing"}
    assert files["model-7.safetensors"]["error"] == "ends inside its header"
    assert found["partial"] == [{"name": "x.incomplete", "size": 5}]
    assert found["config"]["model_type"] == "glm_moe_dsa"


def test_noexec_is_found_by_running_a_file(tmp_path: Path) -> None:
    found = json.loads(questions.answer("execute", {"paths": [str(tmp_path / "not" / "there")]})["stdout"])
    assert found == [{"path": str(tmp_path / "not" / "there"), "result": "runs", "tried": str(tmp_path)}]
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"


def test_hosts_meet_on_the_ports_of_the_plan() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        busy = taken.getsockname()[1]
        with socket.socket() as scout:
            scout.bind(("127.0.0.1", 0))
            free = scout.getsockname()[1]
        answer = questions.answer(
            "meet",
            {
                "listen": [free, busy],
                "address": "127.0.0.1",
                "seconds": 1.0,
                "peers": {
                    "me": {"address": "127.0.0.1", "ports": [free, busy]},
                    "none": {"address": "127.0.0.1", "ports": [1]},
                },
            },
        )
    found = json.loads(answer["stdout"])
    assert found["listen"][str(free)] == "listens" and found["listen"][str(busy)] == "Address already in use"
    assert found["connect"][f"me:{free}"] == "connects"
    assert found["connect"]["none:1"] == "Connection refused"


def test_proxy_settings_come_without_their_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://joe:hunter2@proxy.example:3128")
    found = json.loads(questions.answer("proxy", {})["stdout"])
    assert found["session"]["https_proxy"] == "http://********@proxy.example:3128"


def test_communication_libraries_of_environments(tmp_path: Path) -> None:
    site = tmp_path / "envs/abc/lib/python3.12/site-packages"
    (site / "nvidia/nccl/lib").mkdir(parents=True)
    (site / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    (site / "nvidia/nccl/lib/libnccl.so.2").write_bytes(b"one build")
    found = [
        one
        for one in json.loads(questions.answer("libraries", {"root": str(tmp_path)})["stdout"])
        if one["environment"]
    ]
    assert [(one["environment"], one["version"]) for one in found] == [("abc", "2.27.5")]


def test_environments_with_their_torch_and_which_is_in_use(tmp_path: Path) -> None:
    for name, version in (("abc123", "2.9.1+cu128"), ("def456", "2.8.0")):
        (tmp_path / f"envs/{name}/lib/python3.12/site-packages/torch-{version}.dist-info").mkdir(parents=True)
        (tmp_path / f"envs/{name}/lib/python3.12/site-packages/torchaudio-1.0.dist-info").mkdir()
    release = tmp_path / "releases" / "77"
    release.mkdir(parents=True)
    (release / "host.json").write_text('{"argv": ["/opt/bringup/envs/def456/bin/vllm"]}')
    (tmp_path / "current").symlink_to(release)
    assert json.loads(questions.answer("environments", {"root": str(tmp_path)})["stdout"]) == [
        {"environment": "abc123", "torch": "2.9.1+cu128", "used": False},
        {"environment": "def456", "torch": "2.8.0", "used": True}]


def test_who_holds_a_segment_of_shared_memory() -> None:
    from multiprocessing import shared_memory

    def seen(name: str) -> dict[str, Any]:
        answer = json.loads(questions.answer("shared_memory", {})["stdout"])
        return next(one for one in answer if one["name"] == name)

    made = shared_memory.SharedMemory(create=True, size=4096)
    name = made.name.lstrip("/")
    try:
        assert seen(name)["holders"] == [os.getpid()]
        made.close()
        # without a look at every process nobody can say that it is nobody's
        assert seen(name)["holders"] in ([], None)
        with open(f"/dev/shm/{name}", "rb"):
            assert seen(name)["holders"] == [os.getpid()]
    finally:
        made.unlink()
