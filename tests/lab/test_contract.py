"""The contract against a started deployment: asked on the head, exit 4 when an answer is wrong."""

from __future__ import annotations

import json

import pytest
from test_release_actions import Rig, environments, rig  # noqa: F401 - the fixtures of the releases' tests

from bringup.base.errors import ExitStatus, FindingError, InputError
from bringup.base.events import Findings, Note, StageSummary
from bringup.base.verdicts import Verdict
from bringup.releases.contract import check_contract
from bringup.releases.ending import replica_status, stop_replicas
from bringup.serving.contract.checks import CHECKS

ASKED = len(CHECKS) - 1
"""Checks of a deployment without a key."""


def tell(rig: Rig, fault: str | None) -> None:  # noqa: F811
    path = rig.model / "lab_engine_fault.json"
    if fault is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps({"name": fault}))


def test_the_contract_of_a_started_deployment(rig: Rig) -> None:  # noqa: F811
    rig.provision()
    fleet = rig.run()
    results = check_contract(fleet, {})
    assert results["n1"].data["passed"] == results["n1"].data["asked"] == ASKED
    [told] = rig.told(Findings)
    assert {finding.subject for finding in told.findings} == {"r1"}
    assert f"{ASKED} of {ASKED}" in rig.told(StageSummary)[0].text
    assert {host for host, module, _ in fleet.calls if module == "http_exchange"} == {"n1"}

    for fault, check, words in (("tool_text", "tools.structured", "came as text"),
                                ("reasoning_leak", "thinking.on", "no reasoning"),
                                ("malformed_arguments", "tools.structured", "no JSON")):
        tell(rig, fault)
        with pytest.raises(FindingError) as error:
            check_contract(rig.run(), {})
        assert error.value.status is ExitStatus.FINDING
        [told] = rig.told(Findings)
        bad = {finding.check: finding for finding in told.findings if finding.verdict is Verdict.FAIL}
        assert words in bad[f"contract.{check}"].summary
        with pytest.raises(FindingError, match=f"r0001 is in use and bad: its contract failed: .*contract.{check} on"):
            replica_status(rig.run(), {})
    tell(rig, None)
    check_contract(rig.run(), {})
    assert "r0001 was bad (its contract failed: " in rig.told(Note)[0].text
    replica_status(rig.run(), {})
    check_contract(rig.run(), {})
    assert not rig.told(Note)

    stop_replicas(rig.run(), {})
    with pytest.raises(FindingError, match=r"contract\.running on r1"):
        check_contract(rig.run(), {})
    assert "nothing to ask" in rig.told(Findings)[0].findings[0].summary
    fleet = rig.run()
    fleet.check = True
    assert check_contract(fleet, {}) == {}
    assert "unknown" in rig.told(StageSummary)[-1].text


def test_the_contract_with_a_key(rig: Rig) -> None:  # noqa: F811
    rig.provision(api_key="open-sesame-4711")
    fleet = rig.run(api_key="open-sesame-4711")
    results = check_contract(fleet, {"repeat": "2"})
    assert results["n1"].data["passed"] == ASKED + 1
    assert "open-sesame-4711" not in repr(fleet.events)


def test_every_node_that_serves_is_asked(rig: Rig) -> None:  # noqa: F811
    words = {"strategy": "multi_node_dep", "variant": "fp8", "tensor_parallel": None, "pipeline_parallel": None,
             "nodes": 3}
    rig.provision(**words)
    results = check_contract(rig.run(**words), {"repeat": 1})
    assert {host: result.data["passed"] for host, result in results.items()} == {
        "n1": ASKED, "n2": ASKED, "n3": ASKED}
    assert {finding.subject for finding in rig.told(Findings)[0].findings} == {"r1", "r1 n2", "r1 n3"}


def test_a_contract_that_was_approved_and_drifts(rig: Rig) -> None:  # noqa: F811
    rig.provision()
    check_contract(rig.run(), {"approve": True})
    assert f"contract of r0001: {ASKED} checks approved" in rig.told(Note)[-1].text
    tell(rig, "flaky")
    with pytest.raises(FindingError):
        check_contract(rig.run(), {"times": 3, "only": ["tools.typed", "finish.length"], "repeat": 1})
    [told] = rig.told(Findings)
    [bad] = [finding for finding in told.findings if finding.blocks]
    assert bad.check == "contract.tools.typed" and bad.data["drift"] is True
    assert 0 < bad.data["failed"] < bad.data["times"] == 3
    assert bad.summary.startswith("drift: approved 20") and f"fails {bad.data['failed']} of 3 times now" in bad.summary
    assert "num_speculative_tokens" in str(bad.mend)

    tell(rig, "stop_ignored")
    with pytest.raises(FindingError, match="not approved"):
        check_contract(rig.run(), {"approve": True})
    tell(rig, None)
    with pytest.raises(FindingError, match="not approved") as error:
        check_contract(rig.run(), {"approve": True, "only": ["finish"]})
    assert "not all of it" in str(error.value.found)


def test_a_part_of_the_contract_does_not_make_a_bad_release_good(rig: Rig) -> None:  # noqa: F811
    rig.provision()
    tell(rig, "stop_ignored")
    with pytest.raises(FindingError):
        check_contract(rig.run(), {})
    tell(rig, None)
    check_contract(rig.run(), {"only": ["tools.*"]})
    with pytest.raises(FindingError, match="r0001 is in use and bad"):
        replica_status(rig.run(), {})
    check_contract(rig.run(), {})
    replica_status(rig.run(), {})


def test_replicas_and_checks_that_are_not_there(rig: Rig) -> None:  # noqa: F811
    rig.provision()
    with pytest.raises(InputError, match="no replica of this run is called `r2`"):
        check_contract(rig.run(), {"replicas": ["r2"]})
    results = check_contract(rig.run(), {"replicas": ["r1"], "only": ["models.served"]})
    assert results["n1"].data == {"passed": 1, "asked": 1}
