"""What measuring tools print, read and judged: every sample of them, and two real captures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from preflight_hosts import HERE, PLANNED, SAMPLES, bad, by_check, change, findings_of, fleet, healthy, sample

from bringup.base.verdicts import Finding, Verdict
from bringup.preflight import recording
from bringup.preflight.checks.measured import line_for
from bringup.preflight.judge import Chosen
from bringup.preflight.parsers import dcgm, load
from bringup.preflight.requirement import Need, profiles
from bringup.preflight.unread import Unread

REAL = HERE / "real"
DEEP = Chosen("deep")

COLLECTIVES: dict[str, tuple[int, float, int, int] | str] = {
    "all_gather-a100x8.txt": (8 << 30, 223.39, 8, 34),
    "all_gather-gcp-a3-2nodes-na.txt": (8 << 30, 188.54, 0, 11),
    "all_reduce-2nodes-nebius.txt": (8 << 30, 467.54, 0, 31),
    "all_reduce-a100x16-2nodes.txt": (1 << 30, 182.80, 16, 6),
    "all_reduce-a100x8-1node.txt": (1 << 30, 231.72, 8, 6),
    "all_reduce-a100x8-error-col-na.txt": (8 << 30, 235.26, 8, 34),
    "all_reduce-b200x16-2nodes-nohash.txt": (2 << 30, 696.06, 0, 29),
    "all_reduce-dgxa100x4nodes-error-col.txt": (4 << 30, 191.05, 0, 13),
    "all_reduce-gcp-a4-2nodes.txt": (8 << 30, 683.52, 0, 11),
    "all_reduce-iters-col-bw-failed.txt": "FAILED",
    "all_reduce-iters-col-outofbounds.txt": "Test failure",
    "all_reduce-iters-col-pass.txt": (32 << 20, 0.0, 1, 1),
    "alltoall-a100x8.txt": (8 << 30, 224.31, 8, 34),
    "broadcast-a100x8.txt": (8 << 30, 232.81, 8, 34),
    "mpirun-not-enough-slots.txt": "not enough slots",
}


def test_every_sample_of_a_measuring_tool_is_in_a_table() -> None:
    there = {path.name for path in (SAMPLES / "nccl-tests").iterdir()}
    assert there == set(COLLECTIVES)
    assert {path.name for path in (SAMPLES / "dcgm").iterdir()} == {*DIAGNOSES, *NVLINKS}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name: str) -> None:
    wanted = COLLECTIVES[name]
    text = sample(f"nccl-tests/{name}")
    if isinstance(wanted, str):
        with pytest.raises(Unread, match=wanted):
            load.collective(text)
        return
    run = load.collective(text)
    assert (run.largest.size, run.largest.busbw, run.ranks, len(run.rows)) == (
        wanted[0], pytest.approx(wanted[1]), *wanted[2:])
    assert run.concluded and not run.wrong


DIAGNOSES: dict[str, dict[str, str]] = {
    "diag-deployment-error-fragment.txt": {"Error": "error"},
    "diag-j-fail.json": {"Persistence Mode": "fail", "Environment Variables": "warn"},
    "diag-j-pass.json": {},
    "diag-j-rc205.json": {},
    "diag-j-warn.json": {"Persistence Mode": "warn"},
    "diag-r2-fail-thermal-fragment.txt": {"GPU Memory": "fail"},
    "diag-r4-table-pass.txt": {},
}
NVLINKS = ("nvlink-e-g0-head.txt", "nvlink-e-j-crc12.json", "nvlink-e-j-pass.json", "nvlink-s-a100x8.txt",
           "nvlink-s-down-disabled.txt")


@pytest.mark.parametrize("name", DIAGNOSES)
def test_diagnoses(name: str) -> None:
    found = dcgm.diagnosis(sample(f"dcgm/{name}"))
    assert {test: word for test, (word, _) in found.items() if word != "pass"} == DIAGNOSES[name]


def test_a_message_of_dcgm_that_is_broken_inside_words() -> None:
    _, said = dcgm.diagnosis(sample("dcgm/diag-r2-fail-thermal-fragment.txt"))["GPU Memory"]
    assert "thermal" in said.lower() and said.endswith("components.")


def test_nvlinks_of_dcgm() -> None:
    assert set(dcgm.nvlink_states(sample("dcgm/nvlink-s-a100x8.txt")).values()) == {"U" * 12}
    assert dcgm.nvlink_states(sample("dcgm/nvlink-s-down-disabled.txt")) == {0: "UUUDUUUUUUUU", 1: "UUUUUUDUUUXX"}
    assert dcgm.nvlink_errors(sample("dcgm/nvlink-e-j-crc12.json"))["Link 0 CRC Data Error"] == 12
    for name in ("dcgm/nvlink-e-j-pass.json", "dcgm/nvlink-e-g0-head.txt"):
        assert set(dcgm.nvlink_errors(sample(name)).values()) == {0}


def test_nvbandwidth() -> None:
    found = load.nvbandwidth(sample("nvbandwidth/nvbandwidth-results.txt"))
    assert len(found) == 15
    assert found["host_to_device_memcpy_ce"].least == ((0, 1), 269.33)
    assert found["device_to_host_memcpy_ce"].cells == {(0, 0): 295.15, (0, 1): 312.11}
    missing = sample("nvbandwidth/nvbandwidth-results.txt").replace(" 1    323.36    299.33    312.11\n", "")
    assert "host_to_device_memcpy_ce" not in load.nvbandwidth(missing)


@pytest.mark.parametrize(("name", "size", "gbits", "device"), [
    ("ib_write_bw-loopback-8M.txt", 8 << 20, 201.8, "ib0"),
    ("ib_write_bw-loopback-all-sizes.txt", 8 << 20, 195.0, "ib0"),
    ("ib_write_bw-roce-server.txt", 65536, 388.7, "mlx5_0"),
])
def test_perftest(name: str, size: int, gbits: float, device: str) -> None:
    row = load.perftest(sample(f"ib/{name}"))
    assert (row.size, row.device, row.mtu) == (size, device, 4096)
    assert row.gbits == pytest.approx(gbits, abs=0.1)


def test_perftest_in_gigabits_and_latency() -> None:
    head = (" Device         : mlx5_3\n"
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n")
    assert load.perftest(head + " 8388608    5000             392.11             391.98             0.005841\n"
                         ).gbits == 391.98
    text = (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
            "99% percentile[usec]   99.9% percentile[usec]\n"
            " 8       2000          1.90           5.31         1.95               1.97           0.09            "
            "2.31                    4.80\n")
    assert load.perftest(text).micros == 2.31


def test_hccl() -> None:
    assert load.hccl(sample("hccl-test/all_reduce-format.txt"))[-1] == (33554432, 48.59)
    with pytest.raises(Unread, match="failed"):
        load.hccl(sample("hccl-test/all_reduce-format.txt").replace("success", "failed"))


LOG = """node01:1:1 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
node01:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node01:1:1 [0] NCCL INFO Channel 01/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
node01:1:1 [0] NCCL INFO Channel 02/0 : 7[7] -> 8[0] [send] via NET/Socket/0
node01:1:1 [0] NCCL INFO Channel 03 : 3[3] -> 2[2] via SHM/direct/direct
"""


def test_transports_of_the_log() -> None:
    assert load.transports(LOG) == {"P2P", "NET/IB/GDRDMA", "NET/Socket", "SHM"}
    assert load.nvls(LOG) is True
    assert load.nvls(LOG + "NCCL INFO NCCL_NVLS_ENABLE set by environment to 0\n") is False
    assert load.nvls("NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels") is False
    assert load.nvls("") is None


def run_of(ranks: int, busbw: float, *, nvls: bool = True, via: str = "P2P/CUMEM", concluded: bool = True) -> str:
    lines = [f"#  Rank {rank:2d} Group  0 Pid 1{rank} on node01 device {rank:2d} [0x00] NVIDIA H200"
             for rank in range(ranks)]
    lines += [f"node01:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}",
              f"node01:1:1 [0] NCCL INFO 24 coll channels, 24 collnet channels, {16 * nvls} nvls channels"]
    for size, speed in ((64 << 20, busbw / 2), (4 << 30, busbw)):
        lines.append(f"{size:12d} {size // 4:13d}     float     sum      -1    650.2   51.61 {speed:8.2f}      0    "
                     f"648.4   51.75 {speed + 9:8.2f}      0")
    return "\n".join([*lines, *(["# Out of bounds values : 0 OK"] if concluded else []), ""])


def judged(text: str, check: str = "collective.all-reduce", **more: Any) -> Finding:
    found = by_check(findings_of(change(healthy(), "load.all_reduce", text, **more), PLANNED, DEEP), check)
    assert len(found) == 1
    return found[0]


def test_the_line_is_that_of_the_number_of_devices() -> None:
    h200 = profiles()["h200"]
    assert [line_for(h200, ranks, nvls).busbw for ranks, nvls in ((2, False), (4, True), (8, True), (8, False))  # type: ignore[union-attr]
            ] == [332, 345, 431, 348]
    assert line_for(h200, 3, None) is None
    assert judged(run_of(2, 350, nvls=False)).verdict is Verdict.PASS
    assert judged(run_of(2, 300, nvls=False)).verdict is Verdict.FAIL
    assert judged(run_of(8, 478)).verdict is Verdict.PASS
    assert judged(run_of(8, 363)).verdict is Verdict.FAIL
    off = judged(run_of(8, 363, nvls=False))
    assert off.verdict is Verdict.PASS and off.required and "without NVLS" in off.required
    assert judged(run_of(8, 363, nvls=False), "collective.transport").verdict is Verdict.NOTE
    assert judged(run_of(3, 340)).verdict is Verdict.NOTE


def test_the_row_of_the_largest_size_out_of_place() -> None:
    found = judged(run_of(8, 478))
    assert found.data == {"busbw": 478.0, "devices": 8, "size": 4 << 30}


@pytest.mark.parametrize(("text", "verdict"), [
    (run_of(8, 478, concluded=False), Verdict.UNKNOWN),
    (run_of(8, 478).replace("Out of bounds values : 0 OK", "Out of bounds values : 2 FAILED"), Verdict.FAIL),
    ("bash: all_reduce_perf: cannot execute\n", Verdict.UNKNOWN),
])
def test_a_run_that_is_none(text: str, verdict: Verdict) -> None:
    assert judged(text).verdict is verdict


def test_a_run_that_ended_with_a_status_is_unknown() -> None:
    found = judged(run_of(8, 478) + "NCCL failure: unhandled cuda error\n", rc=2)
    assert found.verdict is Verdict.UNKNOWN and "unhandled cuda error" in found.summary


@pytest.mark.parametrize(("via", "verdict"), [("P2P/CUMEM", Verdict.PASS), ("SHM/direct/direct", Verdict.FAIL),
                                              ("NET/Socket/0", Verdict.FAIL)])
def test_transport_inside_a_host(via: str, verdict: Verdict) -> None:
    assert judged(run_of(8, 478, via=via), "collective.transport").verdict is verdict


@pytest.mark.parametrize(("text", "verdict"), [
    (sample("nvbandwidth/device-local-copy-h200x2.txt"), Verdict.PASS),
    (sample("nvbandwidth/device-local-copy-h200x2.txt").replace("2009.87", "1009.87").replace("4022.31", "3022.31"),
     Verdict.FAIL),
    (sample("nvbandwidth/nvbandwidth-results.txt"), Verdict.SKIP),
])
def test_the_memory_of_a_device(text: str, verdict: Verdict) -> None:
    found = by_check(findings_of(change(healthy(), "load.copies", text), PLANNED, DEEP), "copy.memory")
    assert [one.verdict for one in found] == [verdict]
    if verdict is Verdict.FAIL:
        assert "2,020 GB/s read and written by device 1" in found[0].summary and found[0].required == "2333 GB/s"


def test_disk_speed_against_the_weights() -> None:
    def found(read: int, seconds: float) -> Finding:
        text = f'{{"file": "a", "bytes": {read}, "direct": true, "seconds": {seconds}}}'
        return by_check(findings_of(change(healthy(), "load.disk", text), PLANNED, DEEP), "disk.read")[0]

    fast, slow = found(8 << 30, 2.0), found(1 << 30, 5.0)
    assert fast.verdict is Verdict.PASS and "4.29 GB/s" in fast.summary
    assert slow.verdict is Verdict.WARN and "take 1 h" in slow.summary


def test_a_real_idle_gpu_gives_no_alarm_in_the_deep_tier() -> None:
    answers = recording.read(recording.find(REAL / "h200x1-580-idle.tar.gz")[0])
    found = findings_of(answers, Need(root="/tmp/bringup"), DEEP)
    assert bad(found) == {}
    assert [one.verdict for one in by_check(found, "copy.host")] == [Verdict.PASS, Verdict.PASS]
    assert "needs two devices" in by_check(found, "collective.all-reduce")[0].summary


def test_a_real_gpu_in_use_is_not_loaded() -> None:
    answers = recording.read(recording.find(REAL / "h200x1-580-busy.tar.gz")[0])
    found = findings_of(answers, Need(root="/tmp/bringup"), DEEP)
    assert {check for _, check in bad(found)} == {"process.devices"}
    for check in ("copy.host", "collective.all-reduce"):
        one = by_check(found, check)[0]
        assert one.verdict is Verdict.SKIP and "in use: pid 1111 of root" in one.summary


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    from bringup.base.errors import InputError

    (tmp_path / "x.tar.gz").write_bytes((REAL / "h200x1-580-idle.tar.gz").read_bytes()[:4000])
    with pytest.raises(InputError, match=r"x\.tar\.gz|archive"):
        recording.find(tmp_path / "x.tar.gz")


def over_replica(text: str, **more: Any) -> Finding:
    answers, needs = fleet(["gpu01", "gpu02"])
    answers["gpu01"] = change(answers["gpu01"], "load.replica", text)
    given = {host: replace(need, **more) for host, need in needs.items()}
    found = [one for one in by_check(findings_of(answers, given, DEEP), "collective.replica")
             if one.subject == "gpu01"]
    assert len(found) == 1
    return found[0]


def test_sockets_where_rdma_was_wanted_fail() -> None:
    text = sample("torch/all_reduce-h200-2hosts-sockets.txt")
    run = load.collective(text)
    assert (run.ranks, run.largest.size, run.largest.out_of_place, run.largest.in_place) == (2, 4 << 30, None, 1.86)
    assert run.transports == {"NET/Socket"} and run.by == "torch 2.11.0+cu130"
    found = over_replica(text)
    assert found.verdict is Verdict.FAIL and "NET/Socket" in found.summary and found.required == "NET/IB"
    assert "(torch 2.11.0+cu130, in place)" in found.summary
    assert over_replica(text, transport="tcp").verdict is Verdict.NOTE
    cut = "\n".join(line for line in text.splitlines() if "4294967296" not in line and "1073741824 " not in line)
    assert over_replica(cut).verdict is Verdict.FAIL
    assert over_replica(cut, transport="tcp").verdict is Verdict.NOTE


@pytest.mark.parametrize(("busbw", "via", "verdict"), [
    (375.0, "NET/IB/0/GDRDMA", Verdict.PASS), (180.0, "NET/IB/0/GDRDMA", Verdict.FAIL),
    (375.0, "P2P/CUMEM", Verdict.UNKNOWN), (9.0, "NET/Socket/0", Verdict.FAIL),
])
def test_two_whole_hosts_against_their_line(busbw: float, via: str, verdict: Verdict) -> None:
    assert over_replica(run_of(16, busbw, via=via)).verdict is verdict
