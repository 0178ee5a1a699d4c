"""Every recorded output of a tool that a probe asks: typed facts, or unreadable with the reason."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from preflight_hosts import SAMPLES, sample

from bringup.preflight.parsers import amd, ascend, host, kernel, nvidia_q, nvidia_text, processes, rdma
from bringup.preflight.unread import Unread

Q = {
    "host-h200x2/nvidia-smi-q.txt": ("580.159.04", "13.0", 2, "NVIDIA H200", 143771),
    "nvidia-smi/query-q-h100x1-idle-590.48.01.txt": ("590.48.01", "13.1", 1, "NVIDIA H100 80GB HBM3", 81559),
    "nvidia-smi/query-q-h100x8-535.161.08.txt": ("535.161.08", "12.2", 8, "NVIDIA H100 80GB HBM3", 81559),
    "nvidia-smi/query-q-h200-mig-590.48.01.txt": ("590.48.01", "13.1", 1, "NVIDIA H200", 143771),
    "nvidia-smi/query-q-h200x1-idle-590.48.01.txt": ("590.48.01", "13.1", 1, "NVIDIA H200", 143771),
    "nvidia-smi/query-q-rtx2080s-610.57.04.txt": ("610.57.04", "13.3", 1, "NVIDIA GeForce RTX 2080 SUPER", 8192),
    "nvidia-smi/query-q-titanv-560.35.03.txt": ("560.35.03", "12.6", 1, "NVIDIA TITAN V", 12288),
}


@pytest.mark.parametrize("name", Q)
def test_smi_log(name: str) -> None:
    log = nvidia_q.parse(sample(name))
    driver, cuda, count, product, memory = Q[name]
    assert (log.driver, log.cuda, len(log.gpus), log.attached) == (driver, cuda, count, count)
    assert {gpu.name for gpu in log.gpus} == {product}
    assert {gpu.memory_total for gpu in log.gpus} == {memory}
    assert not any(gpu.unreadable for gpu in log.gpus)


def test_smi_log_of_the_recorded_host() -> None:
    gpu = nvidia_q.parse(sample("host-h200x2/nvidia-smi-q.txt")).gpus[1]
    assert (gpu.bus, gpu.serial, gpu.ecc, gpu.mig, gpu.persistence) == (
        "0000:00:07.0",
        "1650000000002",
        True,
        False,
        True,
    )
    assert (gpu.fabric_state, gpu.fabric_status, gpu.recovery) == ("Completed", "Success", "None")
    assert (gpu.remap_pending, gpu.remap_failed, gpu.retired) == (False, False, None)
    assert (gpu.pcie_gen_max, gpu.pcie_width, gpu.power_limit, gpu.temperature_margin) == (5, 16, 700.0, 53.0)


def test_smi_log_with_mig_on() -> None:
    assert nvidia_q.parse(sample("nvidia-smi/query-q-h200-mig-590.48.01.txt")).gpus[0].mig is True


def test_smi_log_that_stops_half_way_is_no_log() -> None:
    with pytest.raises(Unread, match="half way"):
        nvidia_q.parse(sample("nvidia-smi/query-q-truncated-535.183.01.txt"))


def test_excerpts() -> None:
    pending = nvidia_q.parse(sample("nvidia-smi/query-q-a100-row-remap-pending.txt"), complete=False).gpus[0]
    assert (pending.remap_pending, pending.remapped_correctable, pending.ecc_corrected) == (True, 1, 177)
    waiting = nvidia_q.parse(sample("nvidia-smi/fabric-in-progress.txt"), complete=False).gpus[0]
    assert (waiting.fabric_state, waiting.fabric_status) == ("In Progress", "")
    pages = nvidia_q.parse(sample("nvidia-smi/query-d-page-retirement-bad-535.86.10.txt"), complete=False).gpus
    assert [(gpu.retired, gpu.retired_pending) for gpu in pages[:4]] == [(65, False), (63, True), (0, False), (6, True)]
    sram = "GPU 00000000:19:00.0\n" + sample("nvidia-smi/query-q-sram-uncorrectable.txt")
    gpu = nvidia_q.parse(sram, complete=False).gpus[0]
    assert (gpu.ecc_uncorrected, gpu.sram_uncorrected_lifetime) == (1, 5)


def test_a_failing_cell_is_no_value() -> None:
    text = sample("host-h200x2/nvidia-smi-q.txt").replace("143771 MiB", "[GPU requires reset]", 1)
    gpu = nvidia_q.parse(text).gpus[0]
    assert gpu.memory_total is None
    assert gpu.unreadable == ("FB Memory Usage Total",)


NVLINK = {
    "host-h200x2/nvidia-smi-nvlink-s.txt": (2, 18, 0),
    "nvidia-smi/nvlink-s-a100x8.txt": (8, 12, 0),
    "nvidia-smi/nvlink-s-all-inactive-a100.txt": (1, 0, 0),
    "nvidia-smi/nvlink-s-good-a100.txt": (1, 12, 0),
    "nvidia-smi/nvlink-s-h200-mig-590.48.01.txt": (1, 0, 0),
    "nvidia-smi/nvlink-s-h200x1-590.48.01.txt": (1, 18, 0),
    "nvidia-smi/nvlink-s-l40s-595.80.txt": (1, 0, 0),
}


@pytest.mark.parametrize("name", NVLINK)
def test_nvlinks(name: str) -> None:
    links = nvidia_text.nvlinks(sample(name))
    assert (len(links), len(links[0].speeds), len(links[0].down)) == NVLINK[name]


def test_nvlink_errors() -> None:
    assert nvidia_text.nvlink_errors(sample("nvidia-smi/nvlink-e-h100-zero.txt")) == {0: {}}
    assert nvidia_text.nvlink_errors(sample("nvidia-smi/nvlink-e-h100-replay.txt")) == {
        0: {"link 7 Replay": 3, "link 7 Recovery": 1, "link 12 CRC": 12}
    }
    assert nvidia_text.nvlink_errors(sample("host-h200x2/nvidia-smi-nvlink-e.txt")) == {0: {}, 1: {}}


@pytest.mark.parametrize(
    ("name", "gpus", "cell"),
    [
        ("nvidia-smi/topo-m-a100x8-nv12.txt", 8, "NV12"),
        ("nvidia-smi/topo-m-h100x8-nv18.txt", 8, "NV18"),
        ("nvidia-smi/topo-m-h100x8-nic8-570.133.20.txt", 8, "NV18"),
        ("host-h200x2/nvidia-smi-topo-m.txt", 2, "NV18"),
        ("nvidia-smi/topo-m-h100x1-590.48.01.txt", 1, None),
        ("nvidia-smi/topo-m-h200-mig-590.48.01.txt", 1, None),
        ("nvidia-smi/topo-m-h200x1-590.48.01.txt", 1, None),
        ("nvidia-smi/topo-p2p-r-h100x8-ok.txt", 8, "OK"),
        ("nvidia-smi/topo-p2p-r-l4x2-cns.txt", 2, "CNS"),
        ("host-h200x2/nvidia-smi-topo-p2p-r.txt", 2, "OK"),
    ],
)
def test_matrix(name: str, gpus: int, cell: str | None) -> None:
    found = nvidia_text.matrix(sample(name))
    assert len(found.gpus()) == gpus
    assert found.cells.get(("GPU0", "GPU1")) == cell
    assert found.cells[("GPU0", "GPU0")] == "X"


def test_matrix_with_nics_knows_who_sits_beside_whom() -> None:
    found = nvidia_text.matrix(sample("nvidia-smi/topo-m-h100x8-nic8-570.133.20.txt"))
    assert (found.cells[("GPU2", "NIC2")], found.cells[("GPU2", "NIC5")]) == ("PIX", "SYS")
    assert (found.cpus["GPU7"], found.numa["GPU7"]) == ("48-95,144-191", "1")


@pytest.mark.parametrize(
    ("name", "library", "driver", "cuda"),
    [
        ("host-h200x2/nvidia-smi-version.txt", "580.159", "580.159.04", "13.0"),
        ("nvidia-smi/version-590.48.01.txt", "590.48", "590.48.01", "13.1"),
        ("nvidia-smi/version-610.57.04.txt", "610.57", "610.57.04", "13.3"),
    ],
)
def test_versions(name: str, library: str, driver: str, cuda: str) -> None:
    found = nvidia_text.versions(sample(name))
    assert (found["library"], found["driver"], found["cuda"]) == (library, driver, cuda)


@pytest.mark.parametrize(
    ("name", "rc", "kind"),
    [
        ("err-nvml-mismatch.txt", 18, "mismatch"),
        ("err-driver-not-loaded.txt", 9, "not loaded"),
        ("err-gpu-lost.txt", 15, "lost"),
        ("err-device-handle-unknown.txt", 15, "lost"),
        ("err-no-devices.txt", 6, "no devices"),
    ],
)
def test_what_a_failed_smi_means(name: str, rc: int, kind: str) -> None:
    text = sample(f"nvidia-smi/{name}")
    assert nvidia_text.smi_trouble(rc, text)[0] == kind
    with pytest.raises(Unread):
        nvidia_q.parse(text)


def test_apps() -> None:
    assert nvidia_text.apps("") == ()
    app = nvidia_text.apps("00000000:18:00.0, 77637, 122880 MiB, demo::scheduler_TP0, with a comma\n")[0]
    assert (app.bus, app.pid, app.used, app.name) == (
        "0000:18:00.0",
        77637,
        122880,
        "demo::scheduler_TP0, with a comma",
    )
    assert nvidia_text.apps("00000000:18:00.0, 7, [N/A], [Not Found]\n")[0].used is None


def test_module_and_toolkit() -> None:
    assert nvidia_text.module_version(sample("nvidia-proc/version-open-555.42.06.txt")) == "555.42.06"
    assert nvidia_text.module_version(sample("nvidia-proc/version-proprietary-515.65.01.txt")) == "515.65.01"
    assert nvidia_text.module_version(sample("host-h200x2/proc-driver-version.txt")) == "580.159.04"
    assert nvidia_text.toolkit(sample("nvcc/version-9.1-no-build-line.txt")) == "9.1"
    assert nvidia_text.toolkit(sample("nvcc/version-13.1.txt")) == "13.1"


def test_kernel_logs() -> None:
    mixed = kernel.parse(sample("kernel/xid-mixed.txt"))
    assert [(xid.code, xid.bus) for xid in mixed.xids] == [
        (79, "0000:05:00.0"),
        (64, "0000:0f:00.0"),
        (94, "0000:0f:00.0"),
        (149, "0000:04:00.0"),
        (145, "0008:01:00.0"),
        (31, "0000:01:00.0"),
    ]
    assert mixed.xids[0].at == 1201.118244
    assert [(one.code, one.fatal) for one in kernel.parse(sample("kernel/sxid-mixed.txt")).sxids] == [
        (12028, False),
        (22013, False),
        (20034, True),
    ]
    assert {xid.code for xid in kernel.parse(sample("kernel/dmesg-xid-119-gsp-timeout.txt")).xids} == {119}
    assert kernel.parse(sample("kernel/syslog-ib-flap-6.txt")).flaps == {"ib6": 6}
    warnings = kernel.parse(sample("kernel/mlx5-warnings.txt"))
    assert [device for device, _ in warnings.narrow] == ["0000:9c:00.0"]
    assert len(warnings.slot_power) == len(warnings.unplugged) == 1
    assert len(kernel.parse(sample("kernel/dmesg-pcie-limited-by.txt")).narrow) == 2
    assert len(kernel.parse(sample("kernel/dmesg-segfault-libnccl.txt")).segfaults) == 2
    assert "nvidia_peermem" in kernel.modules(sample("kernel/lsmod-nvidia-peermem.txt"))


@pytest.mark.parametrize(
    ("name", "synced", "offset"),
    [
        ("chronyc-tracking-ok.txt", True, 0.000466082),
        ("chronyc-tracking-69s-fast.txt", True, 69.246482849),
        ("chronyc-tracking-not-synchronised.txt", False, None),
        ("chronyc-tracking-ptp.txt", True, -1.8e-08),
    ],
)
def test_chrony(name: str, synced: bool, offset: float | None) -> None:
    clock = host.chrony(sample(f"time/{name}"))
    assert (clock.synced, clock.offset) == (synced, offset)


def test_other_clocks() -> None:
    assert host.timedatectl(sample("time/timedatectl-centos-7.7.txt")).synced is True
    assert host.timedatectl(sample("time/timedatectl-ubuntu-18.04.txt")).synced is True
    status = host.timesync(sample("time/timedatectl-timesync-status.txt"))
    assert (status.synced, status.offset) == (True, -0.005224)
    with pytest.raises(Unread):
        host.chrony(sample("time/chronyc-sources-none-selected.txt"))


@pytest.mark.parametrize(
    ("name", "sockets", "threads", "numa"),
    [
        ("host/lscpu-epyc7451-2s-8numa.txt", 2, 96, 8),
        ("host/lscpu-rhel-old.txt", 1, 2, 1),
        ("host/lscpu-kunpeng920-192c-8numa-util-linux2.39.txt", 4, 192, 8),
        ("host-h200x2/lscpu.txt", 1, 32, 1),
    ],
)
def test_cpu(name: str, sockets: int, threads: int, numa: int) -> None:
    found = host.cpu(sample(name))
    assert (found.sockets, found.threads, found.numa) == (sockets, threads, numa)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("host/os-release-*")), ids=lambda path: path.stem)
def test_os_release(path: Any) -> None:
    found = host.os_release(path.read_text())
    assert found["ID"].lower() in path.stem.replace("centosstream", "centos")
    assert found["VERSION_ID"]


def test_docker_and_units() -> None:
    assert host.docker(sample("container/docker-info-runtimes-nvidia.txt")).default_runtime == "nvidia"
    assert "ascend" in host.docker(sample("container/docker-info-runtimes-ascend.txt")).runtimes
    with pytest.raises(Unread, match="permission denied"):
        host.docker(sample("container/docker-daemon-denied.txt"))
    with pytest.raises(Unread):
        host.docker(sample("container/docker-run-unknown-runtime.txt"))
    units = host.units(sample("systemctl/show-all-three-units.txt"))
    assert len(units) == 3
    assert host.units(sample("systemctl/show-fabricmanager-masked.txt"))[0]["LoadState"] == "masked"


@pytest.mark.parametrize(
    ("name", "count", "name_of", "health", "memory"),
    [
        ("info-310b4-alarm-busna-23.0.0.txt", 1, "310B4", "Alarm", 15609),
        ("info-310p3-2chip-25.2.0.txt", 2, "310P3", "OK", 44280),
        ("info-310p3x2-25.5.1.txt", 2, "310P3", "OK", 21525),
        ("info-310p3x2-broken-border-25.5.1.txt", 2, "310P3", "OK", 21525),
        ("info-310p3x3-bigid-25.2.1.txt", 3, "310P3", "OK", 21527),
        ("info-310x4-20.2.0.txt", 4, "310", "OK", 8192),
        ("info-310x4-21.0.4.txt", 4, "310", "OK", 8192),
        ("info-910ax8-22.0.3.1.txt", 8, "910A", "OK", 32768),
        ("info-910b2cx2-23.0.2.1.txt", 2, "910B2C", "OK", 65536),
        ("info-910b3x8-25.2.0.txt", 8, "910B3", "OK", 65536),
        ("info-910x8-warning-24.1.RC2.txt", 8, "xxx", "OK", 32768),
        ("info-950x1.txt", 1, "xxx", "OK", 86016),
        ("info-a3-2chip-99col.txt", 2, "Ascend910", "OK", 65536),
        ("info-a3-2npu-4chip-25.2.0.txt", 4, "Ascend910", "OK", 65536),
        ("info-a3-2npu-wide118-26.0.rc2.txt", 4, "Ascend910", "OK", 65536),
        ("info-a3x16-alarm-25.2.1.txt", 16, "Ascend910", "OK", 65536),
        ("info-a3x16-idle-24.1.rc3.7.txt", 16, "Ascend910", "OK", 65536),
        ("info-a3x16-loaded-25.2.0.txt", 16, "Ascend910", "OK", 65536),
    ],
)
def test_npu_info(name: str, count: int, name_of: str, health: str, memory: int) -> None:
    chips = ascend.info(sample(f"npu-smi/{name}")).chips
    assert (len(chips), chips[0].name, chips[0].health, chips[0].memory_total) == (count, name_of, health, memory)


def test_npu_details() -> None:
    loaded = ascend.info(sample("npu-smi/info-a3x16-loaded-25.2.0.txt"))
    assert loaded.chips[3].phy_id == 3
    assert loaded.processes[-1].pid == 944268
    assert [chip.health for chip in ascend.info(sample("npu-smi/info-910x8-warning-24.1.RC2.txt")).chips][
        3
    ] == "Warning"
    assert "Alarm" in [chip.health for chip in ascend.info(sample("npu-smi/info-a3x16-alarm-25.2.1.txt")).chips]
    assert ascend.info(sample("npu-smi/info-a3-2chip-99col.txt")).warnings
    assert ascend.info(sample("npu-smi/info-910b2cx2-23.0.2.1.txt")).chips[0].memory_used == 20701
    assert ascend.health(sample("npu-smi/info-t-health-alarm-910a.txt")) == ("Alarm", "A4025021 8C03A000 8C084E00")
    assert ascend.health(sample("npu-smi/info-t-health-950.txt")) == ("OK", "")
    assert ascend.super_pod(sample("npu-smi/spod-info-25.3.rc1.txt")) == "3"
    with pytest.raises(Unread) as caught:
        ascend.super_pod(sample("npu-smi/spod-info-unsupported-950.txt"))
    assert caught.value.absent


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("npu-smi/err-*")), ids=lambda path: path.stem)
def test_npu_refusals(path: Any) -> None:
    with pytest.raises(Unread):
        ascend.info(path.read_text())


def test_ascend_packages() -> None:
    drv = ascend.package(sample("ascend-info/driver-version.info-23.0.7.txt"))
    fw = ascend.package(sample("ascend-info/firmware-version.info-7.1.0.11.220.txt"))
    assert (drv.version, fw.version) == ("23.0.7", "7.1.0.11.220")
    assert ascend.within(fw.version, drv.compatible) is True
    assert ascend.within("23.0.0", fw.compatible) is True
    assert ascend.within("7.3.0", drv.compatible) is False
    assert ascend.within("7.3.0", "") is None
    assert ascend.package(sample("ascend-info/cann-toolkit-install.info-8.5.0-aarch64.txt")).version == "8.5.0"
    assert ascend.hccn_conf(sample("ascend-info/hccn.conf.txt"))[1] == ("10.0.16.11", 6)


def test_hccn() -> None:
    loop = "".join(f"== {n}\n{line}\n" for n, line in enumerate(sample("hccn_tool/link-g-mixed-x8.txt").splitlines()))
    assert [ascend.link(text) for text in ascend.per_device(loop).values()].index("DOWN") == 3
    assert ascend.address(sample("hccn_tool/ip-g-910a.txt")) == "10.0.16.10"
    assert ascend.address(sample("hccn_tool/ip-g-empty.txt")) == ""
    assert ascend.net_health(sample("hccn_tool/net_health-g-socket-failed.txt")) == "Socket failed"
    assert ascend.net_health(sample("hccn_tool/net_health-g-init.txt")) == "Init"
    assert [ascend.tls(line) for line in sample("hccn_tool/tls-g-mixed-x8.txt").splitlines()] == [
        0,
        0,
        1,
        0,
        0,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("name", "count", "active", "trouble"),
    [
        ("ibstat-h100-8x400-1x200.txt", 9, 9, ""),
        ("ibstat-a100-9ports-active.txt", 9, 9, ""),
        ("ibstat-h100-roce-12ports-active.txt", 12, 12, ""),
        ("ibstat-h100-2down-400g.txt", 12, 10, ""),
        ("ibstat-h100-2down-polling.txt", 12, 10, ""),
        ("ibstat-h100-3down-mgmt.txt", 12, 9, ""),
        ("ibstat-a100-ibpanic-rc255.txt", 8, 8, "mlx5_8"),
    ],
)
def test_ibstat(name: str, count: int, active: int, trouble: str) -> None:
    ports, said = rdma.ibstat(sample(f"ib/{name}"))
    assert (len(ports), sum(1 for port in ports if port.active)) == (count, active)
    assert trouble in said and bool(trouble) == bool(said)


def test_devinfo_and_gids() -> None:
    assert rdma.devinfo(sample("ib/ibv_devinfo-roce-h200-mlx5x10-bond.txt"))["mlx5_bond_0"] == 1024
    gids = rdma.show_gids(sample("ib/show_gids-roce.txt"))["mlx5_0"]
    assert [(gid.index, gid.type, gid.ipv4) for gid in gids if gid.ipv4] == [
        (2, "IB/RoCE v1", "192.0.2.1"),
        (3, "RoCE v2", "192.0.2.1"),
    ]


@pytest.mark.parametrize(
    ("name", "vendor", "count"),
    [
        ("lspci-nn-a100-nvswitch.txt", "10de", 14),
        ("lspci-nn-a10.txt", "10de", 1),
        ("lspci-grep-acce-910a-x8.txt", "19e5", 8),
        ("lspci-grep-acce-910a-x7-one-lost.txt", "19e5", 7),
    ],
)
def test_pci(name: str, vendor: str, count: int) -> None:
    assert sum(1 for device in processes.pci(sample(f"pci/{name}")) if device.vendor == vendor) == count


def test_acs() -> None:
    assert [on for _, on in processes.acs(sample("pci/lspci-vvv-acsctl.txt"))] == [True, False, True]


@pytest.mark.parametrize(
    ("name", "count", "device"), [("rocm-smi-mi300x8.txt", 8, "0x74a1"), ("rocm-smi-mi300ax4.txt", 4, "0x74a0")]
)
def test_rocm(name: str, count: int, device: str) -> None:
    found = amd.smi(sample(f"amd/{name}"))
    assert (len(found), found[0].device, found[-1].index) == (count, device, count - 1)


def test_the_memory_of_one_mi300x_is_in_use() -> None:
    assert amd.smi(sample("amd/rocm-smi-mi300x8.txt"))[3].memory_percent == 17


PARSERS: list[tuple[str, Callable[[str], object]]] = [
    ("host-h200x2/nvidia-smi-q.txt", nvidia_q.parse),
    ("nvidia-smi/query-q-h100x8-535.161.08.txt", nvidia_q.parse),
    ("host-h200x2/nvidia-smi-nvlink-s.txt", nvidia_text.nvlinks),
    ("host-h200x2/nvidia-smi-nvlink-e.txt", nvidia_text.nvlink_errors),
    ("nvidia-smi/topo-m-h100x8-nic8-570.133.20.txt", nvidia_text.matrix),
    ("host-h200x2/nvidia-smi-version.txt", nvidia_text.versions),
    ("kernel/xid-mixed.txt", kernel.parse),
    ("time/chronyc-tracking-ok.txt", host.chrony),
    ("host-h200x2/lscpu.txt", host.cpu),
    ("host-h200x2/meminfo.txt", host.meminfo),
    ("npu-smi/info-a3x16-idle-24.1.rc3.7.txt", ascend.info),
    ("npu-smi/info-950x1.txt", ascend.info),
    ("ib/ibstat-h100-8x400-1x200.txt", rdma.ibstat),
    ("pci/lspci-nn-a100-nvswitch.txt", processes.pci),
    ("amd/rocm-smi-mi300x8.txt", amd.smi),
    ("ascend-info/driver-version.info-23.0.7.txt", ascend.package),
    ("systemctl/show-all-three-units.txt", host.units),
]


@pytest.mark.parametrize(("name", "parse"), PARSERS, ids=[name for name, _ in PARSERS])
def test_garbled_text_is_facts_or_unread_and_nothing_else(name: str, parse: Callable[[str], object]) -> None:
    """Cut, doubled, shuffled, garbled and localised text: Unread at worst, never another exception."""
    text = sample(name)
    chance = random.Random(name)
    variants = [text[: chance.randrange(len(text))] for _ in range(40)]
    variants += [
        text + text,
        "",
        "\0" * 50,
        text.swapcase(),
        re.sub(r"\d", "x", text),
        text.replace(":", "："),
        "\n".join(chance.sample(text.splitlines(), len(text.splitlines()))),
        text.replace(" ", "\u00a0"),
    ]
    for _ in range(40):
        letters = list(text)
        for _ in range(max(1, len(letters) // 50)):
            letters[chance.randrange(len(letters))] = chance.choice("\0\x1b[|:,-/ \n%é9A")
        variants.append("".join(letters))
    for variant in variants:
        try:
            parse(variant)
        except Unread as error:
            assert error.reason


@pytest.mark.parametrize(
    "name",
    [
        "host-h200x2/nvidia-smi-q.txt",
        "host-h200x2/nvidia-smi-nvlink-s.txt",
        "npu-smi/info-a3x16-idle-24.1.rc3.7.txt",
        "amd/rocm-smi-mi300x8.txt",
    ],
)
def test_text_that_stands_twice_is_unread(name: str) -> None:
    parse = dict(PARSERS)[name]
    with pytest.raises(Unread, match="twice"):
        parse(sample(name) + sample(name))
