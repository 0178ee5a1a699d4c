"""The main job in the embedded lab, by the verbs: provision, status, logs, restart, and starts that fail."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from site_project import HOSTS, Site, answer, children_of, endpoint_of, interrupt, wait_for


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.down()


@pytest.fixture
def serving(site: Site) -> Site:
    """The site with its first release serving, whatever the test before did."""
    site.write()
    site.good("provision", "--yes")
    return site


def test_provision_serves_and_a_second_run_restarts_nothing(site: Site) -> None:
    site.write()
    first = site.good("provision")
    for stage in ("preflight", "host settings", "environments", "release", "start", "contract"):
        assert stage in first
    assert "3 hosts, one replica of 3 · glm-5.1 bf16 on vllm, multi_node_tp_pp" in first
    assert "24 ranks on 3 nodes" in first
    assert "invoke status" in first
    endpoint = endpoint_of(first)
    said = answer(endpoint)
    before = site.pids()
    second = site.good("provision")
    assert "serves already, nothing was restarted" in second
    assert "in use, nothing differs" in second
    assert site.pids() == before
    assert answer(endpoint) == said


def test_a_killed_worker_is_named_and_restart_mends_it(serving: Site) -> None:
    worker = serving.pids()["lab-w2"]
    for child in children_of(worker):
        os.kill(child, signal.SIGKILL)
    assert wait_for(lambda: serving.nodes()["lab-w2"]["state"] != "running")
    done = serving.run("status")
    assert done.returncode == 4
    assert "lab-w2" in done.stdout and "the worker (ranks 16-23) is dead" in done.stdout
    assert "the head still answers /health with 200" in done.stdout
    unasked = serving.run("restart")
    assert unasked.returncode == 4 and "--yes" in unasked.stdout
    serving.good("restart", "--yes")
    assert "nothing wrong found" in serving.good("status")


def test_status_tells_the_release_and_logs_name_their_host(serving: Site) -> None:
    page = serving.good("status")
    assert all(host in page for host in HOSTS)
    assert "a token in" in page
    lines = serving.good("logs", "--lines", "4", "--limit", "lab-w1").splitlines()
    told = [line for line in lines if line.startswith("lab-w1  ")]
    assert len(told) == 4
    assert not [line for line in lines if line.startswith("lab-w2")]


def recorded_pids(site: Site) -> list[int]:
    """The pids in the records of the engine processes."""
    return [json.loads((site.root(host) / f"processes/r1-{host}/record.json").read_text())["pid"] for host in HOSTS]


@pytest.mark.parametrize("verb", ["start", "stop", "restart", "rollback", "provision"])
def test_a_limit_that_cuts_a_replica_is_refused(site: Site, verb: str) -> None:
    done = site.run(verb, "--limit", "lab-head:lab-w1")
    assert done.returncode == 2
    assert "cuts the replica r1" in done.stdout and "nothing was contacted" in done.stdout


@pytest.mark.full
def test_a_start_that_fails_names_its_first_cause_and_the_old_release_is_back(serving: Site) -> None:
    endpoint = endpoint_of(serving.good("provision"))
    said, before = answer(endpoint), serving.pids()
    serving.write(fault="out_of_memory:node_rank=2")
    done = serving.run("provision", "--yes")
    assert done.returncode == 1, done.stdout
    assert "FAILED after" in done.stdout and "serves again on r1" in done.stdout
    assert "lab-w2: a device ran out of memory" in done.stdout
    assert "kept     .bringup/runs/" in done.stdout
    assert answer(endpoint) == said
    after = serving.pids()
    assert after != before and "-" not in after.values()
    serving.write()
    assert "serves already, nothing was restarted" in serving.good("provision")


def test_a_port_that_another_process_has_stops_the_run_before_anything_stops(serving: Site) -> None:
    address = urlsplit(endpoint_of(serving.good("provision"))).hostname
    before = serving.pids()
    with socket.socket() as holder:
        holder.bind((address, 8123))
        holder.listen()
        serving.write(port=8123)
        done = serving.run("provision", "--yes")
    assert done.returncode in (1, 4), done.stdout
    assert "8123" in done.stdout
    assert serving.pids() == before


def test_without_an_answer_everything_is_prepared_and_nothing_touched(serving: Site) -> None:
    before = serving.pids()
    serving.write(context_length=65536)
    done = serving.run("provision")
    assert done.returncode == 4, done.stdout
    assert "everything is prepared" in done.stdout
    assert serving.pids() == before
    done = serving.run("rollback", "--yes")
    assert done.returncode == 0 and "was never switched to" in done.stdout, done.stdout
    assert serving.pids() == before


@pytest.mark.full
def test_an_interrupted_start_leaves_no_lock_and_is_joined(serving: Site) -> None:
    serving.write(load_seconds=6, context_length=32768)
    run = serving.start("provision", "--yes")
    record = serving.root("lab-w2") / "processes/r1-lab-w2/record.json"
    stamp = record.stat().st_mtime_ns
    assert wait_for(lambda: record.stat().st_mtime_ns != stamp and '"stopped": false' in record.read_text(), 40)
    other = serving.run("provision", "--yes")
    assert other.returncode == 5, other.stdout
    interrupt(run)
    assert run.returncode == 130
    pids = recorded_pids(serving)
    out = serving.good("provision", "--yes")
    assert "ready" in out
    assert recorded_pids(serving) == pids


def test_stop_leaves_nothing_and_start_brings_it_back(serving: Site) -> None:
    endpoint = endpoint_of(serving.good("provision"))
    said = answer(endpoint)
    pids = serving.pids()
    unasked = serving.run("stop")
    assert unasked.returncode == 4 and serving.pids() == pids
    serving.good("stop", "--yes")
    assert not [pid for pid in pids.values() if Path(f"/proc/{pid}/exe").exists()]
    done = serving.run("status")
    assert done.returncode == 4 and "is stopped" in done.stdout
    serving.good("start")
    assert answer(endpoint) == said
