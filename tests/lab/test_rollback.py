"""Rollback in the embedded lab, by the verbs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest
from lab_engine_processes import free_port
from site_project import HOSTS, Site, answer, endpoint_of

from bringup.base.paths import Project
from bringup.lab.state import lab_variables


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.down()


def test_rollback_returns_and_the_endpoint_answers_as_it_did(site: Site) -> None:
    first = site.good("provision")
    endpoint = endpoint_of(first)
    said = answer(endpoint)
    site.write(context_length=65536)
    second = site.good("provision", "--yes")
    assert "was r0001" in second and "undo     invoke rollback" in second
    assert "--max-model-len" in site.good("release.diff", "r0001", "r0002")
    refused = site.run("rollback")
    assert refused.returncode == 4
    assert "everything is prepared" in refused.stdout and "r0002 -> r0001" in refused.stdout
    back = site.good("rollback", "--yes")
    assert "release r0001   was r0002" in back
    assert answer(endpoint) == said
    table = site.data("releases")
    assert [(row["release"], row["state"]) for row in table] == [("r0002", "rolled back from"),
                                                                 ("r0001", "current, good")]


def test_a_second_rollback_does_not_land_on_what_was_left(site: Site) -> None:
    before = site.pids()
    done = site.run("rollback", "--yes")
    assert done.returncode == 4
    assert "no earlier release" in done.stdout and "r0002 rolled back from" in done.stdout
    named = site.run("rollback", "--to", "r0002", "--yes")
    assert named.returncode == 4 and "was rolled back from" in named.stdout
    unknown = site.run("rollback", "--to", "r0009", "--yes")
    assert unknown.returncode == 2 and "r0001" in unknown.stdout
    assert site.pids() == before


def test_a_deploy_that_stopped_half_way_is_told_and_finished(site: Site) -> None:
    site.write()
    site.good("provision")
    link = site.root("lab-w1") / "current"
    old = os.readlink(link)
    other = next(path for path in (site.root("lab-w1") / "releases").iterdir()
                 if path.is_dir() and path.name not in old)
    link.unlink()
    link.symlink_to(f"releases/{other.name}")
    done = site.run("status")
    assert done.returncode == 4 and "hosts use different releases" in done.stdout
    assert site.run("start").returncode == 4
    site.good("provision", "--yes")
    assert os.readlink(link) == old
    assert "nothing wrong found" in site.good("status")


def points_at(site: Site, host: str) -> str:
    return os.path.basename(os.readlink(site.root(host) / "current"))


def change_link(site: Site, host: str, digest: str) -> None:
    link = site.root(host) / "current"
    link.unlink()
    link.symlink_to(f"releases/{digest}")


@pytest.mark.full
def test_a_link_that_was_changed_by_hand_is_told_and_a_rollback_leaves_what_was_deployed_last(site: Site) -> None:
    site.write(context_length=57344)
    site.good("provision", "--yes")
    first = points_at(site, "lab-w1")
    site.write(context_length=40960)
    endpoint = endpoint_of(site.good("provision", "--yes"))
    second = points_at(site, "lab-w1")
    said = answer(endpoint)
    numbers = {row["digest"]: row["release"] for row in site.data("releases")}
    old, new = numbers[first[:12]], numbers[second[:12]]
    change_link(site, "lab-w1", first)
    done = site.run("status")
    assert done.returncode == 4 and f"lab-w1 was switched to {new}; its `current` was changed by hand" in done.stdout
    rehearsed = site.good("rollback", "--rehearse", "--yes")
    assert f"{new} -> {old}" in rehearsed and f"{new} was deployed last" in rehearsed, rehearsed
    back = site.good("rollback", "--yes")
    assert f"release {old}   was {new}" in back and "switched on 2 of 3" in back and "there on 1 already" in back, back
    assert {points_at(site, host) for host in HOSTS} == {first}
    assert {node["release"] for node in site.nodes().values()} == {old}
    assert {row["release"]: row["state"] for row in site.data("releases") if row["release"] in (old, new)} == {
        old: "current, good", new: "rolled back from"}
    assert answer(endpoint) == said
    for host in HOSTS:
        change_link(site, host, second)
    done = site.run("status")
    assert done.returncode == 4 and f"r1 runs {old}, and `current` names {new}" in " ".join(done.stdout.split())
    assert "`current` was changed by hand" in site.good("releases")
    site.good("provision", "--yes")
    assert {node["release"] for node in site.nodes().values()} == {new}
    assert "nothing wrong found" in site.good("status")


@pytest.mark.full
def test_where_the_one_before_cannot_start_the_next_that_can_is_offered_and_nothing_stops(site: Site) -> None:
    """Three good releases; the port of the middle one is taken by somebody else today."""
    site.write(context_length=49152)
    site.good("provision", "--yes")
    site.write(context_length=49152, port=8124)
    site.good("provision", "--yes")
    site.write(context_length=32768)
    endpoint = endpoint_of(site.good("provision", "--yes"))
    first, middle, last = [row["release"] for row in site.data("releases")[:3]][::-1]
    before, said = site.pids(), answer(endpoint)
    address = endpoint.removeprefix("http://").partition(":")[0]
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 8124))
        holder.listen()
        for words in (("rollback", "--yes"), ("rollback", "--rehearse")):
            done = site.run(*words)
            assert done.returncode == 4, done.stdout
            text = " ".join(done.stdout.split())
            assert f"{middle} cannot start today; nothing was stopped" in text, done.stdout
            assert "port 8124 is taken by process" in text, done.stdout
            assert f"{first} can start today: invoke rollback --to {first}" in text, done.stdout
        assert site.pids() == before and answer(endpoint) == said
        back = site.good("rollback", "--to", first, "--yes")
    assert f"release {first}   was {last}" in back
    assert answer(endpoint) == said
    assert site.data("releases")[0]["state"] == "rolled back from"


@pytest.mark.full
def test_a_spare_takes_a_nodes_place_by_name(site: Site) -> None:
    alone = {"recipe": "zai-org/GLM-5.1-FP8", "variant": "default", "strategy": "single_node_tp",
             "pipeline_parallel": None, "replicas": {"r1": ["lab-head"], "r2": ["lab-w1"]}}
    site.good("stop", "--yes")
    site.write(**alone)
    site.good("provision", "--yes")
    site.write(context_length=65536, **alone)
    site.good("provision", "--yes")
    for words, said in ((("lab-w1",), "OLD=SPARE"), (("lab-w1=lab-head",), "serves in a replica"),
                        (("lab-w9=lab-w2",), "lab-w9"), (("lab-w1=lab-w9",), "lab-w9")):
        wrong = site.run("rollback", *(part for word in words for part in ("--replace", word)), "--yes")
        assert wrong.returncode == 2 and said in wrong.stdout, wrong.stdout
    old = os.readlink(site.root("lab-w1") / "current")
    done = site.run("rollback", "--replace", "lab-w1=lab-w2", "--yes")
    assert done.returncode == 0, done.stdout
    assert "lab-w2 in the place of lab-w1" in done.stdout
    assert os.readlink(site.root("lab-w2") / "current") == os.readlink(site.root("lab-head") / "current") != old
    assert os.readlink(site.root("lab-w1") / "current") == old, "the node that was replaced is not contacted"
    site.good("stop", "--yes")
    site.write(**{**alone, "replicas": {"r1": ["lab-head"], "r2": ["lab-w2"]}})
    site.good("stop", "--yes")


def unreachable(site: Site, host: str) -> None:
    """Rewrite the inventory so that nobody listens where this machine is looked for."""
    own = {name: dict(values) for name, values in lab_variables(Project(site.folder)).items()}
    own[host]["ansible_port"] = free_port()
    path = site.folder / "inventory/lab.yml"
    tree = json.loads(path.read_text())
    tree["all"]["vars"]["bringup_lab"] = False
    for group in tree["all"]["children"].values():
        group["hosts"] = {name: own[name] for name in group["hosts"]}
    path.write_text(json.dumps(tree))


@pytest.mark.full
def test_a_replica_whose_node_is_dead_is_left_out_by_name_and_finished_later(site: Site) -> None:
    alone = {"recipe": "zai-org/GLM-5.1-FP8", "variant": "default", "strategy": "single_node_tp",
             "pipeline_parallel": None}
    site.good("stop", "--yes")
    site.write(**alone)
    site.good("provision", "--yes")
    first = os.readlink(site.root("lab-head") / "current")
    site.write(context_length=65536, **alone)
    site.good("provision", "--yes")
    second = os.readlink(site.root("lab-head") / "current")
    unreachable(site, "lab-w1")
    done = site.run("rollback", "--yes")
    assert done.returncode == 3, done.stdout
    assert "r2 is left out: lab-w1 is not in this run" in done.stdout, done.stdout
    assert [os.readlink(site.root(host) / "current") for host in HOSTS] == [first, second, first]
    site.write(context_length=65536, **alone)
    assert site.run("start", "--yes").returncode == 4, "hosts on different releases: nothing is started like that"
    again = site.good("rollback", "--yes")
    assert "finishes the rollback" in again and "on lab-w1" in again, again
    assert {os.readlink(site.root(host) / "current") for host in HOSTS} == {first}
    unreachable(site, "lab-w1")
    status = site.run("status")
    assert status.returncode == 3 and "2 of 2 replicas up; r2 not counted: lab-w1 not looked at" in status.stdout
    stopped = site.run("stop", "--yes")
    assert stopped.returncode == 3, stopped.stdout
    assert "r2 is left out, what runs of it runs on: lab-w1 is not in this run" in stopped.stdout, stopped.stdout
    site.write(**alone)
    assert {host: node["state"] for host, node in site.nodes().items()} == {
        "lab-head": "stopped", "lab-w1": "running", "lab-w2": "stopped"}
