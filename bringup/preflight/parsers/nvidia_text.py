"""Other outputs of nvidia-smi and its driver: links, matrix, versions, processes, the module's version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bringup.preflight.parsers.text import absent, broken, bus, number, plain, whole
from bringup.preflight.unread import Unread

_GPU_LINE = re.compile(r"^GPU (\d+): (.+?)\s*(?:\(UUID: (\S+?)\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")
_VERSION_TAIL = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Links:
    """The NVLinks of one GPU: speed in GB/s by link, None for one that is inactive; or why there are none."""

    gpu: int
    name: str
    speeds: Mapping[int, float | None]
    note: str = ""

    @property
    def down(self) -> tuple[int, ...]:
        return tuple(sorted(link for link, speed in self.speeds.items() if speed is None))


@dataclass(frozen=True)
class Matrix:
    """A `topo` matrix: cell by (row, column) of the device names; CPU and NUMA affinity by device.

    `nics` maps NIC0 to the RDMA device that the legend names.
    """

    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    cpus: Mapping[str, str]
    numa: Mapping[str, str]
    nics: Mapping[str, str] = field(default_factory=dict)

    def beside_gpus(self) -> Mapping[str, bool]:
        """For each RDMA device of the legend: whether one PCIe switch, or none, lies between it and a GPU."""
        return {device: any(self.cells.get((gpu, nic)) in ("PIX", "PXB") for gpu in self.gpus())
                for nic, device in self.nics.items()}

    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name.startswith("GPU"))


@dataclass(frozen=True)
class App:
    """A compute process as the driver lists it. `used` is MiB, None where the driver does not say."""

    bus: str
    pid: int
    used: int | None
    name: str


def nvlinks(text: str) -> tuple[Links, ...]:
    """`nvidia-smi nvlink -s`. Raises Unread when no GPU is named."""
    out: list[Links] = []
    for line in plain(text).splitlines():
        head = _GPU_LINE.match(line.strip())
        link = _LINK.match(line)
        if head:
            out.append(Links(int(head.group(1)), head.group(2), {}))
        elif out and link:
            speed = None if "inactive" in link.group(2).lower() else number(link.group(2))
            if speed is None and "inactive" not in link.group(2).lower():
                raise Unread(f"link {link.group(1)} of GPU {out[-1].gpu} says `{link.group(2)}`")
            out[-1] = Links(out[-1].gpu, out[-1].name, {**out[-1].speeds, int(link.group(1)): speed}, out[-1].note)
        elif out and line.strip():
            out[-1] = Links(out[-1].gpu, out[-1].name, out[-1].speeds, line.strip())
    if not out:
        raise Unread(_first(text) or "nvidia-smi nvlink names no GPU")
    if len({links.gpu for links in out}) != len(out):
        raise Unread("nvidia-smi nvlink names a GPU twice")
    return tuple(out)


def nvlink_errors(text: str) -> dict[int, dict[str, int]]:
    """`nvidia-smi nvlink -e`: for each GPU the errors that are not zero, as `link 7 Replay`. Raises Unread."""
    out: dict[int, dict[str, int]] = {}
    current: int | None = None
    for line in plain(text).splitlines():
        head = _GPU_LINE.match(line.strip())
        if head:
            current = int(head.group(1))
            out[current] = {}
            continue
        match = re.match(r"^\s*Link (\d+): (\w+)[ \w]*Errors?\s*: (\S+)", line)
        if match and current is not None:
            count = whole(match.group(3))
            if count is None and not absent(match.group(3)):
                raise Unread(f"GPU {current}: `{line.strip()}`")
            if count:
                out[current][f"link {match.group(1)} {match.group(2)}"] = count
    if not out:
        raise Unread(_first(text) or "nvidia-smi nvlink -e names no GPU")
    return out


def matrix(text: str) -> Matrix:
    """`nvidia-smi topo -m` or `-p2p`, with tabs or blanks, with or without escapes. Raises Unread."""
    lines = plain(text).splitlines()
    header = next((line for line in lines if re.search(r"\bGPU0\b", line) and "X" not in line.split()), None)
    if header is None:
        raise Unread(_first(text) or "no matrix in the output of nvidia-smi topo")
    names = [word for word in header.split() if re.fullmatch(r"(GPU|NIC)\d+|mlx\w+", word)]
    cells: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    numa: dict[str, str] = {}
    rows: list[str] = []
    for line in lines[lines.index(header) + 1:]:
        words = line.split()
        if not words or words[0] not in names:
            if rows and not words:
                break
            continue
        row = words[0]
        if row in rows or len(words) < len(names) + 1:
            raise Unread(f"the row of {row} in nvidia-smi topo cannot be read")
        rows.append(row)
        cells.update({(row, column): value for column, value in zip(names, words[1:], strict=False)})
        rest = words[len(names) + 1:]
        if row.startswith("GPU") and rest:
            cpus[row] = rest[0]
            numa[row] = rest[1] if len(rest) > 1 else ""
    gpus = [name for name in names if name.startswith("GPU")]
    if not set(gpus) <= set(rows):
        raise Unread("nvidia-smi topo stops half way")
    nics = dict(re.findall(r"(?m)^\s*(NIC\d+): (\S+)\s*$", "\n".join(lines)))
    return Matrix(tuple(names), cells, cpus, numa, nics)


def versions(text: str) -> dict[str, str]:
    """`nvidia-smi --version` as library, driver, cuda, smi; the words of driver 610 included. Raises Unread."""
    found: dict[str, str] = {}
    names = {"nvml version": "library", "driver version": "driver", "kmd version": "driver", "cuda version": "cuda",
             "cuda umd version": "cuda", "nvidia-smi version": "smi", "nvml library version": "library"}
    for line in plain(text).splitlines():
        key, _, value = line.partition(":")
        name = names.get(key.strip().lower())
        if name and re.match(r"\s*\d", value):
            found[name] = value.strip().split(" ")[0]
    if not found:
        raise Unread(_first(text) or "nvidia-smi --version printed nothing")
    return found


def gpu_list(text: str) -> tuple[str, ...]:
    """`nvidia-smi -L`: the GPUs' names in order, MIG devices left out. Raises Unread."""
    out = [match.group(2) for match in map(_GPU_LINE.match, plain(text).splitlines()) if match]
    if not out:
        raise Unread(_first(text) or "nvidia-smi -L names no GPU")
    return tuple(out)


def module_version(text: str) -> str:
    """`/proc/driver/nvidia/version`: the version of the loaded module. Raises Unread."""
    for line in plain(text).splitlines():
        if line.startswith("NVRM version"):
            match = _VERSION_TAIL.search(line)
            if match:
                return match.group(1)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)+)\s*", text)
    if match:
        return match.group(1)
    raise Unread("no version in /proc/driver/nvidia/version")


def apps(text: str) -> tuple[App, ...]:
    """`--query-compute-apps=gpu_bus_id,pid,used_gpu_memory,process_name`, without header. Raises Unread."""
    out = []
    for line in plain(text).splitlines():
        if not line.strip() or line.startswith("gpu_bus_id"):
            continue
        parts = [cell.strip() for cell in line.split(",", 3)]
        pid = whole(parts[1]) if len(parts) == 4 else None
        if len(parts) != 4 or (pid is None and not broken(parts[1])):
            raise Unread(f"nvidia-smi lists a process as `{line.strip()}`")
        if pid is not None:
            out.append(App(bus(parts[0]), pid, whole(parts[2]), parts[3]))
    return tuple(out)


def toolkit(text: str) -> str:
    """`nvcc --version`: `13.0`. Raises Unread."""
    match = re.search(r"release (\d+\.\d+)", text)
    if not match:
        raise Unread(_first(text) or "nvcc names no release")
    return match.group(1)


STATUSES = {2: "an argument or file was refused", 4: "no rights", 8: "a power cable is not attached",
            10: "an interrupt of the GPU is not delivered", 12: "the NVML library is not there",
            13: "the NVML library lacks a function", 14: "the infoROM is corrupt", 15: "a GPU has fallen off the bus",
            255: "other error"}
"""What nvidia-smi's exit statuses mean, by its manual."""


def smi_trouble(rc: int | None, text: str) -> tuple[str, str]:
    """What a failed nvidia-smi means: (`mismatch` | `not loaded` | `lost` | `no devices` | `other`, its first line)."""
    line = _first(text)
    lower = plain(text).lower()
    if rc == 18 or "version mismatch" in lower:
        return "mismatch", line
    if rc == 9 or "couldn't communicate" in lower or "driver is not loaded" in lower:
        return "not loaded", line
    if rc == 15 or "gpu is lost" in lower or "unable to determine the device handle" in lower:
        return "lost", line
    if "no devices were found" in lower:
        return "no devices", line
    return "other", line or STATUSES.get(rc or 0, f"status {rc}")


def _first(text: str) -> str:
    return next((line.strip()[:200] for line in plain(text).splitlines() if line.strip()), "")


def busy(names: Sequence[str]) -> str:
    """`GPU 0-3, 5` for indexes in a message."""
    numbers = sorted({int(name) for name in names})
    out: list[str] = []
    start = previous = None
    for value in [*numbers, None]:
        if previous is not None and value == previous + 1:
            previous = value
            continue
        if start is not None:
            out.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = value
    return ", ".join(out)
