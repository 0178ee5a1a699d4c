"""Weights brought from a hub over real HTTP to hosts that are folders of this machine, with real jobs and sockets."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_hub import COMMIT, OTHER, Hub, safetensors, small_model, write

sys.path.append(str(Path(__file__).parents[1] / "serving"))
from local_fleet import LocalFleet

from bringup.base.errors import InputError
from bringup.base.events import Findings, Note, StageSummary
from bringup.base.results import Result, Status
from bringup.weights.checking import check_weights
from bringup.weights.fetching import fetch_weights

HOSTS = ("n1", "n2", "n3")
REPO = "demo/GLM-5.1"


class OwnPaths(LocalFleet):
    """Every host has its own model_path, as hosts have their own disks."""

    base: Path
    shared = False

    def variables(self, host: str) -> Mapping[str, Any]:
        found = dict(super().variables(host))
        deployment = dict(found["deployment"])
        if not self.shared:
            deployment["model_path"] = str(self.base / "disks" / host / "GLM-5.1")
        return {**found, "deployment": deployment}


class Rig:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.files = small_model(shards=3, size=1 << 20)
        self.hub = Hub({REPO: {COMMIT: self.files}})
        for host in HOSTS:
            (base / "disks" / host).mkdir(parents=True)
        self.fleet = self.make()

    def make(self, shared: bool = False, **weights: Any) -> Any:
        fleet = OwnPaths(self.base, HOSTS, {"cluster_address": "127.0.0.1", "deployment": {
            "model_path": str(self.base / "disks" / "shared" / "GLM-5.1"), "weights": weights}})
        fleet.shared = shared
        return fleet

    def use(self, shared: bool = False, **weights: Any) -> None:
        self.fleet = self.make(shared, **({"repo": REPO, "revision": COMMIT, "endpoint": self.hub.url} | weights))

    def fetch(self, **args: Any) -> dict[str, Result]:
        return dict(fetch_weights(self.fleet, args))

    def folder(self, host: str) -> Path:
        return self.base / "disks" / host / "GLM-5.1"

    def same(self, folder: Path) -> bool:
        return all((folder / name).read_bytes() == data for name, data in self.files.items())

    def summary(self) -> str:
        return [event.text for event in self.fleet.events if isinstance(event, StageSummary)][-1]

    def leftovers(self, host: str) -> list[str]:
        return sorted(name for name in os.listdir(self.base / "disks" / host) if name.startswith("."))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    with rig.hub:
        rig.use()
        yield rig


def good(results: Mapping[str, Result]) -> set[Status]:
    bad = {host: (one.message, one.found, one.next) for host, one in results.items() if one.bad}
    assert not bad, bad
    return {one.status for one in results.values()}


def test_one_host_fetches_each_file_once_and_the_others_take_it_from_there(rig: Rig) -> None:
    assert good(rig.fetch()) == {Status.CHANGED}
    assert sorted(name for name, _ in rig.hub.asked) == sorted(rig.files)
    for host in HOSTS:
        assert rig.same(rig.folder(host)), host
        assert rig.leftovers(host) == []
        record = json.loads((rig.folder(host) / ".bringup-weights.json").read_text())
        assert record["revision"] == COMMIT and len(record["digests"]) == 3
    assert rig.summary().startswith("3.1 MB brought to n[1-3] in ")
    check = check_weights(rig.fleet, {"full": True})
    assert good(check) == {Status.OK}
    rig.hub.asked.clear()
    assert good(rig.fetch()) == {Status.OK}
    assert rig.hub.asked == [] and rig.summary() == "there already on n[1-3]"


@pytest.mark.full
@pytest.mark.parametrize("minor", ["3.6", "3.8", "3.13"])
def test_the_copying_runs_under_the_pythons_that_hosts_have(rig: Rig, minor: str, monkeypatch: pytest.MonkeyPatch
                                                            ) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}"))
    if not found:
        pytest.skip(f"no Python {minor} here")
    monkeypatch.setattr(sys, "executable", str(found[-1]))
    rig.hub.cut = 1
    assert good(rig.fetch()) == {Status.CHANGED}
    assert all(rig.same(rig.folder(host)) for host in HOSTS)
    again = rig.fetch()
    assert good(again) == {Status.OK}


def test_answers_that_are_cut_go_on_where_they_ended(rig: Rig) -> None:
    rig.hub.cut = 3
    assert good(rig.fetch()) == {Status.CHANGED}
    assert rig.same(rig.folder("n1"))
    resumed = [begin for _, begin in rig.hub.asked if begin]
    assert len(resumed) == 3 and all(begin > 500_000 for begin in resumed)


def test_a_hub_that_gives_other_bytes_than_it_lists_fails_after_some_tries_and_nothing_gets_its_name(rig: Rig) -> None:
    rig.hub.lie = "model-00002-of-00003.safetensors"
    results = rig.fetch()
    assert all(one.status is Status.FAILED for one in results.values())
    fetching = next(one for one in results.values() if one.data.get("kind") == "digest")
    assert rig.hub.lie in fetching.message and "another mirror" in str(fetching.next)
    assert 2 <= len([name for name, _ in rig.hub.asked if name == rig.hub.lie]) <= 5
    assert not any(rig.folder(host).exists() for host in HOSTS)


def test_missing_and_broken_files_are_brought_again_and_the_old_ones_kept(rig: Rig) -> None:
    good(rig.fetch())
    rig.hub.asked.clear()
    shard = rig.folder("n2") / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    (rig.folder("n2") / "config.json").unlink()
    results = rig.fetch()
    good(results)
    assert {host: one.status for host, one in results.items()} == {
        "n1": Status.OK, "n2": Status.CHANGED, "n3": Status.OK}
    assert rig.same(rig.folder("n2"))
    assert rig.hub.asked == []  # a host that has them gave them
    kept = list((rig.folder("n2") / ".bringup-aside").iterdir())
    assert [path.name.split(".safetensors")[0] for path in kept] == ["model-00002-of-00003"]


def test_another_revision_comes_beside_and_what_is_there_stays_as_it_is(rig: Rig) -> None:
    older = small_model(shards=3, size=1 << 19)
    for host in HOSTS:
        write(rig.folder(host), older)
    results = rig.fetch()
    beside = {host: Path(f"{rig.folder(host)}@{COMMIT[:12]}") for host in HOSTS}
    for host in HOSTS:
        assert results[host].status is Status.FAILED and "holds another revision" in results[host].message
        assert results[host].next == f"model_path: {beside[host]}"
        assert rig.same(beside[host])
        assert {path.name: path.read_bytes() for path in rig.folder(host).iterdir()} == older
    rig.hub.asked.clear()
    again = rig.fetch()
    assert again["n1"].next == results["n1"].next and rig.hub.asked == []


def test_a_file_that_was_changed_by_hand_is_never_written_over(rig: Rig) -> None:
    good(rig.fetch())
    (rig.folder("n3") / "chat_template.jinja").write_text("our own")
    results = rig.fetch()
    assert results["n3"].status is Status.FAILED and "chat_template.jinja" in results["n3"].message
    assert results["n1"].status is Status.OK
    assert (rig.folder("n3") / "chat_template.jinja").read_text() == "our own"


def test_full_finds_a_changed_byte_and_brings_the_file_again(rig: Rig) -> None:
    good(rig.fetch())
    shard = rig.folder("n1") / "model-00001-of-00003.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert good(rig.fetch()) == {Status.OK}
    results = rig.fetch(full=True)
    good(results)
    assert results["n1"].status is Status.CHANGED and shard.read_bytes() == data


def test_a_token_is_sent_to_the_hub_and_without_it_the_message_says_what_to_set(rig: Rig) -> None:
    rig.hub.token = "hf_secret"
    results = rig.fetch()
    assert results["n1"].status is Status.FAILED and "401" in results["n1"].message
    assert "weights.token" in str(results["n1"].next)
    rig.use(token="hf_secret")
    assert good(rig.fetch()) == {Status.CHANGED}


def test_the_token_does_not_follow_to_the_store_that_the_hub_points_to(rig: Rig) -> None:
    rig.hub.token = "hf_secret"
    with Hub({REPO: {COMMIT: rig.files}}) as store:
        rig.hub.store = store.url
        store.cut = 1
        rig.use(token="hf_secret")
        assert good(rig.fetch()) == {Status.CHANGED}
        assert store.seen_tokens == {None} and len(store.asked) == 4
        assert any(begin for _, begin in store.asked), "the range goes along"
    assert all(rig.same(rig.folder(host)) for host in HOSTS)


def test_a_repo_or_a_hub_that_is_not_there(rig: Rig) -> None:
    rig.use(repo="demo/none")
    results = rig.fetch()
    assert "404" in results["n1"].message and "revision" in str(results["n1"].next)
    rig.use(endpoint="http://127.0.0.1:9")
    results = rig.fetch()
    assert "127.0.0.1:9" in results["n1"].message and "efused" in results["n1"].message
    assert results["n2"].status is Status.FAILED


def test_the_next_endpoint_is_asked_when_the_first_is_away(rig: Rig) -> None:
    rig.use(endpoint=None, endpoints=["http://127.0.0.1:9", rig.hub.url])
    assert good(rig.fetch()) == {Status.CHANGED}


def test_without_the_hub_a_host_that_has_all_of_it_gives_it(rig: Rig) -> None:
    good(rig.fetch())
    import shutil

    shutil.rmtree(rig.folder("n3"))
    rig.use(endpoint="http://127.0.0.1:9")
    assert good(rig.fetch()) == {Status.OK, Status.CHANGED}
    assert rig.same(rig.folder("n3"))
    assert any(isinstance(event, Note) and "gives it" in event.text for event in rig.fleet.events)


def test_a_folder_is_a_source_and_one_that_is_not_whole_is_refused(rig: Rig) -> None:
    share = write(rig.base / "share", rig.files)
    rig.use(repo=None, revision=None, endpoint=None, path=str(share), fetch_on="n2")
    assert good(rig.fetch()) == {Status.CHANGED}
    assert all(rig.same(rig.folder(host)) for host in HOSTS)
    (share / "model-00001-of-00003.safetensors").unlink()
    results = rig.fetch()
    assert "is not whole" in results["n1"].message and "model-00001" in str(results["n1"].found)
    rig.use(repo=None, revision=None, endpoint=None, path=str(rig.base / "nowhere"))
    assert "is not there" in rig.fetch()["n1"].message


def test_a_folder_that_hosts_share_is_filled_once(rig: Rig) -> None:
    (rig.base / "disks/shared").mkdir()
    rig.use(shared=True)
    assert good(rig.fetch()) == {Status.CHANGED}
    assert sorted(name for name, _ in rig.hub.asked) == sorted(rig.files)
    assert rig.same(rig.base / "disks/shared/GLM-5.1")
    assert "one folder, seen by 3" in rig.summary()
    assert os.listdir(rig.base / "disks/shared") == ["GLM-5.1"]


def test_check_mode_says_what_would_come(rig: Rig) -> None:
    rig.fleet.check = True
    assert good(rig.fetch()) == {Status.CHANGED}
    assert rig.summary() == "3.1 MB would be brought to n[1-3]"
    assert not any(rig.folder(host).exists() for host in HOSTS)
    assert all(rig.leftovers(host) == [] for host in HOSTS)


def test_a_deployment_without_weights_does_nothing_unless_it_was_asked_for(rig: Rig) -> None:
    rig.fleet = OwnPaths(rig.base, HOSTS, {"deployment": {"model_path": "/models/x"}})
    assert rig.fetch() == {}
    with pytest.raises(InputError, match="names no weights"):
        rig.fetch(named=True)


def test_a_fetching_host_that_is_no_host_is_refused(rig: Rig) -> None:
    rig.use(fetch_on="n9")
    with pytest.raises(InputError, match="n9"):
        rig.fetch()


def test_weights_of_another_commit_than_asked_are_refused(rig: Rig) -> None:
    rig.use(revision=OTHER)
    results = rig.fetch()
    assert results["n1"].status is Status.FAILED and "404" in results["n1"].message


def test_check_emits_findings_and_ends_with_4_on_the_host_that_differs(rig: Rig) -> None:
    good(rig.fetch())
    (rig.folder("n2") / "extra.safetensors").write_bytes(safetensors({"x": b"1"}))
    started = time.monotonic()
    results = check_weights(rig.fleet, {})
    assert results["n2"].data["exit_status"] == 4 and results["n1"].status is Status.OK
    told = [event for event in rig.fleet.events if isinstance(event, Findings)][-1]
    assert any(one.check == "weights.equal" and one.subject == "n2" and one.blocks for one in told.findings)
    assert time.monotonic() - started < 60
