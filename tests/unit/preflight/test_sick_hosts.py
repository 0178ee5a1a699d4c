"""One thing wrong on one host: its finding and no other, and the neighbour is clean."""


from __future__ import annotations

import pytest
from preflight_hosts import (
    PLANNED,
    bad,
    findings_of,
    healthy,
)
from preflight_sick import SICK


@pytest.mark.parametrize("name", SICK)
def test_each_sick_host_gives_its_finding_and_no_other(name: str) -> None:
    make, check, verdict, word = SICK[name]
    found = findings_of(
        {"sick-01": make(healthy("sick-01")), "good-02": healthy("good-02")}, {"sick-01": PLANNED, "good-02": PLANNED}
    )
    worst = bad(found)
    hit = worst[("sick-01", check)]
    assert hit.verdict is verdict
    assert word in hit.summary
    assert hit.mend
    assert not [subject for subject, _ in worst if subject == "good-02"]
    others = {c for s, c in worst if s == "sick-01"} - {check}
    # what is the same fact seen by two tools, or by the comparison of hosts
    assert others <= {
        "parity.vbios",
        "parity.fabric",
        "plan.memory",
        "nvidia.device-files",
        "rdma.flaps",
        "pcie.slot-power",
        "parity.driver",
    } | ({"disk.space"} if name == "nfs root" else set()), others
