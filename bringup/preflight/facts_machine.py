"""Facts of the machine under the host: memory in pieces, memory errors, NUMA nodes, the BMC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from bringup.preflight.answers import Answers
from bringup.preflight.facts_links import printed
from bringup.preflight.parsers import machine, nvidia_q
from bringup.preflight.unread import Unread

_NO_BMC = re.compile(r"no device of a BMC|Could not open device|No such file or directory", re.IGNORECASE)
_LISTED = re.compile(r"GPU \d+: .*\(UUID: \S+\)\s*$|\s+MIG |WARNING: infoROM is corrupted at gpu [0-9A-Fa-f:.]+\s*$|"
                     r"Unable to determine")


class MachineFacts:
    """Facts of a machine. Each property parses once; what cannot be read raises Unread each time it is asked."""

    answers: Answers

    @cached_property
    def pieces(self) -> tuple[machine.Pieces, ...]:
        """Free memory of each NUMA node by the size of its pieces. Raises Unread."""
        return machine.buddyinfo(self.answers.file("host.buddyinfo"))

    @cached_property
    def memory_errors(self) -> tuple[machine.Controller, ...]:
        """What EDAC counts. Raises Unread."""
        return machine.edac(self.answers.files("host.edac"))

    @cached_property
    def numa(self) -> Mapping[int, tuple[int, str]]:
        """Bytes of memory and the CPUs of each NUMA node. Raises Unread."""
        sizes: dict[int, int] = {}
        cpus: dict[int, str] = {}
        for path, text in self.answers.files("host.numa").items():
            match = re.search(r"/node(\d+)/(meminfo|cpulist)$", path)
            if not match:
                continue
            node = int(match.group(1))
            if match.group(2) == "cpulist":
                if not re.fullmatch(r"[0-9,-]*", text.strip()):
                    raise Unread(f"{path} holds no list of CPUs")
                cpus[node] = text.strip()
                continue
            total = re.search(r"(?m)^Node \d+ MemTotal:\s+([0-9]+) kB\s*$", text)
            if not total:
                raise Unread(f"{path} says no MemTotal")
            sizes[node] = int(total.group(1)) * 1024
        if not sizes or set(sizes) != set(cpus):
            raise Unread("the kernel does not say memory and CPUs of each NUMA node", absent=not sizes or not cpus)
        return {node: (sizes[node], cpus[node]) for node in sorted(sizes)}

    @cached_property
    def page_size(self) -> int:
        """Bytes of a page of the kernel. Raises Unread."""
        text = self.answers.text("host.page_size").strip()
        if not re.fullmatch(r"[0-9]{4,7}", text):
            raise Unread(f"getconf PAGESIZE says `{text[:40]}`")
        return int(text)

    @cached_property
    def bmc_events(self) -> tuple[machine.BmcEvent, ...]:
        """The event log of the BMC. Raises Unread."""
        return machine.bmc_events(self._bmc("bmc.sel"))

    @cached_property
    def bmc_sensors(self) -> tuple[machine.Sensor, ...]:
        """Power supplies and fans as the BMC sees them. Raises Unread."""
        return machine.bmc_sensors(self._bmc("bmc.sensors"))

    @cached_property
    def chassis(self) -> Mapping[str, bool]:
        """Faults of the chassis by the BMC's word. Raises Unread."""
        return machine.chassis(self._bmc("bmc.chassis"))

    def _bmc(self, probe: str) -> str:
        text = printed(self.answers, probe)
        if _NO_BMC.search(text):
            raise Unread("no BMC can be asked from this host (no /dev/ipmi0)", absent=True)
        return text

    @cached_property
    def corrupted_inforom(self) -> tuple[str, ...]:
        """PCI addresses of GPUs whose InfoROM nvidia-smi warns of. Raises Unread for a list that is not whole."""
        listed = self.answers.get("nvidia.list")
        for line in listed.stdout.splitlines():
            if line.strip() and not _LISTED.match(line):
                raise Unread(f"nvidia-smi -L has the line `{line.strip()[:100]}`")
        count = len(re.findall(r"(?m)^GPU \d+: ", listed.stdout))
        attached = nvidia_q.attached(self.answers.get("nvidia.q").stdout)
        if not listed.missing and attached is not None and count < attached and "Unable to" not in listed.stdout:
            raise Unread(f"nvidia-smi -L shows {count} of {attached} GPUs")
        texts = [self.answers.get(probe) for probe in ("nvidia.q", "nvidia.version", "nvidia.list", "nvidia.apps")]
        return nvidia_q.corrupted_inforom("\n".join(one.stdout + "\n" + one.stderr for one in texts))
