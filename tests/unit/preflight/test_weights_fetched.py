"""Weights that a later stage brings do not stop a run; others do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from preflight_hosts import CASES, PLANNED, by_check, change, findings_of, healthy, planned, tree

from bringup.agent import questions
from bringup.base.verdicts import Verdict


@pytest.mark.parametrize(("fetched", "verdict"), [(True, Verdict.NOTE), (False, Verdict.FAIL)])
def test_broken_files(fetched: bool, verdict: Verdict) -> None:
    answer = questions.answer("weights", {"path": str(CASES / "C009" / "model")})
    answers = change(healthy("h200-01"), "disk.weights", answer["stdout"])
    found = by_check(findings_of(answers, replace(PLANNED, weights_fetched=fetched)), "weights.complete")[0]
    assert found.verdict is verdict and "model-00002" in found.summary
    assert ("the stage `weights` brings it" in found.summary) is fetched


@pytest.mark.parametrize(("fetched", "verdict"), [(True, Verdict.NOTE), (False, Verdict.FAIL)])
def test_a_host_that_was_added_and_one_that_lacks_a_file(fetched: bool, verdict: Verdict) -> None:
    names = ["node1", "node2", "node3", "node4"]
    needs = {host: replace(need, weights_fetched=fetched) for host, need in planned(names).items()}
    addresses = dict(next(iter(needs.values())).addresses)
    answers = {host: healthy(host, addresses) for host in names}
    answers["node2"] = tree(answers["node2"], "disk.weights",
                            lambda found: found.update(exists=False, files={}, digests={}))
    answers["node3"] = tree(answers["node3"], "disk.weights", lambda found: found["digests"].pop("config.json"))
    found = {one.subject: one for one in by_check(findings_of(answers, needs), "weights.equal")}
    assert found["node2"].verdict is verdict and "not there" in found["node2"].summary
    assert found["node3"].verdict is verdict and "config.json is missing" in found["node3"].summary
