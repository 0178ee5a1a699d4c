"""RDMA ports and the RoCE address index: found on a host, agreed on by a replica, overridden by the inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import _rdma
from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.serving.plan import LaunchPlan
from bringup.serving.planner import make_plan
from bringup.serving.planning.site import HostFacts
from bringup.serving.planning.variables import rendered


class Sys:
    """A sysfs with ports and accelerators."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pci(self, bridge: str, address: str) -> Path:
        folder = self.root / f"devices/pci0000:{bridge}/0000:{address}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def accelerator(self, bridge: str, address: str, kind: str = "0x030200", vendor: str = "0x10de") -> None:
        folder = self.pci(bridge, address)
        (folder / "class").write_text(kind + "\n")
        (folder / "vendor").write_text(vendor + "\n")
        (self.root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (self.root / "bus/pci/devices" / f"0000:{address}").symlink_to(folder)

    def port(self, device: str, bridge: str, *, rate: int = 400, state: str = "4: ACTIVE", link: str = "InfiniBand",
             gids: tuple[tuple[int, str, str], ...] = ()) -> None:
        here = self.root / "class/infiniband" / device / "ports/1"
        (here / "gids").mkdir(parents=True)
        (here / "gid_attrs/types").mkdir(parents=True)
        number = sum(map(ord, device)) % 200
        (self.root / "class/infiniband" / device / "device").symlink_to(self.pci(bridge, f"{bridge}:{number:02x}.0"))
        for name, text in (("state", state), ("rate", f"{rate} Gb/sec (4X NDR)"), ("link_layer", link)):
            (here / name).write_text(text + "\n")
        for index, kind, gid in gids:
            (here / "gid_attrs/types" / str(index)).write_text(kind + "\n")
            (here / "gids" / str(index)).write_text(gid + "\n")


@pytest.fixture
def sys(tmp_path: Path) -> Sys:
    return Sys(tmp_path / "sys")


ROCE = ((0, "IB/RoCE v1", "fe80:0000:0000:0000:0002:00ff:fe00:0001"),
        (1, "RoCE v2", "fe80:0000:0000:0000:0002:00ff:fe00:0001"),
        (2, "IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:c612:0001"),
        (3, "RoCE v2", "0000:0000:0000:0000:0000:ffff:c612:0001"))


def test_active_ports_of_the_highest_rate_near_an_accelerator(sys: Sys) -> None:
    sys.accelerator("15", "18:00.0")
    for number in (0, 1, 10):
        sys.port(f"mlx5_{number}", "15")
    sys.port("mlx5_2", "15", state="1: DOWN")
    sys.port("mlx5_8", "15", rate=100)
    sys.port("mlx5_9", "97")
    chosen, left, index = _rdma.ports(str(sys.root))
    assert chosen == ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"] and index is None
    assert left == [("mlx5_2:1", "not active"), ("mlx5_8:1", "100 Gb/s"),
                    ("mlx5_9:1", "on no PCIe root of an accelerator")]


def test_where_none_is_near_all_of_the_highest_rate_are_taken(sys: Sys) -> None:
    sys.accelerator("15", "18:00.0", kind="0x030000", vendor="0x1a03")  # the console's own graphics
    sys.port("mlx5_0", "97")
    sys.port("mlx5_1", "b7")
    assert _rdma.ports(str(sys.root))[0] == ["mlx5_0:1", "mlx5_1:1"]
    assert _rdma.ports(str(sys.root / "nothing")) == ([], [], None)


def test_the_index_of_roce_v2_with_an_ipv4_address(sys: Sys) -> None:
    sys.port("mlx5_0", "15", link="Ethernet", gids=ROCE)
    sys.port("mlx5_1", "15", link="Ethernet", gids=ROCE)
    assert _rdma.ports(str(sys.root))[2] == 3
    sys.port("mlx5_2", "15", link="Ethernet", gids=ROCE[:2])
    assert _rdma.ports(str(sys.root))[2] is None  # ports that do not agree: the library chooses


def test_the_inventory_names_ports(sys: Sys) -> None:
    for number in (0, 1, 2):
        sys.port(f"mlx5_{number}", "15", rate=400 if number else 100)
    chosen, left, _ = _rdma.ports(str(sys.root), wanted=["mlx5_0", "mlx5_1:1"])
    assert chosen == ["mlx5_0:1", "mlx5_1:1"] and left == [("mlx5_2:1", "not in rdma_ports")]
    assert _rdma.ports(str(sys.root), wanted=[])[0] == []


def plan(folder: Path, facts: dict[str, HostFacts], *, more: str = "", engine: str = "vllm") -> LaunchPlan:
    (folder / "site.yml").write_text(f"""
all:
  vars:
    deployment: {{recipe: zai-org/GLM-5.1, engine: {engine}, hardware: h200, strategy: multi_node_tp,
                 environment: e, manager: systemd, model_path: /m}}
  children:
    head: {{hosts: {{n1: {{ansible_host: 198.18.0.1{more}}}}}}}
    workers: {{hosts: {{n2: {{ansible_host: 198.18.0.2}}}}}}
""")
    inventory = load_inventory([str(folder / "site.yml")], Project(folder))
    return make_plan(inventory, Project(folder), rendered(inventory), lab=False, facts=facts)


def facts(ports: Any, index: int | None = None) -> HostFacts:
    return HostFacts("198.18.0.9", "bond0", 96, 2, ports, ("mlx5_8:1 (100 Gb/s)",), index)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_node_has_its_own_ports_and_index_with_the_reason(tmp_path: Path, engine: str) -> None:
    made = plan(tmp_path, {"n1": facts(("mlx5_0:1", "mlx5_1:1"), 3), "n2": facts(("mlx5_4:1",), 5)}, engine=engine)
    head, worker = made.replicas[0].processes
    assert head.env["NCCL_IB_HCA"] == ("=mlx5_0:1,mlx5_1:1", "site") and head.env["NCCL_IB_GID_INDEX"] == ("3", "site")
    assert worker.env["NCCL_IB_HCA"] == ("=mlx5_4:1", "site") and worker.env["NCCL_IB_GID_INDEX"] == ("5", "site")
    assert made.facts["rdma_reasons"]["n1"] == "2 active of the highest rate; left out: mlx5_8:1 (100 Gb/s)"
    assert head.env["NCCL_DEBUG_FILE"] == ("nccl.%h.%p.log", "site") and head.env["NCCL_DEBUG"] == ("INFO", "site")
    assert head.env["NCCL_SOCKET_IFNAME"] == ("bond0", "recipe")


def test_a_replica_agrees_or_the_library_chooses(tmp_path: Path) -> None:
    made = plan(tmp_path, {"n1": facts(("mlx5_0:1",), 3), "n2": facts((), None)})
    assert not [name for process in made.replicas[0].processes for name in process.env
                if name.startswith(("NCCL_IB", "NCCL_DEBUG"))]
    made = plan(tmp_path, {"n1": facts(("mlx5_0:1",), 3), "n2": facts(("mlx5_0:1",), None)})
    assert all("NCCL_IB_HCA" in process.env and "NCCL_IB_GID_INDEX" not in process.env
               for process in made.replicas[0].processes)


def test_the_inventory_overrides_the_index_and_wrong_numbers_are_refused(tmp_path: Path) -> None:
    found = {"n1": facts(("mlx5_0:1",), 3), "n2": facts(("mlx5_0:1",), 3)}
    made = plan(tmp_path, found, more=", gid_index: 1")
    assert made.replicas[0].head.env["NCCL_IB_GID_INDEX"] == ("1", "site")
    for name in ("gid_index", "physical_cores", "numa_nodes"):
        with pytest.raises(InputError, match=f"`{name}` of n1 takes a whole number"):
            plan(tmp_path, found, more=f", {name}: many")
