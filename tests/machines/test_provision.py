"""The main job on real machines: systemd, sudo, a bridge that can be cut; testinfra is the witness."""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from site_project import DEPLOYMENT, REPOSITORY, Site, endpoint_of, wait_for

HOSTS = ("m1", "m2", "m3")
RECORDING = REPOSITORY / "bringup/lab/recordings/h200x8"
CONFIG = '{"model_type": "glm_moe_dsa", "num_attention_heads": 64}'


class Machines(Site):
    """A site whose hosts are the cluster's machines; preflight's GPUs are replayed, all else is real."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        super().__init__(folder)

    def write(self, *, load_seconds: float = 0.3, fault: str = "", variables: dict[str, Any] | None = None,
              **deployment: Any) -> None:
        env = {"LAB_ENGINE_LOAD_SECONDS": str(load_seconds), **({"LAB_ENGINE_FAULT": fault} if fault else {})}
        self.cluster.inventory(self.folder / "inventory/lab.yml", {
            "bringup_replay": str(RECORDING), "bringup_known_hosts": str(self.cluster.known_hosts),
            "bringup_ssh_config": False, **(variables or {}),
            "deployment": {**DEPLOYMENT, "manager": "systemd", "model_path": "/models/GLM-5.1", "env": env,
                           **deployment}})

    def unit(self, name: str) -> dict[str, str]:
        """What systemd on a machine says of its engine, asked over a connection of our own."""
        shown = self.cluster[name].run(
            f"systemctl show bringup-r1-{name} -p MainPID,ActiveState,UnitFileState,User,InvocationID").stdout
        return dict(line.split("=", 1) for line in shown.splitlines())

    def anew(self, name: str, before: str) -> bool:
        """True when another start of the unit than the one before is active."""
        now = self.unit(name)
        return now["ActiveState"] == "active" and now["InvocationID"] not in ("", before)

    def invocations(self) -> dict[str, str]:
        return {name: self.unit(name)["InvocationID"] + " " + self.unit(name)["MainPID"] for name in HOSTS}

    def current(self) -> set[str]:
        return {self.cluster[name].run("readlink /opt/bringup/current").stdout.strip() for name in HOSTS}


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    for machine in cluster.machines:
        machine.run(f"sudo mkdir -p /models/GLM-5.1 && echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
    yield Machines(tmp_path_factory.mktemp("site"), cluster)


@pytest.fixture
def serving(site: Machines) -> Machines:
    for machine in site.cluster.machines:
        machine.mend()
    site.write()
    site.good("provision", "--yes")
    return site


def answer(endpoint: str) -> Any:
    body = {"model": "zai-org/GLM-5.1", "temperature": 0, "messages": [{"role": "user", "content": "Say pong."}]}
    request = urllib.request.Request(endpoint + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as got:
        return [choice["message"] for choice in json.loads(got.read())["choices"]]


def test_provision_and_the_witness(site: Machines) -> None:
    site.write()
    out = site.good("provision")
    endpoint = endpoint_of(out)
    assert endpoint == f"http://{site.cluster['m1'].address}:8000"
    assert answer(endpoint)
    for number, name in enumerate(HOSTS):
        host = site.cluster.testinfra(site.cluster[name], sudo=True)
        service = host.service(f"bringup-r1-{name}")
        assert service.is_running
        assert host.run(f"systemctl is-enabled bringup-r1-{name}").stdout.strip() == "static", "not at boot"
        assert host.user("bringup").shell == "/usr/sbin/nologin"
        assert host.file("/opt/bringup/current").is_symlink
        main = host.process.get(pid=int(site.unit(name)["MainPID"]))
        assert main.user == "bringup"
        assert f"--node-rank {number}" in main.args
        assert host.check_output(f"systemctl show bringup-r1-{name} -p LimitMEMLOCK") == "LimitMEMLOCK=infinity"
    head = site.cluster.testinfra(site.cluster["m1"], sudo=True)
    assert head.socket("tcp://0.0.0.0:8000").is_listening
    started = [float(site.cluster[name].run(f"systemctl show bringup-r1-{name} -p ExecMainStartTimestampMonotonic"
                                            ).stdout.split("=")[1]) for name in HOSTS]
    assert started == sorted(started)


def test_a_second_run_changes_nothing_and_restarts_nothing(serving: Machines) -> None:
    before = serving.invocations()
    out = serving.good("provision")
    assert "serves already, nothing was restarted" in out
    assert serving.invocations() == before
    report = serving.folder / "again.json"
    serving.good("provision", "--report", str(report))
    recap = json.loads(report.read_text())["recap"]
    assert {host: counts["changed"] for host, counts in recap.items()} == dict.fromkeys(HOSTS, 0)


def test_a_killed_worker_is_named(serving: Machines) -> None:
    pid = serving.unit("m3")["MainPID"]
    serving.cluster["m3"].run(f"sudo kill -9 {pid}")
    done = serving.run("status")
    assert done.returncode == 4
    assert "the worker (ranks 16-23) is dead: it ended by signal 9" in done.stdout
    assert "m3" in done.stdout and "/health with 200" in done.stdout
    serving.good("restart", "--yes")
    serving.good("status")


def test_a_port_taken_on_a_worker_is_the_first_cause_and_the_old_release_is_back(serving: Machines) -> None:
    endpoint = endpoint_of(serving.good("provision"))
    said, link = answer(endpoint), serving.current()
    holder = "import socket,time;s=socket.socket();s.bind(('0.0.0.0',8123));s.listen();time.sleep(600)"
    serving.cluster["m2"].run(f'sudo systemd-run --unit=holder python3 -c "{holder}"')
    try:
        # every node of a data parallel deployment serves HTTP, workers too
        serving.write(port=8123, strategy="multi_node_dep", tensor_parallel=None, pipeline_parallel=None, nodes=3)
        done = serving.run("provision", "--yes")
    finally:
        serving.cluster["m2"].run("sudo systemctl stop holder")
    assert done.returncode in (1, 4), done.stdout
    assert "m2" in done.stdout and "8123" in done.stdout, done.stdout
    assert answer(endpoint) == said
    assert serving.current() == link
    serving.write()
    serving.good("status")


def test_a_start_that_fails_brings_the_old_release_back(serving: Machines) -> None:
    endpoint = endpoint_of(serving.good("provision"))
    said, link = answer(endpoint), serving.current()
    serving.write(fault="crash_loading:node_rank=1")
    done = serving.run("provision", "--yes")
    assert done.returncode == 1, done.stdout
    assert "m2: " in done.stdout and "told to crash while loading" in done.stdout
    assert "serves again on r1" in done.stdout
    assert answer(endpoint) == said
    assert serving.current() == link


def test_rollback_returns_and_the_endpoint_answers_as_it_did(serving: Machines) -> None:
    endpoint = endpoint_of(serving.good("provision"))
    said, link = answer(endpoint), serving.current()
    serving.write(context_length=65536)
    serving.good("provision", "--yes")
    assert serving.current() != link
    began = time.monotonic()
    out = serving.good("rollback", "--yes")
    assert "switched on 3 of 3" in out
    assert time.monotonic() - began < 60
    assert answer(endpoint) == said
    assert serving.current() == link
    head = serving.cluster.testinfra(serving.cluster["m1"], sudo=True)
    assert head.service("bringup-r1-m1").is_running


def test_a_host_cut_off_in_the_middle_is_lost_and_the_next_run_completes(serving: Machines) -> None:
    serving.write(load_seconds=8, context_length=16384)
    before = serving.unit("m3")["InvocationID"]
    run = serving.start("provision", "--yes")
    assert wait_for(lambda: serving.anew("m3", before), 60)
    serving.cluster["m3"].cut()
    out = run.communicate(timeout=180)[0]
    serving.cluster["m3"].mend()
    assert run.returncode == 6, f"it served before and does not now:\n{out}"
    assert "m3: the host cannot be reached" in out, out
    # its agent may hold the lock until it has heard nothing for 60 s
    assert wait_for(lambda: serving.run("provision", "--yes").returncode == 0, 120)
    serving.good("status")


def test_a_second_operator_is_refused_and_an_interrupt_leaves_no_lock(serving: Machines) -> None:
    serving.write(load_seconds=8, context_length=8192)
    before = serving.unit("m3")["InvocationID"]
    run = serving.start("provision", "--yes")
    try:
        assert wait_for(lambda: serving.anew("m3", before), 60)
        other = serving.run("provision", "--yes")
        assert other.returncode == 5, other.stdout
        assert "is held by" in other.stdout
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 130
    pids = serving.invocations()
    serving.good("provision", "--yes", timeout=180)
    assert serving.invocations() == pids, "the start that was under way is joined, not begun again"
    run = serving.start("restart", "--yes")
    assert wait_for(lambda: serving.anew("m3", pids["m3"].split()[0]), 60)
    other = serving.run("stop", "--yes")
    assert other.returncode == 5, other.stdout
    out = run.communicate(timeout=120)[0]
    assert run.returncode == 0, out


def test_detached_from_any_login_the_engines_run_as_their_account(serving: Machines) -> None:
    """Where systemd may not be used: the same release, kept by a recorded session instead of a unit."""
    serving.good("stop", "--yes")
    serving.write(manager="detached")
    endpoint = endpoint_of(serving.good("provision"))
    assert answer(endpoint)
    for name in HOSTS:
        host = serving.cluster.testinfra(serving.cluster[name], sudo=True)
        assert not host.service(f"bringup-r1-{name}").is_running
        record = json.loads(host.file(f"/opt/bringup/processes/r1-{name}/record.json").content_string)
        main = host.process.get(pid=record["pid"])
        assert main.user == "bringup"
        assert host.check_output(f"ps -o sid= -p {record['pid']}").strip() == str(record["session"])
        assert host.check_output(f"ps -o tty= -p {record['pid']}").strip() == "?"
    serving.cluster["m2"].run(f"sudo kill -9 {serving.pids()['m2']}")
    done = serving.run("status")
    assert done.returncode == 4 and "m2" in done.stdout and "is dead" in done.stdout
    serving.good("stop", "--yes")
    for name in HOSTS:
        assert not serving.cluster.testinfra(serving.cluster[name], sudo=True).process.filter(user="bringup")


def test_stop_leaves_nothing(serving: Machines) -> None:
    serving.good("stop", "--yes")
    for name in HOSTS:
        host = serving.cluster.testinfra(serving.cluster[name], sudo=True)
        assert not host.service(f"bringup-r1-{name}").is_running
        assert not host.process.filter(user="bringup")
    assert not serving.cluster.testinfra(serving.cluster["m1"], sudo=True).socket("tcp://0.0.0.0:8000").is_listening


def test_the_engines_account_owns_what_they_write_and_root_the_releases(serving: Machines) -> None:
    paths = "/opt/bringup/processes/r1-m2/work /opt/bringup/current /opt/bringup/processes/r1-m2/record.json"
    assert serving.cluster["m2"].run(f"stat -c %U {paths}").stdout.split() == ["bringup", "root", "root"]
