"""What hosts remember of an approved contract: approved, failed later, asked again."""

from __future__ import annotations

import json
from typing import Any

from bringup.base.verdicts import Verdict
from bringup.releases.approval import APPROVED, SEEN, approval_of, drift_findings, failing_of, told_of
from bringup.releases.history import HostStore

DIGEST = "d" * 64


def store(*events: tuple[str, dict[str, Any]], digest: str = DIGEST) -> HostStore:
    return HostStore(digest, {}, {}, {}, [
        {"event": event, "digest": digest, "at": float(at), "by": "ops@deploy1", "reason": json.dumps(reason)}
        for at, (event, reason) in enumerate(events, 1)])


def seen(on: str, asked: list[str], **failed: list[int]) -> tuple[str, dict[str, Any]]:
    return SEEN, {"on": on, "asked": asked, "failed": failed}


APPROVAL = (APPROVED, {"checks": ["a", "b"]})


def test_nothing_approved_is_a_skip_with_what_to_type() -> None:
    assert told_of({"n1": store()}, DIGEST) == "not approved"
    [found] = drift_findings({"n1": store()}, DIGEST, "n1")
    assert found.verdict is Verdict.SKIP and found.mend == "invoke verify --approve"
    assert drift_findings({"n1": store()}, None, "n1") == []


def test_what_fails_later_is_drift_until_it_is_asked_again_and_well() -> None:
    failed = store(APPROVAL, seen("r1", ["a", "b"], a=[2, 5], b=[1, 5]))
    [found] = drift_findings({"n1": failed, "n2": failed}, DIGEST, "n[1-2]")
    assert found.verdict is Verdict.FAIL and found.subject == "r1"
    assert found.details == ("a  2 of 5 times", "b  1 of 5 times")
    assert "approved 1970-01-01 by ops@deploy1" in found.summary
    assert told_of({"n1": failed}, DIGEST).endswith(", 2 checks failed later")
    partly = store(APPROVAL, seen("r1", ["a", "b"], a=[2, 5], b=[1, 5]), seen("r1", ["a"]))
    assert [one.check for one in failing_of({"n1": partly}, DIGEST)] == ["b"]
    anew = store(APPROVAL, seen("r1", ["a"], a=[1, 1]), APPROVAL)
    assert failing_of({"n1": anew}, DIGEST) == ()
    assert drift_findings({"n1": anew}, DIGEST, "n1")[0].verdict is Verdict.PASS


def test_replicas_are_told_apart_and_another_release_is_none_of_its_business() -> None:
    stores = {"n1": store(APPROVAL, seen("r1", ["a"], a=[1, 1])), "n2": store(APPROVAL, seen("r2", ["a"], a=[3, 3])),
              "n3": store(APPROVAL, seen("r1", ["b"], b=[1, 1]), digest="e" * 64)}
    assert [found.subject for found in drift_findings(stores, DIGEST, "n[1-3]")] == ["r1", "r2"]
    assert [(one.check, one.on) for one in failing_of(stores, DIGEST)] == [("a", "r1"), ("a", "r2")]


def test_a_reason_that_cannot_be_read_is_no_approval_of_anything() -> None:
    broken = HostStore(DIGEST, {}, {}, {}, [{"event": APPROVED, "digest": DIGEST, "at": 1.0, "reason": "{"}])
    approval = approval_of({"n1": broken}, DIGEST)
    assert approval is not None and approval.checks == ()
