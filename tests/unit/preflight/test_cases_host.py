"""Situations from the field: disks, weights, limits, instructions. The neighbours stay clean."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import yaml
from preflight_cases import said, shown, state
from preflight_hosts import (
    CASES,
    PLANNED,
    by_check,
    change,
    edit,
    findings_of,
    healthy,
    planned,
    tree,
)

from bringup.agent import questions
from bringup.base.verdicts import Verdict


def test_c009_short_shard_and_pointer_text() -> None:
    answer = questions.answer("weights", {"path": str(CASES / "C009" / "model")})
    answers = change(healthy("h200-01"), "disk.weights", answer["stdout"])
    found = by_check(findings_of(answers, PLANNED), "weights.complete")[0]
    text = "\n".join((found.summary, *found.details))
    assert found.verdict is Verdict.FAIL
    assert re.search(r"model-00002\S*: 5 bytes short", text)
    assert re.search(r"model-00003\S*: a pointer text of a 5.4 GB file", text)
    assert "model-00001" not in text
    for word in said("C009"):
        assert word in text


def df(text: str) -> tuple[int, int, int]:
    size, used, free = (int(word) for word in text.splitlines()[1].split()[1:4])
    return size, used, free


def test_c019_three_full_disks() -> None:
    hosts = state("C019")["hosts"]
    size, _, free = df(hosts["bytes-01"]["replies"][0]["stdout"])
    bytes_01 = tree(
        healthy("bytes-01"),
        "disk.room",
        lambda disks: [disk.update(size=size, free=free) for disk in disks if disk["mount"] == "/"],
    )
    size, _, free = df(hosts["inodes-02"]["replies"][0]["stdout"])
    total, _, left = df(hosts["inodes-02"]["replies"][1]["stdout"])
    inodes_02 = tree(
        healthy("inodes-02"),
        "disk.room",
        lambda disks: [
            disk.update(size=size, free=free, inodes=total, inodes_free=left) for disk in disks if disk["mount"] == "/"
        ],
    )
    size, _, free = df(hosts["model-03"]["replies"][0]["stdout"])
    model_03 = tree(
        healthy("model-03"),
        "disk.room",
        lambda disks: [disk.update(size=size, free=free) for disk in disks if disk["mount"] == "/models"],
    )
    model_03 = tree(model_03, "disk.weights", lambda found: found.update(exists=False, files={}, digests={}))
    need = replace(PLANNED, weights_bytes=hosts["model-03"]["needs_bytes"]["/models"])
    found = findings_of(
        {"bytes-01": bytes_01, "inodes-02": inodes_02, "model-03": model_03},
        {"bytes-01": PLANNED, "inodes-02": PLANNED, "model-03": need},
    )
    worst = {
        (finding.subject, finding.check)
        for finding in found
        if finding.verdict is Verdict.FAIL and finding.check.startswith("disk")
    }
    assert worst == {("bytes-01", "disk.space"), ("inodes-02", "disk.inodes"), ("model-03", "disk.weights")}
    text = shown(found)
    for word in said("C019"):
        assert word in text
    assert "unreachable" not in text


def test_c049_a_download_that_stopped() -> None:
    assert "incomplete" in (CASES / "C049" / "tree.txt").read_text()
    answers = tree(
        healthy("h200-01"),
        "disk.weights",
        lambda found: (
            found["files"].update({"model-00003-of-00163.safetensors": {"error": "missing"}}),
            found["partial"].extend(
                [{"name": "a.incomplete", "size": 3_000_000_000}, {"name": "b.incomplete", "size": 300_000_000}]
            ),
        ),
    )
    found = findings_of(answers, PLANNED)
    assert "model-00003" in by_check(found, "weights.complete")[0].summary
    assert "2 unfinished parts, 3.3 GB" in by_check(found, "weights.partial")[0].summary


def test_c051_the_limit_that_counts_is_the_unit_s() -> None:
    verdicts = {}
    for host, one in state("C051")["hosts"].items():
        limits = one["memlock_kb"]
        login = limits["login"] if limits["login"] == "unlimited" else str(int(limits["login"]) * 1024)
        unit = "infinity" if limits["unit"] == "unlimited" else str(int(limits["unit"]) * 1024)
        answers = change(
            healthy(host),
            "host.limits",
            files={
                "/proc/self/limits": (
                    f"Max open files 1048576 1048576 files\nMax locked memory {login} {login} bytes\n"
                )
            },
        )
        answers = change(answers, "host.units", f"Id=bringup-r1-0.service\nLimitMEMLOCK={unit}\nActiveState=active\n")
        found = by_check(findings_of(answers, PLANNED), "host.memlock")[0]
        verdicts[host] = (found.verdict, found.blocks)
    assert verdicts == {
        "session-01": (Verdict.WARN, False),
        "unit-02": (Verdict.FAIL, True),
        "good-03": (Verdict.PASS, False),
    }


def test_c053_noexec() -> None:
    hosts = state("C053")["hosts"]
    found = {}
    for host, one in hosts.items():
        root = one["deploy_root"]
        results = [
            {
                "path": path,
                "tried": path,
                "result": "cannot run: Permission denied" if "noexec" in one["mounts"][mount] else "runs",
            }
            for path, mount in ((root, "/opt"), ("/tmp", "/tmp"))
        ]
        answers = change(healthy(host), "disk.execute", json.dumps(results))
        found[host] = by_check(findings_of(answers, replace(PLANNED, root=root)), "disk.execute")[0]
    assert found["h200-01"].verdict is Verdict.PASS
    assert found["h200-02"].verdict is Verdict.FAIL
    assert "/opt/glm" in found["h200-02"].summary and "/tmp" in found["h200-02"].summary


def test_c081_cpu_without_the_instructions() -> None:
    document = state("C081")
    found = {}
    for host, one in document["hosts"].items():
        flags = " ".join(one["flags"])
        answers = edit(
            healthy(host), "host.cpu", lambda text, flags=flags: re.sub(r"(?m)^(Flags: +).*$", rf"\g<1>{flags}", text)
        )
        need = replace(PLANNED, cpu_variant=document["asked_variant"])
        found[host] = by_check(findings_of(answers, need), "host.cpu-variant")[0]
    assert {host: f.verdict for host, f in found.items()} == {
        "cascade-01": Verdict.FAIL,
        "sapphire-02": Verdict.PASS,
        "desktop-03": Verdict.FAIL,
    }
    assert "AVX512" in str(found["cascade-01"].mend) and found["desktop-03"].mend == "this host can run AVX2"


def manifest(path: Path) -> dict[str, str]:
    rows = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {row[0]: row[-1] for row in rows if len(row) > 1}


def test_c085_another_template_and_a_missing_folder() -> None:
    names = ["node1", "node2", "node3"]
    needs = planned(names)
    addresses = dict(next(iter(needs.values())).addresses)
    answers = {host: healthy(host, addresses) for host in names}
    first, second = manifest(CASES / "C085" / "node1.manifest"), manifest(CASES / "C085" / "node2.manifest")
    odd = [name for name in first if first[name] != second.get(name)]
    assert odd == ["chat_template.jinja"]
    answers["node2"] = tree(answers["node2"], "disk.weights", lambda found: found["digests"].update({odd[0]: "0" * 64}))
    answers["node3"] = tree(
        answers["node3"], "disk.weights", lambda found: found.update(exists=False, files={}, digests={})
    )
    found = {f.subject: f for f in by_check(findings_of(answers, needs), "weights.equal")}
    # two hosts that differ cannot say which is right: both are named, and both files
    assert found["node2"].verdict is Verdict.FAIL or found["node1"].verdict is Verdict.FAIL
    assert "chat_template.jinja differs" in shown(list(found.values()))
    assert found["node3"].verdict is Verdict.FAIL and "not there" in found["node3"].summary


def test_c013_an_updater_at_work_and_a_database_half_configured() -> None:
    hosts = state("C013")["hosts"]
    pid, program = hosts["waits-01"]["lock"]["holder"].split()
    command = f"/usr/bin/python3 /usr/bin/{program}ade"
    table = healthy("waits-01").get("proc.processes").stdout
    found = {}
    for host, answers in (
            ("waits-01", change(healthy("waits-01"), "proc.processes",
                                f"{table}{pid} 1 root S 4711 40 apt-daily-upgrade.service - {command}\n")),
            ("half-03", change(healthy("half-03"), "host.packages",
                               "The following packages are only half configured, probably due to problems\n")),
            ("good-04", change(
                change(healthy("good-04"), "host.packages", ""), "proc.processes",
                f"{table}900 1 root S 99 4000 u - /usr/bin/python3 /usr/share/unattended-upgrades/"
                "unattended-upgrade-shutdown --wait-for-signal\n"))):
        found[host] = by_check(findings_of(answers, PLANNED), "host.packages")[0]
    assert found["waits-01"].verdict is Verdict.NOTE
    assert f"pid {pid} of root" in found["waits-01"].summary and program in found["waits-01"].summary
    assert found["half-03"].verdict is Verdict.WARN and found["half-03"].mend == "sudo dpkg --configure -a"
    assert found["good-04"].verdict is Verdict.PASS
    for word in yaml.safe_load((CASES / "C013" / "case.yml").read_text())["never"]:
        assert not any(word in str(one.mend) for one in found.values())
