"""The lab's servers with real processes, through the verbs and a plain SSH client."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from bringup.base.errors import FindingError
from bringup.base.paths import Project
from bringup.lab import control
from bringup.lab.machines import NAMES, LabFolder
from bringup.lab.processes import boot_id, read
from bringup.lab.state import lab_user, lab_variables, load

PROGRAM = "import sys; from bringup.cli.program import main; sys.exit(main())"


def invoke(folder: Path, *words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "BRINGUP_LAB": str(folder)}
    if home is not None:
        env["HOME"] = str(home)
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], env=env, text=True, capture_output=True, timeout=60)


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("lab") / "lab"
    done = invoke(path, "lab.up")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replayed" in done.stdout
    yield path
    invoke(path, "lab.down", "--purge")


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Project:
    monkeypatch.setenv("BRINGUP_LAB", str(folder))
    return Project(tmp_path)


@pytest.fixture
def client(project: Project) -> Iterator[paramiko.SSHClient]:
    with connect(project, "lab-head") as client:
        yield client


def connect(project: Project, name: str) -> paramiko.SSHClient:
    variables = lab_variables(project)[name]
    client = paramiko.SSHClient()
    client.load_host_keys(variables["bringup_known_hosts"])
    client.connect(variables["ansible_host"], variables["ansible_port"], username=variables["ansible_user"],
                   key_filename=variables["ansible_ssh_private_key_file"], allow_agent=False, look_for_keys=False)
    return client


def run(client: paramiko.SSHClient, command: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.settimeout(20)
    channel.exec_command(command)
    channel.sendall(data)
    channel.shutdown_write()
    out = channel.makefile("rb").read()
    err = channel.makefile_stderr("rb").read()
    return channel.recv_exit_status(), out, err


def test_output_error_and_status_arrive_apart(client: paramiko.SSHClient) -> None:
    assert run(client, "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")
    assert run(client, "nosuchprogram")[0] == 127
    assert run(client, "cat", b"in") == (0, b"in", b"")


def test_a_process_killed_by_a_signal_is_no_success(client: paramiko.SSHClient) -> None:
    assert run(client, "kill -9 $$")[0] not in (0, 255)


def test_session_has_a_clean_environment_and_its_own_folder(client: paramiko.SSHClient, folder: Path,
                                                            project: Project) -> None:
    root = lab_variables(project)["lab-head"]["bringup_root"]
    status, out, _ = run(client, "pwd; umask; env")
    lines = out.decode().splitlines()
    assert status == 0 and lines[:2] == [root, "0022"]
    names = {line.partition("=")[0] for line in lines[2:]}
    assert f"HOME={root}/home" in lines
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PWD", "BRINGUP_LAB_TOKEN",
                     "BRINGUP_LAB_MACHINE", "SSH_CLIENT", "SSH_CONNECTION", "SHLVL", "_"}


def test_sixteen_megabytes_through_stdin_arrive_whole_and_fast(client: paramiko.SSHClient) -> None:
    data = os.urandom(1 << 24)
    started = time.monotonic()
    status, out, _ = run(client, "sha256sum", data)
    seconds = time.monotonic() - started
    assert status == 0 and out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert seconds < 3.0


def test_output_comes_back_whole_to_a_slow_reader(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.exec_command("head -c 20000000 /dev/zero | tr '\\0' x")
    time.sleep(0.3)
    total = 0
    while chunk := channel.recv(1 << 20):
        assert chunk.count(b"x") == len(chunk)
        total += len(chunk)
    assert total == 20_000_000 and channel.recv_exit_status() == 0


def test_nobody_comes_in_with_another_key_or_name(project: Project, tmp_path: Path) -> None:
    variables = lab_variables(project)["lab-w1"]
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    for user, key in ((lab_user(), str(tmp_path / "other")),
                      ("somebody-else", variables["ansible_ssh_private_key_file"])):
        client = paramiko.SSHClient()
        client.load_host_keys(variables["bringup_known_hosts"])
        with pytest.raises(paramiko.AuthenticationException):
            client.connect(variables["ansible_host"], variables["ansible_port"], username=user, key_filename=key,
                           allow_agent=False, look_for_keys=False)


def test_when_the_client_goes_its_group_ends_and_a_new_session_of_its_own_goes_on(project: Project,
                                                                                 tmp_path: Path) -> None:
    client = connect(project, "lab-w2")
    client.exec_command(f"echo $$ > {tmp_path}/main; sleep 600 & echo $! > {tmp_path}/child; "
                        f"setsid sh -c 'echo $$ > {tmp_path}/job; exec sleep 600' </dev/null >/dev/null 2>&1 & wait")
    files = [tmp_path / name for name in ("main", "child", "job")]
    assert wait_for(lambda: all(file.exists() and file.read_text().strip() for file in files))
    main, child, job = (int(file.read_text()) for file in files)
    client.close()
    assert wait_for(lambda: read(main) is None and read(child) is None)
    assert read(job) is not None
    os.kill(job, signal.SIGTERM)


def test_up_again_changes_nothing(folder: Path, project: Project) -> None:
    before = load(LabFolder(folder))
    done = invoke(folder, "lab.up")
    assert done.returncode == 0 and "already" in done.stdout
    assert load(LabFolder(folder)) == before


def test_a_lab_whose_record_is_lost_is_ended_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_LAB", str(tmp_path / "lab"))
    state, _ = control.up(Project(tmp_path))
    (tmp_path / "lab" / "state.json").write_text("{")
    done = control.down(Project(tmp_path), purge=True)
    assert done.ran and read(state.pid) is None and not (tmp_path / "lab").exists()


def test_a_supervisor_ends_when_its_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_LAB", str(tmp_path / "lab"))
    state, _ = control.up(Project(tmp_path))
    shutil.rmtree(tmp_path / "lab")
    assert wait_for(lambda: read(state.pid) is None, 8)


def test_the_account_is_the_labs_whatever_the_caller_is_called(project: Project, monkeypatch: pytest.MonkeyPatch
                                                               ) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    with connect(project, "lab-w1") as client:
        assert run(client, "true")[0] == 0


def test_two_labs_do_not_meet(folder: Path, project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other"
    home = tmp_path / "home"
    home.mkdir()
    try:
        done = invoke(other, "lab.up", "--format", "json", home=home)
        assert done.returncode == 0, done.stderr
        theirs = {machine["address"] for machine in json.loads(done.stdout)["machines"]}
        ours = {variables["ansible_host"] for variables in lab_variables(project).values()}
        assert len(theirs) == len(NAMES) and not theirs & ours
        assert list(home.iterdir()) == []
    finally:
        down = invoke(other, "lab.down", "--purge")
    assert down.returncode == 0 and not other.exists()


def test_down_ends_what_is_its_own_and_a_killed_supervisor_is_recognised(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_LAB", str(tmp_path / "lab"))
    project = Project(tmp_path)
    state, started = control.up(project)
    assert started
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        with connect(project, "lab-head") as client:
            run(client, f"setsid sh -c 'echo $$ > {tmp_path}/job; exec sleep 600' </dev/null >/dev/null 2>&1 &")
        assert wait_for(lambda: (tmp_path / "job").exists() and bool((tmp_path / "job").read_text().strip()))
        job = int((tmp_path / "job").read_text())
        os.kill(state.pid, signal.SIGKILL)
        assert wait_for(lambda: read(state.pid) is None)
        shown = invoke(tmp_path / "lab", "lab.status")
        assert shown.returncode == 4 and "not up" in shown.stdout and str(job) in shown.stdout
        with pytest.raises(FindingError, match=r"lab\.up"):
            lab_variables(project)
        again, started = control.up(project)
        assert started and [m.address for m in again.machines] == [m.address for m in state.machines]
        # a record of the detached manager that names a foreign process by pid, with another start time, is no proof
        record = again.machines[0].root / "processes" / "r1-0" / "record.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"pid": stranger.pid, "ticks": 1, "keeper": stranger.pid, "keeper_ticks": 1,
                                      "session": os.getsid(stranger.pid), "boot_id": boot_id()}))
        done = control.down(project, purge=True)
        assert done.ran and job in [process.pid for process in done.ended] and not done.left
        assert read(job) is None and stranger.poll() is None
        assert not (tmp_path / "lab").exists()
    finally:
        stranger.kill()
        stranger.wait()
        control.down(project, purge=True)
