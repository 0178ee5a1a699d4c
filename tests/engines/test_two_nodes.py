"""A real vLLM with tensor parallel 2 on two machines: it serves, and what breaks afterwards is named."""

from __future__ import annotations

import pytest
from engine_site import EngineSite, ask
from site_project import endpoint_of, wait_for

pytestmark = [pytest.mark.full, pytest.mark.machines]


@pytest.fixture
def serving(site: EngineSite) -> EngineSite:
    for machine in site.cluster.machines:
        machine.mend()
    site.write(distributed_timeout=60)
    site.good("provision", "--yes")
    return site


def test_two_ranks_on_two_nodes_keep_the_contract(serving: EngineSite) -> None:
    out = serving.good("provision", "--yes")
    assert "serves already, nothing was restarted" in out
    assert endpoint_of(out) == f"http://{serving.cluster.machines[0].address}:8000"
    nodes = serving.nodes()
    assert {name: node["ranks"] for name, node in nodes.items()} == {"e1": "0", "e2": "1"}
    assert {one["verdict"] for one in serving.findings().values()} <= {"pass", "skip"}


def test_a_killed_rank_is_named_behind_a_green_health(serving: EngineSite) -> None:
    worker = serving.cluster.machines[1]
    worker.run("sudo kill -9 $(pgrep -f [V]LLM::Worker)")
    done = serving.run("status")
    assert done.returncode == 4, done.stdout
    shown = " ".join(done.stdout.split())
    # its launcher follows it within seconds: a look that comes late finds that gone too
    assert ("1 of its rank processes are gone" in shown and "VLLM::Worker_TP1" in shown) \
        or "the worker (rank 1) is dead" in shown, done.stdout
    assert "the head still answers /health with 200" in done.stdout
    status, _ = ask(serving.cluster.machines[0].address, "Say ok.")
    assert status == 500
    serving.good("restart", "--yes")
    serving.good("status")


def test_a_killed_launcher_takes_its_rank_with_it_and_is_named(serving: EngineSite) -> None:
    worker = serving.cluster.machines[1]
    worker.run("sudo kill -9 $(systemctl show bringup-r1-e2 -p MainPID --value)")
    assert wait_for(lambda: not worker.run("pgrep -f [V]LLM::Worker || true").stdout.strip(), 60), \
        "systemd ends what is left of a unit whose first process died"
    done = serving.run("status")
    assert done.returncode == 4 and "e2" in done.stdout and "by signal 9" in done.stdout, done.stdout


def test_a_killed_engine_of_the_head_is_named(serving: EngineSite) -> None:
    head = serving.cluster.machines[0]
    head.run("sudo kill -9 $(pgrep -f [V]LLM::EngineCore)")
    done = serving.run("status")
    assert done.returncode == 4 and "e1" in done.stdout, done.stdout


def test_a_head_that_is_stopped_alone_leaves_a_worker_that_is_ended_too(serving: EngineSite) -> None:
    head, worker = serving.cluster.machines
    head.run("sudo systemctl stop bringup-r1-e1")
    done = serving.run("status")
    assert done.returncode == 4 and "e1" in done.stdout, done.stdout
    serving.good("stop", "--yes")
    assert not worker.run("pgrep -u bringup -fa . || true").stdout.strip()


def test_a_cut_link_is_named(serving: EngineSite) -> None:
    serving.cluster.machines[1].cut()
    try:
        done = serving.run("status")
        assert done.returncode == 3 and "e2" in done.stdout, done.stdout
    finally:
        serving.cluster.machines[1].mend()
    serving.good("restart", "--yes")
