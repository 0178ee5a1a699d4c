"""What watchers decide: a replica of three nodes in a time of its own, where processes end and nodes go and come."""

from __future__ import annotations

import copy

import pytest

from bringup.agent.watcher import deciding
from bringup.agent.watcher.deciding import DOWN, GIVEN_UP, OFF, WATCHING, Here, Memory, Peer, step

RELEASE, OTHER = "a" * 64, "b" * 64


class Node:
    """A node: its process, its watcher's memory, whether the others reach it."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.name = world, rank, f"gpu0{rank + 1}"
        self.here = Here("running", RELEASE, RELEASE)
        self.memory = Memory(0.0)
        self.reachable = self.watched = True
        self.broken = False
        self.spec = {"node": self.name, "node_rank": rank, "release": RELEASE, "generation": "g1", "silence": 30.0,
                     "restarts": 2, "start_limit": 600.0}
        self.started_at: list[float] = []

    def report(self) -> dict[str, object]:
        return {"phase": self.memory.phase, "cause": self.memory.cause, "attempt": self.memory.attempt,
                "generation": self.spec["generation"], "named": self.here.named, "runs": self.here.runs,
                "empty": self.here.empty}


class World:
    """Three nodes of one replica; a turn is two seconds."""

    def __init__(self, size: int = 3) -> None:
        self.now = 0.0
        self.nodes = [Node(self, rank) for rank in range(size)]
        self.peers = {node.rank: [Peer(other.name, other.rank, 0.0) for other in self.nodes if other is not node]
                      for node in self.nodes}
        self.alerts: list[tuple[str, str]] = []
        self.loads = 20.0  # seconds that a start takes

    def turn(self) -> None:
        self.now += 2
        reports = {node.rank: copy.deepcopy(node.report()) for node in self.nodes}
        for node in self.nodes:
            if not node.watched:
                continue
            for peer in self.peers[node.rank]:
                other = self.nodes[peer.node_rank]
                if other.reachable and other.watched and node.reachable:
                    peer.report, peer.heard = reports[peer.node_rank], self.now
            for action in step(node.memory, node.spec, node.here, self.peers[node.rank], self.serves(node), self.now):
                self.do(node, action)

    def serves(self, node: Node) -> bool | None:
        if node.rank:
            return None
        return all(n.here.runs and (not n.started_at or self.now - n.started_at[-1] >= self.loads)
                   for n in self.nodes)

    def do(self, node: Node, action: tuple[str, ...]) -> None:
        if action[0] == "stop":
            node.here.state, node.here.by_watcher, node.here.leftover, node.here.missing = "stopped", True, [], []
        elif action[0] == "start":
            node.started_at.append(self.now)
            node.here.by_watcher = False
            node.here.state = "exited" if node.broken else "running"
        elif action[0] == "alert":
            self.alerts.append((action[1], action[2]))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.turn()

    @property
    def phases(self) -> list[str]:
        return [node.memory.phase for node in self.nodes]


def test_nothing_is_done_while_all_is_well() -> None:
    world = World()
    world.run(600)
    assert world.phases == [WATCHING] * 3 and not world.alerts and not any(n.started_at for n in world.nodes)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_ends_takes_the_replica_down_and_all_start_together(rank: int) -> None:
    world = World()
    world.run(10)
    world.nodes[rank].here.state, world.nodes[rank].here.ended = "exited", "by signal 9"
    world.turn()
    world.turn()
    assert world.phases == [DOWN] * 3
    assert all(node.memory.cause == f"gpu0{rank + 1}: the process ended by signal 9" for node in world.nodes)
    world.run(60)
    assert world.phases == [WATCHING] * 3
    starts = [node.started_at for node in world.nodes]
    assert [len(times) for times in starts] == [1, 1, 1] and starts[0] <= starts[1] <= starts[2]
    assert [event for event, _ in world.alerts] == ["restarting", "restarted"]


def test_a_rank_process_that_is_gone_behind_a_living_launcher_counts() -> None:
    world = World()
    world.nodes[2].here.missing = ["4711 VLLM::Worker_TP3"]
    world.turn()
    world.turn()
    assert world.phases == [DOWN] * 3 and "4711 VLLM::Worker_TP3" in world.nodes[0].memory.cause
    world.run(60)
    assert world.phases == [WATCHING] * 3


def test_after_two_restarts_in_an_hour_it_stays_down() -> None:
    world = World()
    world.nodes[1].broken = True
    world.nodes[1].here.state = "exited"
    world.run(600)
    assert world.phases == [GIVEN_UP] * 3
    assert [len(node.started_at) for node in world.nodes][1] == 2
    assert [event for event, _ in world.alerts] == ["restarting", "restarting", "gave up"]
    world.nodes[1].broken = False
    world.run(4000)
    assert world.phases == [GIVEN_UP] * 3 and all(node.here.empty for node in world.nodes)


def test_restarts_of_another_hour_do_not_count() -> None:
    world = World()
    for _ in range(3):
        world.nodes[1].here.state = "exited"
        world.run(4000)
        assert world.phases == [WATCHING] * 3
    assert len(world.nodes[0].started_at) == 3


def test_a_node_that_is_gone_is_waited_for() -> None:
    world = World()
    world.run(10)
    world.nodes[2].reachable = False
    world.run(20)
    assert world.phases[:2] == [WATCHING] * 2, "a short silence is no end"
    world.run(20)
    assert world.phases[:2] == [DOWN] * 2 and "gpu03: its watcher has been silent" in world.nodes[0].memory.cause
    world.run(600)
    assert world.phases[:2] == [DOWN] * 2 and not world.nodes[0].started_at
    assert [event for event, _ in world.alerts] == ["waits", "waits"] or [e for e, _ in world.alerts] == ["waits"]
    # it was rebooted, and is back
    world.nodes[2].reachable = True
    world.nodes[2].here.state, world.nodes[2].here.ended = "exited", "(the host was rebooted)"
    world.run(60)
    assert world.phases == [WATCHING] * 3 and len(world.nodes[0].started_at) == 1


def test_a_node_that_missed_a_rollback_starts_nothing() -> None:
    world = World()
    late = world.nodes[2]
    late.reachable = False
    for node in world.nodes[:2]:  # the others went back to another release, set up anew
        node.spec.update(release=OTHER, generation="g2")
        node.here = Here("running", OTHER, OTHER)
        node.memory = Memory(world.now)
    world.run(40)
    late.reachable = True
    late.here.state, late.here.ended = "exited", "(the host was rebooted)"
    world.run(600)
    assert not any(node.started_at for node in world.nodes)
    assert "for an operator" in world.nodes[0].memory.waits and "gpu03" in world.nodes[0].memory.waits


def test_what_an_operator_stops_stays_stopped_and_the_rest_of_the_replica_with_it() -> None:
    world = World()
    world.nodes[1].here.state = "stopped"
    world.run(600)
    assert world.phases[1] == OFF and world.phases[0] == DOWN and world.phases[2] == DOWN
    assert not any(node.started_at for node in world.nodes)
    assert "gpu02: stopped by an operator" in world.nodes[0].memory.cause


def test_another_release_of_an_operators_is_left_alone() -> None:
    world = World()
    for node in world.nodes:
        node.here = Here("running", OTHER, OTHER)
    world.run(100)
    assert world.phases == [OFF] * 3 and all(node.here.runs for node in world.nodes)


def test_one_node_alone_restarts_itself() -> None:
    world = World(size=1)
    world.nodes[0].here.state = "exited"
    world.run(60)
    assert world.phases == [WATCHING] and len(world.nodes[0].started_at) == 1


def test_a_start_that_never_serves_is_ended_and_tried_once_more() -> None:
    world = World()
    world.loads = 1e9
    world.nodes[0].here.state = "exited"
    world.run(2000)
    assert world.phases == [GIVEN_UP] * 3
    assert [len(node.started_at) for node in world.nodes] == [2, 2, 2]
    assert "not ready" in world.nodes[0].memory.cause


def test_what_is_left_behind_is_ended_before_anything_starts() -> None:
    world = World()
    node = world.nodes[1]
    node.here.state, node.here.leftover = "exited", [99]
    world.turn()
    assert node.here.leftover == [] and node.here.by_watcher
    world.run(60)
    assert world.phases == [WATCHING] * 3


def test_a_watcher_that_comes_back_goes_on_where_it_was() -> None:
    world = World()
    world.nodes[1].broken = True
    world.nodes[1].here.state = "exited"
    world.run(16)
    kept = {node.rank: node.memory.kept() for node in world.nodes}
    for node in world.nodes:
        node.memory = Memory(world.now, kept[node.rank])
    world.run(600)
    assert world.phases == [GIVEN_UP] * 3 and len(world.nodes[1].started_at) == 2


def test_a_worker_does_not_start_before_the_head_and_lower_ranks() -> None:
    world = World()
    world.nodes[0].here.state = "exited"
    while not world.nodes[2].started_at:
        world.turn()
        assert world.now < 100
    assert world.nodes[0].started_at and world.nodes[1].started_at
    assert world.nodes[0].started_at[0] < world.nodes[1].started_at[0] < world.nodes[2].started_at[0]


def test_settling_time_is_kept() -> None:
    world = World(size=1)
    world.nodes[0].here.state = "exited"
    world.turn()
    down = world.now
    while not world.nodes[0].started_at:
        world.turn()
    assert world.nodes[0].started_at[0] - down >= deciding.SETTLE
