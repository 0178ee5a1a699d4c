"""Situations from the field: driver, memory errors, memory left over, libraries. The neighbours stay clean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from preflight_cases import GIB, said, shown, state
from preflight_hosts import (
    PLANNED,
    SMI,
    bad,
    by_check,
    change,
    edit,
    findings_of,
    fleet,
    gpu_field,
    healthy,
    no_driver_match,
    planned,
)

from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answer
from bringup.serving.causes import first_cause


def test_c001_library_out_of_step_on_one_host() -> None:
    hosts = state("C001")["hosts"]
    sick, good = healthy("bad-01"), healthy("good-02")
    module = hosts["bad-01"]["replies"][1]["stdout"]
    sick = change(no_driver_match(sick), "nvidia.q", hosts["bad-01"]["replies"][0]["stdout"], rc=18)
    sick = change(sick, "nvidia.module", files={"/proc/driver/nvidia/version": module})
    good = change(good, "nvidia.version", hosts["good-02"]["replies"][0]["stdout"])
    good = change(
        good, "nvidia.module", files={"/proc/driver/nvidia/version": hosts["good-02"]["replies"][1]["stdout"]}
    )
    good = change(good, "nvidia.module_disk", "580.126.09\n")
    good = change(good, "nvidia.fabricmanager_version", "Fabric Manager version is : 580.126.09\n")
    found = findings_of({"bad-01": sick, "good-02": good})
    worst = bad(found)
    assert ("bad-01", "nvidia.library") in worst
    assert not [subject for subject, _ in worst if subject == "good-02"], "the library's shorter version is no mismatch"
    assert [check for subject, check in worst if subject == "bad-01" and worst[(subject, check)].blocks] == [
        "nvidia.library"
    ]
    for word in said("C001"):
        assert word in shown(found)


def test_c015_wheel_newer_than_the_driver() -> None:
    document = state("C015")
    answers = {}
    for host, one in document["hosts"].items():
        changed = edit(
            healthy(host),
            "nvidia.version",
            lambda text, one=one: (
                text.replace("580.159.04", one["driver"])
                .replace("580.159", one["driver"].rpartition(".")[0])
                .replace("13.0", one["driver_cuda"] + " ")
                .replace(" \n", "\n")
            ),
        )
        changed = change(changed, "nvidia.module", files={"/sys/module/nvidia/version": one["driver"] + "\n"})
        changed = change(changed, "nvidia.module_disk", one["driver"] + "\n")
        answers[host] = change(changed, "nvidia.fabricmanager_version", f"version is : {one['driver']}\n")
    needs = planned(answers, cuda_of_wheel="13.0", wheel=f"torch {document['plan']['torch']}")
    found = [finding for finding in findings_of(answers, needs) if finding.check == "nvidia.cuda"]
    assert {finding.subject: finding.verdict for finding in found} == {"h200-01": Verdict.PASS, "h200-02": Verdict.FAIL}
    for word in (*said("C015"), "550.144.03", "cu124"):
        assert word in shown(found)


def test_c025_fraction_too_small_and_a_stranger_on_the_card() -> None:
    hosts = state("C025")["hosts"]
    tight = hosts["tight-01"]
    answers = healthy("tight-01")
    for index in range(8):
        answers = gpu_field(answers, index, "FB Memory Usage / Total", f"{int(tight['total_gib'] * 1024)} MiB")
    need = replace(
        PLANNED, weights_per_device=int(tight["weights_per_card_gib"] * GIB), memory_fraction=tight["fraction"]
    )
    found = by_check(findings_of(answers, need), "plan.memory-fraction")[0]
    assert found.verdict is Verdict.FAIL
    assert found.mend == "at least 0.91"
    stranger = hosts["stranger-02"]
    used = gpu_field(
        healthy("stranger-02"), 2, "FB Memory Usage / Used", f"{int(stranger['used_before_gib'] * 1024)} MiB"
    )
    found = by_check(
        findings_of(used, replace(PLANNED, weights_per_device=int(stranger["weights_per_card_gib"] * GIB))),
        "process.memory",
    )[0]
    assert found.verdict is Verdict.FAIL and "GPU 2: 9,216 MiB" in found.summary


def test_c047_three_grades_of_memory_errors() -> None:
    replies = state("C047")["hosts"]["h200-01"]["replies"]
    answers = healthy("h200-01")
    for index, row in enumerate(replies[0]["stdout"].splitlines()):
        _, fixed, broken, pending, failed = (cell.strip() for cell in row.split(","))
        for key, value in (
            ("Correctable Error", fixed),
            ("Uncorrectable Error", broken),
            ("Pending", pending),
            ("Remapping Failure Occurred", failed),
        ):
            answers = (
                gpu_field(answers, index, f"Remapped Rows / {key}", value) if value not in ("0", "No") else answers
            )
    for row in replies[1]["stdout"].splitlines():
        index, value = (cell.strip() for cell in row.split(","))
        if value != "0":
            answers = gpu_field(answers, int(index), "Volatile / DRAM Uncorrectable", value.strip("[]"))
    answers = change(answers, "host.kernel_log", replies[2]["stdout"].replace("3a:00", "4c:00"))
    found = findings_of(answers)
    remap = {finding.summary.split(":")[0]: finding for finding in by_check(found, "nvidia.remap")}
    assert remap["GPU 0"].verdict is Verdict.NOTE and "412" in remap["GPU 0"].summary
    assert remap["GPU 2"].verdict is Verdict.FAIL and "reset needed" in remap["GPU 2"].summary
    assert remap["GPU 3"].verdict is Verdict.FAIL and "out of service" in str(remap["GPU 3"].mend)
    assert "serial 1650000000004" in remap["GPU 3"].summary
    ecc = by_check(found, "nvidia.ecc")[0]
    assert ecc.verdict is Verdict.FAIL and "GPU 1" not in ecc.summary and "GPU 2: 3" in ecc.summary
    xid = by_check(found, "nvidia.xid")[0]
    assert "GPU 2: Xid 94" in xid.summary and xid.verdict is Verdict.WARN
    assert "GPU 1" not in remap


def test_a_hung_tool_is_a_finding_and_the_rest_is_no_second_one() -> None:
    answers = healthy("h200-01")
    for probe in (*SMI, "nvidia.apps"):
        hung = Answer(probe, rc=None, timed_out=True, seconds=25.0, abandoned="D")
        answers = replace(answers, items={**answers.items, probe: hung})
    found = findings_of(answers, PLANNED)
    worst = [f for f in found if f.blocks]
    assert [f.check for f in worst] == ["nvidia.driver"]
    assert "did not answer within 25 s" in worst[0].summary and "state D" in worst[0].summary


def test_c063_another_communication_library() -> None:
    hosts = state("C063")["hosts"]
    needs = planned(hosts)
    answers = {}
    for host, one in hosts.items():
        library = {"environment": "glm51", **one["loaded"], "version": str(one["loaded"]["version"])}
        answers[host] = change(healthy(host, dict(needs[host].addresses)), "env.libraries", json.dumps([library]))
    found = {f.subject: f for f in by_check(findings_of(answers, needs), "parity.nccl") if f.verdict is Verdict.FAIL}
    assert set(found) == {"h200-02", "h200-03"} or set(found) == {"h200-01", "h200-02"}
    text = shown(list(found.values()))
    assert "2.28.9" in text and "another build" in text
    assert hosts["h200-02"]["loaded"]["path"] in text


def test_c007_dead_server_holds_memory_port_and_shm() -> None:
    replies = state("C007")["hosts"]["h200-01"]["replies"]
    answers = healthy("h200-01")
    apps = replies[0]["stdout"].replace(":18:", ":19:").replace(":2A:", ":3B:")
    answers = change(answers, "nvidia.apps", apps)
    for index in (0, 1):
        answers = gpu_field(answers, index, "FB Memory Usage / Used", "122881 MiB")
    table = "PID PPID USER STAT START ELAPSED UNIT MARK COMMAND\n"
    for row in replies[1]["stdout"].splitlines():
        pid, parent, user, stat, age, command = row.split(None, 5)
        mark = "/opt/bringup|r1-0|abc" if pid == "77637" else "-"
        table += f"{pid} {parent} {user} {stat} 4711 {age} - {mark} {command}\n"
    answers = change(answers, "proc.processes", table)
    answers = change(answers, "net.listeners", replies[2]["stdout"])
    answers = change(
        answers,
        "proc.shm",
        json.dumps(
            [
                {"name": "nccl_shm_66001", "size": 5 * 10**9, "user": "ops", "age": 900},
                {"name": "demo_shm_77637", "size": 1, "user": "ops", "age": 9},
            ]
        ),
    )
    found = findings_of(answers, replace(PLANNED, ports={30000: "HTTP"}))
    devices = {finding.summary: finding for finding in by_check(found, "process.devices")}
    ours = next(f for text, f in devices.items() if "77637" in text)
    assert "left by an earlier start of ours" in ours.summary and "GPU 0" in ours.summary
    assert "needs reboot" in str(ours.mend) and "51 h 11 m" in ours.summary
    alice = next(f for text, f in devices.items() if "77638" in text)
    assert "alice" in alice.summary and "not ours to end" in str(alice.mend)
    port = by_check(found, "process.ports")[0]
    assert port.verdict is Verdict.FAIL and "30000" in port.summary and "81000" in port.summary
    dead, alive = by_check(found, "process.shm")
    assert "nccl_shm_66001 of ops" in dead.summary and "rm /dev/shm/nccl_shm_66001" in str(dead.mend)
    assert "demo_shm_77637 is held by pid 77637" in alive.summary and "earlier start of ours" in alive.summary


def test_c007_what_the_running_release_holds_is_no_finding() -> None:
    answers = healthy("h200-01")
    answers = change(answers, "nvidia.apps", "00000000:19:00.0, 5001, 122880 MiB, VLLM::Worker\n")
    answers = gpu_field(answers, 0, "FB Memory Usage / Used", "122881 MiB")
    answers = change(
        answers,
        "proc.processes",
        "PID PPID USER STAT START ELAPSED UNIT MARK COMMAND\n"
        "5000 1 bringup S 900 3600 - /opt/bringup|r1-0|n1 python -m vllm\n"
        "5001 5000 bringup S 950 3500 - /opt/bringup|r1-0|n1 VLLM::Worker\n",
    )
    answers = change(answers, "net.listeners", 'LISTEN 0 0 0.0.0.0:8000 0.0.0.0:* users:(("python",pid=5000,fd=3))\n')
    record = {
        "name": "r1-0",
        "pid": 5000,
        "ticks": 900,
        "mark": "/opt/bringup|r1-0|n1",
        "ports": [8000],
        "stopped": False,
    }
    running = change(answers, "proc.records", files={"/opt/bringup/processes/r1-0/record.json": json.dumps(record)})
    assert bad(findings_of(running, PLANNED)) == {}
    assert "r1-0" in by_check(findings_of(running, PLANNED), "process.ours")[0].summary
    other = {**record, "ticks": 901}  # another process got the pid
    stolen = change(answers, "proc.records", files={"/opt/bringup/processes/r1-0/record.json": json.dumps(other)})
    assert ("h200-01", "process.devices") in bad(findings_of(stolen, PLANNED))


def test_anothers_worker_at_the_meeting_point_of_the_replica_would_take_a_ranks_place() -> None:
    answers, needs = fleet(["h200-01", "h200-02"])
    head = needs["h200-02"].addresses["h200-01"]
    table = (
        "PID PPID USER STAT START ELAPSED UNIT MARK COMMAND\n"
        "77 1 bringup S 900 3600 stray.service - /envs/x/bin/python /envs/x/bin/vllm serve /m --nnodes 2 --node-rank 1 "
        "--master-addr {} --headless\n"
    )
    rival = change(answers["h200-02"], "proc.processes", table.format(head))
    found = {one.subject: one for one in by_check(findings_of({**answers, "h200-02": rival}, needs), "process.ours")}
    assert found["h200-01"].verdict is Verdict.PASS
    assert found["h200-02"].verdict is Verdict.FAIL and "77 of bringup" in found["h200-02"].summary
    apart = change(answers["h200-02"], "proc.processes", table.format(head + "9"))
    found = {one.subject: one for one in by_check(findings_of({**answers, "h200-02": apart}, needs), "process.ours")}
    assert found["h200-02"].verdict is Verdict.PASS, "another team's, on its own devices"


def test_c025_out_of_memory_under_load_asks_for_a_smaller_fraction() -> None:
    """The third of the same error's causes: it shows in the log of the start, not before it."""
    load = state("C025")["hosts"]["load-03"]
    cause = first_cause({"load-03": [(1.0, "INFO serving"), (2000.0, f"torch.OutOfMemoryError: CUDA {load['fails']}")]},
                        {})
    assert cause is not None and cause.key == "memory.device"
    assert cause.mend.startswith("lower --gpu-memory-utilization")
    room = first_cause({"tight-01": [(9.0, "ValueError: No available memory for the cache blocks.")]}, {})
    assert room is not None and room.mend.startswith("raise --gpu-memory-utilization")


@pytest.mark.parametrize(("segment", "told"), [
    ({"name": "psm_4a5511d0", "holders": [], "age": 600}, True),
    ({"name": "psm_4a5511d0", "holders": [], "age": 5}, False),  # its maker may be about to map it
    ({"name": "psm_4a5511d0", "holders": [1200], "age": 600}, False),
    ({"name": "psm_4a5511d0", "holders": None, "age": 600}, False),  # nobody could look at all processes
    ({"name": "psm_4a5511d0", "age": 600}, False),
    ({"name": "torch_66001_7_0", "holders": None, "age": 600}, True),
    ({"name": "pulse-shm-3921", "holders": [], "age": 600}, False),
])
def test_c007_only_what_nobody_holds_is_told_to_be_removed(segment: dict[str, Any], told: bool) -> None:
    one = {"size": 1 << 30, "user": "ops", **segment}
    found = by_check(findings_of(change(healthy("h200-01"), "proc.shm", json.dumps([one])), PLANNED), "process.shm")[0]
    assert (found.verdict is Verdict.NOTE) is told
    assert (found.mend == f"rm /dev/shm/{one['name']}") is told
