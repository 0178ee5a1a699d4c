"""What grows on a node while it loads, read twice and compared: progress that no log has to tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.text import duration, plural, size

EVERY = 5.0
"""Seconds between two looks: the tools of the devices take a tenth of a second each."""
STILL = 20.0
"""Seconds without growth after which that is said."""
READ, MEMORY = 16 << 20, 64 << 20
"""Bytes from which on growth is progress: less is the noise of a process that waits."""
_COMPILERS = ("nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "c++", "g++", "hipcc", "clang", "ninja", "ccec", "ld.lld")
_NUMBERS = re.compile(r"(?<![A-Za-z])(DP|PP|TP)(\d+)")


@dataclass(frozen=True)
class Process:
    """One process: CPU seconds, bytes read, resident and on devices (None: not told); `rank` where its title says."""

    pid: int
    cpu: float
    read: int
    memory: int
    device: int | None
    rank: int | None
    compiler: bool


@dataclass(frozen=True)
class Vitals:
    """A node's processes at one moment (`at`, seconds since the epoch by its own clock); `files` are those in the
    compile caches."""

    at: float
    processes: tuple[Process, ...]
    files: int
    silent: bool = False

    @classmethod
    def read(cls, data: Mapping[str, Any], ranks: Sequence[int], tensor_parallel: int) -> Vitals:
        """From the answer of `engine_vitals`; `ranks` are those meant for the node."""
        made = []
        for item in data.get("processes") or ():
            words = str(item["command"])
            made.append(Process(int(item["pid"]), float(item["cpu"]), int(item["read"]), int(item["memory"]),
                                item.get("device"), rank_of(words, ranks, tensor_parallel), _compiles(words)))
        return cls(float(data.get("at") or 0.0), tuple(made), int(data.get("files") or 0),
                   data.get("source") == "silent")


@dataclass(frozen=True)
class Growth:
    """What grew between two looks `seconds` apart. `strong` is progress; `busy` says that CPU time grew, which a
    process that only spins does too."""

    seconds: float
    read: int
    memory: int
    device: int
    files: int
    cpu: float
    compilers: int

    @property
    def strong(self) -> bool:
        return self.read >= READ or self.memory >= MEMORY or self.device >= MEMORY or self.files > 0

    @property
    def busy(self) -> bool:
        return self.compilers > 0 or self.cpu >= 0.5 * self.seconds > 0


def growth(before: Vitals, now: Vitals) -> Growth:
    """Sums over the processes that are in both looks, and all of what came since."""
    old = {process.pid: process for process in before.processes}
    none = Process(0, 0.0, 0, 0, 0, None, False)
    pairs = [(old.get(process.pid, none), process) for process in now.processes]
    return Growth(
        max(0.001, now.at - before.at), sum(max(0, b.read - a.read) for a, b in pairs),
        sum(max(0, b.memory - a.memory) for a, b in pairs),
        sum(max(0, (b.device or 0) - (a.device or 0)) for a, b in pairs), max(0, now.files - before.files),
        sum(max(0.0, b.cpu - a.cpu) for a, b in pairs), sum(process.compiler for process in now.processes))


def held(now: Vitals) -> str:
    """What its processes hold, in a column's width: on devices where those tell it, else of the host's memory."""
    device = [process.device for process in now.processes if process.device]
    if device:
        return f"{_span(device)} each" if len(device) > 1 else size(device[0])
    return f"{size(sum(process.memory for process in now.processes))} host" if now.processes else "-"


def told(now: Vitals, grown: Growth | None, still: float = 0.0) -> str:
    """In a few words, what matters most first: memory, then what grew since the look before. `still` is for how many
    seconds neither a figure nor the log moved."""
    parts = []
    device = [process for process in now.processes if process.device]
    if device:
        parts.append(f"{_span([process.device or 0 for process in device])} a device")
    elif now.processes:
        parts.append(f"{size(sum(process.memory for process in now.processes))} in memory")
    if grown is not None:
        if grown.read >= READ:
            parts.append(f"reading {size(grown.read / grown.seconds)}/s")
        if grown.compilers:
            parts.append(f"{plural(grown.compilers, 'compiler')} at work")
        elif grown.files:
            parts.append(f"{plural(grown.files, 'file')} compiled")
        if not grown.strong and grown.busy and not grown.compilers:
            parts.append(f"{grown.cpu / grown.seconds:.1f} cores busy")
    if still >= STILL:
        parts.append(f"nothing grows for {duration(still)}")
    return ", ".join(parts)


def of_ranks(now: Vitals) -> str:
    """Each rank's own figures, where more than one tells its number."""
    ranked = sorted((process for process in now.processes if process.rank is not None), key=lambda p: p.rank or 0)
    return "; ".join(f"rank {process.rank}: {_one(process)}" for process in ranked) if len(ranked) > 1 else ""


def _one(process: Process) -> str:
    held = f"{size(process.device)} on its device" if process.device else f"{size(process.memory)} in memory"
    return f"{held}, {size(process.read)} read"


def _span(figures: Sequence[int]) -> str:
    least, most = min(figures), max(figures)
    return size(most) if most - least <= most * 0.05 else f"{size(least)} to {size(most)}"


def rank_of(command: str, ranks: Sequence[int], tensor_parallel: int) -> int | None:
    """The global rank in a process's title (`VLLM::Worker_PP1_TP3`, `sglang::scheduler_TP3`), None without one.

    A title without a number is the only rank of its node.
    """
    name = command.split(" ")[0]
    if not name.startswith(("VLLM::Worker", "VLLM::EngineCore", "sglang::scheduler")):
        return None
    found = {key: int(value) for key, value in _NUMBERS.findall(name.replace("_", " "))}
    if not found:
        return ranks[0] if len(ranks) == 1 else None
    rank = found.get("PP", 0) * tensor_parallel + found.get("TP", 0)
    if rank in ranks:
        return rank
    local = found.get("TP", 0)  # data parallel: ranks count anew in each of its groups
    return ranks[local] if "DP" in found and local < len(ranks) else None


def _compiles(command: str) -> bool:
    return command.split(" ")[0].rpartition("/")[2] in _COMPILERS
