"""The host halves of the process managers, called as the agent calls them, on real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import engine_process
from bringup.agent.processes import proc
from bringup.agent.task import Failure, Task

RELEASE = "a" * 64


def call(root: Path, **args: Any) -> dict[str, Any]:
    filled = {name: spec.get("default") for name, spec in engine_process.ARGUMENTS.items()}
    filled.update(args)
    return dict(engine_process.run(Task(filled, root=str(root), run_id="run1")))


def launch(script: str, *, release: str = RELEASE, ports: tuple[int, ...] = (), **env: str) -> dict[str, Any]:
    return {"name": "r1-n1", "replica": "r1", "node": "n1", "node_rank": 0, "role": "head", "ranks": [0],
            "world_size": 1, "release": release, "argv": [sys.executable, "-u", "-c", script], "env": env,
            "ports": list(ports), "addresses": []}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    call(tmp_path, action="stop", name="r1-n1", grace=0.5)


def until(root: Path, state: str, seconds: float = 10) -> dict[str, Any]:
    end = time.time() + seconds
    while time.time() < end:
        seen: dict[str, Any] = call(root, action="status")["processes"]["r1-n1"]
        if seen["state"] == state:
            return seen
        time.sleep(0.05)
    raise AssertionError(f"{seen} never became {state}")


def wait_line(root: Path, text: str) -> list[Any]:
    end = time.time() + 10
    while time.time() < end:
        for line in call(root, action="logs", name="r1-n1", lines=100)["lines"]:
            if text in line[1]:
                return list(line)
        time.sleep(0.05)
    raise AssertionError(f"{text} never came")


def test_start_is_idempotent_and_leaves_its_own_session(root: Path) -> None:
    first = call(root, action="start", name="r1-n1", launch=launch("import time; print('up'); time.sleep(60)"))
    assert first["changed"]
    pid = first["record"]["pid"]
    again = call(root, action="start", name="r1-n1", launch=launch("import time; print('up'); time.sleep(60)"))
    assert not again["changed"] and again["record"]["pid"] == pid
    assert os.getsid(pid) not in (os.getsid(0), pid)
    assert os.getpgid(pid) == pid
    moment, text = wait_line(root, "up")
    assert text == "up" and (moment is None or abs(moment - time.time()) < 10)


def test_another_release_is_not_started_beside_the_running_one(root: Path) -> None:
    call(root, action="start", name="r1-n1", launch=launch("import time; time.sleep(60)"))
    with pytest.raises(Failure, match="runs release aaaa"):
        call(root, action="start", name="r1-n1", launch=launch("pass", release="b" * 64))


def test_environment_is_clean_and_holds_the_secret(root: Path) -> None:
    os.environ["LEAKED"] = "yes"
    try:
        script = "import os; print(sorted(os.environ), os.environ['VLLM_API_KEY'], os.environ['X'])"
        call(root, action="start", name="r1-n1", secrets={"VLLM_API_KEY": 'a"b$c`\\d'},
             launch=launch(script, X="a 'b'"))
    finally:
        del os.environ["LEAKED"]
    line = wait_line(root, "VLLM_API_KEY")[1]
    assert "LEAKED" not in line and line.endswith("""a"b$c`\\d a 'b'""")
    secret = root / "state/secrets/r1-n1.env"
    assert secret.stat().st_mode & 0o777 == 0o600
    others = [p for p in root.rglob("*") if p.is_file() and p not in (secret, root / "processes/r1-n1/log")]
    assert len(others) > 3
    assert not [p for p in others if 'a"b$c' in p.read_text()]


def test_exit_status_signal_and_time_are_kept(root: Path) -> None:
    call(root, action="start", name="r1-n1", launch=launch("raise SystemExit(7)"))
    assert until(root, "exited")["exit"]["code"] == 7
    call(root, action="start", name="r1-n1", launch=launch("import time; time.sleep(60)"))
    os.kill(until(root, "running")["pid"], signal.SIGKILL)
    ended = until(root, "exited")["exit"]
    assert ended["signal"] == 9 and abs(ended["at"] - time.time()) < 10


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    time.sleep(60)
print('deaf', flush=True)
time.sleep(60)
"""


def test_stop_kills_what_ignores_term_and_what_left_the_group(root: Path) -> None:
    call(root, action="start", name="r1-n1", launch=launch(STUBBORN))
    wait_line(root, "deaf")
    pids = [p["pid"] for p in until(root, "running")["pids"]]
    assert len(pids) == 2
    began = time.time()
    assert call(root, action="stop", name="r1-n1", grace=0.5)["changed"]
    assert time.time() - began < 4
    assert not [pid for pid in pids if proc.stat(pid) and proc.stat(pid)["state"] != "Z"]
    assert until(root, "stopped")["leftover"] == []
    assert not call(root, action="stop", name="r1-n1")["changed"]


def test_a_straggler_in_a_session_of_its_own_is_found_by_its_mark(root: Path) -> None:
    script = ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n"
              "print('up', flush=True)\ntime.sleep(60)")
    call(root, action="start", name="r1-n1", launch=launch(script))
    wait_line(root, "up")
    seen = until(root, "running")
    assert len(seen["pids"]) == 2
    call(root, action="stop", name="r1-n1", grace=2)
    assert not [p for p in seen["pids"] if proc.alive(p["pid"], p["ticks"])]


def test_the_children_of_a_launcher_that_was_killed_are_ended(root: Path) -> None:
    script = "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\nprint('up', flush=True)\ntime.sleep(60)"
    call(root, action="start", name="r1-n1", launch=launch(script))
    wait_line(root, "up")
    seen = until(root, "running")
    os.kill(seen["pid"], signal.SIGKILL)
    end = time.time() + 10
    while time.time() < end and any(proc.alive(p["pid"], p["ticks"]) for p in seen["pids"]):
        time.sleep(0.05)
    assert not [p for p in seen["pids"] if proc.alive(p["pid"], p["ticks"])]
    assert until(root, "exited")["leftover"] == []


def test_a_foreign_process_with_the_recorded_pid_is_never_killed(root: Path) -> None:
    call(root, action="start", name="r1-n1", launch=launch("pass"))
    until(root, "exited")
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        path = root / "processes/r1-n1/record.json"
        record = proc.read_json(str(path))
        record.update(pid=stranger.pid, session=stranger.pid, keeper=stranger.pid)
        proc.write_json(str(path), record)
        assert call(root, action="status")["processes"]["r1-n1"]["state"] == "exited"
        call(root, action="stop", name="r1-n1", grace=0.2)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_taken_port_is_refused_with_its_holder(root: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(Failure, match=rf"port {port} is taken by process {os.getpid()} ") as caught:
            call(root, action="start", name="r1-n1", launch=launch("pass", ports=(port,)))
        assert caught.value.fields["taken"][0]["pid"] == os.getpid()
        other = dict(launch("import time; time.sleep(60)", ports=(port,)), addresses=["127.0.0.2"])
        assert call(root, action="start", name="r1-n1", launch=other)["changed"]


def test_status_names_rank_processes_that_are_gone(root: Path) -> None:
    script = ("import subprocess, time\nsubprocess.Popen(['bash', '-c', 'exec -a VLLM::Worker_TP1 sleep 60'])\n"
              "print('up', flush=True)\ntime.sleep(60)")
    call(root, action="start", name="r1-n1", launch=launch(script))
    wait_line(root, "up")
    end = time.time() + 5
    while time.time() < end and not any("VLLM::" in p["command"] for p in until(root, "running")["pids"]):
        time.sleep(0.05)
    workers = call(root, action="note", name="r1-n1", note={"ranks": [0, 1]})["workers"]
    assert len(workers) == 2
    assert until(root, "running")["missing"] == []
    os.kill(next(p["pid"] for p in workers if p["command"].startswith("VLLM::")), signal.SIGKILL)
    time.sleep(0.2)
    missing = until(root, "running")["missing"]
    assert [p["command"] for p in missing] == ["VLLM::Worker_TP1 60"]


def test_log_is_followed_by_offset(root: Path) -> None:
    script = "import time\nfor n in range(3): print('line', n, flush=True); time.sleep(0.2)\ntime.sleep(60)"
    call(root, action="start", name="r1-n1", launch=launch(script))
    got: list[str] = []
    after: dict[str, str] = {"r1-n1": ""}
    end = time.time() + 10
    while len(got) < 3 and time.time() < end:
        seen = call(root, action="status", after=after, wait=1.0)["processes"]["r1-n1"]
        got += [text for _, text in seen["lines"]]
        after = {"r1-n1": seen["after"]}
    assert got == ["line 0", "line 1", "line 2"]


def test_a_record_of_another_boot_is_no_running_process(root: Path) -> None:
    call(root, action="start", name="r1-n1", launch=launch("import time; time.sleep(60)"))
    path = str(root / "processes/r1-n1/record.json")
    record = proc.read_json(path)
    proc.write_json(path, dict(record, boot_id="another"))
    seen = call(root, action="status")["processes"]["r1-n1"]
    assert seen["state"] == "exited" and seen["exit"]["reason"] == "the host was rebooted"
    proc.write_json(path, record)


def test_prove_names_what_is_missing(root: Path) -> None:
    document = dict(launch("pass"), argv=["/nowhere/bin/vllm", "serve"], model_path=str(root / "no-model"))
    problems = call(root, action="prove", name="r1-n1", launch=document)["problems"]
    assert [p["check"] for p in problems] == ["environment", "model"]


def test_prove_names_a_cuda_toolkit_that_is_gone(root: Path) -> None:
    nvcc = root / "cuda-13.0" / "bin" / "nvcc"
    document = dict(launch("pass"), values={"cuda_home": str(root / "cuda-13.0")})
    (problem,) = call(root, action="prove", name="r1-n1", launch=document)["problems"]
    assert problem["check"] == "toolkit" and "cuda-13.0 is gone" in problem["found"]
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    assert call(root, action="prove", name="r1-n1", launch=document)["problems"] == []
