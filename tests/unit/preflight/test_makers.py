"""Hosts of other makers: healthy ones are silent, the 950 is judged by its own ports, AMD by the tool that is there."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_hosts import bad, by_check, change, edit, findings_of, sample
from preflight_makers import AMD, ASCEND, amd_host, ascend_host, without_process

from bringup.agent import questions, questions_makers
from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.deep import why_not
from bringup.preflight.facts import Facts
from bringup.preflight.judge import Chosen
from bringup.preflight.parsers import amd, load
from bringup.preflight.registry import View
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


HCCL = sample("hccl-test/all_reduce-format.txt") + "1073741824      22105.3         48.57                  success\n"


@pytest.mark.parametrize(("text", "rc", "verdict", "word"), [
    (HCCL, 0, Verdict.PASS, "48.6 GB/s at 1.1 GB"),
    (sample("hccl-test/all_reduce-format.txt"), 0, Verdict.UNKNOWN, "stops at 33.6 MB"),
    (HCCL.replace("success", "failed"), 0, Verdict.UNKNOWN, "failed"),
    (HCCL + HCCL, 0, Verdict.UNKNOWN, "twice"),
    ("There are not enough slots available\n", 1, Verdict.UNKNOWN, "ended with 1"),
    ("", 0, Verdict.UNKNOWN, "no row"),
])
def test_hccl_test(text: str, rc: int, verdict: Verdict, word: str) -> None:
    answers = change(without_process(ascend_host("a2-01")), "load.hccl", text, rc=rc)
    one = by_check(findings_of(answers, ASCEND, Chosen("deep")), "collective.hccl")[0]
    assert one.verdict is verdict and word in one.summary, one.summary


def test_rccl_tests_against_the_line_of_the_hardware() -> None:
    text = sample("nccl-tests/all_reduce-a100x8-1node.txt")
    answers = change(amd_host("amd-01"), "load.rccl", text)
    one = by_check(findings_of(answers, AMD, Chosen("deep")), "collective.rccl")[0]
    assert one.verdict is Verdict.FAIL and one.required == "314 GB/s for 8"
    fast = change(amd_host("amd-01"), "load.rccl", text.replace("231.72", "331.72"))
    assert by_check(findings_of(fast, AMD, Chosen("deep")), "collective.rccl")[0].verdict is Verdict.PASS


def test_chips_in_use_are_not_loaded() -> None:
    serving = View(Facts(ascend_host("a2-01")), ASCEND)
    assert "the devices are in use: pid" in why_not(serving)
    assert why_not(View(Facts(without_process(ascend_host("a2-01"))), ASCEND)) == ""


@pytest.mark.parametrize("ask", ["hccl", "rccl"])
def test_without_devices_or_tools_a_collective_is_skipped_with_the_reason(ask: str) -> None:
    answer = questions.answer(ask, {"root": "/nonexistent"})
    assert "a collective needs two" in answer["skipped"], answer


def test_a_collective_of_ascend_runs_cann_s_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tools in their places: all chips, CANN's settings read, the tool's text and status as they are."""
    for name, text in (("mpirun", 'shift 2; exec "$@"'),
                       ("all_reduce_test", f'echo "$*"; cat <<EOF\n{HCCL}EOF\nexit 3')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(questions_makers, "_HCCL", (str(tmp_path / "all_reduce_test"),))
    monkeypatch.setattr(questions_makers, "_MPI", (str(tmp_path / "mpirun"),))
    chips = [f"/dev/davinci{number}" for number in range(8)]
    monkeypatch.setattr("bringup.agent.questions_makers.glob.glob", lambda pattern: (
        [*chips, "/dev/davinci_manager"] if pattern == "/dev/davinci*" else [pattern] if "*" not in pattern else []))
    answer = questions.answer("hccl", {"root": "/nonexistent"})
    assert answer["rc"] == 3 and "-p 8" in answer["stdout"] and load.hccl(answer["stdout"])[-1] == (1 << 30, 48.57)


def test_a_device_that_somebody_has_open_is_not_loaded(tmp_path: Path) -> None:
    device = tmp_path / "davinci0"
    device.touch()
    pattern = f"^{device}$"
    assert questions_makers.used({}, pattern) == ""
    with subprocess.Popen(["sleep", "60"], stdin=device.open()) as holder:
        try:
            assert questions_makers.used({}, pattern) == f"the devices are in use: pid {holder.pid}, sleep"
        finally:
            holder.kill()


def topology(kind: str, count: int = 8) -> str:
    return json.dumps({"system": {f"(Topology) Link type between DRM devices {a} and {b}": kind
                                  for a in range(count) for b in range(a + 1, count)}})


@pytest.mark.parametrize(("text", "verdict"), [
    (topology("XGMI"), Verdict.PASS), (topology("PCIE"), Verdict.FAIL), (topology("XGMI", 7), Verdict.UNKNOWN),
    ("{}", Verdict.UNKNOWN), (topology("XGMI")[:300], Verdict.UNKNOWN)])
def test_amd_links(text: str, verdict: Verdict) -> None:
    one = by_check(findings_of(change(amd_host("amd-01"), "amd.links", text), AMD), "amd.links")[0]
    assert one.verdict is verdict


def test_links_of_a_recorded_mi100() -> None:
    found = amd.links(sample("amd/rocm-smi-a-json-mi100-6.0.2.json"))
    assert len(found) == 6 and set(found.values()) == {"PCIE"}


def test_amd_driver_and_health() -> None:
    answers = amd_host("amd-01")
    built_in = change(answers, "host.modules", files={"/proc/modules": "nvme 1 0 - Live 0x0\n"})
    assert by_check(findings_of(built_in, AMD), "amd.driver")[0].verdict is Verdict.PASS
    gone = change(built_in, "amd.smi", "cat: /sys/module/amdgpu/initstate: No such file or directory\n", rc=1)
    assert by_check(findings_of(gone, AMD), "amd.driver")[0].verdict is Verdict.FAIL
    assert by_check(findings_of(answers, AMD), "amd.driver")[0].verdict is Verdict.PASS
    log = "[  912.1] amdgpu 0000:05:00.0: amdgpu: uncorrectable hardware errors detected in umc block\n"
    sick = by_check(findings_of(change(answers, "host.kernel_log", log), AMD), "amd.health")[0]
    assert sick.verdict is Verdict.FAIL and "umc block" in sick.details[0]


def test_what_a_container_of_cann_needs() -> None:
    need = replace(ASCEND, manager="docker", nodes=("a2-01", "a2-02"))
    paths = ["/usr/local/dcmi", "/usr/local/sbin/npu-smi", "/usr/local/Ascend/driver/lib64",
             "/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/driver/tools/hccn_tool",
             "/etc/ascend_install.info", "/etc/hccn.conf"]
    whole = change(without_process(ascend_host("a2-01")), "ascend.paths", "\n".join(paths) + "\n")
    assert by_check(findings_of(whole, need), "ascend.mounts")[0].verdict is Verdict.PASS
    part = change(whole, "ascend.paths", "\n".join(paths[:-1]) + "\n")
    one = by_check(findings_of(part, need), "ascend.mounts")[0]
    assert one.verdict is Verdict.FAIL and one.summary == "missing: /etc/hccn.conf"
    assert by_check(findings_of(whole, ASCEND), "ascend.mounts")[0].verdict is Verdict.SKIP
