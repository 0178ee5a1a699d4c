"""Traffic hooks by the verbs: a load balancer, clients that never stop asking, two replicas in the lab."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from site_project import Site, interrupt, wait_for
from traffic_balancer import Balancer, Clients

TWO: dict[str, Any] = {"strategy": "single_node_tp", "pipeline_parallel": None, "variant": "fp8",
                       "recipe": "zai-org/GLM-5.1", "replicas": {"r1": ["lab-head"], "r2": ["lab-w1"]},
                       "api_key": "kestrel-lantern-4711"}
KEY = TWO["api_key"]
TOKEN = "a-token-of-the-balancer-4712"


@pytest.fixture(scope="module")
def balancer() -> Iterator[Balancer]:
    made = Balancer()
    yield made
    made.close()


def hooks(balancer: Balancer, **more: Any) -> dict[str, Any]:
    admin = f"http://127.0.0.1:{balancer.port}/admin"
    headers = {"Authorization": "Bearer {{ lb_token }}"}
    return {"lb_token": TOKEN, "traffic_deadline": 30,
            "traffic_out": {"url": admin + "/out/{{ replica.name }}", "headers": headers},
            "traffic_in": {"url": admin + "/in/{{ replica.name }}", "headers": headers, "status": 204,
                           "body": {"endpoint": "{{ replica.endpoint }}"}}, **more}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, balancer: Balancer) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("traffic") / "site")
    made.write(variables=hooks(balancer), **TWO)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def site(project: Site, balancer: Balancer) -> Iterator[Site]:
    """Both replicas serve the first release and are in."""
    balancer.refuse = ""
    project.write(variables=hooks(balancer), **TWO)
    project.good("provision", "--yes")
    for name in {"r1", "r2"} - set(balancer.endpoints):
        project.good("traffic.in", "--replica", name)
    balancer.moves.clear()
    yield project


@pytest.mark.full
def test_a_rolling_restart_is_seen_by_no_client(site: Site, balancer: Balancer) -> None:
    before = site.pids()
    clients = Clients(balancer.port, key=KEY)
    try:
        assert wait_for(lambda: clients.answers > 20)
        out = site.good("restart", "--rolling", "--yes")
        there = clients.answers
        assert wait_for(lambda: clients.answers > there + 20)
    finally:
        clients.stop()
    assert clients.failures == []
    after = site.pids()
    assert before["lab-head"] != after["lab-head"] and before["lab-w1"] != after["lab-w1"]
    assert balancer.moves == [("out", "r1"), ("in", "r1"), ("out", "r2"), ("in", "r2")]
    assert "no request in flight any more" in out
    assert balancer.headers[-1]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in out and KEY not in out


@pytest.mark.full
def test_a_request_in_flight_ends_before_the_stop(site: Site, balancer: Balancer) -> None:
    fault = site.models() / "lab_engine_fault.json"
    fault.write_text('{"name": "slow", "seconds": 4}')
    balancer.endpoints.pop("r2", None)  # all of it goes to r1
    clients = Clients(balancer.port, count=1, key=KEY)
    try:
        assert wait_for(lambda: clients.answers > 0)
        out = site.good("stop", "--yes", "--limit", "lab-head")
    finally:
        clients.stop()
        fault.unlink()
    # whoever asks later is told by the balancer that nobody is in; nobody who was served was cut off
    assert {failure.split(":")[0] for failure in clients.failures} <= {"503"}, clients.failures
    assert "no request in flight any more" in out
    assert balancer.moves[-1] == ("out", "r1")


@pytest.mark.full
def test_a_hook_that_fails_stops_the_run_before_anything_stops(site: Site, balancer: Balancer) -> None:
    before = site.pids()
    balancer.refuse = "out"
    done = site.run("restart", "--yes")
    assert done.returncode == 1, done.stdout
    assert "r1 was not stopped: traffic_out failed" in done.stdout and "status 500" in done.stdout
    assert "r1 itself goes on; others: r2 r0" in done.stdout
    assert "invoke traffic.in --replica r1" in done.stdout and TOKEN not in done.stdout
    assert site.pids() == before
    balancer.refuse = ""
    assert "clients were led away" in site.good("status")
    site.good("start", "--yes")  # it serves already: its contract, then its traffic
    assert balancer.moves == [("in", "r1")]
    assert "led away" not in site.good("status")


@pytest.mark.full
def test_a_way_back_that_fails_is_told_and_the_next_replica_is_left_alone(site: Site, balancer: Balancer) -> None:
    before = site.pids()
    balancer.refuse = "in"
    done = site.run("restart", "--yes")
    assert done.returncode == 1, done.stdout
    assert "r1 serves and its traffic did not come back" in done.stdout
    assert "next      mend the hook, then invoke traffic.in --replica r1" in done.stdout
    assert site.pids()["lab-w1"] == before["lab-w1"]
    balancer.refuse = ""
    unknown = site.run("traffic.in", "--replica", "r9")
    assert unknown.returncode == 2 and "r1, r2" in unknown.stdout, unknown.stdout
    site.good("traffic.in", "--replica", "r1")
    assert balancer.moves == [("out", "r1"), ("in", "r1")]


@pytest.mark.full
def test_a_failed_start_goes_back_and_lets_clients_in_again(site: Site, balancer: Balancer) -> None:
    site.write(variables=hooks(balancer), fault="crash_loading", **TWO)
    done = site.run("provision", "--yes")
    assert done.returncode == 1, done.stdout
    assert "serves again on r1" in done.stdout and "its traffic is back" in done.stdout
    assert balancer.moves == [("out", "r1"), ("in", "r1")]
    assert "led away" not in site.good("status")


@pytest.mark.full
def test_a_contract_that_fails_keeps_clients_away_and_the_next_replica_as_it_was(site: Site,
                                                                                  balancer: Balancer) -> None:
    before = site.pids()
    site.write(variables=hooks(balancer), fault="finish_wrong", **TWO)
    done = site.run("provision", "--yes")
    assert done.returncode == 4, done.stdout
    assert balancer.moves == [("out", "r1")]
    assert "traffic  r1 is out" in done.stdout and "untouched r2" in done.stdout
    assert site.pids()["lab-w1"] == before["lab-w1"]
    site.good("rollback", "--yes")
    assert balancer.moves[-1] == ("in", "r1")


@pytest.mark.full
def test_an_interrupt_between_out_and_in_says_what_brings_it_back(site: Site, balancer: Balancer) -> None:
    site.write(variables=hooks(balancer), load_seconds=8, **TWO)
    run = site.start("provision", "--yes")
    assert wait_for(lambda: balancer.moves == [("out", "r1")], 60)
    time.sleep(4)  # within the start
    out = interrupt(run)
    assert run.returncode == 130, out
    assert "r1 is out (traffic_out ran)" in out and "invoke traffic.in --replica r1" in out
    site.write(variables=hooks(balancer), load_seconds=8, **TWO)
    site.good("provision", "--yes")
    assert [move for move in balancer.moves if move[1] == "r1"] in ([("out", "r1"), ("in", "r1")],
                                                                    [("out", "r1"), ("out", "r1"), ("in", "r1")])


@pytest.mark.full
def test_check_shows_hooks_and_runs_none(site: Site, balancer: Balancer) -> None:
    for verb in (("restart",), ("stop",), ("traffic.out",)):
        out = site.good(*verb, "--check")
        assert "not run" in out and "/admin/out/{{ replica.name }}" in out
    assert balancer.moves == []


@pytest.mark.full
def test_a_command_gets_its_replica_as_words_and_as_environment(site: Site, balancer: Balancer) -> None:
    book = site.folder / "moved"
    line = 'echo "{{ replica.name }} $BRINGUP_TRAFFIC $BRINGUP_REPLICA $BRINGUP_NODES $BRINGUP_ENDPOINT" >> moved'
    site.write(variables=hooks(balancer, traffic_out=line, traffic_in=line), **TWO)
    site.good("restart", "--yes", "--limit", "lab-w1")
    told = [words.split() for words in book.read_text().splitlines()]
    assert [words[:4] for words in told] == [["r2", "out", "r2", "lab-w1"], ["r2", "in", "r2", "lab-w1"]]
    assert told[0][4].startswith("http://")
    site.write(variables=hooks(balancer, traffic_out={"command": "echo no way; sleep 60", "timeout": 1},
                               traffic_in="true"), **TWO)
    done = site.run("stop", "--yes", "--limit", "lab-w1")
    assert done.returncode == 1 and "exit status 0 within 1.0 s" in done.stdout, done.stdout
    assert site.nodes()["lab-w1"]["state"] == "running"


def test_one_replica_alone_cannot_be_restarted_rolling(project: Site, balancer: Balancer) -> None:
    project.write(variables=hooks(balancer), **{**TWO, "replicas": {"r1": ["lab-head"]}})
    done = project.run("restart", "--rolling", "--yes")
    assert done.returncode == 2 and "--rolling needs a second replica" in done.stdout


@pytest.mark.parametrize(("variables", "words"), [
    ({"traffic_out": "true"}, "`traffic_out` stands without `traffic_in`"),
    ({"traffic_out": {"comand": "true"}, "traffic_in": "true"}, "nearest: command"),
    ({"traffic_out": "echo {{ replika.name }}", "traffic_in": "true"}, "nearest: replica"),
    ({"traffic_out": {"command": "true", "delegate_to": "lb1"}, "traffic_in": "true"}, "lb1"),
    ({"traffic_out": "true", "traffic_in": "true", "traffic_deadline": "soon"}, "`traffic_deadline` takes seconds"),
])
def test_hooks_that_are_wrong_are_told_before_a_host_is_contacted(project: Site, variables: dict[str, Any],
                                                                   words: str) -> None:
    project.write(variables=variables, **TWO)
    done = project.run("restart", "--yes")
    assert done.returncode == 2 and words in done.stdout and "nothing was contacted" in done.stdout, done.stdout


def test_without_hooks_the_plan_says_that_clients_see_it(project: Site, balancer: Balancer) -> None:
    project.write(**TWO)
    assert "clients will see each restart" in project.good("plan")
    project.write(variables=hooks(balancer), **TWO)
    assert "before a stop POST http://127.0.0.1" in project.good("plan")


def test_the_balancer_itself_spreads(balancer: Balancer) -> None:
    """The judge judged: a replica that is gone and still in is a failure that clients see."""
    balancer.endpoints.update(gone="http://127.0.0.1:9/v1")
    others = dict(balancer.endpoints)
    balancer.endpoints.clear()
    balancer.endpoints["gone"] = others["gone"]
    clients = Clients(balancer.port, count=1)
    seen = threading.Event()
    wait_for(lambda: clients.failures and (seen.set() or True))
    clients.stop()
    del others["gone"]
    balancer.endpoints.clear()
    balancer.endpoints.update(others)
    assert seen.is_set() and clients.failures[0].startswith("502")
