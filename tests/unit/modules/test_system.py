"""Modules that meet the system: waiting, web requests, commands, package locks, facts."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from module_calls import call

from bringup.agent.modules import _apt, _locks, sysctl
from bringup.agent.task import Completed, Failure, Task


@pytest.fixture
def web():
    class Handler(http.server.BaseHTTPRequestHandler):
        def _reply(self, body=b""):
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/json")
                self.end_headers()
                return
            told = {"path": self.path, "method": self.command, "body": body.decode(),
                    "type": self.headers.get("Content-Type"), "auth": self.headers.get("Authorization")}
            data = json.dumps(told).encode()
            self.send_response(404 if self.path == "/none" else 200)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Own-Header", "yes")
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self._reply()

        def do_POST(self):
            self._reply(self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_uri_reads_json_and_headers(web):
    result = call("uri", url=web + "/json", return_content=True)
    assert (result["status"], result["json"]["method"], result["x_own_header"]) == (200, "GET", "yes")
    assert json.loads(result["content"]) == result["json"]
    assert result["changed"] is False


@pytest.mark.parametrize("form, body, sent, kind", [
    ("json", {"a": [1, "ü"]}, '{"a": [1, "\\u00fc"]}', "application/json"),
    ("form", {"a": "1 2", "b": ["x", "y"]}, "a=1+2&b=x&b=y", "application/x-www-form-urlencoded"),
    ("raw", "plain", "plain", "application/x-www-form-urlencoded"),
])
def test_uri_sends_bodies(web, form, body, sent, kind):
    result = call("uri", url=web + "/post", method="post", body=body, body_format=form)
    assert (result["json"]["body"], result["json"]["type"]) == (sent, kind)


def test_uri_status_and_redirects(web):
    assert call("uri", url=web + "/none", status_code=[200, 404])["status"] == 404
    with pytest.raises(Failure, match="Status code was 404 and not"):
        call("uri", url=web + "/none")
    assert call("uri", url=web + "/moved")["redirected"] is True
    assert call("uri", url=web + "/moved", follow_redirects="none", status_code=[302])["location"] == "/json"


def test_uri_sends_the_password_at_once_when_told_so(web):
    result = call("uri", url=web + "/json", url_username="u", url_password="p", force_basic_auth=True)
    assert result["json"]["auth"] == "Basic dTpw"


def test_uri_nobody_there():
    with pytest.raises(Failure, match="Connection refused") as caught:
        call("uri", url="http://127.0.0.1:9/", timeout=2)
    assert caught.value.fields["status"] == -1


def test_wait_for_a_port_that_opens_later():
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
    with pytest.raises(Failure, match=f"Timeout when waiting for 127.0.0.1:{port}") as caught:
        call("wait_for", port=port, timeout=1)
    assert "refused" in caught.value.fields["found"]
    timer = threading.Timer(0.5, probe.listen)
    timer.start()
    result = call("wait_for", port=port, timeout=10, sleep=0)
    timer.join()
    assert result["changed"] is False
    with pytest.raises(Failure, match="to stop"):
        call("wait_for", port=port, timeout=1, state="stopped")
    probe.close()
    call("wait_for", port=port, timeout=5, state="stopped")


def test_wait_for_a_text_from_a_server():
    server = socket.create_server(("127.0.0.1", 0))

    def speak():
        connection, _ = server.accept()
        connection.sendall(b"SSH-2.0-some")
        time.sleep(0.2)
        connection.sendall(b"thing\r\n")
        connection.close()

    thread = threading.Thread(target=speak)
    thread.start()
    result = call("wait_for", port=server.getsockname()[1], search_regex=r"SSH-2.0-(?P<name>\w+)ng", timeout=5)
    thread.join()
    server.close()
    assert result["match_groupdict"] == {"name": "somethi"}


def test_wait_for_a_text_in_a_file(tmp_path):
    log = tmp_path / "log"
    threading.Timer(0.5, lambda: log.write_text("start\nready 42\n")).start()
    assert call("wait_for", path=str(log), search_regex=r"^ready (\d+)", timeout=10)["match_groups"] == ["42"]


def test_command_tells_output_and_failure(tmp_path):
    result = call("command", cmd="printf 'a\\nb\\n'")
    assert (result["stdout_lines"], result["rc"], result["changed"]) == (["a", "b"], 0, True)
    with pytest.raises(Failure, match="non-zero return code") as caught:
        call("shell", cmd="echo out; echo err >&2; exit 7")
    assert {key: caught.value.fields[key] for key in ("rc", "stdout", "stderr")} == {
        "rc": 7, "stdout": "out", "stderr": "err"}
    with pytest.raises(Failure, match="Unable to change directory"):
        call("command", cmd="true", chdir=str(tmp_path / "none"))
    with pytest.raises(Failure, match="cannot run"):
        call("command", argv=["no_such_program_here"])


def test_output_that_is_no_text_is_kept_readable():
    assert call("shell", cmd="printf '\\377x'")["stdout"] == "\ufffdx"


_HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def _hold(path, seconds):
    process = subprocess.Popen([sys.executable, "-c", _HOLDER, str(path), str(seconds)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_package_lock_is_waited_for_and_its_holder_named(tmp_path):
    path = tmp_path / "lock-frontend"
    process = _hold(path, 1.5)
    lines = []
    task = Task({}, line=lambda text, stream: lines.append(text))
    _locks.wait(task, [str(path)], time.monotonic() + 20)
    process.wait()
    process.stdout.close()
    assert f"held by pid {process.pid} ({sys.executable}" in lines[0]
    assert "19 s left" in lines[0]
    assert path.exists()


def test_a_package_lock_that_stays_fails_at_the_deadline_and_is_left_alone(tmp_path):
    path = tmp_path / "lock-frontend"
    process = _hold(path, 60)
    try:
        with pytest.raises(Failure, match="still held after 1 s") as caught:
            _locks.wait(Task({}), [str(path)], time.monotonic() + 1)
        assert f"pid {process.pid}" in caught.value.fields["found"]
        assert process.poll() is None
        assert path.exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("said, message, following", [
    ("E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.",
     "half configured", "sudo dpkg --configure -a"),
    ("E: Unable to locate package nvidia-driver-999", "No package matching 'nvidia-driver-999'", "update_cache"),
    ("E: Version '9' for 'bash' was not found", "'bash=9'", "update_cache"),
    ("E: You don't have enough free space in /var/cache/apt/archives/.", "the disk is full", "free space"),
    ("E: Unmet dependencies. Try 'apt --fix-broken install'", "unmet dependencies", "--fix-broken"),
    ("E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
     "only be changed by root", "become"),
])
def test_what_apt_says_becomes_a_cause_and_a_way_out(said, message, following):
    failure = _apt._explained("apt-get install x", Completed([], 100, "", said, 0.1))
    assert message in failure.message
    assert following in failure.fields["next"]


@pytest.mark.parametrize("text, name, value, expected", [
    ("", "vm.swappiness", "1", "vm.swappiness=1\n"),
    ("# c\nvm.swappiness = 60\nkernel.x=1\n", "vm.swappiness", "1", "# c\nvm.swappiness=1\nkernel.x=1\n"),
    ("vm.swappiness = 1\n", "vm.swappiness", "1", "vm.swappiness = 1\n"),
    ("vm/swappiness=60\nvm.swappiness=70", "vm.swappiness", "1", "vm.swappiness=1\n"),
    ("#vm.swappiness=60\n", "vm.swappiness", "1", "#vm.swappiness=60\nvm.swappiness=1\n"),
    ("net.ipv4.tcp_rmem=1 2   3\nx=1\n", "net.ipv4.tcp_rmem", "1 2 3", "net.ipv4.tcp_rmem=1 2   3\nx=1\n"),
    ("a.b=1\nc.d=2\n", "a.b", None, "c.d=2\n"),
])
def test_sysctl_lines(text, name, value, expected):
    assert sysctl._edited(text, name, value) == expected


def test_sysctl_writes_the_file_once(tmp_path):
    path = tmp_path / "90.conf"
    args = {"name": "kernel.ostype", "value": "Linux", "sysctl_file": str(path), "reload": False}
    assert call("sysctl", **args)["changed"] is True
    assert call("sysctl", **args) == {"changed": False, "name": "kernel.ostype", "value": "Linux",
                                      "sysctl_file": str(path), "current": "Linux"}
    with pytest.raises(Failure, match="does not have the parameter"):
        call("sysctl", name="kernel.never_there", value="1", sysctl_file=str(path), sysctl_set=True)


def test_facts_and_their_subsets():
    facts = call("setup")["ansible_facts"]
    assert facts["ansible_hostname"] == socket.gethostname().split(".")[0]
    assert facts["ansible_kernel"] == os.uname().release
    assert facts["ansible_processor_nproc"] == len(os.sched_getaffinity(0))
    assert facts["ansible_os_family"] in ("Debian", "RedHat", "Suse", "Alpine", "Archlinux")
    few = call("setup", gather_subset=["!all"])["ansible_facts"]
    assert "ansible_hostname" in few and "ansible_mounts" not in few
    only = call("setup", filter=["ansible_distribution*"])["ansible_facts"]
    assert set(only) == {name for name in facts if name.startswith("ansible_distribution")}
    with pytest.raises(Failure, match="subset never"):
        call("setup", gather_subset=["never"])
