"""Elevation, lock, jobs and cuts on real machines: systemd, sudo, several accounts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Machine
from driven_session import Driven

from bringup.base.errors import LockedError
from bringup.base.secrets import Secret
from bringup.connection.messages import Connected, Finished, Lost, NotRun, Started, Target, Unreachable
from bringup.run.actions import Blob

ROOT = "/opt/bringup"


@pytest.fixture(scope="module")
def machines() -> Iterator[Cluster]:
    """Two machines whose sudo asks for a password."""
    with Cluster(size=2, sudo="password") as booted:
        for machine in booted.machines:
            machine.inside("useradd --create-home lin && useradd --system engine && "
                           "install -d -m 700 -o lin /home/lin/.ssh && "
                           "install -o lin -m 600 /home/ops/.ssh/authorized_keys /home/lin/.ssh/authorized_keys")
        yield booted


@pytest.fixture
def machine(machines: Cluster) -> Iterator[Machine]:
    """The first of them, with no state of ours."""
    one = machines.machines[0]
    yield one
    one.inside("systemctl stop 'bringup-job-*' 2>/dev/null; pkill -u ops; rm -rf /opt/bringup; true", check=False)


def target(machine: Machine, **more: Any) -> Target:
    fields: dict[str, Any] = {
        "host": machine.name, "address": machine.address, "user": machine.cluster.user,
        "key_file": str(machine.cluster.key), "host_key": machine.host_key, "ssh_config": None, "root": ROOT,
        "become_password": Secret(machine.cluster.password),
    }
    fields.update(more)
    return Target(**fields)


def test_tasks_keep_their_order_whichever_account_runs_them(machine: Machine) -> None:
    with Driven(target(machine)) as driven:
        accounts = [None, "root", "engine", None, "ops", "root", "engine"]
        answers = driven.answers(*[driven.request("shell", {"cmd": "id -un; echo $HOME; pwd"}, become=name)
                                   for name in accounts], timeout=30)
        said = [item.result["stdout"].split()[0] for item in answers if isinstance(item, Finished)]
        assert said == ["ops", "root", "engine", "ops", "ops", "root", "engine"]
        assert answers[1].result["stdout"].split() == ["root", "/root", "/root"]  # type: ignore[union-attr]
        parents = machine.inside("pgrep -cx sudo", check=False).stdout.strip()
        assert int(parents) <= 2  # one elevation, however many tasks


def test_root_itself_needs_no_sudo_for_another_account(machine: Machine) -> None:
    machine.inside("mv /usr/bin/sudo /usr/bin/sudo.away")
    try:
        with Driven(target(machine, user="root", become_password=None)) as driven:
            answers = driven.answers(*[driven.request("shell", {"cmd": "id -un; id -Gn; echo $HOME $USER"}, become=name)
                                       for name in (None, "ops", "root", "engine", "ops")])
            said = [item.result["stdout"].split() for item in answers if isinstance(item, Finished)]
            assert [words[0] for words in said] == ["root", "ops", "root", "engine", "ops"]
            assert said[1][-2:] == ["/home/ops", "ops"] and "root" not in said[1]
            data = b"y" * 100_000
            digest = hashlib.sha256(data).hexdigest()
            args = {"dest": "/home/ops/file", "mode": "0600", "_source": "x",
                    "_file": {"name": "x", "digest": digest, "sha1": None, "md5": None, "size": len(data),
                              "mode": "0600"}}
            told = driven.call("copy", args, become="ops", blobs=[Blob(digest, len(data), data)])
            assert told.get("changed"), told
            assert machine.inside("stat -c %U /home/ops/file; rm /home/ops/file").stdout.strip() == "ops"
            assert "there is no such account" in driven.call("ping", become="nobody-here")["msg"]
    finally:
        machine.inside("mv /usr/bin/sudo.away /usr/bin/sudo")


def test_commands_under_sudo_have_the_sessions_locale(machine: Machine) -> None:
    with Driven(target(machine)) as driven:
        own, root = driven.answers(driven.request("shell", {"cmd": "echo $LC_ALL,$LANG,$LC_CTYPE"}),
                                   driven.request("shell", {"cmd": "echo $LC_ALL,$LANG,$LC_CTYPE"}, become="root"))
        assert isinstance(own, Finished) and isinstance(root, Finished)
        assert own.result["stdout"] == root.result["stdout"]


def test_a_wrong_sudo_password_is_tried_once(machine: Machine) -> None:
    machine.inside("journalctl --rotate --vacuum-time=1s >/dev/null 2>&1; true")
    with Driven(target(machine, become_password=Secret("wrong"))) as driven:
        first, second, third = driven.answers(
            driven.request("ping"), driven.request("ping", become="root"), driven.request("ping"), timeout=30)
        assert isinstance(first, Finished) and isinstance(third, NotRun) and isinstance(second, Finished)
        assert second.result["failed"]
        assert "cannot become root: the sudo password of ops is wrong" in second.result["msg"]
        again = driven.call("ping", become="root", ignore_errors=True)
        assert again["msg"] == second.result["msg"]
        assert driven.call("ping")["ping"] == "pong"
    tries = machine.inside("journalctl -t sudo --no-pager | grep -c 'authentication failure'", check=False).stdout
    assert int(tries or 0) == 1


def test_no_password_and_none_allowed_are_told_apart(machine: Machine) -> None:
    with Driven(target(machine, become_password=None)) as driven:
        told = driven.call("ping", become="root")
        assert "asks for the password of ops and none was given" in told["msg"] and "--ask-become-pass" in told["next"]
    with Driven(target(machine, user="lin", become_password=Secret("x"))) as driven:
        told = driven.call("ping", become="root")
        assert "cannot become root" in told["msg"]
    with Driven(target(machine)) as driven:
        assert "there is no such account" in driven.call("ping", become="nobody-here")["msg"]


def test_a_sudo_that_wants_a_terminal_is_told_so(machine: Machine) -> None:
    machine.inside("echo 'Defaults:ops requiretty' > /etc/sudoers.d/tty; chmod 440 /etc/sudoers.d/tty")
    try:
        with Driven(target(machine)) as driven:
            told = driven.call("ping", become="root")
            assert "asks for a terminal" in told["msg"] and "requiretty" in told["msg"]
    finally:
        machine.inside("rm /etc/sudoers.d/tty")


def test_a_sudo_that_asks_something_else_is_told_so(machine: Machine) -> None:
    machine.inside("printf '#!/bin/sh\\nprintf \"Verification code: \" >&2; read code\\n' > /usr/local/bin/sudo; "
                   "chmod 755 /usr/local/bin/sudo")
    try:
        with Driven(target(machine)) as driven:
            told = driven.call("ping", become="root")
            assert "asks something that is not the password: Verification code:" in told["msg"]
    finally:
        machine.inside("rm /usr/local/bin/sudo")


def test_an_account_that_sudo_allows_alone(machine: Machine) -> None:
    machine.inside("echo 'lin ALL=(engine) NOPASSWD: ALL' > /etc/sudoers.d/lin; chmod 440 /etc/sudoers.d/lin")
    try:
        with Driven(target(machine, user="lin", become_password=None)) as driven:
            assert driven.call("command", {"cmd": "id -un"}, become="engine")["stdout"] == "engine"
            assert "cannot become root" in driven.call("ping", become="root")["msg"]
    finally:
        machine.inside("rm /etc/sudoers.d/lin")


def test_a_cancel_and_a_deadline_reach_roots_processes(machine: Machine) -> None:
    with Driven(target(machine)) as driven:
        request = driven.request("command", {"cmd": "sleep 4711"}, become="root")
        driven.submit(request)
        while not machine.inside("pgrep -f 'sleep 471[1]'", check=False).stdout:
            time.sleep(0.05)
        driven.session.cancel(request.id)
        done = driven.until(lambda item: isinstance(item, Finished))
        assert isinstance(done, Finished) and done.result["cancelled"]
        assert not machine.inside("pgrep -f 'sleep 471[1]'", check=False).stdout
        late = driven.request("command", {"cmd": "sleep 4712"}, become="root", timeout=0.5, segment=2)
        timed = driven.answers(late)[0]
        assert isinstance(timed, Finished) and timed.result["timed_out"]
        assert not machine.inside("pgrep -f 'sleep 471[2]'", check=False).stdout


def test_files_for_root_and_for_another_account(machine: Machine) -> None:
    small, large = b"secret\n" * 10, b"x" * 300_000
    with Driven(target(machine)) as driven:
        for account, data in (("root", small), ("engine", small), ("root", large), ("engine", large), (None, large)):
            digest = hashlib.sha256(data).hexdigest()
            where = f"/var/tmp/from-{account}-{len(data)}"
            args = {"dest": where, "mode": "0600", "_source": "x",
                    "_file": {"name": "x", "digest": digest, "sha1": hashlib.sha1(data).hexdigest(), "md5": None,
                              "size": len(data), "mode": "0600"}}
            told = driven.call("copy", args, become=account, blobs=[Blob(digest, len(data), data)], timeout=30)
            assert told.get("changed"), told
            assert machine.inside(f"stat -c '%U %s' {where}; rm {where}").stdout.split() == [
                account or "ops", str(len(data))]


def test_one_lock_for_all_accounts(machine: Machine) -> None:
    with Driven(target(machine), run_id="run1") as first:
        assert first.call("lock", {"verb": "provision", "step": "one"}, become="root")["state"] == "locked"
        with Driven(target(machine), run_id="run2", operator="lin@deploy2") as second:
            held = second.call("lock", {"verb": "provision"}, become="root")
            assert held["state"] == "held"
            record = held["record"]
            assert (record["run"], record["operator"], record["verb"], record["step"]) == (
                "run1", "ops@deploy1", "provision", "one")
            assert record["address"].startswith("198.1")
        with Driven(target(machine, user="lin"), run_id="run3") as third:
            assert third.call("lock", {})["state"] in ("held", "unavailable")
        first.call("lock", {"step": "two"}, become="root")
        assert '"step": "two"' in machine.inside(f"cat {ROOT}/state/run.json").stdout
        first.call("unlock", become="root")
    assert machine.inside(f"ls {ROOT}/state").stdout.split() == [
        "journal", "lock", "lock.jobs", "machine", "runs.jsonl"]


def test_a_run_without_a_living_holder_is_unfinished(machine: Machine) -> None:
    with Driven(target(machine), run_id="dead1") as driven:
        driven.call("lock", {"verb": "provision"}, become="root")
    with Driven(target(machine), run_id="other", operator="lin@deploy2") as driven:
        told = driven.call("lock", {}, become="root")
        assert told["state"] == "unfinished" and told["record"]["run"] == "dead1"
        assert driven.call("unlock", {"run": "wrong"}, become="root")["failed"]
    with Driven(target(machine), run_id="mine") as driven:
        told = driven.call("lock", {}, become="root")
        assert told["state"] == "locked" and told["previous"]["run"] == "dead1"
    with Driven(target(machine), run_id="admin", operator="lin@deploy2") as driven:
        assert driven.call("unlock", {"run": "mine"}, become="root")["state"] == "unlocked"
        assert driven.call("lock", {}, become="root")["state"] == "locked"
        driven.call("unlock", become="root")


def test_taking_over_waits_for_the_end_of_the_task_and_leaves_nothing(machine: Machine) -> None:
    first = Driven(target(machine), run_id="victim")
    first.session.start()
    first.call("lock", {}, become="root")
    running = first.request("shell", {"cmd": "sleep 2; touch /var/tmp/ended"}, become="root")
    behind = first.request("ping", become="root")
    first.submit(running, behind)
    first.until(lambda item: isinstance(item, Started) and item.id == running.id)
    with Driven(target(machine), run_id="taker", operator="lin@deploy2") as second:
        assert second.call("take_over", {"run": "nobody"}, become="root")["failed"]
        told = second.call("take_over", {"run": "victim", "timeout": 20}, become="root", timeout=30)
        assert told["state"] == "locked" and told["taken_over"] == "victim"
        machine.inside("rm /var/tmp/ended")  # it was there: the task came to its end
        ended = first.end()
        assert isinstance(ended, Lost) and isinstance(ended.error, LockedError) and "lin@deploy2" in str(ended.error)
        answers = {item.id: type(item) for item in first.seen if isinstance(item, (Finished, NotRun))}
        assert answers[running.id] is Finished and answers[behind.id] is NotRun
        second.call("unlock", become="root")


def test_taking_over_is_refused_while_a_process_is_left(machine: Machine) -> None:
    with Driven(target(machine), run_id="leaver") as first:
        first.call("lock", {}, become="root")
        first.call("shell", {"cmd": "setsid sleep 300 >/dev/null 2>&1 </dev/null & true"}, become="root")
    with Driven(target(machine), run_id="taker") as second:
        told = second.call("take_over", {"run": "leaver"}, become="root")
        assert told["failed"] and "still alive" in told["msg"] and "sleep 300" in told["found"]
        machine.inside("pkill -f 'sleep 30[0]'")
        assert second.call("take_over", {"run": "leaver"}, become="root")["state"] == "locked"
        second.call("unlock", become="root")


def test_another_machines_state_is_refused(machine: Machine) -> None:
    machine.inside(f"mkdir -p {ROOT}/state; echo 0123456789abcdef > {ROOT}/state/machine")
    with Driven(target(machine)) as driven:
        told = driven.call("lock", {}, become="root")
        assert told["failed"] and "belongs to another machine" in told["msg"] and "0123456789abcdef" in told["found"]


def test_reads_go_on_where_nothing_can_be_written_and_jobs_do_not(machine: Machine) -> None:
    with Driven(target(machine, user="lin")) as driven:
        told = driven.call("lock", {})
        assert told["state"] == "unavailable" and ROOT in told["reason"]
        assert driven.call("stat", {"path": "/etc/hostname"})["stat"]["exists"]
        refused = driven.call("job", {"argv": ["true"], "id": "j"})
        assert refused["failed"] and "needs /opt/bringup to be written" in refused["msg"]
    machine.inside("test ! -e /opt/bringup")


def test_the_agent_starts_on_a_full_disk_and_with_a_read_only_home(machine: Machine) -> None:
    machine.inside("mount -t tmpfs -o size=64k,noexec tmpfs /tmp; dd if=/dev/zero of=/tmp/full bs=1k 2>/dev/null; "
                   "mkdir -p /opt/bringup; mount -t tmpfs -o size=16k tmpfs /opt/bringup; "
                   "dd if=/dev/zero of=/opt/bringup/full bs=1k 2>/dev/null; "
                   "mount --bind /home/ops /home/ops; mount -o remount,ro,bind /home/ops; true", check=False)
    try:
        with Driven(target(machine)) as driven:
            assert driven.call("command", {"cmd": "echo here"})["stdout"] == "here"
            assert driven.call("command", {"cmd": "echo here"}, become="root")["stdout"] == "here"
            state = driven.call("lock", {}, become="root")
            assert state["state"] in ("locked", "unavailable")
    finally:
        machine.inside("umount /tmp; umount /opt/bringup; umount /home/ops; true", check=False)


@pytest.mark.parametrize("account", ["root", None])
def test_a_job_outlives_the_session_and_is_found_again(machine: Machine, account: str | None) -> None:
    if account is None:
        machine.inside(f"install -d -o ops {ROOT}")
    script = "for n in 1 2 3 4 5 6; do echo line $n; sleep 0.5; done; exit 3"
    with Driven(target(machine), run_id="j1") as driven:
        driven.call("lock", {"verb": "provision"}, become=account)
        told = driven.call("job", {"id": "build", "cmd": script}, become=account)
        assert told["changed"] and told["state"] == "running"
        assert told["manager"] == ("systemd" if account == "root" else "detached")
    with Driven(target(machine), run_id="j2", operator="lin@deploy2") as stranger:
        told = stranger.call("lock", {}, become=account)
        assert told["state"] == "unfinished" and told["jobs"] is True
    with Driven(target(machine), run_id="j3") as driven:
        locked = driven.call("lock", {}, become=account)
        assert locked["state"] == "locked" and locked["jobs"] is True
        again = driven.call("job", {"id": "build", "cmd": script}, become=account)
        assert again["attached"] and not again["changed"]
        other = driven.call("job", {"id": "build", "cmd": "true"}, become=account)
        assert other["failed"] and "another command" in other["msg"]
        text, offset = "", 0
        while True:
            part = driven.call("job", {"action": "follow", "id": "build", "offset": offset, "wait": 5}, become=account)
            text, offset = text + part["text"], part["offset"]
            if part["state"] != "running" and not part["text"]:
                break
        assert text == "".join(f"line {n}\n" for n in range(1, 7))
        assert (part["state"], part["rc"]) == ("failed", 3)
        assert driven.call("job", {"action": "status", "id": "none"}, become=account)["state"] == "absent"
        driven.call("unlock", become=account)


def test_a_job_is_cancelled_with_its_children(machine: Machine) -> None:
    with Driven(target(machine)) as driven:
        driven.call("job", {"id": "long", "cmd": "sleep 4713 & sleep 4713; wait"}, become="root")
        told = driven.call("job", {"action": "cancel", "id": "long"}, become="root", timeout=30)
        assert told["state"] == "cancelled"
        assert not machine.inside("pgrep -f 'sleep 471[3]'", check=False).stdout


def test_a_host_cut_off_in_the_middle_is_lost_and_comes_back(machines: Cluster,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.session.LOST_AFTER", 3.0)
    monkeypatch.setattr("bringup.connection.session.HEARTBEAT", 1.0)
    monkeypatch.setattr("bringup.connection.session.SILENCE", 4.0)
    one = machines.machines[1]
    driven = Driven(target(one), run_id="cut")
    driven.session.start()
    driven.call("lock", {}, become="root")
    request = driven.request("shell", {"cmd": "sleep 2; touch /var/tmp/finished"}, become="root", digest="d1")
    driven.submit(request)
    driven.until(lambda item: isinstance(item, Started) and item.id == request.id)
    one.cut()
    began = time.monotonic()
    lost = driven.end(20)
    assert isinstance(lost, Lost) and lost.running == request.id and time.monotonic() - began < 6
    assert "no heartbeat" in str(lost.error)
    unreachable = Driven(target(one, ssh_common_args="-o ConnectTimeout=1"), run_id="next")
    unreachable.session.start()
    assert isinstance(unreachable.end(10), Unreachable)
    time.sleep(4)
    one.mend()
    with Driven(target(one), run_id="next") as again:
        told = again.call("lock", {"wait": 20}, become="root", timeout=30)
        assert told["state"] == "locked" and told["previous"]["run"] == "cut"
        tasks = again.call("journal", {"run": "cut"}, become="root")["tasks"]
        assert tasks["d1"]["state"] == "ended" and tasks["d1"]["result"] == "changed"
        again.call("unlock", become="root")
    one.inside("rm /var/tmp/finished; pgrep -f '[a]gent-' >/dev/null && exit 1 || true")


def test_a_far_host_costs_the_handshake_and_little_more(machines: Cluster, tmp_path: Path) -> None:
    one = machines.machines[1]
    one.delay(50)
    try:
        began = time.monotonic()
        driven = Driven(target(one))
        driven.session.start()
        driven.submit(*[driven.request("command", {"cmd": "true", "creates": "/"}) for _ in range(50)])
        driven.until(lambda item: isinstance(item, Connected))
        driven.until(lambda item: isinstance(item, Finished) and item.id == 50)
        seconds = time.monotonic() - began
        driven.session.close()
        driven.end()
    finally:
        one.delay(0)
    print(f"50 tasks at 50 ms: {seconds:.2f} s, {seconds / 0.05:.1f} round trips")
    assert seconds < 0.05 * 12 + 0.6
