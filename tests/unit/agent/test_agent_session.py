"""The agent as a process on this machine: what it does with requests, whoever asks."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_session import Driven

from bringup.agent import pids
from bringup.connection.messages import Closed, Finished, Lost, NotRun, Output, Started, Target, Unreachable
from bringup.run.actions import Blob


def here(root: Path, **more: object) -> Target:
    return Target(host="here", connection="local", root=str(root), **more)  # type: ignore[arg-type]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Driven]:
    with Driven(here(tmp_path / "root")) as driven:
        yield driven


def blob_of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data), data)


def copy_args(dest: Path, data: bytes) -> dict[str, object]:
    return {"dest": str(dest), "_file": {"name": dest.name, "digest": hashlib.sha256(data).hexdigest(),
                                         "sha1": hashlib.sha1(data).hexdigest(), "md5": None, "size": len(data),
                                         "mode": "0644"}, "_source": "data"}


def test_says_what_the_host_is(agent: Driven) -> None:
    info = agent.connected().info
    assert info["uid"] == os.geteuid()
    assert info["hostname"] == os.uname().nodename
    assert info["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert info["noise"] == []


def test_one_worker_serves_consecutive_tasks(agent: Driven) -> None:
    requests = [agent.request("command", {"cmd": "sh -c 'echo $PPID'"}) for _ in range(50)]
    answers = agent.answers(*requests)
    parents = {answer.result["stdout"] for answer in answers if isinstance(answer, Finished)}
    assert len(answers) == 50 and len(parents) == 1


def test_a_failed_task_drops_what_stands_behind_it_in_its_segment(agent: Driven) -> None:
    requests = [agent.request("ping"), agent.request("command", {"cmd": "false"}, ignore_errors=True),
                agent.request("command", {"cmd": "false"}), agent.request("ping"), agent.request("ping", segment=2)]
    kinds = [type(answer) for answer in agent.answers(*requests)]
    assert kinds == [Finished, Finished, Finished, NotRun, Finished]
    started = [message.id for message in agent.seen if isinstance(message, Started)]
    assert started == [1, 2, 3, 5]


def test_output_streams_while_the_command_runs_whatever_bytes_it_has(agent: Driven) -> None:
    request = agent.request("shell", {"cmd": r"printf 'caf\351\n'; sleep 0.5; printf 'err\n' >&2; printf 'end'"})
    agent.submit(request)
    first = agent.until(lambda item: isinstance(item, Output))
    began = time.monotonic()
    assert isinstance(first, Output) and (first.stream, first.text) == ("stdout", "caf\ufffd")
    done = agent.until(lambda item: isinstance(item, Finished))
    assert time.monotonic() - began > 0.3
    assert isinstance(done, Finished) and done.result["stdout"] == "caf\ufffd\nend"
    assert [item.text for item in agent.seen if isinstance(item, Output) and item.stream == "stderr"] == ["err"]


def test_output_of_a_no_log_task_does_not_leave_the_session(agent: Driven) -> None:
    agent.call("command", {"cmd": "echo hunter22"}, no_log=True)
    assert not [item for item in agent.seen if isinstance(item, Output)]


def test_endless_output_is_cut_in_the_middle(agent: Driven) -> None:
    result = agent.call("shell", {"cmd": "yes 0123456789 | head -c 10000000; echo the end"}, timeout=60)
    assert len(result["stdout"]) < 2_200_000
    assert "bytes left out" in result["stdout"] and result["stdout"].endswith("the end")
    lines = [item.text for item in agent.seen if isinstance(item, Output)]
    assert sum(map(len, lines)) < 1_400_000
    assert any("bytes left out" in line for line in lines) and lines[-1].endswith("the end")


def test_a_deadline_ends_the_whole_family(agent: Driven, tmp_path: Path) -> None:
    mark = tmp_path / "pids"
    # a grandchild in a session of its own that ignores TERM
    loop = f"echo $$ >> {mark}; while :; do sleep 1; done"
    script = f"trap '' TERM; setsid sh -c 'trap \"\" TERM; {loop}' & echo $$ >> {mark}; wait"
    began = time.monotonic()
    request = agent.request("shell", {"cmd": script}, timeout=1.0)
    answer = agent.answers(request, timeout=20)[0]
    assert isinstance(answer, Finished) and answer.result["timed_out"]
    assert "did not end within 1 s" in answer.result["msg"]
    assert time.monotonic() - began < 12
    left = [pids.start_time(int(line)) for line in mark.read_text().split()]
    assert left == [None, None]
    assert agent.call("ping")["ping"] == "pong"  # with a new worker


def test_cancel_overtakes_and_ends_the_task(agent: Driven, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    long = agent.request("shell", {"cmd": f"echo $$ > {mark}; sleep 60"})
    behind = [agent.request("ping") for _ in range(3)]
    agent.submit(long, *behind)
    agent.until(lambda item: isinstance(item, Started))
    while not mark.exists() or not mark.read_text():
        time.sleep(0.01)
    agent.session.cancel(behind[1].id)
    dropped = agent.until(lambda item: isinstance(item, NotRun))
    assert isinstance(dropped, NotRun) and dropped.id == behind[1].id
    began = time.monotonic()
    agent.session.cancel(None)
    done = agent.until(lambda item: isinstance(item, Finished))
    assert isinstance(done, Finished) and done.result["cancelled"] and done.id == long.id
    assert time.monotonic() - began < 3
    assert pids.start_time(int(mark.read_text())) is None
    assert {item.id for item in agent.seen if isinstance(item, NotRun)} == {item.id for item in behind}


def test_what_is_cancelled_before_it_was_sent_never_runs(tmp_path: Path) -> None:
    driven = Driven(here(tmp_path / "root"))
    kept, dropped = [driven.request("command", {"cmd": f"touch {tmp_path}/{name}"}) for name in ("kept", "dropped")]
    driven.submit(kept, dropped)
    driven.session.cancel(dropped.id)
    with driven:
        answers = {item.id: type(item) for item in (driven.until(lambda item: isinstance(item, (Finished, NotRun)))
                                                    for _ in range(2)) if isinstance(item, (Finished, NotRun))}
        assert answers == {kept.id: Finished, dropped.id: NotRun}
        for number in range(20):  # a cancel right behind a submit, before the writer has come to it
            request = driven.request("shell", {"cmd": f"sleep 5; touch {tmp_path}/late"}, segment=100 + number)
            driven.submit(request)
            driven.session.cancel(None)
            answer = driven.until(lambda item, number=request.id: isinstance(item, (Finished, NotRun))
                                  and item.id == number, 5)
            assert isinstance(answer, NotRun) or answer.result["cancelled"]  # type: ignore[attr-defined]
            driven.segment += 1
    assert (tmp_path / "kept").exists() and not (tmp_path / "dropped").exists() and not (tmp_path / "late").exists()


def test_closing_a_session_that_is_still_on_its_way_is_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Target(host="far", address="127.0.0.1", port=silent.getsockname()[1], user="x", ssh_config=None)
        driven = Driven(target)
        driven.session.start()
        time.sleep(0.2)
        began = time.monotonic()
        driven.session.close()
        assert isinstance(driven.end(5), Closed) and time.monotonic() - began < 1


def test_a_killed_worker_is_a_failed_task_and_nothing_more(agent: Driven) -> None:
    result = agent.call("shell", {"cmd": "kill -9 $PPID; sleep 5"})
    assert result["failed"] and "was killed by SIGKILL" in result["msg"]
    assert agent.call("ping")["ping"] == "pong"


def test_a_module_that_is_not_there_or_raises_is_a_failed_task(agent: Driven) -> None:
    result = agent.call("command", {"cmd": "/no/such/program"})
    assert result["failed"] and "/no/such/program" in result["msg"]
    result = agent.call("copy", {"dest": "/nowhere/at/all"})
    assert result["failed"]


def test_files_go_in_slices_and_a_large_one_does_not_stop_the_beat(agent: Driven, tmp_path: Path) -> None:
    big = tmp_path / "big"
    seed = os.urandom(1 << 20)
    big.write_bytes(seed * 100)
    digest = hashlib.sha256(big.read_bytes()).hexdigest()
    args = copy_args(tmp_path / "copied", b"")
    args["_file"] = {"name": "copied", "digest": digest, "sha1": None, "md5": None, "size": 100 << 20, "mode": "0644"}
    result = agent.answers(agent.request("copy", args, blobs=[Blob(digest, 100 << 20, big)]), timeout=60)[0]
    assert isinstance(result, Finished) and not result.result.get("failed"), result
    assert hashlib.sha256((tmp_path / "copied").read_bytes()).hexdigest() == digest
    # the same again: nothing is sent
    gone = Blob(digest, 100 << 20, Path("/no/such/file"))
    again = agent.answers(agent.request("copy", args, blobs=[gone]), timeout=30)[0]
    assert isinstance(again, Finished) and again.result["changed"] is False


def test_a_file_that_is_gone_or_damaged_is_told(agent: Driven, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"x" * 100_000).hexdigest()
    args = copy_args(tmp_path / "f", b"")
    args["_file"] = {"name": "f", "digest": digest, "sha1": None, "md5": None, "size": 100_000, "mode": "0644"}
    result = agent.call("copy", args, blobs=[Blob(digest, 100_000, tmp_path / "gone")])
    assert result["failed"] and "cannot be read" in result["msg"]
    (tmp_path / "short").write_bytes(b"x" * 90_000)
    result = agent.call("copy", args, blobs=[Blob(digest, 100_000, tmp_path / "short")])
    assert result["failed"] and "damaged" in result["msg"]
    assert not (tmp_path / "f").exists()


def _staging() -> set[str]:
    """Folders that an agent makes where it may not write below its root: `bringup-` and eight signs."""
    return {name for name in os.listdir("/tmp") if re.fullmatch(r"bringup-[a-z0-9_]{8}", name)}


def test_small_files_come_with_their_task_and_leave_nothing_behind(agent: Driven, tmp_path: Path) -> None:
    before = _staging()
    for number in range(3):
        data = b"content %d" % number
        result = agent.call("copy", copy_args(tmp_path / f"f{number}", data), blobs=[blob_of(data)])
        assert result["changed"] and (tmp_path / f"f{number}").read_bytes() == data
    agent.session.close()
    agent.end()
    agent.session.join(10)
    assert _staging() <= before
    assert not (tmp_path / "root").exists()  # nothing of ours without a lock


def test_full_pipes_in_both_directions_do_not_stop_each_other(agent: Driven, tmp_path: Path) -> None:
    data = os.urandom(20 << 20)
    noisy = agent.request("shell", {"cmd": "yes abcdefghijklmnopqrstuvwxyz | head -c 900000"})
    args = copy_args(tmp_path / "f", data)
    copied = agent.request("copy", args, blobs=[blob_of(data)])
    answers = agent.answers(noisy, copied, *[agent.request("ping") for _ in range(200)], timeout=60)
    assert all(isinstance(item, Finished) and not item.result.get("failed") for item in answers)
    assert (tmp_path / "f").read_bytes() == data


def test_what_a_killed_run_left_staged_is_cleared(tmp_path: Path) -> None:
    staging = tmp_path / "root" / "state" / "staging"
    staging.mkdir(parents=True)
    (staging / "left.0.part").write_bytes(b"x")
    with Driven(here(tmp_path / "root")) as driven:
        data = os.urandom(100_000)
        assert driven.call("copy", copy_args(tmp_path / "a", data), blobs=[blob_of(data)])["changed"]
        assert [item.name for item in staging.iterdir()] == ["left.0.part"]  # no lock: nothing of ours there
        assert driven.call("lock")["state"] == "locked"
        assert list(staging.iterdir()) == []
        assert driven.call("copy", copy_args(tmp_path / "b", data), blobs=[blob_of(data)])["changed"]
        driven.call("unlock")
    assert list(staging.iterdir()) == [] and (tmp_path / "b").read_bytes() == data


def test_a_frozen_agent_is_lost_and_names_the_task(agent: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.session.LOST_AFTER", 2.0)
    monkeypatch.setattr("bringup.connection.session.HEARTBEAT", 0.5)
    pid = int(agent.connected().info["pid"])
    request = agent.request("command", {"cmd": "sleep 30"})
    agent.submit(request)
    agent.until(lambda item: isinstance(item, Started))
    os.kill(pid, signal.SIGSTOP)
    try:
        lost = agent.end(15)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert isinstance(lost, Lost) and lost.running == request.id
    assert "no heartbeat" in str(lost.error)


def test_a_killed_agent_is_lost_with_its_status(agent: Driven) -> None:
    pid = int(agent.connected().info["pid"])
    os.kill(pid, signal.SIGKILL)
    lost = agent.end(10)
    assert isinstance(lost, Lost) and lost.running is None


def test_a_silent_controller_ends_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.session.SILENCE", 1.0)
    monkeypatch.setattr("bringup.connection.session.HEARTBEAT", 60.0)  # ours: none
    with Driven(here(tmp_path / "root")) as driven:
        pid = int(driven.connected().info["pid"])
        end = time.monotonic() + 10
        while pids.start_time(pid) is not None and time.monotonic() < end:
            time.sleep(0.05)
        assert pids.start_time(pid) is None
        assert isinstance(driven.end(5), Lost)


def test_what_runs_when_the_session_is_cut_ends_in_its_own_time(tmp_path: Path) -> None:
    done = tmp_path / "done"
    driven = Driven(here(tmp_path / "root"), run_id="cut1")
    driven.session.start()
    driven.call("lock", {"verb": "playbook"})
    driven.submit(driven.request("shell", {"cmd": f"sleep 1; touch {done}"}, digest="d1"),
                  driven.request("shell", {"cmd": f"touch {tmp_path}/never"}, digest="d2"))
    driven.until(lambda item: isinstance(item, Started) and item.id == 2)
    assert driven.session._pipe is not None
    driven.session._pipe._in.close()  # type: ignore[attr-defined]
    with Driven(here(tmp_path / "root"), run_id="cut2") as second:
        held = second.call("lock", {"verb": "playbook"})
        assert held["state"] == "held" and held["record"]["run"] == "cut1"
        told = second.call("journal", {"run": "cut1", "digests": ["d1", "d2"]})["tasks"]
        assert (told["d1"]["state"], told["d2"]["state"]) == ("running", "unknown")
        mine = second.call("lock", {"verb": "playbook", "wait": 10}, timeout=20)
        assert mine["state"] == "locked" and mine["previous"]["run"] == "cut1"
        assert done.exists() and not (tmp_path / "never").exists()
        told = second.call("journal", {"run": "cut1", "digests": ["d1", "d2"]})["tasks"]
        assert (told["d1"]["state"], told["d1"]["result"], told["d2"]["state"]) == ("ended", "changed", "unknown")
        second.call("unlock")


def test_a_fault_of_ours_ends_the_host_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise KeyError("no such account")

    monkeypatch.setattr("bringup.connection.session.bootstrap.command", broken)
    with Driven(here(tmp_path / "root")) as driven:
        message = driven.until(lambda item: isinstance(item, Unreachable))
    assert isinstance(message, Unreachable)
    assert "bringup itself failed" in message.error.what
    assert "KeyError" in str(message.error.found)
