"""What measuring tools print: nccl-tests, NCCL's log, nvbandwidth, perftest, hccl_test. GB/s unless said otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread

_CELL = re.compile(r"^(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|N/A)$", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """A line of a collective: bytes, and bus bandwidth out of place and in place. None where it was not measured."""

    size: int
    out_of_place: float | None
    in_place: float | None

    @property
    def busbw(self) -> float | None:
        """Out of place, where that was measured."""
        return self.out_of_place if self.out_of_place is not None else self.in_place


@dataclass(frozen=True)
class Collective:
    """A run of a collective. `wrong` counts wrong values; `transports` are those of NCCL's log; 0 `ranks`: unknown.
    """

    rows: tuple[Row, ...]
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    wrong: int = 0
    concluded: bool = False
    transports: frozenset[str] = frozenset()
    nvls: bool | None = None
    by: str = ""

    @property
    def largest(self) -> Row:
        return max(self.rows, key=lambda row: row.size)


def collective(text: str) -> Collective:
    """A run of nccl-tests of any release, with or without its `#`, with NCCL's log between. Raises Unread."""
    text = plain(text)
    lines = text.splitlines()
    rows = [row for row in map(_row, lines) if row is not None]
    if not rows:
        raise Unread(f"no row of a collective: {complaint(lines)}")
    bounds = re.search(r"Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)", text)
    failed = re.search(r"Test failure|Test NCCL failure|Avg bus bandwidth\s*:\s*\S+\s+FAILED", text)
    if failed:
        raise Unread(f"the test failed: {failed.group(0)}")
    ranks = re.findall(r"(?m)^#?\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+on\s+(\S+)\s+)?device", text)
    wrong = int(bounds.group(1)) if bounds else 0
    by = re.search(r"by (torch \S+)", text)
    if bounds and bounds.group(2) == "FAILED":
        wrong = max(wrong, 1)
    return Collective(
        tuple(rows), len({number for number, _ in ranks}), tuple(sorted({host for _, host in ranks if host})), wrong,
        bounds is not None, transports(text), nvls(text), by.group(1).rstrip(",") if by else "nccl-tests")


def _row(line: str) -> Row | None:
    """Columns are counted from the right: those on the left differ by collective and release."""
    words = line.split()
    if len(words) < 11 or not words[0].isdecimal() or not words[1].isdecimal():
        return None
    tail = words[2:]
    # type, then redop and root where the collective has them
    while (tail and not _CELL.match(tail[0])) or (tail and tail[0] == "-1"):
        tail = tail[1:]
    if len(tail) in (9, 10) and re.fullmatch(r"\d+", tail[0]):
        tail = tail[1:]  # a root that is a rank
    if len(tail) == 9 and tail[8].isdecimal():
        tail = tail[:8]  # iterations
    if len(tail) != 8 or not all(_CELL.match(word) for word in tail):
        return None
    size, out, inside = int(words[0]), _float(tail[2]), _float(tail[6])
    return None if out is None and inside is None else Row(size, out, inside)


def _float(word: str) -> float | None:
    return None if word.upper() == "N/A" else float(word)


def complaint(lines: Iterable[str]) -> str:
    """The line of a failed run that says most."""
    wanted = re.compile(r"error|not enough|fail|unable|cannot|no end within", re.IGNORECASE)
    shown = [line.strip() for line in lines if line.strip() and not set(line.strip()) <= set("-=*")]
    return next((line[:160] for line in reversed(shown) if wanted.search(line)), shown[0][:160] if shown else "nothing")


def transports(log: str) -> frozenset[str]:
    """What joins the ranks by NCCL's log: `P2P`, `SHM`, `NET/IB`, `NET/IB/GDRDMA`, `NET/Socket`, `NVLS`."""
    out = set()
    for name in re.findall(r"\bvia ((?:P2P|SHM|NET|COLLNET|NVLS)\S*)", log):
        parts = name.split("/")
        if parts[0] == "NET" and len(parts) > 1:
            out.add("/".join(["NET", parts[1]] + (["GDRDMA"] if "GDRDMA" in name else [])))
        else:
            out.add(parts[0])
    return frozenset(out)


def nvls(log: str) -> bool | None:
    """Whether NVLS takes part: None where the log does not say."""
    channels = [int(count) for count in re.findall(r"(\d+) nvls channels", log)]
    if channels:
        return min(channels) > 0
    if re.search(r"NVLS multicast support is available", log):
        return "NCCL_NVLS_ENABLE set by environment to 0" not in log
    if re.search(r"NVLS multicast support is not available|NCCL_NVLS_ENABLE set by environment to 0", log):
        return False
    return None


@dataclass(frozen=True)
class Bandwidths:
    """A test of nvbandwidth: its cells that hold a number, by (row, column)."""

    name: str
    cells: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def least(self) -> tuple[tuple[int, int], float]:
        return min(self.cells.items(), key=lambda item: item[1])


def nvbandwidth(text: str) -> dict[str, Bandwidths]:
    """Each test of nvbandwidth that ran to its SUM. Raises Unread when none did."""
    out: dict[str, Bandwidths] = {}
    name, columns = "", 0
    cells: dict[tuple[int, int], float] = {}
    for line in plain(text).splitlines():
        words = line.split()
        if match := re.match(r"Running (\w+)\.?$", line.strip()):
            name, cells, columns = match.group(1), {}, 0
        elif words and words[0] == "SUM" and len(words) == 3 and words[1] == name and cells:
            total = _float(words[2]) if _CELL.match(words[2]) else None
            # a matrix of which a line is missing does not add up
            if total is not None and abs(total - sum(cells.values())) <= 0.02 * max(total, 1) + 1:
                out[name] = Bandwidths(name, dict(cells))
            name = ""
        elif name and words and all(word.isdecimal() for word in words) and not cells:
            columns = len(words)
        elif (name and columns and len(words) == columns + 1 and words[0].isdecimal()
              and all(_CELL.match(word) for word in words[1:])):
            cells.update({(int(words[0]), number): float(word) for number, word in enumerate(words[1:])
                          if word.upper() != "N/A"})
    if not out:
        raise Unread(f"no test of nvbandwidth ran to its end: {complaint(plain(text).splitlines())}")
    return out


@dataclass(frozen=True)
class Perftest:
    """The largest size of ib_write_bw (`gbits`, average) or ib_write_lat (`micros`, p99 where it is printed)."""

    size: int
    gbits: float | None = None
    micros: float | None = None
    device: str = ""
    mtu: int | None = None


def perftest(text: str) -> Perftest:
    """`ib_write_bw` in MB/s or Gb/s, `ib_write_lat`. Raises Unread."""
    text = plain(text)
    device = re.search(r"Device\s*:\s*(\S+)", text)
    mtu = re.search(r"(?m)^\s*Mtu\s*:\s*(\d+)", text)
    found: dict[int, Perftest] = {}
    kind = ""
    for line in text.splitlines():
        if line.strip().startswith("#bytes"):
            kind = "latency" if "t_typical" in line or "t_avg" in line else "gb" if "Gb/sec" in line else "mb"
            heads = re.findall(r"#?[\w%.]+(?: [a-z]+)?\[[^\]]+\]|#?[\w%.]+", line)
            continue
        words = line.split()
        if not kind or len(words) < 4 or not all(re.fullmatch(r"\d+(\.\d+)?", word) for word in words):
            continue
        size = int(float(words[0]))
        name, width = device.group(1) if device else "", int(mtu.group(1)) if mtu else None
        if kind == "latency":
            place = next((number for number, head in enumerate(heads) if "99%" in head), None)
            if place is None or place >= len(words):
                place = next(number for number, head in enumerate(heads) if "typical" in head or "t_avg" in head)
            if place < len(words):
                found[size] = Perftest(size, None, float(words[place]), name, width)
        else:
            # perftest's MB is 2**20 bytes
            value = float(words[3]) * (1.0 if kind == "gb" else 8 * 2**20 / 1e9)
            found[size] = Perftest(size, value, None, name, width)
    if not found:
        raise Unread(f"no row of perftest: {complaint(text.splitlines())}")
    return found[max(found)]


def hccl(text: str) -> tuple[tuple[int, float], ...]:
    """hccl_test: (bytes, algorithm bandwidth) of each size that was right. Raises Unread."""
    out = []
    for line in plain(text).splitlines():
        words = line.split()
        if len(words) == 4 and words[0].isdecimal() and all(_CELL.match(word) for word in words[1:3]):
            if words[3] != "success":
                raise Unread(f"the check of {words[0]} bytes: {words[3]}")
            out.append((int(words[0]), float(words[2])))
    if not out or "alg_bandwidth" not in text:
        raise Unread(f"no row of hccl_test: {complaint(plain(text).splitlines())}")
    if len({size for size, _ in out}) != len(out):
        raise Unread("hccl_test shows a size twice")
    return tuple(out)
