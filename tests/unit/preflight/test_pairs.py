"""Who is measured with whom, whose fault a slow pair is, and the measuring itself over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from preflight_hosts import bad, by_check, change, findings_of, fleet, sample

from bringup.agent import questions, questions_load, questions_pair
from bringup.agent.lock import Lock
from bringup.base.verdicts import Verdict
from bringup.preflight.between import _read
from bringup.preflight.checks.pairs import tables
from bringup.preflight.facts import Facts
from bringup.preflight.judge import Chosen
from bringup.preflight.pairs import Pair, again, blame, matrix, rounds, sound
from bringup.preflight.registry import View
from bringup.preflight.report import lines

DEEP = Chosen("deep", only=("net.bandwidth", "net.latency", "rdma.bandwidth", "rdma.latency"))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16, 33])
def test_no_link_is_measured_twice_at_once(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    made = rounds(hosts)
    for one in made:
        names = [host for pair in one for host in pair]
        assert len(names) == len(set(names))
    pairs = [pair for one in made for pair in one]
    assert len(pairs) == len(set(pairs))
    assert all((other, own) in pairs for own, other in pairs)
    partners = {host: {other for own, other in pairs if own == host} for host in hosts}
    wanted = min(count - 1, 7)
    assert all(len(found) >= wanted - 1 for found in partners.values())
    if count <= 8:
        assert all(len(found) == count - 1 for found in partners.values())


def ways(hosts: str, slow: set[str] | None = None, pairs: set[Pair] | None = None) -> tuple[list[Pair], list[Pair]]:
    every = [(one, other) for one in hosts for other in hosts if one != other]
    return [pair for pair in every if set(pair) & (slow or set()) or pair in (pairs or set())], every


@pytest.mark.parametrize(("slow", "pairs", "hosts", "left"), [
    ({"c"}, set(), ["c"], []),
    ({"b", "d"}, set(), ["b", "d"], []),
    (set(), {("a", "b")}, [], [("a", "b")]),
    (set(), {("a", "b"), ("b", "a")}, [], [("a", "b"), ("b", "a")]),
    ({"c"}, {("a", "b")}, ["c"], [("a", "b")]),
    (set(), set(), [], []),
])
def test_a_bad_host_is_told_from_a_bad_pair(slow: set[str], pairs: set[Pair], hosts: list[str], left: list[Pair]
                                            ) -> None:
    wrong, every = ways("abcdef", slow, pairs)
    assert blame(wrong, every) == (hosts, left)


def test_of_two_hosts_nobody_can_tell() -> None:
    wrong, every = ways("ab", {"a"})
    assert blame(wrong, every) == ([], wrong)


def test_of_three_hosts_one_bad_one_is_found() -> None:
    speeds = {pair: 1.0 if "c" in pair else 20.0 for pair in ways("abc")[1]}
    usual = sound(list(speeds.values()))
    assert usual == 20.0
    assert blame([pair for pair, speed in speeds.items() if speed < 10], list(speeds)) == (["c"], [])
    assert sound([40.0, 0.1, 40.1, 0.1, 40.0, 40.2], less=True) == 0.1


def test_suspects_are_measured_again_with_sound_partners() -> None:
    hosts = list("abcdef")
    made = [pair for one in again([("a", "b")], [("c", "d")], hosts) for pair in one]
    assert ("a", "b") in made
    assert any("a" in pair and set(pair) & set("cdef") for pair in made)
    assert any("b" in pair and set(pair) & set("cdef") for pair in made)
    for one in again([("a", "b"), ("b", "a"), ("c", "d")], [], hosts):
        names = [host for pair in one for host in pair]
        assert len(names) == len(set(names))


def measured(values: Mapping[Pair, Mapping[str, Any]], probe: str = "pair.tcp") -> list[View]:
    names = sorted({host for pair in values for host in pair})
    answers, needs = fleet(names)
    for host in names:
        mine = {other: one for (own, other), one in values.items() if own == host}
        answers[host] = change(answers[host], probe, json.dumps(mine))
    return [View(Facts(answers[host]), needs[host]) for host in names]


def found_of(views: list[View]) -> list[Any]:
    answers = {view.host: view.facts.answers for view in views}
    return findings_of(answers, {view.host: view.need for view in views}, DEEP)


def test_a_slow_host_and_a_slow_pair_over_tcp() -> None:
    every = ways("abcd")[1]
    names = dict(zip("abcd", ("gpu01", "gpu02", "gpu03", "gpu04"), strict=True))
    speed = {pair: {"gbits": 2.0 if "c" in pair else 20.0, "rtt_us": 40.0} for pair in every}
    speed[("a", "b")] = {"gbits": 3.0, "rtt_us": 5000.0}
    views = measured({(names[one], names[other]): value for (one, other), value in speed.items()})
    found = found_of(views)
    assert set(bad(found)) == {("gpu03", "net.bandwidth"), ("gpu01 > gpu02", "net.bandwidth"),
                               ("gpu01 > gpu02", "net.latency")}
    assert "this host, not its partners" in bad(found)[("gpu03", "net.bandwidth")].summary
    assert "this pair" in bad(found)[("gpu01 > gpu02", "net.bandwidth")].summary


def test_rdma_below_its_rate_and_broken_ports() -> None:
    good = {"links": {f"mlx5_{n}": {"rate": 400, "gbits": 391.0, "micros": 2.3} for n in range(8)}}
    slow = {"links": {**good["links"], "mlx5_5": {"rate": 400, "gbits": 98.0, "micros": 31.0}}}
    values: dict[Pair, Mapping[str, Any]] = {}
    for one, other in ways("abcd")[1]:
        values[(f"gpu{one}", f"gpu{other}")] = slow if "b" in (one, other) else good
    found = found_of(measured(values, "pair.rdma"))
    worse = bad(found)
    assert ("gpub", "rdma.bandwidth") in worse and worse[("gpub", "rdma.bandwidth")].verdict is Verdict.FAIL
    assert "mlx5_5 98 of 400 Gb/s" in worse[("gpub", "rdma.bandwidth")].summary
    assert not [key for key in worse if key[1] == "rdma.bandwidth" and key[0] != "gpub"]
    assert {one.verdict for one in by_check(found, "rdma.latency")} == {Verdict.PASS, Verdict.WARN}
    lost = {"links": {"mlx5_0": {"rate": 400, "error": "Couldn't connect to 192.0.2.12:18515"}}}
    one = bad(found_of(measured({("gpua", "gpub"): lost}, "pair.rdma")))[("gpua > gpub", "rdma.bandwidth")]
    assert "Couldn't connect" in one.summary


def test_without_the_tools_rdma_is_skipped_with_the_reason() -> None:
    none = {"links": {}, "error": "no ib_write_bw here"}
    found = by_check(found_of(measured({("gpua", "gpub"): none}, "pair.rdma")), "rdma.bandwidth")
    assert [one.verdict for one in found if one.subject == "gpua > gpub"] == [Verdict.SKIP]


def test_the_matrix_in_a_report() -> None:
    views = measured({pair: {"gbits": 20.04, "rtt_us": 31.6} for pair in (("gpu01", "gpu02"), ("gpu02", "gpu01"))})
    made = tables(views)
    assert made["TCP Gb/s"] == [("from \\ to", "gpu01", "gpu02"), ("gpu01", ".", "20.0"), ("gpu02", "20.0", ".")]
    text = lines([], made, width=80)
    assert "  gpu01          .   20.0" in text
    names = [f"node{number:02d}" for number in range(40)]
    wide = matrix(names, {(one, other): "19.5" for one in names for other in names if one != other})
    short = lines([], {"TCP Gb/s": wide}, width=80)
    assert all(len(line) <= 80 for line in short)
    assert "node07 19.5 to 19.5" in [" ".join(line.split()) for line in short]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_two_sides_measure_each_other() -> None:
    given = {"address": "127.0.0.1", "port": free_port(), "seconds": 6, "stream": 0.4}
    heard: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: heard.update(questions.answer("listen", given)))
    thread.start()
    said = json.loads(questions.answer("dial", given)["stdout"])
    thread.join(10)
    assert not thread.is_alive()
    assert said["gbits"] > 0.5 and 0 < said["rtt_us"] < 50000
    came = json.loads(heard["stdout"])
    assert came["connections"] == questions_pair.STREAMS + 1
    assert came["bytes"] * 8 / 1e9 >= said["gbits"] * 0.4 * 0.9


def test_a_side_that_is_not_there_and_a_port_that_is_taken(tmp_path: Path) -> None:
    given = {"address": "127.0.0.1", "port": free_port(), "seconds": 2}
    assert "refused" in json.loads(questions.answer("dial", given)["stdout"])["error"]
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        taken = {**given, "port": sock.getsockname()[1]}
        assert "in use" in json.loads(questions.answer("listen", taken)["stdout"])["error"]
    lock = Lock(str(tmp_path))
    lock.prepare()
    assert lock.take() is not False
    held = {**given, "root": str(tmp_path)}
    for ask in ("listen", "dial", "perftest"):
        assert "another run" in json.loads(questions.answer(ask, {**held, "tool": "ib_write_bw"})["stdout"])["error"]
    assert questions.answer("collective", {"root": str(tmp_path)})["skipped"] == "another run holds this host"


def test_commands_of_perftest() -> None:
    link = {"device": "mlx5_2", "port": 29902, "gid": 3}
    assert questions_pair.perftest_argv("/usr/bin/ib_write_bw", link, "192.0.2.12") == [
        "/usr/bin/ib_write_bw", "-d", "mlx5_2", "-F", "-p", "29902", "-x", "3", "-s", "8388608", "-D", "2",
        "--report_gbits", "192.0.2.12"]
    assert "-x" not in questions_pair.perftest_argv("/usr/bin/ib_write_lat", {**link, "gid": None}, "")
    said = json.loads(questions.answer("perftest", {"tool": "ib_no_such_tool", "links": []})["stdout"])
    assert said["error"] == "no ib_no_such_tool here"
    assert _read({"rc": 0, "text": sample("ib/ib_write_bw-roce-server.txt")}) == {"gbits": 388.73}
    assert "error" in _read({"rc": 1, "text": "Couldn't connect to 192.0.2.1:18515"})


def test_reading_a_disk(tmp_path: Path) -> None:
    assert "no file" in questions.answer("disk_read", {"path": str(tmp_path)})["skipped"]
    (tmp_path / "model-00001.safetensors").write_bytes(b"\1" * (65 << 20))
    found = json.loads(questions.answer("disk_read", {"path": str(tmp_path)})["stdout"])
    assert found["bytes"] == 65 << 20 and found["seconds"] > 0


def test_a_measuring_command_that_hangs_is_ended_with_its_children() -> None:
    rc, text = questions_load._outputs([["sh", "-c", "echo begun; sleep 300 & wait"], ["sh", "-c", "exit 0"]], 1.0)
    assert rc == 124 and "begun" in text and "no end within 1 s" in text
    both = [["sh", "-c", "echo one; sleep 300"], ["sh", "-c", "echo why >&2; exit 3"]]
    rc, text = questions_load._outputs(both, 12.0)
    assert rc == 3 and "why" in text
