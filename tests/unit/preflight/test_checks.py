"""Checks on the healthy recorded host: silent there, and each sick variant gives exactly its finding."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_hosts import (
    PLANNED,
    SMI,
    bad,
    by_check,
    change,
    edit,
    findings_of,
    fleet,
    healthy,
    sample,
    tree,
)

from bringup.base.errors import InputError
from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answers
from bringup.preflight.checks.parity import table
from bringup.preflight.facts import Facts
from bringup.preflight.judge import Chosen
from bringup.preflight.registry import View, checks
from bringup.preflight.requirement import Need, limits, profiles, xids


def test_the_healthy_host_is_silent() -> None:
    for need in (Need(), PLANNED):
        found = findings_of(healthy(), need)
        assert bad(found) == {}
        assert {f.check for f in found if f.verdict is Verdict.NOTE} == {"rdma.ports"}


def test_a_healthy_replica_is_silent() -> None:
    answers, needs = fleet(["gpu01", "gpu02", "gpu03"])
    found = findings_of(answers, needs)
    assert bad(found) == {}
    assert {f.verdict for f in found if f.check.startswith("parity.")} == {Verdict.PASS}
    assert len({f.check for f in found if f.verdict is Verdict.PASS}) > 60


def test_without_nvidia_smi_one_finding_and_not_thirty() -> None:
    answers = healthy("gone-01")
    for probe in (*SMI, "nvidia.apps", "nvidia.module"):
        items = {name: answer for name, answer in answers.items.items() if name != probe}
        answers = replace(answers, items=items)
    found = findings_of(answers, PLANNED)
    assert [f.check for f in found if f.blocks] == ["nvidia.driver"]
    assert "neither the module nor nvidia-smi" in by_check(found, "nvidia.driver")[0].summary


def test_a_host_without_accelerators_and_plan_is_not_judged_for_them() -> None:
    answers = healthy("plain-01")
    items = {name: answer for name, answer in answers.items.items() if not name.startswith(("nvidia.", "rdma."))}
    plain = change(replace(answers, items=items), "host.pci", "0000:00:00.0 0600: 8086:0d57 driver=-\n")
    found = findings_of(plain)
    assert bad(found) == {}
    assert not [f for f in found if f.check.startswith(("nvidia.", "nvlink.", "fabric.", "ascend."))]


def test_text_that_cannot_be_read_is_unknown_and_blocks() -> None:
    cut = edit(healthy(), "nvidia.q", lambda text: text[: len(text) // 2])
    found = {f.check: f for f in findings_of(cut, PLANNED) if f.verdict is Verdict.UNKNOWN}
    assert found["nvidia.count"].blocks
    assert "half way" in found["nvidia.count"].summary
    assert not [f for f in findings_of(cut, PLANNED) if f.check == "nvidia.count" and f.verdict is Verdict.PASS]


def test_no_check_passes_on_an_empty_host() -> None:
    empty = Answers("bare-01")
    found = findings_of(empty, PLANNED)
    passes = {f.check for f in found if f.verdict is Verdict.PASS}
    # these judge the plan or what is not there, not the host
    assert passes <= {"host.reached", "host.sudo", "process.ours", "net.unique", "host.logind", "nccl.settings"}, passes
    assert {f.check for f in found if f.verdict is Verdict.FAIL} >= {"nvidia.driver"}


def test_two_gpus_are_not_held_to_eight_without_a_plan() -> None:
    answers = healthy("vm-01")
    answers = change(answers, "nvidia.q", sample("host-h200x2/nvidia-smi-q.txt"))
    answers = change(answers, "nvidia.nvlink", sample("host-h200x2/nvidia-smi-nvlink-s.txt"))
    answers = change(answers, "nvidia.nvlink_errors", sample("host-h200x2/nvidia-smi-nvlink-e.txt"))
    answers = change(answers, "nvidia.topo", sample("host-h200x2/nvidia-smi-topo-m.txt"))
    answers = change(answers, "nvidia.p2p", sample("host-h200x2/nvidia-smi-topo-p2p-r.txt"))
    answers = change(
        answers, "host.pci", "0000:00:06.0 0302: 10de:2335 driver=nvidia\n0000:00:07.0 0302: 10de:2335 driver=nvidia\n"
    )
    answers = change(answers, "host.virtual", "kvm\n")
    assert bad(findings_of(answers)) == {}
    short = by_check(findings_of(answers, PLANNED), "nvidia.count")[0]
    assert short.verdict is Verdict.FAIL and "2 GPUs, 8 are needed" in short.summary


def test_a_port_of_the_plan_that_is_taken_on_another_address_of_the_lab_is_free() -> None:
    need = replace(PLANNED, addresses={"lab-head": "127.0.77.1"}, recorded=True)
    taken = change(healthy("lab-head"), "net.listeners", "LISTEN 0 0 127.0.77.2:8000 0.0.0.0:*\n")
    assert by_check(findings_of(taken, need), "process.ports")[0].verdict is Verdict.PASS
    wide = change(healthy("lab-head"), "net.listeners", "LISTEN 0 0 0.0.0.0:8000 0.0.0.0:*\n")
    assert by_check(findings_of(wide, need), "process.ports")[0].verdict is Verdict.FAIL


def test_parity_of_environment_torch_library_and_packet_size() -> None:
    answers, needs = fleet(["gpu01", "gpu02", "gpu03"])
    for host in answers:
        torch, name = ("2.8.0", "old0") if host == "gpu03" else ("2.9.1", "new1")
        there = [{"environment": name, "torch": torch, "used": True}, {"environment": "left", "torch": "1.0"}]
        library = [{"path": "/x", "environment": name, "version": "2.27.5", "sha256": "a" * 64}]
        answers[host] = change(answers[host], "env.packages", json.dumps(there))
        answers[host] = change(answers[host], "env.libraries", json.dumps(library))
    rows = {row[0]: row[1:] for row in table([View(Facts(one), needs[host]) for host, one in answers.items()])}
    assert rows["torch"] == ("2 x 2.9.1", "gpu03: 2.8.0")
    assert rows["environment"] == ("2 x new1", "gpu03: old0")
    assert rows["nccl"] == ("3 x 2.27.5", "") and rows["mtu"][0].startswith("3 x ")
    found = {f.check: f.verdict for f in findings_of(answers, needs) if f.subject == "gpu03"}
    assert found["parity.torch"] is Verdict.FAIL and found["parity.environment"] is Verdict.WARN
    two = change(answers["gpu01"], "env.packages", json.dumps([{"environment": "a", "torch": "1"},
                                                               {"environment": "b", "torch": "2"}]))
    # two environments and no release: which is meant cannot be said
    assert not by_check(findings_of({"gpu01": two, "gpu02": answers["gpu02"]}, needs), "parity.torch")


def test_parity_names_the_majority_and_who_differs() -> None:
    answers, needs = fleet(["gpu01", "gpu02", "gpu03"])
    answers["gpu03"] = change(
        answers["gpu03"], "host.kernel", files={"/proc/sys/kernel/osrelease": "6.8.0-90-generic\n"}
    )
    found = [f for f in by_check(findings_of(answers, needs), "parity.kernel") if f.verdict is not Verdict.PASS]
    assert [(f.subject, f.summary) for f in found] == [("gpu03", "6.8.0-90-generic; gpu[01-02]: 6.8.0-85-generic")]


def test_a_replica_over_hosts_needs_rdma_unless_it_says_tcp() -> None:
    answers, needs = fleet(["gpu01", "gpu02"])
    bare = {
        host: replace(one, items={k: v for k, v in one.items.items() if not k.startswith("rdma.")})
        for host, one in answers.items()
    }
    found = [f for f in by_check(findings_of(bare, needs), "rdma.path") if f.verdict is Verdict.FAIL]
    assert {f.subject for f in found} == {"gpu01", "gpu02"}
    meant = {host: replace(need, transport="tcp") for host, need in needs.items()}
    assert not [f for f in findings_of(bare, meant) if f.blocks]


def test_clocks_that_disagree() -> None:
    answers, needs = fleet(["gpu01", "gpu02", "gpu03"])
    answers["gpu02"] = replace(answers["gpu02"], clock=(12.0, 0.1))
    answers["gpu01"], answers["gpu03"] = (replace(answers[h], clock=(0.0, 0.1)) for h in ("gpu01", "gpu03"))
    found = [f for f in by_check(findings_of(answers, needs), "time.between") if f.verdict is not Verdict.PASS]
    assert [(f.subject, f.verdict) for f in found] == [("gpu02", Verdict.FAIL)]


def test_a_pair_that_does_not_answer_when_others_do() -> None:
    answers, needs = fleet(["gpu01", "gpu02", "gpu03"])
    answers["gpu01"] = tree(
        answers["gpu01"], "net.reach", lambda reach: reach["gpu02"].update(ping="no answer", small="no answer")
    )
    found = [f for f in by_check(findings_of(answers, needs), "net.reach") if f.verdict is not Verdict.PASS]
    assert [(f.subject, f.verdict) for f in found] == [("gpu01 > gpu02", Verdict.FAIL)]
    silent = {
        host: tree(
            one, "net.reach", lambda reach: [v.update(ping="no answer", small="no answer") for v in reach.values()]
        )
        for host, one in answers.items()
    }
    assert {f.verdict for f in by_check(findings_of(silent, needs), "net.reach")} == {Verdict.NOTE}


def test_filters() -> None:
    only = findings_of(healthy(), PLANNED, Chosen(only=("nvlink", "net.mtu")))
    assert {f.check.partition(".")[0] for f in only} <= {"nvlink", "net"}
    left = findings_of(healthy(), PLANNED, Chosen(skip=("nvlink.*",)))
    assert not [f for f in left if f.check.startswith("nvlink.")]
    with pytest.raises(InputError, match="nvlinx") as caught:
        Chosen(only=("nvlinx",)).select()
    assert caught.value.next == "nearest: nvlink"


def test_every_check_says_what_and_by_whose_word() -> None:
    known = checks()
    assert len(known) >= 90
    for one in known.values():
        assert one.requires and one.source and one.remedy, one.id
        assert one.id.count(".") == 1
        assert one.platform in ("any", "nvidia", "ascend", "amd")


def test_every_probe_that_a_check_reads_exists() -> None:
    from bringup.preflight.probes import BY_ID

    for one in checks().values():
        assert set(one.reads) <= {*BY_ID, "proc.records"}, one.id


def test_requirement_data() -> None:
    assert {
        "h100",
        "h200",
        "b200",
        "gb200",
        "b300",
        "gb300",
        "mi300x",
        "mi325x",
        "mi350x",
        "mi355x",
        "h20",
        "ascend-a2",
        "ascend-a3",
        "ascend-950",
    } <= set(profiles())
    for one in profiles().values():
        assert one.count.source and one.product.source
    assert all(one.source for one in limits().values())
    assert {79, 64, 94, 119, 154} <= set(xids())
    assert {one.verdict for one in xids().values()} == {"note", "warn", "fail"}


def test_needs_of_a_recorded_host_say_so() -> None:
    need = replace(PLANNED, recorded=True)
    bare = change(
        healthy("lab-head"), "disk.weights", json.dumps({"path": "/m", "exists": True, "files": {}, "digests": {}})
    )
    found = findings_of(bare, need)
    assert by_check(found, "weights.complete")[0].verdict is Verdict.SKIP
    assert by_check(found, "disk.weights")[0].verdict is Verdict.SKIP


def test_a_port_behind_a_firewall_is_found_by_the_deep_tier() -> None:
    answers, needs = fleet(["gpu01", "gpu02"])
    meet = {"listen": {"8000": "listens", "29501": "listens"}, "connect": {}}
    answers["gpu01"] = change(
        answers["gpu01"],
        "net.meet",
        json.dumps({**meet, "connect": {"gpu02:8000": "connects", "gpu02:29501": "connects"}}),
    )
    answers["gpu02"] = change(
        answers["gpu02"],
        "net.meet",
        json.dumps({**meet, "connect": {"gpu01:8000": "connects", "gpu01:29501": "no answer"}}),
    )
    found = by_check(findings_of(answers, needs, Chosen(tier="deep")), "net.ports")
    assert [(f.subject, f.summary) for f in found if f.verdict is Verdict.FAIL] == [
        ("gpu02 > gpu01", "29501 (no answer) cannot be reached")
    ]
    assert not by_check(findings_of(answers, needs), "net.ports"), "the fast tier does not ask"


NONSENSE = ("\0\0garbage\n", '{"a": [1, 2', "[1, 2, 3]", '[{"path": 7, "free": "x"}]', '{"names": 3, "files": 5}')


def test_an_answer_of_another_shape_never_raises_and_never_passes() -> None:
    """Each probe's answer replaced by nonsense: the checks that read only that probe do not pass."""
    base, needs = fleet(["gpu01", "gpu02"])
    known = checks()
    for number, probe in enumerate(base["gpu01"].items):
        readers = tuple(one.id for one in known.values() if probe in one.reads)
        for garbage in NONSENSE if readers else ():
            sick = change(base["gpu01"], probe, garbage, files={"/proc/x": garbage})
            for f in findings_of({"gpu01": sick, "gpu02": base["gpu02"]}, needs, Chosen(only=readers)):
                if f.verdict is Verdict.PASS and f.subject == "gpu01" and known[f.check].reads == (probe,):
                    raise AssertionError((probe, garbage, f))
        garbage = NONSENSE[number % len(NONSENSE)]
        findings_of(change(base["gpu01"], probe, garbage, files={"/proc/x": garbage}), needs["gpu01"])


def test_an_amd_host() -> None:
    base = healthy("amd-01")
    items = {name: answer for name, answer in base.items.items() if not name.startswith(("nvidia.", "rdma."))}
    answers = change(replace(base, items=items), "amd.smi", sample("amd/rocm-smi-mi300x8.txt"))
    answers = change(
        answers, "host.pci", "".join(f"0000:{n:02x}:00.0 1200: 1002:74a1 driver=amdgpu\n" for n in range(8))
    )
    need = replace(PLANNED, hardware="mi300x", profile=profiles()["mi300x"], cuda_of_wheel="", memory_minimum=None)
    found = findings_of(answers, need)
    assert {f.check for f in found if f.verdict is Verdict.PASS} >= {"amd.tool", "amd.count", "amd.product"}
    assert [(f.check, f.summary) for f in bad(found).values()] == [("amd.memory", "GPU 3: 17 % in use")]


def test_a_time_service_that_is_not_there() -> None:
    base = healthy("gpu01")
    bare = replace(base, items={k: v for k, v in base.items.items() if not k.startswith("time.")})
    assert by_check(findings_of(bare), "time.sync")[0].verdict is Verdict.SKIP
    refused = change(bare, "time.timesync", "Failed to query server: not provided by any .service files\n", rc=1)
    assert by_check(findings_of(refused), "time.sync")[0].verdict is Verdict.SKIP
    dead = change(bare, "time.chrony", "506 Cannot talk to daemon\n", rc=1)
    found = by_check(findings_of(dead), "time.sync")[0]
    assert found.verdict is Verdict.WARN and "chronyd does not run" in found.summary


def test_what_is_unknown_names_no_mend_of_something_else() -> None:
    cut = edit(healthy(), "nvidia.nvlink", lambda text: text.replace("26.562 GB/s", "???", 1))
    found = by_check(findings_of(cut), "nvlink.up")[0]
    assert found.verdict is Verdict.UNKNOWN and found.mend is None


def test_ports_that_carry_the_model_are_those_beside_a_device() -> None:
    note = by_check(findings_of(healthy()), "rdma.ports")[0]
    assert note.summary == "8 ports (mlx5_[0-7]) at 400 Gb/s carry the model; mlx5_bond_0 left out: 200 Gb/s"
    assert note.data["ports"] == [f"mlx5_{n}" for n in range(8)]
    far = edit(
        healthy(),
        "nvidia.topo",
        lambda text: "\n".join(
            line.replace("PIX", "SYS") if line.startswith("GPU7") else line for line in text.splitlines()
        ),
    )
    note = by_check(findings_of(far), "rdma.ports")[0]
    assert "7 ports (mlx5_[0-6])" in note.summary and "mlx5_7 left out: beside no device" in note.summary
    chosen = by_check(findings_of(healthy(), replace(PLANNED, rdma_ports=("mlx5_2", "mlx5_3"))), "rdma.ports")[0]
    assert chosen.data["ports"] == ["mlx5_2", "mlx5_3"]
    gone = by_check(findings_of(healthy(), replace(PLANNED, rdma_ports=("mlx5_99",))), "rdma.ports")[0]
    assert gone.verdict is Verdict.FAIL and "mlx5_99" in gone.summary


@pytest.mark.parametrize(
    ("name", "check", "verdict", "word"),
    [
        ("ibstat-h100-2down-400g.txt", "rdma.state", Verdict.FAIL, "Down"),
        ("ibstat-h100-3down-mgmt.txt", "rdma.state", Verdict.PASS, "active"),
        ("ibstat-a100-ibpanic-rc255.txt", "rdma.tool", Verdict.WARN, "mlx5_8"),
        ("ibstat-h100-8x400-1x200.txt", "rdma.state", Verdict.PASS, "8 active"),
    ],
)
def test_recorded_ports(name: str, check: str, verdict: Verdict, word: str) -> None:
    """A replica over hosts whose ports are a recorded ibstat; the /sys files are not there."""
    answers, needs = fleet(["gpu01", "gpu02"])
    text = sample(f"ib/{name}")
    for host, one in answers.items():
        items = {k: v for k, v in one.items.items() if k not in ("rdma.sysfs", "rdma.devinfo", "nvidia.topo")}
        answers[host] = change(replace(one, items=items), "rdma.ibstat", text, rc=255 if "rc255" in name else 0)
    found = [f for f in by_check(findings_of(answers, needs), check) if f.subject == "gpu01"]
    assert found[0].verdict is verdict, found
    assert word in found[0].summary


def test_the_documentation_names_every_check_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs" / "preflight.md").read_text(encoding="utf-8")
    table = text.partition("## What is looked at")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", table)
    told = {f"{group}.{name.rstrip('*')}": "deep" if name.endswith("*") else "fast"
            for group, names in rows for name in names.split(", ")}
    assert told == {one.id: one.tier for one in checks().values()}
