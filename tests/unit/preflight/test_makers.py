"""Hosts of other makers: healthy ones are silent, the 950 is judged by its own ports, AMD by the tool that is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from preflight_hosts import bad, by_check, change, edit, findings_of, sample
from preflight_makers import AMD, ASCEND, amd_host, ascend_host, without_process

from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.requirement import profiles

A950 = replace(ASCEND, hardware="ascend-950", profile=profiles()["ascend-950"], accelerators=1, nodes=("npu-01", "b"))


def host_950(ub: str = "link status : UP\nport 4 : UP\nport 5 : UP\n") -> Answers:
    """One 950: its hccn_tool refuses what the others ask."""
    made = change(ascend_host("npu-01"), "ascend.info", sample("npu-smi/info-950x1.txt"))
    made = change(made, "ascend.map", sample("npu-smi/info-m-950.txt"))
    made = change(made, "host.pci", "0000:f1:00.0 1200: 19e5:d806 driver=davinci\n")
    for name in ("ip", "link", "net_health", "link_stat", "gateway", "netdetect"):
        made = change(made, f"hccn.{name}", "== 0\nInvalid argument, use -h for help.\n")
    made = change(made, "hccn.tls", "== 0\n" + sample("hccn_tool/950-tls.txt"))
    made = change(made, "hccn.ub", "== 0\n" + ub)
    made = change(made, "ascend.ecc", "== 0\n" + sample("npu-smi/info-t-ecc-950.txt"))
    made = change(made, "ascend.board", "== 0\n" + sample("npu-smi/info-t-board-950.txt"))
    return change(made, "ascend.current-fault-event", "== 0\nFault Event Count              : 0\n")


def test_healthy_hosts_of_other_makers_are_silent() -> None:
    for answers, need in ((without_process(ascend_host("a2-01")), ASCEND), (amd_host("amd-01"), AMD),
                          (host_950(), A950)):
        worst = bad(findings_of(answers, need))
        assert {check for _, check in worst} <= {"plan.memory"}, worst


def test_the_950_is_judged_by_its_own_ports() -> None:
    found = findings_of(host_950(sample("hccn_tool/950-ub_connect-partial.txt")), A950)
    ub = by_check(found, "hccn.ub")[0]
    assert ub.verdict is Verdict.FAIL
    assert ub.summary == "chip 0: PARTIAL LINK, port 5 DOWN, port 6 PARTIAL UP"
    for name in ("hccn.link", "hccn.address", "hccn.health", "hccn.flaps"):
        assert by_check(found, name)[0].verdict is Verdict.SKIP
    faults = change(host_950(), "ascend.current-fault-event",
                    "== 0\n" + sample("npu-smi/info-t-current-fault-event-950.txt"))
    one = by_check(findings_of(faults, A950), "ascend.faults")[0]
    assert one.verdict is Verdict.FAIL and "0x81AF8000" in one.details[0]


def test_a_table_without_a_chip_that_the_map_knows() -> None:
    answers = edit(without_process(ascend_host("a2-01")), "ascend.map", lambda text: text + (
        "8                              0                              8                              Ascend 910A\n"))
    one = by_check(findings_of(answers, ASCEND), "ascend.count")[0]
    assert one.verdict is Verdict.FAIL and "knows 9 chips" in one.summary


def test_ascend_counters() -> None:
    answers = without_process(ascend_host("a2-01"))
    isolated = edit(answers, "ascend.ecc", lambda text: text.replace("HBM Double Bit Isolated Pages Count      : 0",
                                                                     "HBM Double Bit Isolated Pages Count      : 2", 1))
    assert by_check(findings_of(isolated, ASCEND), "ascend.ecc")[0].verdict is Verdict.NOTE
    root = change(answers, "ascend.board", "".join(f"== {n}\nCompatibility : NOT SUPPORT\n" for n in range(8)))
    assert by_check(findings_of(root, ASCEND), "ascend.board")[0].verdict is Verdict.SKIP
    late = change(answers, "host.uptime", files={"/proc/uptime": "864000.0 1.0\n"})
    flaps = by_check(findings_of(late, ASCEND), "hccn.flaps")
    assert {one.verdict for one in flaps} == {Verdict.WARN} and "1 loss of the link since boot" in flaps[0].summary


def test_amd_by_the_tool_that_is_there() -> None:
    answers = amd_host("amd-01")
    items = {name: answer for name, answer in answers.items.items() if name != "amd.smi"}
    text = sample("amd/amd-smi-static-mi300a.txt")
    static = replace(answers, items={**items, "amd.static": Answer("amd.static", stdout=text)})
    need = replace(AMD, profile=None, hardware="")
    found = findings_of(change(static, "host.pci", "".join(
        f"0000:{n:02x}:00.0 1200: 1002:74a0 driver=amdgpu\n" for n in range(4))), need)
    assert by_check(found, "amd.count")[0].summary == "4 GPUs"
    assert by_check(found, "amd.product")[0].summary == "MI300A 0x74a0"
    assert by_check(found, "amd.memory")[0].verdict is Verdict.SKIP
    none = findings_of(replace(answers, items=items), AMD)
    assert [(one.check, one.summary) for one in none if one.check == "amd.tool"] == [
        ("amd.tool", "neither rocm-smi nor amd-smi is there")]


@pytest.mark.parametrize(("text", "verdict"), [
    (sample("host/nvme-smart-log-2.11.json"), Verdict.PASS),
    (sample("host/nvme-smart-log-2.11.json").replace('"value": 0', '"value": 8'), Verdict.FAIL),
    (sample("host/nvme-smart-log-2.11.json").replace('"percent_used": 30', '"percent_used": 104'), Verdict.WARN),
    ('{"critical_warning": 0, "percentage_used": 1}', Verdict.PASS),
    ("failed to open /dev/nvme0: Permission denied", Verdict.UNKNOWN),
])
def test_nvme(text: str, verdict: Verdict) -> None:
    answers = change(amd_host("amd-01"), "host.nvme", f"== /dev/nvme0\n{text}\n== /dev/nvme1\n"
                     '{"critical_warning": 0}\n')
    assert by_check(findings_of(answers, AMD), "disk.health")[0].verdict is verdict
    none = change(amd_host("amd-01"), "host.nvme", "")
    assert by_check(findings_of(none, AMD), "disk.health")[0].verdict is Verdict.SKIP
