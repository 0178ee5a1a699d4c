"""Situations from the field, each as recorded hosts: the right verdict on the right host, the neighbours clean."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from preflight_hosts import (
    CASES,
    PLANNED,
    SMI,
    bad,
    by_check,
    change,
    edit,
    findings_of,
    gpu_field,
    healthy,
    no_driver_match,
    planned,
    tree,
)

from bringup.agent import questions
from bringup.base.verdicts import Finding, Verdict
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.report import lines
from bringup.preflight.requirement import Need, profiles

GIB = 1024**3


def state(case: str) -> dict[str, Any]:
    return yaml.safe_load((CASES / case / "host.yml").read_text())


def said(case: str) -> list[str]:
    return yaml.safe_load((CASES / case / "case.yml").read_text()).get("say", [])


def shown(findings: list[Finding]) -> str:
    return "\n".join(lines(findings, width=200))


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
                {"name": "nccl_shm_66001", "size": 5 * 10**9, "user": "ops", "age": 9},
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
    assert "nccl_shm_66001" in by_check(found, "process.shm")[0].summary


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


def names_of(files: dict[str, str], own: str, others: dict[str, str]) -> str:
    """What a host with this /etc/hosts and no name server resolves."""
    found: dict[str, list[str]] = {}
    for line in files.get("/etc/hosts", "").splitlines():
        address, *names = line.split()
        for name in names:
            found.setdefault(name, []).append(address)
    return json.dumps(
        {
            "hostname": own,
            "names": {
                name: {
                    "addresses": found.get(name, []),
                    "seconds": 0.0,
                    **({} if name in found else {"error": "not known"}),
                }
                for name in (own, *others)
            },
        }
    )


def test_c011_own_name_on_loopback() -> None:
    hosts = state("C011")["hosts"]
    addresses = dict.fromkeys(hosts, "")
    needs = {host: Need(addresses={name: name for name in hosts}) for host in hosts}
    answers = {}
    for host, one in hosts.items():
        recorded = change(healthy(host), "net.hosts_file", files=one["files"])
        answers[host] = change(recorded, "net.names", names_of(one["files"], host, addresses))
    found = findings_of(answers, needs)
    own = {finding.subject: finding for finding in by_check(found, "net.self-name")}
    assert [own[host].verdict for host in hosts] == [Verdict.FAIL] * 3
    assert "/etc/hosts:2" in own["h200-01"].details[0] and "127.0.1.1" in own["h200-01"].summary
    assert "/etc/hosts:2" in own["h200-02"].details[0] and "::1" in own["h200-02"].summary
    assert "does not resolve" in own["h200-03"].summary
    assert "GLOO_SOCKET_IFNAME" in str(own["h200-01"].mend)
    others = {finding.subject: finding for finding in by_check(found, "net.names")}
    assert others["h200-03"].verdict is Verdict.FAIL and "h200-[01-02]" in others["h200-03"].summary


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


def ascend_host(
    host: str,
    *,
    driver: str = "25.5.0",
    firmware: str = "7.8.0.5",
    cann: str = "8.5.0",
    ips: dict[int, str] | None = None,
    conf: str | None = None,
) -> Answers:
    """A healthy A2 host of the sample outputs."""
    from preflight_hosts import sample

    base = healthy(host)
    items = {name: answer for name, answer in base.items.items() if not name.startswith(("nvidia.", "rdma."))}
    made = replace(base, items=items)
    made = change(
        made,
        "ascend.info",
        sample("npu-smi/info-910b3x8-25.2.0.txt").replace("21784/ 65536", "3402 / 65536").replace("124528", "124528"),
    )
    made = change(
        made, "host.pci", "".join(f"0000:{0xC0 + n:02x}:00.0 1200: 19e5:d802 driver=davinci\n" for n in range(8))
    )
    made = change(
        made,
        "host.devices",
        "".join(f"660 0 1000 /dev/davinci{n}\n" for n in range(8))
        + "660 0 1000 /dev/davinci_manager\n660 0 1000 /dev/devmm_svm\n660 0 1000 /dev/hisi_hdc\n",
    )
    made = change(
        made,
        "ascend.driver",
        files={"/usr/local/Ascend/driver/version.info": f"Version={driver}\ncompatible_version_fw=[7.0.0,7.8.99]\n"},
    )
    made = change(made, "ascend.firmware", files={"/usr/local/Ascend/firmware/version.info": f"Version={firmware}\n"})
    made = change(made, "ascend.cann", files={"/usr/local/Ascend/x/ascend_toolkit_install.info": f"version={cann}\n"})
    made = change(made, "ascend.install", files={"/etc/ascend_install.info": "Driver_Install_Status=complete\n"})
    chips = ips if ips is not None else {n: f"29.0.0.{10 + n}" for n in range(8)}
    made = change(
        made,
        "hccn.ip",
        "".join(
            f"== {n}\n" + (f"ipaddr:{ip}\nnetmask:255.255.255.0\n" if ip != "none" else "\n") for n, ip in chips.items()
        ),
    )
    made = change(made, "hccn.link", "".join(f"== {n}\nlink status: UP\n" for n in chips))
    made = change(made, "hccn.net_health", "".join(f"== {n}\nnet health status: Success\n" for n in chips))
    made = change(made, "hccn.tls", "".join(f"== {n}\ndev_id:{n}, tls switch[0](0:disable, 1:enable)\n" for n in chips))
    if conf is None:
        conf = "".join(f"address_{n}={ip}\nnetmask_{n}=255.255.255.0\n" for n, ip in chips.items())
    return change(made, "ascend.hccn_conf", files={"/etc/hccn.conf": conf}) if conf else made


ASCEND = replace(
    PLANNED,
    hardware="ascend-a2",
    profile=profiles()["ascend-a2"],
    engine="vllm-ascend",
    wheel="",
    cuda_of_wheel="",
    ports={},
    memory_minimum=None,
    weights_bytes=400_000_000_000,
)


def without_process(answers: Answers) -> Answers:
    """The sample host serves on one chip: take the process away."""
    return edit(answers, "ascend.info", lambda text: re.sub(r"(?m)^\| \d +\d +\| \d+ +\|.*\n", "", text))


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


def test_c061_mtu_of_an_interface_and_of_a_path() -> None:
    names = list(state("C061")["hosts"])
    needs = planned(names)
    addresses = dict(next(iter(needs.values())).addresses)
    answers = {host: healthy(host, addresses) for host in names}

    def set_mtu(reach: dict[str, Any]) -> None:
        for one in reach.values():
            one["mtu"] = 1500

    answers["h200-02"] = tree(answers["h200-02"], "net.reach", set_mtu)
    answers["h200-02"] = edit(
        answers["h200-02"], "rdma.devinfo", lambda text: text.replace("4096 (5)\n\t\t\tlink", "1024 (3)\n\t\t\tlink")
    )
    answers["h200-03"] = tree(
        answers["h200-03"], "net.reach", lambda reach: reach["h200-01"].update(ping="no answer", small="passes")
    )
    found = findings_of(answers, needs)
    mtu = {f.subject: f for f in by_check(found, "net.mtu") if f.verdict is Verdict.FAIL}
    assert set(mtu) == {"h200-02", "h200-03 > h200-01"}
    assert "MTU 1500, the others have 9000" in mtu["h200-02"].summary
    assert "9000 does not pass, 1500 does" in mtu["h200-03 > h200-01"].summary
    assert {f.subject for f in by_check(found, "rdma.mtu") if f.verdict is Verdict.WARN} == {"h200-02"}


def test_c061_all_at_1500_is_fine() -> None:
    needs = planned(["a1", "a2"])
    addresses = dict(needs["a1"].addresses)
    answers = {
        host: edit(healthy(host, addresses), "net.reach", lambda text: text.replace("9000", "1500")) for host in needs
    }
    assert not [f for f in by_check(findings_of(answers, needs), "net.mtu") if f.verdict is not Verdict.PASS]


def test_c067_hccl_timeout_on_one_host_only() -> None:
    hosts = state("C067")["hosts"]
    answers = {host: without_process(ascend_host(host)) for host in hosts}
    needs = {
        host: replace(ASCEND, env={name: str(value) for name, value in one["env"].items()})
        for host, one in hosts.items()
    }
    found = [f for f in by_check(findings_of(answers, needs), "hccl.env") if f.verdict is Verdict.FAIL]
    assert "HCCL_CONNECT_TIMEOUT" in found[0].summary and "600" in shown(found) and "not set" in shown(found)


def test_c069_hccn_conf_against_the_chips() -> None:
    hosts = state("C069")["hosts"]
    answers = {}
    for host, one in hosts.items():
        chips = {int(n): str(ip) for n, ip in one["chip_addresses"].items()}
        answers[host] = without_process(ascend_host(host, ips=chips, conf=one["files"].get("/etc/hccn.conf", "")))
    found = findings_of(answers, dict.fromkeys(hosts, ASCEND))
    first = [f.summary for f in by_check(found, "hccn.address") if f.subject == "a2-01"]
    assert first == ["chip 2: /etc/hccn.conf:5 says 29.0.0.99, the chip says 29.0.0.12"]
    second = " / ".join(f.summary for f in by_check(found, "hccn.address") if f.subject == "a2-02")
    assert "there is no /etc/hccn.conf" in second and "chip 2 has no address" in second
    twice = [f for f in by_check(found, "hccn.unique") if f.verdict is Verdict.FAIL]
    assert [(f.subject, f.summary) for f in twice] == [("a2-02", "chip 3 has 29.0.0.13, as a2-01 chip 3")]


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


def test_a_hung_tool_is_a_finding_and_the_rest_is_no_second_one() -> None:
    answers = healthy("h200-01")
    for probe in (*SMI, "nvidia.apps"):
        hung = Answer(probe, rc=None, timed_out=True, seconds=25.0, abandoned="D")
        answers = replace(answers, items={**answers.items, probe: hung})
    found = findings_of(answers, PLANNED)
    worst = [f for f in found if f.blocks]
    assert [f.check for f in worst] == ["nvidia.driver"]
    assert "did not answer within 25 s" in worst[0].summary and "state D" in worst[0].summary


def test_c059_a_proxy_that_would_get_the_cluster_s_calls() -> None:
    hosts = state("C059")["hosts"]
    needs = planned(["noproxy-03", "profile-01"])
    addresses = dict(needs["noproxy-03"].addresses)
    answers = {host: healthy(host, addresses) for host in needs}
    one = hosts["noproxy-03"]
    answers["noproxy-03"] = change(
        answers["noproxy-03"],
        "net.proxy",
        json.dumps({"session": {"https_proxy": one["proxy"], "no_proxy": one["no_proxy"]}, "files": {}}),
    )
    answers["profile-01"] = change(
        answers["profile-01"],
        "net.proxy",
        json.dumps({"session": {}, "files": {hosts["profile-01"]["proxy_in"]: {"https_proxy": "http://p:3128"}}}),
    )
    found = {f.subject: f for f in by_check(findings_of(answers, needs), "net.proxy")}
    assert found["noproxy-03"].verdict is Verdict.FAIL and "192.0.2.12" in found["noproxy-03"].summary
    assert found["profile-01"].verdict is Verdict.NOTE and "/etc/profile" in found["profile-01"].summary
    spared = change(
        answers["noproxy-03"],
        "net.proxy",
        json.dumps({"session": {"https_proxy": one["proxy"], "no_proxy": "localhost,192.0.2.0/24"}}),
    )
    assert by_check(findings_of(spared, needs["noproxy-03"]), "net.proxy")[0].verdict is Verdict.PASS


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
