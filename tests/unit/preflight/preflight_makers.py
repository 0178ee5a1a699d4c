"""Healthy hosts of other makers and their plans: eight 910B, eight MI300X."""

from __future__ import annotations

import re
from dataclasses import replace

from preflight_hosts import (
    PLANNED,
    change,
    edit,
    healthy,
    sample,
)

from bringup.preflight.answers import Answers
from bringup.preflight.requirement import profiles


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
    base = healthy(host)
    items = {name: answer for name, answer in base.items.items() if not name.startswith(("nvidia.", "rdma."))}
    made = replace(base, items=items)
    made = change(
        made,
        "ascend.info",
        sample("npu-smi/info-910b3x8-25.2.0.txt").replace("21784/ 65536", "3402 / 65536"),
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
    made = change(made, "hccn.link_stat", "".join(
        f"== {n}\n" + sample("hccn_tool/link_stat-g-devid-prefix.txt") for n in chips))
    for probe, name in (("hccn.optical", "optical-g-sound"), ("hccn.stat", "stat-g-910a"), ("hccn.fec", "fec-g-rs"),
                        ("hccn.speed", "speed-g-200g"), ("hccn.lldp", "lldp-g-switch")):
        made = change(made, probe, "".join(f"== {n}\n" + sample(f"hccn_tool/{name}.txt") for n in chips))
    made = change(made, "ascend.topo", sample("npu-smi/info-t-topo-910bx8-hccs.txt"))
    made = change(made, "ascend.map", sample("npu-smi/info-m-910ax8-24.1.RC2.txt"))
    made = change(made, "ascend.ecc", "".join(f"== {n}\n" + sample("npu-smi/info-t-ecc-910.txt") for n in range(8)))
    made = change(made, "ascend.board", "".join(
        f"== {n}\n" + sample("npu-smi/info-t-board-card-910a-23.0.5.txt") for n in range(8)))
    made = change(made, "host.uptime", files={"/proc/uptime": "44800.0 1.0\n"})
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


def amd_host(host: str) -> Answers:
    """A healthy host of eight MI300X."""
    base = healthy(host)
    items = {name: answer for name, answer in base.items.items() if not name.startswith(("nvidia.", "rdma."))}
    text = sample("amd/rocm-smi-mi300x8.txt").replace(" 17% ", "  0% ")
    answers = change(replace(base, items=items), "amd.smi", text)
    modules = answers.get("host.modules").files
    answers = change(answers, "host.modules", files={
        path: one + "amdgpu 1000 0 - Live 0x0\n" for path, one in modules.items()})
    return change(answers, "host.pci",
                  "".join(f"0000:{n:02x}:00.0 1200: 1002:74a1 driver=amdgpu\n" for n in range(8)))


AMD = replace(PLANNED, hardware="mi300x", profile=profiles()["mi300x"], cuda_of_wheel="", memory_minimum=None)
