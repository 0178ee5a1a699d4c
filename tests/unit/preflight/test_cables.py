"""Hosts whose wires are seen: RoCE and its pauses, rails, optics without mlxlink, NCCL's settings, ports of NPUs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from preflight_hosts import PLANNED, bad, by_check, change, edit, findings_of, fleet, healthy, sample
from preflight_makers import AMD, ASCEND, amd_host, ascend_host, without_process
from preflight_sick import one_file

from bringup.base.verdicts import Finding, Verdict
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.facts import Facts
from bringup.preflight.judge import Chosen
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need, profiles
from bringup.preflight.second import _pings, targets

QOS = sample("ib/mlnx_qos-pfc3.txt")
OFF = QOS.replace("enabled     0   0   0   1", "enabled     0   0   0   0")
PAUSE = "Pause parameters for x:\nAutonegotiate:\toff\nRX:\t\t{0}\nTX:\t\t{0}\n"


def each(texts: Mapping[str, str]) -> str:
    """What a probe writes that asks each interface."""
    return "".join(f"{name}| {line}\n" for name, text in texts.items() for line in text.splitlines()) + "== end\n"


def roce(answers: Answers, qos: Mapping[int, str] | None = None) -> Answers:
    """The host with its eight ports on Ethernet; `qos` is what mlnx_qos says of single interfaces."""
    files = {path: "Ethernet\n" if path.endswith("link_layer") else text
             for path, text in answers.get("rdma.sysfs").files.items()}
    for number in range(8):
        base = f"/sys/class/infiniband/mlx5_{number}/ports/1"
        files.update({f"{base}/gids/3": "0000:0000:0000:0000:0000:ffff:c000:0a0b\n",
                      f"{base}/gid_attrs/types/3": "RoCE v2\n", f"{base}/gid_attrs/ndevs/3": f"ib{number}\n"})
    answers = change(answers, "rdma.sysfs", files=files)
    texts = {f"ib{number}": (qos or {}).get(number, QOS) for number in range(8)}
    answers = change(answers, "rdma.qos", each(texts))
    return change(answers, "rdma.pause", each({name: PAUSE.format("off") for name in texts}))


def verdicts(found: list[Finding], check: str) -> dict[str, Verdict]:
    return {one.subject: one.verdict for one in by_check(found, check)}


def test_a_sound_roce_host() -> None:
    found = findings_of(roce(healthy()), PLANNED)
    assert bad(found) == {}
    assert by_check(found, "rdma.lossless")[0].summary == "priority 3 lossless, trust dscp"
    assert by_check(found, "rdma.drops")[0].summary == "8 ports"


def test_one_port_that_drops() -> None:
    found = findings_of(roce(healthy(), {5: OFF}), PLANNED)
    assert set(bad(found)) == {("h200-01", "rdma.lossless")}
    assert "mlx5_5: no lossless priority" in bad(found)[("h200-01", "rdma.lossless")].summary


def test_no_port_is_lossless_is_a_note_and_global_pause_is_none() -> None:
    bare = roce(healthy(), dict.fromkeys(range(8), OFF))
    assert by_check(findings_of(bare, PLANNED), "rdma.lossless")[0].verdict is Verdict.NOTE
    paused = change(bare, "rdma.pause", each({f"ib{n}": PAUSE.format("on") for n in range(8)}))
    assert by_check(findings_of(paused, PLANNED), "rdma.lossless")[0].summary == "global pause, trust dscp"


def test_hosts_of_a_replica_that_differ_in_pauses() -> None:
    hosts, needs = fleet(["a-01", "a-02", "a-03"])
    hosts = {name: roce(one, dict.fromkeys(range(8), OFF) if name == "a-03" else None) for name, one in hosts.items()}
    found = verdicts(findings_of(hosts, needs), "rdma.qos-equal")
    assert found == {"a-01": Verdict.PASS, "a-02": Verdict.PASS, "a-03": Verdict.WARN}


def test_lost_packets_are_told() -> None:
    path = "/sys/class/infiniband/mlx5_2/ports/1/hw_counters/out_of_sequence"
    found = by_check(findings_of(one_file("rdma.counters", path, "4711\n")(roce(healthy())), PLANNED), "rdma.drops")[0]
    assert found.verdict is Verdict.NOTE and found.summary == "mlx5_2: packets 4,711 out of sequence"


def lldp(switches: Mapping[int, str]) -> str:
    return "".join(f"lldp.ib{number}.{line}\n" for number, name in switches.items()
                   for line in ("via=LLDP", f"chassis.name={name}", f"port.ifname=swp{number}"))


def test_swapped_cables_between_rails() -> None:
    hosts, needs = fleet([f"a-0{number}" for number in range(1, 6)])
    straight = {number: f"leaf-{number}" for number in range(8)}
    swapped = {**straight, 2: "leaf-3", 3: "leaf-2"}
    hosts = {name: change(one, "net.lldp", lldp(swapped if name == "a-04" else straight))
             for name, one in hosts.items()}
    found = findings_of(hosts, needs)
    assert verdicts(found, "rdma.rails") == {**dict.fromkeys(hosts, Verdict.PASS), "a-04": Verdict.WARN}
    assert "mlx5_2 on leaf-3, elsewhere on leaf-2" in bad(found)[("a-04", "rdma.rails")].summary


def test_another_pod_is_no_swap_and_two_hosts_prove_nothing() -> None:
    hosts, needs = fleet(["a-01", "a-02", "a-03", "a-04"])
    texts = {"a-01": {0: "leaf-0", 1: "leaf-1"}, "a-02": {0: "leaf-1", 1: "leaf-0"},
             "a-03": {0: "leaf-8", 1: "leaf-9"}, "a-04": {0: "leaf-8", 1: "leaf-9"}}
    hosts = {name: change(one, "net.lldp", lldp(texts[name])) for name, one in hosts.items()}
    assert set(verdicts(findings_of(hosts, needs), "rdma.rails").values()) == {Verdict.PASS}


def test_lldp_without_its_daemon_is_skipped() -> None:
    said = "2026-12-01T03:00:00 [WARN/lldpctl] unable to get connection. Is lldpd running?\n"
    found = findings_of(change(healthy(), "net.lldp", "", rc=1, stderr=said), PLANNED)
    assert bad(found) == {} and by_check(found, "rdma.rails") == []


def without(answers: Answers, *probes: str) -> Answers:
    return replace(answers, items={name: one for name, one in answers.items.items() if name not in probes})


def modules(name: str) -> str:
    text = "\n".join(line.partition("| ")[2] for line in sample(f"ethtool/{name}.txt").splitlines()
                     if line.startswith("ens1f0np0|"))
    sound = "\n".join(line.partition("| ")[2] for line in sample("ethtool/each-m-qsfp28.txt").splitlines()
                      if line.startswith("ens1f0np0|"))
    return each({f"ib{number}": text if number == 6 else sound for number in range(8)})


def test_modules_by_ethtool_where_mlxlink_is_not_there() -> None:
    bare = without(healthy(), "rdma.mlxlink")
    assert by_check(findings_of(bare, PLANNED), "rdma.optics")[0].verdict is Verdict.SKIP
    well = findings_of(change(bare, "rdma.module", modules("each-m-qsfp28")), PLANNED)
    assert bad(well) == {} and by_check(well, "rdma.optics")[0].summary == "8 optical, 0 copper"
    dim = bad(findings_of(change(bare, "rdma.module", modules("each-m-low-light")), PLANNED))
    assert set(dim) == {("h200-01", "rdma.optics")}
    assert "mlx5_6: Mellanox MMA1B00-C100D: Laser rx power low alarm" in dim[("h200-01", "rdma.optics")].summary


def test_tools_that_refuse_all_ports_are_skipped_and_one_that_refuses_one_is_unknown() -> None:
    bare = without(healthy(), "rdma.mlxlink")
    refused = "Cannot get module EEPROM information: Operation not supported"
    every = change(bare, "rdma.module", each({f"ib{number}": refused for number in range(8)}))
    assert by_check(findings_of(every, PLANNED), "rdma.optics")[0].verdict is Verdict.SKIP
    one = edit(healthy(), "rdma.mlxlink", lambda text: "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("mlx5_3|")).replace(
            "== end", "mlx5_3| -E- Failed to open device\n== end"))
    found = by_check(findings_of(one, PLANNED), "rdma.ber")[0]
    assert found.verdict is Verdict.UNKNOWN and "mlx5_3" in found.summary


def test_bit_errors_stop_a_replica_over_hosts_and_young_counters_are_a_note() -> None:
    hosts, needs = fleet(["a-01", "a-02"])
    hosts["a-02"] = edit(hosts["a-02"], "rdma.mlxlink", lambda text: text.replace(
        "Symbol BER                         : 15E-255", "Symbol BER                         : 3E-11", 1))
    assert verdicts(findings_of(hosts, needs), "rdma.ber") == {"a-01": Verdict.PASS, "a-02": Verdict.FAIL}
    young = edit(healthy(), "rdma.mlxlink", lambda text: text.replace("41287.4", "2.5"))
    assert by_check(findings_of(young, PLANNED), "rdma.ber")[0].verdict is Verdict.NOTE


def test_copper_measures_no_light_and_its_los_says_nothing() -> None:
    lines = sample("mlxlink/ndr-copper.txt").splitlines()[:-1]
    text = "".join(line.replace("mlx5_0|", f"mlx5_{number}|") + "\n" for number in range(8) for line in lines)
    found = findings_of(change(healthy(), "rdma.mlxlink", text + "== end\n"), PLANNED)
    assert bad(found) == {} and by_check(found, "rdma.optics")[0].summary == "0 optical, 8 copper"


def test_nccl_variables_that_differ_or_switch_ways_off() -> None:
    hosts, needs = fleet(["a-01", "a-02"])
    hosts["a-02"] = change(hosts["a-02"], "nccl.conf", files={"/etc/nccl.conf": "NCCL_ALGO=Ring\nNCCL_IB_HCA=mlx5\n"})
    found = findings_of(hosts, needs)
    assert verdicts(found, "nccl.equal") == {"a-01": Verdict.FAIL, "a-02": Verdict.FAIL}
    assert "NCCL_ALGO is not set, on a-02 Ring" in bad(found)[("a-01", "nccl.equal")].summary
    off = {host: replace(need, env={"NCCL_IB_DISABLE": "1"}) for host, need in needs.items()}
    assert verdicts(findings_of(fleet(["a-01", "a-02"])[0], off), "nccl.settings")["a-01"] is Verdict.FAIL
    meant = {host: replace(need, transport="tcp") for host, need in off.items()}
    assert verdicts(findings_of(fleet(["a-01", "a-02"])[0], meant), "nccl.settings")["a-01"] is Verdict.NOTE


def test_the_bmc_that_is_slow_or_away() -> None:
    late = Answer("bmc.sel", rc=None, timed_out=True, seconds=8)
    slow = replace(healthy(), items={**healthy().items, "bmc.sel": late})
    found = findings_of(slow, PLANNED)
    assert bad(found) == {} and by_check(found, "bmc.log")[0].verdict is Verdict.NOTE
    for answer in (Answer("bmc.sel", rc=127), Answer("bmc.sel", rc=1, stdout=sample("ipmi/no-device.txt"))):
        away = replace(healthy(), items={**healthy().items, "bmc.sel": answer})
        assert by_check(findings_of(away, PLANNED), "bmc.log")[0].verdict is Verdict.SKIP


def test_faults_of_the_bmc_that_are_over_are_none() -> None:
    text = sample("ipmi/sel-faults.txt")
    told = [one.summary for one in by_check(findings_of(change(healthy(), "bmc.sel", text), PLANNED), "bmc.log")]
    assert told == ["Memory DIMM_A1: Uncorrectable ECC, 18 h 06 m ago",
                    "Power Supply PS2 Status: Power Supply AC lost, 11 h 27 m ago",
                    "Power Supply PS Redundancy: Redundancy Lost, 11 h 27 m ago"]
    over = text.replace("== end", "".join(f"   {line}\n" for line in (
        "9 | 11/19/2025 | 21:30:00 | Power Supply PS2 Status | Power Supply AC lost | Deasserted",
        "a | 11/19/2025 | 21:30:01 | Power Supply PS Redundancy | Fully Redundant | Asserted")) + "== end")
    found = by_check(findings_of(change(healthy(), "bmc.sel", over), PLANNED), "bmc.log")
    assert len(found) == 1 and "Uncorrectable" in found[0].summary
    old = text.replace("11/20/2025 08:30:00", "12/30/2025 08:30:00")
    assert by_check(findings_of(change(healthy(), "bmc.sel", old), PLANNED), "bmc.log")[0].verdict is Verdict.PASS


def test_a_gsp_that_does_not_answer() -> None:
    log = "[1036000.5] NVRM: GPU0 kgspHealthCheck: GSP heartbeat timed out\n"
    found = by_check(findings_of(change(healthy(), "host.kernel_log", log), PLANNED), "nvidia.gsp")[0]
    assert found.verdict is Verdict.WARN and "does not answer" in found.summary


def test_memory_in_pieces_is_a_note() -> None:
    text = sample("host/proc-buddyinfo-in-pieces.txt")
    found = findings_of(change(healthy(), "host.buddyinfo", files={"/proc/buddyinfo": text}), PLANNED)
    assert bad(found) == {}
    assert by_check(found, "host.fragmentation")[0].summary.startswith("node 0: 0 % of the free memory")


def npu(host: str = "npu-01") -> Answers:
    return without_process(ascend_host(host))


def test_a_module_without_light_stops_a_port_that_is_down_only() -> None:
    text = "".join(f"== {n}\n" + sample(f"hccn_tool/optical-g-{'910a-not-present' if n == 2 else 'sound'}.txt")
                   for n in range(8))
    dim = change(npu(), "hccn.optical", text)
    found = by_check(findings_of(dim, ASCEND), "hccn.optics")
    assert [one.verdict for one in found] == [Verdict.WARN] and "chip 2: received power 0.0054 mW on lane 1" in (
        found[0].summary)
    several = replace(ASCEND, nodes=("npu-01", "npu-02"))
    down = edit(dim, "hccn.link", lambda text: text.replace("== 2\nlink status: UP", "== 2\nlink status: DOWN"))
    assert by_check(findings_of(down, several), "hccn.optics")[0].verdict is Verdict.FAIL


def test_chips_without_optics_and_hosts_that_were_not_asked_are_skipped() -> None:
    bare = change(npu(), "hccn.optical", "".join(f"== {n}\nThis device does not support optical.\n" for n in range(8)))
    assert by_check(findings_of(bare, ASCEND), "hccn.optics")[0].verdict is Verdict.SKIP
    for probe in ("hccn.optical", "hccn.stat", "hccn.lldp", "hccn.fec"):
        assert bad(findings_of(without(npu(), probe), ASCEND)) == {}


def test_a_chip_with_another_fec() -> None:
    text = "".join(f"== {n}\n" + sample(f"hccn_tool/fec-g-{'none' if n == 5 else 'rs'}.txt") for n in range(8))
    found = findings_of({"npu-01": npu(), "npu-02": change(npu("npu-02"), "hccn.fec", text)}, ASCEND)
    assert verdicts(found, "hccn.fec") == {"npu-01": Verdict.PASS, "npu-02": Verdict.WARN}


def test_the_plane_of_an_a3() -> None:
    a3 = replace(ASCEND, hardware="ascend-a3", profile=profiles()["ascend-a3"])
    text = "".join(f"== {n}\n" + sample("hccn_tool/vnic-g-a3.txt").replace("UP", "DOWN" if n == 4 else "UP")
                   for n in range(8))
    found = by_check(findings_of(change(npu(), "hccn.vnic", text), a3), "hccn.plane")
    assert [(one.verdict, one.summary[:12]) for one in found] == [(Verdict.WARN, "chip 4: DOWN")]
    assert by_check(findings_of(npu(), ASCEND), "hccn.plane")[0].verdict is Verdict.SKIP


@pytest.mark.parametrize(("old", "new", "verdict", "word"), [
    ("", "", Verdict.PASS, "32 ranks on 4 servers"),
    ('"server_count": "4"', '"server_count": "3"', Verdict.FAIL, "server_count is 3, 4 servers"),
    ('"rank_id": "9"', '"rank_id": "8"', Verdict.FAIL, "rank 8 stands twice"),
    ("10.0.16.31", "10.0.16.30", Verdict.FAIL, "10.0.16.30 stands for two devices"),
    ("10.0.16.2", "10.9.16.2", Verdict.FAIL, "names none of this host's chips"),
    ('"completed"', '"initializing"', Verdict.FAIL, "its status is initializing"),
    ("{", "", Verdict.FAIL, "it is no rank table"),
])
def test_rank_tables(old: str, new: str, verdict: Verdict, word: str) -> None:
    import json

    text = sample("ascend-info/rank_table-4x8-v1.0.json")
    host = without_process(ascend_host("npu-01", ips={n: f"10.0.16.{20 + n}" for n in range(8)}))
    files = {"/etc/ranks.json": {"exists": True, "mode": "640", "text": text.replace(old, new) if old else text}}
    need = replace(ASCEND, env={"RANK_TABLE_FILE": "/etc/ranks.json"}, nodes=("npu-01", "b", "c", "d"))
    found = by_check(findings_of(change(host, "plan.files", json.dumps(files)), need), "hccl.rank-table")
    assert [one.verdict for one in found] == [verdict] and word in found[0].summary


def test_a_rank_table_that_is_not_there_and_an_address_of_another_host() -> None:
    need = replace(ASCEND, env={"RANK_TABLE_FILE": "/etc/ranks.json", "HCCL_IF_IP": "203.0.113.9"})
    gone = '{"/etc/ranks.json": {"exists": false, "error": "No such file or directory"}}'
    found = bad(findings_of(change(npu(), "plan.files", gone), need))
    assert {check for _, check in found} == {"hccl.rank-table", "hccl.address"}


def test_the_account_that_may_not_open_npus() -> None:
    need = replace(ASCEND, account="llm")
    made = change(npu(), "proc.account", '{"user": "llm", "exists": true, "uid": 998, "groups": ["llm"]}')
    found = by_check(findings_of(made, need), "ascend.group")[0]
    assert found.verdict is Verdict.FAIL and found.mend == "sudo usermod -aG HwHiAiUser llm"
    made = change(npu(), "proc.account", '{"user": "llm", "exists": true, "uid": 998, "groups": ["HwHiAiUser"]}')
    assert by_check(findings_of(made, need), "ascend.group")[0].verdict is Verdict.PASS


def test_errors_of_amd_gpus() -> None:
    def told(umc: str) -> list[tuple[Verdict, str]]:
        files = {f"/sys/class/drm/card{card}/device/ras/{block}_err_count": "ue: 0\nce: 2\nde: 0\n"
                 for card in (1, 2) for block in ("umc", "gfx")}
        files["/sys/class/drm/card2/device/ras/umc_err_count"] = umc
        found = findings_of(change(amd_host("mi-01"), "amd.ras", files=files), AMD)
        return [(one.verdict, one.summary) for one in by_check(found, "amd.ecc")]

    assert told("ue: 0\nce: 0\n") == [(Verdict.PASS, "0 on 2 cards, 6 corrected")]
    assert told("ue: 3\nce: 1\n") == [(Verdict.FAIL, "card2: 3 uncorrectable errors")]
    for torn in ("ue: 3\nce: ", "ue: x\nce: 0\n", "", "ue: 0\n"):
        assert [verdict for verdict, _ in told(torn)] == [Verdict.UNKNOWN]
    for text, verdict in (("7.0.2\n", Verdict.PASS), ("6.4.1\n", Verdict.NOTE), ("?\n", Verdict.UNKNOWN)):
        made = change(amd_host("mi-01"), "amd.version", files={"/opt/rocm/.info/version": text})
        assert by_check(findings_of(made, AMD), "amd.rocm")[0].verdict is verdict


def test_bios_and_disks_of_one_host_that_differs() -> None:
    hosts, needs = fleet(["a-01", "a-02", "a-03"])
    disk = sample("host/nvme-smart-log-2.11.json")
    for host in hosts:
        bios, disks = ("2.1\n", 7) if host == "a-03" else ("2.4\n", 8)
        made = change(hosts[host], "host.dmi", files={"/sys/class/dmi/id/bios_version": bios})
        hosts[host] = change(made, "host.nvme", "".join(f"== /dev/nvme{n}\n{disk}" for n in range(disks)))
    found = bad(findings_of(hosts, needs))
    assert {key for key in found if key[0] == "a-03"} == {("a-03", "parity.bios"), ("a-03", "parity.nvme")}
    assert found[("a-03", "parity.nvme")].summary == "7; a-[01-02]: 8"


def test_a_gpu_without_a_nic_beside_it() -> None:
    def far(text: str) -> str:
        return "".join((line.replace("PIX", "SYS").replace("PXB", "SYS") if line.split()[:1] == ["GPU3"] else line)
                       + "\n" for line in text.splitlines())

    hosts, needs = fleet(["a-01", "a-02"])
    hosts["a-01"] = edit(hosts["a-01"], "nvidia.topo", far)
    found = findings_of(hosts, needs)
    assert bad(found)[("a-01", "rdma.affinity")].summary == "GPU 3: no such port beside it"
    assert by_check(findings_of(hosts["a-01"], Need()), "rdma.affinity")[0].verdict is Verdict.NOTE


def pinged(text: str) -> dict[str, Verdict]:
    found = findings_of(change(npu(), "hccn.ping", text), replace(ASCEND, nodes=("npu-01", "npu-02")), Chosen("deep"))
    return {one.summary: one.verdict for one in by_check(found, "hccn.ping")}


def test_pings_between_chips() -> None:
    good = "".join(f"== {n} npu-02 29.0.0.{n} ping\n" + sample("hccn_tool/ping-g-a2x8.txt").split("device 1")[0]
                   for n in range(8))
    assert pinged(good + "== end\n") == {"8 ways": Verdict.PASS}
    lost = good.replace("3 packets transmitted, 3 received, 0.00%", "3 packets transmitted, 1 received, 66.67%", 1)
    assert pinged(lost + "== end\n") == {"chip 0 to npu-02 (29.0.0.0): 1 of 3 packets": Verdict.FAIL}
    for cut in (good, good[:300], good.replace("received", "re"), "== end\n", "Segmentation fault\n"):
        text = cut if cut.endswith("== end\n") or cut == good else cut + "== end\n"
        assert set(pinged(text).values()) <= {Verdict.UNKNOWN}, cut[:80]


def test_whom_chips_ping() -> None:
    names = ("a", "b", "c", "d")
    views = {}
    for place, host in enumerate(names):
        made = without_process(ascend_host(host, ips={n: f"29.0.{place}.{n}" for n in range(8)}))
        views[host] = View(Facts(made), replace(ASCEND, nodes=names))
    goals = targets(views["d"], views)
    assert [goal for goal in goals if goal[0] == 5] == [(5, "a", "29.0.0.5", "ping"), (5, "b", "29.0.1.5", "ping")]
    assert len(goals) == 16


def test_the_script_of_pings_asks_the_tool_and_says_when_it_is_not_there(tmp_path: Path) -> None:
    request = _pings(*_two_hosts())
    assert isinstance(request, dict)
    bare = subprocess.run(request["argv"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=False)
    assert (bare.returncode, bare.stdout) == (127, "")
    tool = tmp_path / "hccn_tool"
    tool.write_text('#!/bin/sh\necho "device $2 PING $6"\n'
                    'echo "3 packets transmitted, 3 received, 0.00% packet loss"\n')
    tool.chmod(0o755)
    done = subprocess.run(request["argv"], capture_output=True, text=True, check=True,
                          env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert pinged(done.stdout) == {"8 ways": Verdict.PASS}


def _two_hosts() -> tuple[View, dict[str, View]]:
    names = ("npu-01", "npu-02")
    views = {host: View(Facts(npu(host)), replace(ASCEND, nodes=names)) for host in names}
    return views["npu-01"], views


def test_errors_that_grow_under_load() -> None:
    base = change(healthy(), "pair.rdma", "{}")
    files = dict(base.get("rdma.counters").files)
    same = change(base, "rdma.counters_after", files=files)
    deep = Chosen("deep", only=("rdma.load-errors",))
    assert [one.verdict for one in findings_of(same, PLANNED, deep)] == [Verdict.PASS]
    path = "/sys/class/infiniband/mlx5_4/ports/1/counters/"
    grown = change(base, "rdma.counters_after", files={**files, path + "symbol_error": "300\n"})
    found = findings_of(grown, PLANNED, deep)
    assert [(one.verdict, one.summary) for one in found] == [(Verdict.WARN, "mlx5_4: symbol_error 300 more")]
    down = change(base, "rdma.counters_after", files={**files, path + "link_downed": "9\n"})
    assert [one.verdict for one in findings_of(down, PLANNED, deep)] == [Verdict.FAIL]
    assert [one.verdict for one in findings_of(base, PLANNED, deep)] == [Verdict.SKIP]


def test_what_carries_nothing_takes_nothing_with_it() -> None:
    torn = edit(healthy(), "rdma.mlxlink", lambda text: text.replace("mlx5_bond_0| State ", "mlx5_bond_0| Stxte "))
    assert bad(findings_of(torn, PLANNED)) == {}
    carrying = edit(healthy(), "rdma.mlxlink", lambda text: text.replace("mlx5_4| State ", "mlx5_4| Stxte "))
    assert {check for _, check in bad(findings_of(carrying, PLANNED))} == {"rdma.ber", "rdma.optics"}


def test_a_card_without_counters_and_a_lane_that_is_not_used() -> None:
    path = "/sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error"
    assert bad(findings_of(one_file("rdma.counters", path, "N/A (no PMA)\n")(healthy()), PLANNED)) == {}
    lanes = "1.886,1.989,2.281,1.976"
    dark = edit(healthy(), "rdma.mlxlink", lambda text: text.replace(lanes, "1.886,1.989,-40,-40", 1))
    assert bad(findings_of(dark, PLANNED)) == {}
    none = edit(healthy(), "rdma.mlxlink", lambda text: text.replace(lanes, "-40,-40,-40,-40", 1))
    assert "received power -40 dBm" in bad(findings_of(none, PLANNED))[("h200-01", "rdma.optics")].summary


def test_a_slot_that_suffices_is_a_note() -> None:
    base = "/sys/class/infiniband/mlx5_3/device/current_link_speed"
    slow = one_file("rdma.counters", base, "16.0 GT/s PCIe\n")
    found = by_check(findings_of(slow(healthy()), PLANNED), "rdma.pcie")
    assert [(one.verdict, one.summary) for one in found] == [(
        Verdict.WARN, "mlx5_3: x16 at 16 GT/s, the card x16 at 32: 252 Gb/s for a port of 400")]
    files = {path: "200 Gb/sec (4X HDR)\n" if path.endswith("/rate") else text
             for path, text in healthy().get("rdma.sysfs").files.items()}
    found = by_check(findings_of(slow(change(healthy(), "rdma.sysfs", files=files)), PLANNED), "rdma.pcie")
    assert [one.verdict for one in found] == [Verdict.NOTE]


def test_records_of_the_maker_in_the_log_of_the_bmc() -> None:
    text = sample("ipmi/sel-empty.txt").replace("SEL has no entries", "   5 | OEM record c0 | 000000 | 0000000000000\n"
                                                "   6 | 11/19/2025 | 14:23:05 | OEM record dd | 0000 | 0011223344\n"
                                                "   7 | Linux kernel panic: Fatal excep")
    assert by_check(findings_of(change(healthy(), "bmc.sel", text), PLANNED), "bmc.log")[0].verdict is Verdict.PASS
