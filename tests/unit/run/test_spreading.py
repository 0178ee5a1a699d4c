"""Trees of files from host to host: real jobs and sockets of this machine, hosts are folders of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "serving"))
from local_fleet import LocalFleet

from bringup.agent.transfer.tree import PARTS, checked, listed
from bringup.agent.transfer.wire import Link, Trouble
from bringup.base.events import Note
from bringup.base.results import Result, Status
from bringup.run.spreading import Spread, spread, tree_levels

HOSTS = ("n1", "n2", "n3", "n4")
MB = 1 << 20


class Rig:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.fleet = LocalFleet(base, HOSTS, {"cluster_address": "127.0.0.1", "ansible_host": "127.0.0.1"})
        self.name = "t-" + secrets.token_hex(4)

    def folder(self, host: str) -> Path:
        return self.base / "data" / host / "tree"

    def spread(self, **given: Any) -> dict[str, Result]:
        wanted: dict[str, Any] = {"name": self.name, "path": {h: str(self.folder(h)) for h in HOSTS}, "source": "n1",
                                  "takers": HOSTS[1:], "patience": 5.0, **given}
        for host in HOSTS:
            self.folder(host).parent.mkdir(parents=True, exist_ok=True)
        return spread(self.fleet, Spread(**wanted))

    def fill(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            path = self.folder("n1") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(size))

    def end(self) -> None:
        from bringup.run.actions import Call

        self.fleet.call({host: Call("tree_transfer", {"action": "end", "transfer": self.name, "path": "/"})
                         for host in HOSTS})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.end()


def same(one: Path, other: Path) -> bool:
    return listed(str(one)) == listed(str(other)) and all(
        (one / entry["path"]).read_bytes() == (other / entry["path"]).read_bytes()
        for entry in listed(str(one)) if entry["kind"] == "file")


def test_every_host_has_the_tree_with_modes_links_and_empty_folders(rig: Rig) -> None:
    rig.fill({"a.bin": 3 * MB + 7, "deep/er/b.bin": 5, "empty": 0})
    (rig.folder("n1") / "deep/er/b.bin").chmod(0o755)
    (rig.folder("n1") / "link").symlink_to("deep/er/b.bin")
    (rig.folder("n1") / "nothing").mkdir()
    results = rig.spread()
    assert {host: results[host].status for host in HOSTS[1:]} == dict.fromkeys(HOSTS[1:], Status.CHANGED), results
    for host in HOSTS[1:]:
        assert same(rig.folder("n1"), rig.folder(host)), host
        assert os.readlink(rig.folder(host) / "link") == "deep/er/b.bin"
        assert os.listdir(rig.folder(host).parent) == ["tree"]
    again = rig.spread()
    assert {again[host].status for host in HOSTS[1:]} == {Status.OK}


def test_many_small_files_over_many_streams_come_once_each(rig: Rig) -> None:
    rig.fill({f"{index}.bin": 100 + index for index in range(300)})
    results = rig.spread(takers=("n2",), streams=16)
    assert same(rig.folder("n1"), rig.folder("n2"))
    assert results["n2"].data["received"] == sum(100 + index for index in range(300))
    assert not (rig.folder("n2") / ".bringup-aside").exists()


def test_the_tree_gives_each_host_its_parents_nearest_first() -> None:
    levels = tree_levels("s", ["a", "b", "c", "d", "e", "f", "g"], 2)
    assert levels == [[("a", ["s"]), ("b", ["s"])],
                      [("c", ["a", "s"]), ("d", ["b", "s"]), ("e", ["a", "s"]), ("f", ["b", "s"])],
                      [("g", ["c", "a", "s"])]]
    assert tree_levels("s", [], 2) == []


def test_what_is_there_already_is_not_sent_again(rig: Rig) -> None:
    rig.fill({"a.bin": MB, "b.bin": MB})
    there = rig.folder("n2")
    there.mkdir(parents=True)
    (there / "a.bin").write_bytes((rig.folder("n1") / "a.bin").read_bytes())
    (there / "own.txt").write_text("kept")
    results = rig.spread(takers=("n2",))
    assert results["n2"].data["received"] == MB
    assert (there / "own.txt").read_text() == "kept"


def test_a_cut_file_goes_on_where_it_was_cut_and_one_that_is_wrong_begins_anew(rig: Rig) -> None:
    rig.fill({"a.bin": 4 * MB, "b.bin": 4 * MB})
    parts = rig.folder("n2").parent / ".tree.bringup-new" / PARTS
    parts.mkdir(parents=True)
    (parts / "a.bin").write_bytes((rig.folder("n1") / "a.bin").read_bytes()[:3 * MB])
    (parts / "b.bin").write_bytes(b"\0" * 3 * MB)
    results = rig.spread(takers=("n2",))
    assert same(rig.folder("n1"), rig.folder("n2"))
    assert results["n2"].data["received"] == 5 * MB


def test_a_file_that_is_named_again_is_replaced_and_the_old_one_kept_aside(rig: Rig) -> None:
    rig.fill({"a.bin": 1000})
    there = rig.folder("n2")
    there.mkdir(parents=True)
    (there / "a.bin").write_bytes(b"x" * 1000)
    results = rig.spread(takers=("n2",), again={"n2": ["a.bin"]})
    assert results["n2"].status is Status.CHANGED
    assert (there / "a.bin").read_bytes() == (rig.folder("n1") / "a.bin").read_bytes()
    kept = list((there / ".bringup-aside").iterdir())
    assert [path.read_bytes() for path in kept] == [b"x" * 1000]


def test_the_rate_holds_and_a_run_that_comes_back_finds_the_copying(rig: Rig) -> None:
    rig.fill({f"{index}.bin": MB for index in range(6)})
    first: list[dict[str, Result]] = []
    thread = threading.Thread(target=lambda: first.append(rig.spread(takers=("n2",), rate=2 * MB)))
    started = time.monotonic()
    thread.start()
    staging = rig.folder("n2").parent / ".tree.bringup-new"
    while not staging.is_dir() and time.monotonic() - started < 60:
        time.sleep(0.05)
    second = rig.spread(takers=("n2",), rate=2 * MB)
    thread.join()
    assert time.monotonic() - started > 2.0
    assert first[0]["n2"].data["received"] == 6 * MB == second["n2"].data["received"]
    assert first[0]["n2"].data["pid"] == second["n2"].data["pid"]
    assert second["n2"].status is Status.CHANGED


class Interrupted(Exception):
    pass


def interrupted(rig: Rig, **given: Any) -> None:
    """A run that is cut off while its copying goes on: what it started stays."""
    def told(host: str, state: Mapping[str, Any]) -> None:
        if host == "n2":
            raise Interrupted()

    rig.folder("n2").parent.mkdir(parents=True, exist_ok=True)
    with pytest.raises(Interrupted):
        spread(rig.fleet, Spread(name=rig.name, path={h: str(rig.folder(h)) for h in HOSTS}, source="n1",
                                 takers=("n2",), patience=30.0, rate=MB, **given), told)


def killed(rig: Rig, host: str) -> Path:
    """End a host's part and its supervisor as a power cut does; the folder of its job."""
    folder = Path(str(rig.fleet.paths(host).root)) / "jobs" / f"transfer-{rig.name}"
    job = json.loads((folder / "job.json").read_text())
    for pid in (job["supervisor"], job["pid"]):
        os.kill(pid, signal.SIGKILL)
    return folder


def test_a_start_that_an_interrupted_run_left_half_done_is_begun_again(rig: Rig) -> None:
    rig.fill({f"{index}.bin": MB for index in range(4)})
    interrupted(rig)
    folder = killed(rig, "n2")
    job = json.loads((folder / "job.json").read_text())
    for name in ("supervisor", "supervisor_started", "pid", "started", "began"):
        del job[name]
    (folder / "job.json").write_text(json.dumps({**job, "asked": time.time()}))
    result = rig.spread(takers=("n2",), rate=MB)["n2"]
    assert result.status is Status.CHANGED, result
    assert same(rig.folder("n1"), rig.folder("n2"))


@pytest.mark.parametrize("host", ["n1", "n2"])
def test_a_copying_that_ends_while_it_is_followed_again_is_begun_again(rig: Rig, host: str) -> None:
    rig.fill({f"{index}.bin": MB for index in range(4)})
    interrupted(rig)
    died: list[str] = []

    def told(seen: str, state: Mapping[str, Any]) -> None:
        if not died:
            died.append(host)
            killed(rig, host)

    result = spread(rig.fleet, Spread(name=rig.name, path={h: str(rig.folder(h)) for h in HOSTS}, source="n1",
                                      takers=("n2",), patience=30.0, rate=MB), told)["n2"]
    assert died and result.status is Status.CHANGED, result
    assert same(rig.folder("n1"), rig.folder("n2"))


def test_a_copying_that_was_begun_with_another_rate_is_not_followed(rig: Rig) -> None:
    rig.fill({f"{index}.bin": MB for index in range(4)})
    interrupted(rig)
    before = json.loads((Path(str(rig.fleet.paths("n2").root)) / "state/transfers" / rig.name /
                         "state.json").read_text())
    result = rig.spread(takers=("n2",), rate=64 * MB)["n2"]
    assert result.status is Status.CHANGED and result.data["pid"] != before["pid"]
    assert same(rig.folder("n1"), rig.folder("n2"))


def test_a_host_in_the_middle_of_the_tree_dies_and_those_below_take_from_the_one_above(rig: Rig) -> None:
    rig.fill({f"{index}.bin": MB for index in range(6)})
    done: list[dict[str, Result]] = []
    thread = threading.Thread(target=lambda: done.append(rig.spread(takers=("n2", "n3"), rate=2 * MB, fan_out=1,
                                                                    patience=60.0)))
    thread.start()
    state = Path(str(rig.fleet.paths("n2").root)) / "state/transfers" / rig.name / "state.json"
    below = rig.folder("n3").parent / ".tree.bringup-new"
    end = time.monotonic() + 60
    while not below.is_dir() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
    thread.join()
    assert done[0]["n2"].status is Status.FAILED and "ended" in done[0]["n2"].message
    assert done[0]["n3"].status is Status.CHANGED, done[0]["n3"]
    assert same(rig.folder("n1"), rig.folder("n3"))
    again = rig.spread(takers=("n2", "n3"))
    assert again["n2"].status is Status.CHANGED and same(rig.folder("n1"), rig.folder("n2"))


def test_hosts_that_do_not_reach_each_other_take_through_the_controller(rig: Rig) -> None:
    rig.fill({"a.bin": 5 * MB, "d/b.bin": 10, "c.bin": 0})
    results = rig.spread(takers=("n2", "n3"), direct=False)
    assert {results[host].status for host in ("n2", "n3")} == {Status.CHANGED}, results
    assert results["n2"].data["source"] == "the controller"
    assert same(rig.folder("n1"), rig.folder("n2")) and same(rig.folder("n1"), rig.folder("n3"))


def test_a_source_that_cannot_listen_gives_through_the_controller_and_it_is_said(rig: Rig) -> None:
    rig.fill({"a.bin": 5 * MB})
    rig.fleet._variables["cluster_address"] = "198.18.255.254"  # no address of this machine
    results = rig.spread(takers=("n2",))
    assert results["n2"].status is Status.CHANGED and results["n2"].data["source"] == "the controller", results
    assert same(rig.folder("n1"), rig.folder("n2"))
    told = [event.text for event in rig.fleet.events if isinstance(event, Note)]
    assert told == ["takes through the controller: cannot listen on 198.18.255.254: Cannot assign requested address"]


def test_no_room_is_said_before_anything_is_written(rig: Rig) -> None:
    rig.fill({"a.bin": 10})
    entries = [{"path": "a.bin", "kind": "file", "size": 1 << 60, "mode": 0o644}]
    results = rig.spread(takers=("n2",), entries=entries, direct=False)
    assert results["n2"].data["kind"] == "space"
    assert results["n2"].data["needed"] > 1 << 60 > results["n2"].data["free"]
    assert not rig.folder("n2").parent.joinpath(".tree.bringup-new").exists()


@pytest.fixture
def disks() -> Iterator[Callable[[Path, int], None]]:
    """Small disks of their own, mounted on folders."""
    mounted: list[Path] = []

    def mount(folder: Path, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def filled(folder: Path) -> Path:
    """A neighbour's file that takes what is left of a disk."""
    path = folder / "neighbour"
    with pytest.raises(OSError, match="No space left"), open(path, "wb", buffering=0) as handle:
        while True:
            handle.write(bytes(MB))
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as handle:
        while True:
            handle.write(bytes(512))
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, needs root")
@pytest.mark.parametrize("place", ["data", "state"])
def test_a_disk_that_becomes_full_on_the_way_is_named_and_the_next_try_goes_on(
        rig: Rig, disks: Callable[[Path, int], None], place: str) -> None:
    rig.fill({f"{index}.bin": MB for index in range(8)})
    root = Path(str(rig.fleet.paths("n2").root))
    disk = rig.folder("n2").parent if place == "data" else root
    disks(disk, 90)
    neighbours: list[Path] = []

    def told(host: str, state: Mapping[str, Any]) -> None:
        if host == "n2" and not neighbours and int(state.get("received") or 0) >= 2 * MB:
            neighbours.append(filled(disk))

    def go(told: Any = None) -> dict[str, Result]:
        return spread(rig.fleet, Spread(name=rig.name, path={h: str(rig.folder(h)) for h in HOSTS}, source="n1",
                                        takers=("n2", "n3"), patience=30.0, rate=2 * MB, fan_out=1), told)

    first = go(told)
    assert first["n2"].status is Status.FAILED and first["n2"].data["kind"] == "space", first["n2"]
    assert "no space is left under" in first["n2"].message and str(disk) in first["n2"].message
    assert first["n3"].status is Status.CHANGED, first["n3"]
    neighbours[0].unlink()
    second = go()
    assert second["n2"].status is Status.CHANGED, second["n2"]
    assert second["n2"].data["received"] <= 6 * MB, "what came stayed"
    assert same(rig.folder("n1"), rig.folder("n2"))


def test_check_mode_says_what_would_come_and_writes_nothing(rig: Rig) -> None:
    rig.fill({"a.bin": 10})
    rig.fleet.check = True
    results = rig.spread(takers=("n2",))
    assert results["n2"].status is Status.CHANGED and results["n2"].data["missing"] == 1
    assert list(rig.folder("n2").parent.iterdir()) == []


def test_check_mode_does_not_take_a_copying_that_is_under_way_for_done(rig: Rig) -> None:
    rig.fill({"a.bin": 4 * MB})
    thread = threading.Thread(target=lambda: rig.spread(takers=("n2",), rate=MB))
    thread.start()
    staging = rig.folder("n2").parent / ".tree.bringup-new"
    end = time.monotonic() + 60
    while not staging.is_dir() and time.monotonic() < end:
        time.sleep(0.05)
    other = Rig(rig.base)
    other.name, other.fleet.check = rig.name, True
    found = other.spread(takers=("n2",))["n2"]
    thread.join()
    assert found.status is Status.CHANGED and found.data["missing"] == 1


def test_a_source_that_lacks_a_file_fails_those_below_it_with_the_reason(rig: Rig) -> None:
    rig.fill({"a.bin": 10})
    entries = [{"path": name, "kind": "file", "size": 10, "mode": 0o644} for name in ("a.bin", "gone.bin")]
    results = rig.spread(takers=("n2",), entries=entries)
    assert results["n1"].status is Status.FAILED and "gone.bin" in results["n1"].message
    assert results["n2"].status is Status.FAILED and "gone.bin" in results["n2"].message
    assert not rig.folder("n2").exists()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "a//b", ".bringup-parts/x", "a\0b"])
def test_a_path_that_leaves_the_tree_is_refused(path: str) -> None:
    with pytest.raises(Trouble):
        checked([{"path": path, "kind": "file", "size": 1}])


def talk(server_key: bytes, client_key: bytes) -> list[str]:
    """What each side says when it ends badly."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        other = socket.create_connection(listening.getsockname())
        one, _ = listening.accept()
    said: list[str] = []

    def serve() -> None:
        try:
            link = Link(one, server_key, server=True)
            said.append(str(link.receive()))
        except Trouble as trouble:
            said.append(f"server: {trouble.kind}")
        finally:
            one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        Link(other, client_key, server=False).send({"do": "list"})
    except Trouble as trouble:
        said.append(f"client: {trouble.kind}")
    finally:
        other.close()
        thread.join()
    return said


def test_only_who_knows_the_key_is_served() -> None:
    assert talk(b"k" * 32, b"k" * 32) == ["{'do': 'list'}"]
    assert "server: key" in talk(b"k" * 32, b"x" * 32)
