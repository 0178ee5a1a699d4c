"""What one real GPU in a virtual machine answered: nothing false is said of it."""

from __future__ import annotations

from dataclasses import replace

from preflight_hosts import bad, by_check, change, findings_of, healthy, sample

from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answer, Answers


def one_gpu() -> Answers:
    """One H200 passed through: `nvlink -s` prints nothing and exits 0, no systemd, no NVSwitch, no fabric."""
    log = sample("nvidia-smi/query-q-h200x1-idle-590.48.01.txt")
    answers = change(healthy("vm-01"), "nvidia.q", log)
    for probe, name in (
        ("nvidia.version", "nvidia-smi/version-590.48.01.txt"),
        ("nvidia.topo", "nvidia-smi/topo-m-h200x1-590.48.01.txt"),
        ("nvidia.list", "nvidia-smi/list-L-h200x1-590.48.01.txt"),
    ):
        answers = change(answers, probe, sample(name))
    gone = ("nvidia.fabricmanager", "nvidia.module_disk", "rdma.ibstat", "rdma.sysfs", "time.chrony", "host.virtual")
    items = {name: answer for name, answer in answers.items.items() if name not in gone}
    items["nvidia.nvlink"] = Answer("nvidia.nvlink")
    items["nvidia.nvlink_errors"] = Answer("nvidia.nvlink_errors")
    answers = replace(answers, items=items)
    answers = change(answers, "nvidia.module", files={"/sys/module/nvidia/version": "590.48.01\n"})
    return change(answers, "host.pci", "0000:83:00.0 0302: 10de:2335 driver=nvidia\n")


def test_one_gpu_without_nvlink_gives_no_alarm() -> None:
    found = findings_of(one_gpu())
    assert bad(found) == {}
    assert by_check(found, "nvlink.up")[0].verdict is Verdict.SKIP
    assert by_check(found, "fabric.manager")[0].verdict is Verdict.SKIP


def test_eight_gpus_whose_links_are_not_shown_are_unknown() -> None:
    items = {**healthy().items, "nvidia.nvlink": Answer("nvidia.nvlink")}
    found = by_check(findings_of(replace(healthy(), items=items)), "nvlink.up")[0]
    assert found.verdict is Verdict.UNKNOWN


def test_the_tools_of_the_probes_themselves_are_no_strangers() -> None:
    answers = change(one_gpu(), "nvidia.apps", "00000000:83:00.0, 504, 20998 MiB, python3\n")
    log = answers.get("nvidia.q").stdout
    answers = change(
        answers, "nvidia.q", log.replace("Used                              : 0 MiB", "Used : 20998 MiB", 1)
    )
    answers = change(
        answers,
        "proc.holders",
        "504 /dev/nvidia0 python3\n525 /dev/nvidia0 nvidia-smi\n530 /dev/nvidia0 nvidia-smi\n",
    )
    found = [f for f in by_check(findings_of(answers), "process.devices") if f.verdict is not Verdict.PASS]
    assert len(found) == 1 and "504" in found[0].summary
