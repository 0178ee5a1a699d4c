"""Facts of cables, cards and neighbours: what the tools of the network say of each port."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from bringup.preflight.answers import Answers
from bringup.preflight.parsers import lossless, neighbours, npu, optics, rdma, settings
from bringup.preflight.unread import Unread

_TOOLS = {"rdma.mlxlink": "mlxlink", "rdma.module": "ethtool", "rdma.qos": "mlnx_qos", "rdma.pause": "ethtool",
          "hccn.ping": "hccn_tool"}


def printed(answers: Answers, probe: str) -> str:
    """What a probe printed that is a small script. Raises Unread, absent where its tool is not on the host."""
    answer = answers.get(probe)
    if answer.rc == 127 and not answer.stdout.strip():
        raise Unread(f"{_TOOLS.get(probe, 'ipmitool')} is not there", absent=True)
    return answers.text(probe, any_status=True)


class LinkFacts:
    """Facts of ports. Each property parses once; what cannot be read raises Unread each time it is asked."""

    answers: Answers

    @cached_property
    def cards(self) -> Mapping[str, rdma.Card]:
        """RDMA devices on their PCIe links, with their error counters. Raises Unread."""
        return rdma.cards(self.answers.files("rdma.counters"))

    @cached_property
    def cards_after(self) -> Mapping[str, rdma.Card]:
        """The same after the deep tier sent over them. Raises Unread."""
        return rdma.cards(self.answers.files("rdma.counters_after"))

    @cached_property
    def npu_pings(self) -> tuple[npu.Ping, ...]:
        """What each chip's pings to the chips of other hosts came to. Raises Unread."""
        return npu.pings(printed(self.answers, "hccn.ping"))

    @cached_property
    def mlxlink(self) -> Mapping[str, optics.Link]:
        """What mlxlink says of each RDMA device. Raises Unread."""
        return optics.mlxlink(printed(self.answers, "rdma.mlxlink"))

    @cached_property
    def modules_by_interface(self) -> Mapping[str, optics.Module | optics.Silent]:
        """What `ethtool -m` says of each interface of an RDMA device. Raises Unread."""
        return optics.ethtool_module(printed(self.answers, "rdma.module"))

    @cached_property
    def priorities(self) -> Mapping[str, lossless.Priorities | optics.Silent]:
        """Lossless priorities by interface. Raises Unread."""
        return lossless.mlnx_qos(printed(self.answers, "rdma.qos"))

    @cached_property
    def pauses(self) -> Mapping[str, bool | None]:
        """Global pause by interface. Raises Unread."""
        return lossless.pause(printed(self.answers, "rdma.pause"))

    @cached_property
    def neighbours(self) -> Mapping[str, tuple[neighbours.Neighbour, ...]]:
        """LLDP neighbours by interface. Raises Unread."""
        answer = self.answers.get("net.lldp")
        said = answer.stdout + answer.stderr
        if answer.rc and ("unable to get connection" in said.lower() or "daemon" in said.lower()):
            raise Unread("lldpd does not run", absent=True)
        return neighbours.lldp(self.answers.text("net.lldp"))

    @cached_property
    def nccl_conf(self) -> Mapping[str, str]:
        """NCCL's variables of this host. Raises Unread, absent where it has no such file."""
        return settings.nccl_conf(self.answers.file("nccl.conf"))
