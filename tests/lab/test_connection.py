"""Sessions over real OpenSSH servers on loopback: what a host, a network or a person may do to them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from driven_session import Driven
from ssh_server import SshServer, free_port, make_key

from bringup.agent import pids
from bringup.base.errors import BringupError
from bringup.connection import hostkeys, trust
from bringup.connection.gate import Gate
from bringup.connection.messages import Connected, Finished, Lost, Note, Started, Target, Unreachable


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    with SshServer(tmp_path / "s").trust() as running:
        yield running


def refusal(target: Target, timeout: float = 60) -> Unreachable:
    """How a session that cannot begin ends."""
    driven = Driven(target)
    driven.session.start()
    ended = driven.end(timeout)
    driven.session.join(5)
    assert isinstance(ended, Unreachable), ended
    return ended


def text_of(error: BringupError) -> str:
    return "\n".join(error.lines())


def test_tasks_run_and_results_come_back(server: SshServer) -> None:
    with Driven(server.target()) as driven:
        answers = driven.answers(*[driven.request("command", {"cmd": f"echo {n}"}) for n in range(20)])
        assert [item.result["stdout"] for item in answers if isinstance(item, Finished)] == [str(n) for n in range(20)]
    assert server.log.count("Starting session: command") == 1  # one channel for all of it


@pytest.mark.parametrize("way", ["short", "long"])
def test_code_or_sources_as_the_way_is(server: SshServer, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.session.SHORT_WAY", 10.0 if way == "short" else 0.0)
    with Driven(server.target()) as driven:
        assert driven.connected().info["noise"] == []
        assert driven.session._magic is not None if way == "short" else driven.session._magic is None
        assert driven.call("stat", {"path": "/etc/passwd"})["stat"]["exists"]


def test_login_noise_is_cut_away_and_told_once(tmp_path: Path) -> None:
    shell = ("printf 'Welcome \\351t\\303\\251\\nbash: warning\\n'; echo oops >&2; "
             'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"')
    with SshServer(tmp_path / "s", f"ForceCommand {shell}").trust() as server, Driven(server.target()) as driven:
        noise = driven.connected().info["noise"]
        assert noise[:2] == ["Welcome \ufffdt\u00e9", "bash: warning"] and "oops" in noise
        assert driven.call("ping")["ping"] == "pong"


def test_slow_login_scripts_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.session.SLOW_START", 0.8)
    shell = 'sleep 1; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    with SshServer(tmp_path / "s", f"ForceCommand {shell}").trust() as server, Driven(server.target()) as driven:
        assert driven.connected().info["start_seconds"] >= 1
        note = driven.until(lambda item: isinstance(item, Note))
        assert isinstance(note, Note) and "login scripts" in note.text


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash", "/usr/bin/tcsh", "/usr/bin/zsh", "/usr/bin/fish"])
def test_any_login_shell_starts_the_agent(tmp_path: Path, shell: str) -> None:
    if not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    run = f"exec {shell} -c \"$SSH_ORIGINAL_COMMAND\""
    with SshServer(tmp_path / "s", f"ForceCommand {run}").trust() as server, Driven(server.target()) as driven:
        assert driven.call("ping")["ping"] == "pong"


def test_a_wrong_python_is_named_with_those_that_are_there(server: SshServer) -> None:
    error = refusal(server.target(python="/opt/nothing/python3")).error
    assert "there is no Python at /opt/nothing/python3" in error.what
    assert "/usr/bin/python3" in (error.found or "")
    assert "ansible_python_interpreter: /" in (error.next or "")


def test_a_host_without_python_is_told_so(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.agent.bootstrap.CANDIDATES", ("/nowhere/python3",))
    monkeypatch.setattr("bringup.agent.bootstrap._FIND", "PATH=/nowhere;HOME=/nowhere;" + __import__(
        "bringup.agent.bootstrap", fromlist=["x"])._FIND.replace("/usr/local/bin /opt/*/bin", ""))
    error = refusal(server.target()).error
    assert error.what == "there is no Python on this host"
    assert "apt-get install python3" in (error.next or "")


def test_a_shell_that_does_something_else_is_told_with_what_it_printed(tmp_path: Path) -> None:
    command = "ForceCommand echo 'This account is currently not available.'; exit 1"
    with SshServer(tmp_path / "s", command).trust() as one:
        error = refusal(one.target()).error
    assert "status 1" in error.what and "not available" in text_of(error)


def test_an_unknown_key_is_refused_before_anything_is_sent(server: SshServer) -> None:
    server.known_hosts.unlink()
    error = refusal(server.target()).error
    shown = subprocess.run(["ssh-keygen", "-lf", f"{server.host_keys[0]}.pub"], capture_output=True, text=True,
                           check=True).stdout.split()[1]
    assert "not known" in error.what and shown in (error.found or "") and shown in (error.next or "")
    assert "Connection closed by 127.0.0.1" in server.log and "user" not in server.log  # not even a name was sent
    assert not server.known_hosts.exists()


def test_a_changed_key_stops_the_host_with_both_fingerprints(server: SshServer, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()
    server.known_hosts.write_text(f"# mine\n[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    for checking in ("strict", "accept-new"):
        error = refusal(server.target(host_key_checking=checking)).error
        assert "has changed" in error.what
        assert f"{server.known_hosts}:2" in (error.expected or "") and "SHA256:" in (error.expected or "")
        assert "SHA256:" in (error.found or "") and error.found not in (error.expected or "")
        command = (error.next or "").split(": ", 1)[1]
        assert command.startswith("ssh-keygen -f ")
    assert "Accepted publickey" not in server.log
    subprocess.run(shlex.split(command), check=True, capture_output=True)  # it does what it says
    assert "ssh-ed25519" not in server.known_hosts.read_text()


def test_keys_are_accepted_when_new_pinned_or_hashed(server: SshServer) -> None:
    server.known_hosts.unlink()
    with Driven(server.target(host_key_checking="accept-new")) as driven:
        driven.connected()
    assert server.known_hosts.read_text() == server.known()
    assert server.known_hosts.stat().st_mode & 0o777 == 0o600
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(server.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in server.known_hosts.read_text()
    with Driven(server.target()) as driven:
        driven.connected()
    key = server.host_keys[0].with_suffix(".pub").read_text().strip()
    blob = key.split()[1]
    shown = hostkeys.fingerprint(__import__("base64").b64decode(blob))
    for pinned in (key, blob, shown):
        with Driven(server.target(host_key=pinned, known_hosts="/dev/null")) as driven:
            driven.connected()
    error = refusal(server.target(host_key="SHA256:" + "A" * 43, known_hosts="/dev/null")).error
    assert "inventory pins" in error.what and error.found == shown


def test_the_known_kind_of_key_is_asked_for(tmp_path: Path) -> None:
    with SshServer(tmp_path / "s", host_keys=("ed25519", "rsa", "ecdsa")) as server:
        for index in (1, 2):
            server.known_hosts.write_text(server.known(key=index))
            with Driven(server.target()) as driven:
                driven.connected()
        server.known_hosts.write_text(server.known() + server.known(key=0, marker="@revoked "))
        assert "revoked" in refusal(server.target()).error.what


def test_a_host_certificate_of_a_known_authority(tmp_path: Path) -> None:
    authority = make_key(tmp_path / "ca")
    kind, blob = authority.with_suffix(".pub").read_text().split()[:2]
    with SshServer(tmp_path / "s", f"HostCertificate {tmp_path}/s/host_ed25519-cert.pub") as server:
        sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "node1", "-h"]

        def restart(*more: str) -> SshServer:
            subprocess.run([*sign, *more, f"{server.host_keys[0]}.pub"], check=True, capture_output=True)
            assert server.process is not None
            server.process.send_signal(signal.SIGHUP)  # reads its certificate anew
            time.sleep(0.3)
            return server

        server.known_hosts.write_text(f"@cert-authority [127.0.0.*]:{server.port} {kind} {blob}\n")
        restart("-n", "127.0.0.1")
        with Driven(server.target()) as driven:
            driven.connected()
        restart("-n", "other.example")
        assert "for other names" in refusal(server.target()).error.what
        restart("-n", "127.0.0.1", "-V", "20200101:20200102")
        assert "not valid at this time" in refusal(server.target()).error.what


def test_unknown_keys_of_all_hosts_are_one_question_and_one_write(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    asked: list[list[str]] = []

    def ask(keys: object) -> bool:
        asked.append([key.name for key in keys])  # type: ignore[attr-defined]
        return True

    with SshServer(tmp_path / "a") as one, SshServer(tmp_path / "b") as two, SshServer(tmp_path / "c") as known:
        file.write_text(known.known())
        targets = [server.target(host=name, known_hosts=str(file)) for name, server in
                   (("n1", one), ("n2", two), ("n3", known))]
        refused = trust.establish(targets, None)
        assert set(refused) == {"n1", "n2"} and "no terminal" in refused["n1"].what
        assert trust.establish(targets, ask) == {}
        assert asked == [[f"[127.0.0.1]:{one.port}", f"[127.0.0.1]:{two.port}"]]
        assert file.read_text() == known.known() + one.known() + two.known()
        assert trust.establish(targets, ask) == {} and len(asked) == 1
        for target in targets:
            with Driven(target) as driven:
                driven.connected()


def test_a_login_that_is_refused_lists_what_was_tried(server: SshServer, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")
    error = refusal(server.target(key_file=str(stranger))).error
    assert "phase: authentication" in error.what
    assert f"key {stranger}: refused" in text_of(error)
    error = refusal(server.target(key_file=str(tmp_path / "none"))).error
    assert "there is no such file" in text_of(error)
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    assert "is encrypted" in text_of(refusal(server.target(key_file=str(locked))).error)


def test_the_agents_key_serves_and_not_without_ssh_config(server: SshServer, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.run(["ssh-agent", "-a", str(tmp_path / "agent.sock")], capture_output=True, text=True,
                             check=True)
    pid = int(started.stdout.split("SSH_AGENT_PID=")[1].split(";")[0])
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent.sock"))
        subprocess.run(["ssh-add", "-q", str(server.client_key)], check=True, capture_output=True)
        empty = tmp_path / "config"
        empty.write_text("")
        stranger = make_key(tmp_path / "stranger")
        with Driven(server.target(key_file=str(stranger), ssh_config=str(empty))) as driven:
            driven.connected()
        refusal(server.target(key_file=str(stranger), ssh_config=None))
    finally:
        os.kill(pid, signal.SIGTERM)


def test_nothing_listens_there(server: SshServer) -> None:
    error = refusal(server.target(port=free_port())).error
    assert "no TCP connection" in error.what and "refused" in (error.found or "")
    error = refusal(server.target(address="no-such-host.invalid")).error
    assert "no-such-host.invalid is not known" in error.what


def test_a_server_that_never_greets_names_the_phase(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.login.GREETING", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        error = refusal(server.target(port=silent.getsockname()[1])).error
    assert "no greeting after 1 s (phase: banner)" in error.what
    assert time.monotonic() - began < 15  # a second was allowed, twenty are usual


class Late:
    """A port before a server that lets nothing through for some seconds, as where sshd waits for DNS."""

    def __init__(self, port: int, seconds: float) -> None:
        self.before = socket.create_server(("127.0.0.1", 0))
        self.port = self.before.getsockname()[1]
        self.behind, self.seconds = port, seconds
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near, _ = self.before.accept()
        time.sleep(self.seconds)
        far = socket.create_connection(("127.0.0.1", self.behind))
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side hangs up when it likes
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def test_a_late_greeting_is_waited_for_as_long_as_the_one_setting_says(server: SshServer,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.login.GREETING", 1.0)
    error = refusal(server.target(port=Late(server.port, 4).port)).error
    assert "no greeting after 1 s (phase: banner)" in error.what and "ansible_ssh_timeout" in (error.next or "")
    assert "UseDNS no" in (error.next or "")
    for longer in ({"timeout": 40}, {"ssh_common_args": "-o ConnectTimeout=40"}):
        driven = Driven(server.target(port=Late(server.port, 3).port, host_key_checking="off", **longer))
        driven.session.start()
        info = driven.connected(40).info
        assert 2.5 < info["greeting_seconds"] <= info["connect_seconds"]
        driven.session.close()
        driven.end()


def test_something_that_is_no_ssh_server(server: SshServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:

        def answer() -> None:
            connection, _ = web.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)
                time.sleep(0.5)

        threading.Thread(target=answer, daemon=True).start()
        error = refusal(server.target(port=web.getsockname()[1])).error
    assert "no SSH server" in error.what and "ansible_port" in (error.next or "")


def test_sixteen_at_once_where_the_server_takes_few(tmp_path: Path) -> None:
    with SshServer(tmp_path / "s", "MaxStartups 2:100:2").trust() as server:
        gate = Gate()
        sessions = [Driven(server.target(host=f"n{n}"), gate=gate) for n in range(16)]
        for driven in sessions:
            driven.session.start()
        for driven in sessions:
            assert isinstance(driven.until(lambda item: isinstance(item, (Connected, Unreachable)), 40), Connected)
            driven.session.close()
            driven.end()
        assert "drop connection" in server.log or "exceeded MaxStartups" in server.log.lower()


def test_a_server_that_goes_on_refusing_is_told_with_the_setting(server: SshServer,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bringup.connection.dial.REFUSED_FOR", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as full:

        def refuse() -> None:
            while True:
                try:
                    full.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=refuse, daemon=True).start()
        error = refusal(server.target(port=full.getsockname()[1])).error
    assert "refuses more connections" in error.what and "MaxStartups" in (error.next or "")


def test_hosts_behind_a_chain_of_bastions_share_its_connection(tmp_path: Path) -> None:
    first, second = SshServer(tmp_path / "j1"), SshServer(tmp_path / "j2")
    with first, second, SshServer(tmp_path / "s") as inner:
        for name in ("j1", "j2", "s"):
            (tmp_path / name / "authorized_keys").write_text((tmp_path / "s" / "client.pub").read_text())
        known = tmp_path / "known"
        known.write_text(first.known() + second.known() + inner.known())
        config = tmp_path / "config"
        user = inner.target().user
        config.write_text(
            f"Host j1\n HostName 127.0.0.1\n Port {first.port}\n User {user}\n"
            f"Host j2\n HostName 127.0.0.1\n Port {second.port}\n User {user}\n"
            f"Host *\n IdentityFile {inner.client_key}\n UserKnownHostsFile {known}\n")
        gate = Gate()
        targets = [inner.target(host=f"n{n}", ssh_common_args="-J j1,j2", ssh_config=str(config), known_hosts=None)
                   for n in range(6)]
        sessions = [Driven(target, gate=gate) for target in targets]
        for driven in sessions:
            driven.session.start()
        for driven in sessions:
            assert driven.call("ping", timeout=30)["ping"] == "pong"
            driven.session.close()
            driven.end()
        gate.close()
        assert first.log.count("Accepted publickey") == 1
        assert second.log.count("Accepted publickey") == 1
        assert inner.log.count("Accepted publickey") == 6


def test_a_bastion_that_does_not_reach_the_host_is_named(server: SshServer, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host j\n HostName 127.0.0.1\n Port {server.port}\n User {server.target().user}\n"
                      f" IdentityFile {server.client_key}\n UserKnownHostsFile {server.known_hosts}\n")
    error = refusal(server.target(port=free_port(), ssh_common_args="-J j", ssh_config=str(config))).error
    assert "the bastion 127.0.0.1 does not reach it" in error.what
    config.write_text(config.read_text() + f"Host loop\n ProxyJump loop\n HostName 127.0.0.1\n Port {server.port}\n")
    error = refusal(server.target(ssh_common_args="-o ProxyJump=loop", ssh_config=str(config))).error
    assert "circle" in error.what


FORWARD = """#!/usr/bin/python3
import os, socket, sys, threading
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def feed():
    for data in iter(lambda: os.read(0, 65536), b""):
        sock.sendall(data)
threading.Thread(target=feed, daemon=True).start()
for data in iter(lambda: sock.recv(65536), b""):
    os.write(1, data)
"""


def test_a_proxy_command(server: SshServer) -> None:
    script = server.folder / "forward"
    script.write_text(FORWARD)
    script.chmod(0o755)
    with Driven(server.target(ssh_common_args=f"-o ProxyCommand='{script} %p'")) as driven:
        assert driven.call("ping", timeout=30)["ping"] == "pong"


def _sshd_below(pid: int) -> list[int]:
    """The processes of sshd that serve connections: for an ordinary user the one with the socket is a grandchild."""
    found = subprocess.run(["pgrep", "-P", str(pid), "sshd"], capture_output=True, text=True).stdout.split()
    return [*map(int, found), *(below for child in found for below in _sshd_below(int(child)))]


def test_a_dropped_connection_is_lost_and_the_journal_knows_the_rest(server: SshServer, tmp_path: Path) -> None:
    done = tmp_path / "done"
    driven = Driven(server.target(), run_id="cut")
    driven.session.start()
    assert driven.call("lock")["state"] == "locked"
    request = driven.request("shell", {"cmd": f"sleep 1; touch {done}"}, digest="abc")
    driven.submit(request)
    driven.until(lambda item: isinstance(item, Started) and item.id == request.id)
    for pid in _sshd_below(server.process.pid):  # type: ignore[union-attr]
        os.kill(pid, signal.SIGKILL)
    lost = driven.end(10)
    assert isinstance(lost, Lost) and lost.running == request.id
    with Driven(server.target(), run_id="next") as again:
        assert again.call("lock", {"wait": 15}, timeout=25)["previous"]["run"] == "cut"
        told = again.call("journal", {"run": "cut", "digests": ["abc"]})["tasks"]["abc"]
        assert (told["state"], told["result"]) == ("ended", "changed") and done.exists()
        again.call("unlock")


def test_a_closed_session_leaves_no_process(server: SshServer) -> None:
    with Driven(server.target()) as driven:
        pid = int(driven.connected().info["pid"])
        driven.submit(driven.request("command", {"cmd": "sleep 77"}))
        driven.until(lambda item: isinstance(item, Started))
        family = {pid, *pids.descendants(pid)}
    end = time.monotonic() + 10
    while time.monotonic() < end and any(pids.start_time(item) for item in family):
        time.sleep(0.05)
    assert not [item for item in family if pids.start_time(item)]


def test_an_answer_faster_than_the_one_who_asked_is_not_lost(server: SshServer, monkeypatch: pytest.MonkeyPatch
                                                            ) -> None:
    """The thread that sent a login request gets no time until the answer is there, as on a busy machine."""
    send = paramiko.Transport._send_message  # type: ignore[attr-defined]

    def slow(transport: paramiko.Transport, message: paramiko.Message) -> None:
        asked = message.asbytes()[:1] == paramiko.common.cMSG_USERAUTH_REQUEST
        send(transport, message)
        if asked:
            time.sleep(1)

    monkeypatch.setattr(paramiko.Transport, "_send_message", slow)
    monkeypatch.setattr("bringup.connection.login.LOGIN", 4.0)
    with Driven(server.target()) as driven:
        assert driven.connected()
    other = make_key(server.folder / "other")
    error = refusal(server.target(key_file=str(other)), timeout=20).error
    assert "refused" in text_of(error)
