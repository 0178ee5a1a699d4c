"""What status finds, and what a start decides, from nodes as they were seen."""

from __future__ import annotations

from typing import Any

import pytest

from bringup.releases.document import Release
from bringup.releases.ending import how_many_up
from bringup.releases.history import Entry, History
from bringup.releases.starting import decide
from bringup.releases.survey import Node, ReplicaView, Survey, findings
from bringup.serving.probing import Probe

A, B = "a" * 64, "b" * 64
SERVES = Probe(200, ("glm",), True, None, "token", 0.1, "glm")
HEALTH = Probe(200, ("glm",), False, None, "models", 0.1, "glm")
NOTHING = Probe(None, (), False, "Connection refused", "health", 0.1, "glm")


def node(host: str, state: str = "running", **more: Any) -> Node:
    given: dict[str, Any] = {"release": A, "pid": 1, "ranks": (0,), "ready": True, "role": "head" if host == "g1"
                             else "worker", **more}
    return Node(host, f"r1-{host}", state, **given)


def view(*nodes: Node, probe: Probe | None = SERVES) -> ReplicaView:
    return ReplicaView("r1", {n.host: n for n in nodes}, probe)


def found(replica: ReplicaView, current: dict[str, str | None] | None = None) -> list[tuple[str, str]]:
    history = History((), current or {"g1": A, "g2": A})
    return [(f.check, f.subject) for f in findings(Survey({"r1": replica}, history, {})) if f.blocks]


def test_nothing_is_wrong_with_a_replica_that_serves() -> None:
    assert found(view(node("g1"), node("g2"))) == []


@pytest.mark.parametrize(("replica", "wrong"), [
    (view(node("g1"), node("g2", "exited", exit={"signal": 9}), probe=HEALTH), [("process.dead", "g2")]),
    (view(node("g1"), node("g2", missing=("7 VLLM::Worker",)), probe=HEALTH), [("process.rank", "g2")]),
    (view(node("g1"), node("g2", "stopped")), [("process.absent", "g2")]),
    (view(node("g1"), node("g2", release=B)), [("release.running", "g1")]),
    (view(node("g1"), node("g2"), probe=NOTHING), [("endpoint", "g1")]),
    (view(node("g1", "stopped"), node("g2", "stopped"), probe=None), [("endpoint", "g1")]),
    (view(node("g1"), node("g2", "unreachable")), [("process.unknown", "g2")]),
    (view(node("g1", "exited", leftover=("9 sleep",)), node("g2")), [("process.dead", "g1"),
                                                                    ("process.leftover", "g1")]),
])
def test_what_is_wrong_is_named(replica: ReplicaView, wrong: list[tuple[str, str]]) -> None:
    assert found(replica) == wrong


@pytest.mark.parametrize(("ready", "text"), [
    (True, "is dead: it ended with status 2"), (False, "is dead: it ended with status 2, before it was ready")])
def test_a_start_that_failed_is_told_from_a_rank_that_died(ready: bool, text: str) -> None:
    dead = view(node("g1", "exited", exit={"code": 2}, ready=ready), node("g2", "stopped"), probe=None)
    finding = findings(Survey({"r1": dead}, History((), {"g1": A, "g2": A}), {}))[0]
    assert finding.check == "process.dead" and finding.summary.endswith(text)


def test_a_mix_of_releases_in_use_is_named() -> None:
    assert found(view(node("g1"), node("g2")), {"g1": A, "g2": B}) == [("release.mixed", "g[1-2]")]


def test_a_replica_that_runs_another_release_than_the_links_name_is_told() -> None:
    assert found(view(node("g1"), node("g2")), {"g1": B, "g2": B}) == [("release.running", "g[1-2]")]
    assert found(view(node("g1"), node("g2", "stopped")), {"g1": B, "g2": B}) == [
        ("process.absent", "g2"), ("release.running", "g1")]
    by_hand = History((), {"g1": A, "g2": B}, by_hand={"g2": A})
    mixed, = findings(Survey({"r1": view(node("g1"), node("g2"))}, by_hand, {}))
    assert mixed.check == "release.mixed" and "its `current` was changed by hand" in mixed.details[0]


@pytest.mark.parametrize(("unseen", "text"), [
    ({"r1": [], "r2": []}, "1 of 2 replicas up"),
    ({"r1": [], "r2": ["g3", "g4"]}, "1 of 1 replica up; r2 not counted: g[3-4] not looked at"),
    ({"r1": ["g2"]}, "r1 not counted: g2 not looked at"),
    ({f"r{n}": [f"g{n}"] for n in range(1, 8)}, "r1, r2, r3, r4 and 3 more not counted: g[1-7] not looked at"),
])
def test_a_replica_that_was_not_wholly_looked_at_is_not_counted_as_up(unseen: dict[str, list[str]], text: str) -> None:
    whole = sum(not hosts for hosts in unseen.values())
    assert how_many_up(min(1, whole), whole, unseen) == text


@pytest.mark.parametrize(("replica", "what"), [
    (view(node("g1"), node("g2")), "keep"),
    (view(node("g1", "stopped"), node("g2", "absent"), probe=None), "start"),
    (view(node("g1", ready=False), node("g2", ready=False), probe=NOTHING), "join"),
    (view(node("g1"), node("g2"), probe=NOTHING), "replace"),
    (view(node("g1", release=B), node("g2", release=B)), "replace"),
    (view(node("g1"), node("g2", "exited"), probe=HEALTH), "replace"),
    (view(node("g1", "exited", leftover=("9 x",)), node("g2", "stopped"), probe=None), "replace"),
])
def test_what_a_start_does(replica: ReplicaView, what: str) -> None:
    assert decide(replica, A, {"g1": A, "g2": A}).what == what


def test_a_restart_replaces_what_serves_and_starts_what_does_not_run() -> None:
    assert decide(view(node("g1"), node("g2")), A, {"g1": A, "g2": A}, restart=True).what == "replace"
    stopped = view(node("g1", "stopped"), node("g2", "stopped"), probe=None)
    assert decide(stopped, A, {"g1": A, "g2": A}, restart=True).what == "start"


@pytest.mark.parametrize(("reason", "wrong"), [
    ("its contract failed: contract.tools.structured on r1", [("release.bad", "g[1-2]")]),
    ("g2: a port is taken", []),  # it serves by now: what kept it from starting is past
])
def test_a_release_in_use_that_failed_its_contract_is_named(reason: str, wrong: list[tuple[str, str]]) -> None:
    entry = Entry(A, 2, Release({}, {}), "bad", 1.0, "ops", 2.0, None, ("g1", "g2"), ("g1", "g2"), (), reason)
    survey = Survey({"r1": view(node("g1"), node("g2"))}, History((entry,), {"g1": A, "g2": A}), {})
    assert [(f.check, f.subject) for f in findings(survey) if f.blocks] == wrong
