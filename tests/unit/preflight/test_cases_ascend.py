"""Situations from the field: Ascend. The neighbours stay clean."""

from __future__ import annotations

from dataclasses import replace

from preflight_cases import shown, state
from preflight_hosts import (
    by_check,
    change,
    findings_of,
)
from preflight_makers import ASCEND, ascend_host, without_process

from bringup.base.verdicts import Verdict
from bringup.serving.causes import first_cause


def test_c031_driver_cann_and_torch_npu_that_do_not_belong_together() -> None:
    answers, needs = {}, {}
    for host, one in state("C031")["hosts"].items():
        answers[host] = without_process(
            ascend_host(
                host,
                ips={n: f"29.0.{host[-1]}.{n}" for n in range(8)},
                driver=one["driver"],
                firmware=one["firmware"],
                cann=one["cann"],
            )
        )
        needs[host] = replace(ASCEND, torch=one["torch"], torch_npu=one["torch_npu"], numpy=one["numpy"])
    found = findings_of(answers, needs)
    failures = {(f.subject, f.check) for f in found if f.verdict is Verdict.FAIL}
    assert ("a2-01", "ascend.cann") in failures
    assert "too old for CANN 8.5.0" in by_check(found, "ascend.cann")[0].summary
    torch = [f.summary for f in by_check(found, "ascend.torch") if f.subject == "a2-02"]
    assert "torch_npu 2.8.0 does not fit torch 2.9.0" in torch[0] and "numpy 2.0.2" in torch[1]
    assert not [check for subject, check in failures if subject == "a2-03"]
    assert {f.subject for f in by_check(found, "parity.npu-driver") if f.verdict is not Verdict.PASS} == {"a2-01"}


def test_c067_hccl_timeout_on_one_host_only() -> None:
    hosts = state("C067")["hosts"]
    answers = {host: without_process(ascend_host(host)) for host in hosts}
    needs = {
        host: replace(ASCEND, env={name: str(value) for name, value in one["env"].items()})
        for host, one in hosts.items()
    }
    found = [f for f in by_check(findings_of(answers, needs), "hccl.env") if f.verdict is Verdict.FAIL]
    assert "HCCL_CONNECT_TIMEOUT" in found[0].summary and "600" in shown(found) and "not set" in shown(found)


def test_a_spare_sets_no_variables_and_harms_nothing() -> None:
    serving = replace(ASCEND, nodes=("a2-01",), env={"HCCL_BUFFSIZE": "200"})
    needs = {"a2-01": serving, "a2-02": replace(ASCEND, spare=True)}
    found = by_check(findings_of({host: without_process(ascend_host(host)) for host in needs}, needs), "hccl.env")
    assert [(one.subject, one.verdict) for one in found] == [("a2-01", Verdict.PASS)]


def test_c069_hccn_conf_against_the_chips() -> None:
    hosts = state("C069")["hosts"]
    answers = {}
    for host, one in hosts.items():
        chips = {int(n): str(ip) for n, ip in one["chip_addresses"].items()}
        # the case tells of the first four: the rest of the host is whole
        rest = {n: f"29.0.{host[-1]}.{20 + n}" for n in range(8) if n not in chips}
        conf = one["files"].get("/etc/hccn.conf", "")
        if conf:
            conf += "".join(f"address_{n}={ip}\n" for n, ip in rest.items())
        answers[host] = without_process(ascend_host(host, ips={**chips, **rest}, conf=conf))
    found = findings_of(answers, dict.fromkeys(hosts, replace(ASCEND, nodes=tuple(hosts))))
    first = [f.summary for f in by_check(found, "hccn.address") if f.subject == "a2-01"]
    assert first == ["chip 2: /etc/hccn.conf:5 says 29.0.0.99, the chip says 29.0.0.12"]
    second = " / ".join(f.summary for f in by_check(found, "hccn.address") if f.subject == "a2-02")
    assert "there is no /etc/hccn.conf" in second and "chip 2 has no address" in second
    twice = [f for f in by_check(found, "hccn.unique") if f.verdict is Verdict.FAIL]
    assert [(f.subject, f.summary) for f in twice] == [("a2-02", "chip 3 has 29.0.0.13, as a2-01 chip 3")]


def test_c067_after_a_failure_the_node_that_failed_first_is_the_cause() -> None:
    case = state("C067")
    logs = {one["host"]: [(float(one["at_s"]), one["text"])] for one in (case["later_error"], case["first_error"])}
    cause = first_cause(logs, {})
    assert cause is not None and cause.host == case["first_error"]["host"]
    assert cause.evidence == case["first_error"]["text"]


def test_a_plan_within_one_host_is_not_stopped_by_the_network_between_hosts() -> None:
    """Eight chips of one host meet over HCCS: their unconfigured network ports harm nothing."""
    bare = without_process(ascend_host("a2-01", ips=dict.fromkeys(range(8), "none"), conf=""))
    bare = change(bare, "hccn.link", "".join(f"== {n}\nlink status: DOWN\n" for n in range(8)))
    alone = findings_of(bare, replace(ASCEND, nodes=("a2-01",)))
    assert not [one for one in alone if one.blocks], [one for one in alone if one.blocks]
    assert {one.verdict for one in by_check(alone, "hccn.link")} == {Verdict.WARN}
    two = findings_of(bare, replace(ASCEND, nodes=("a2-01", "a2-02")))
    assert {one.check for one in two if one.blocks} >= {"hccn.link", "hccn.address"}
