"""What an engine's log lines say while it starts: ranks that joined, world size, shards read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_VLLM_RANK = re.compile(r"\bworld_size=(\d+)\b.*?\brank=(\d+)\b")
_SGLANG = re.compile(r"\b(?:DP\d+ )?(?:PP(\d+) )?TP(\d+)(?: EP\d+)?\] ")
_SHARDS = re.compile(r"Loading safetensors checkpoint shards:\s*(\d+)% (?:Completed )?\| *(\d+)/(\d+)")
_ALONE = re.compile(r"in headless mode, with head node address tcp://127\.0\.0\.1:")
"""A vLLM without HTTP that takes itself for the first node; a worker names the head's own address."""
_PLAIN = re.compile(r"\d+(?:\.\d+)?")
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d [^\]]*\]\s*|^(?:\([^)]*\bpid=\d+\)\s*)?"
                     r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)?")
"""What vLLM and SGLang write before each message: process, level, time, place."""


@dataclass
class Signs:
    """What was read so far from one process's log. `ranks` are global ranks that said that they joined, `joined` is the
    line that said so last; `alone` is true of a worker that takes itself for the first node."""

    tensor_parallel: int = 1
    ranks: set[int] = field(default_factory=set)
    world_sizes: set[int] = field(default_factory=set)
    shards: tuple[int, int] | None = None
    joined: str = ""
    alone: bool = False
    last: str = ""
    last_at: float | None = None
    _kinds: set[str] = field(default_factory=set)

    def read(self, text: str, at: float | None = None) -> bool:
        """Take a line. True when it shows progress: a new rank, a further shard, or a line of a new kind."""
        line = text.strip()
        if not line:
            return False
        self.last, self.last_at = line, at
        news = False
        match = _VLLM_RANK.search(line)
        if match:
            self.joined = line
            self.world_sizes.add(int(match.group(1)))
            news = self._joined(int(match.group(2)))
        match = _SGLANG.search(line)
        if match:
            news = self._joined(int(match.group(1) or 0) * self.tensor_parallel + int(match.group(2)))
        if _ALONE.search(line):
            self.alone, self.joined = True, line
        match = _SHARDS.search(line)
        if match:
            shards = (int(match.group(2)), int(match.group(3)))
            news = news or shards != self.shards
            self.shards = shards
            return news
        kind = _PLAIN.sub("#", line)[:160]
        if kind not in self._kinds and len(self._kinds) < 20_000:
            self._kinds.add(kind)
            news = True
        return news

    def _joined(self, rank: int) -> bool:
        if rank in self.ranks:
            return False
        self.ranks.add(rank)
        return True

    @property
    def told(self) -> str:
        """How far it is, in a few words."""
        if self.shards and self.shards[0] < self.shards[1]:
            return f"loading {self.shards[0]}/{self.shards[1]} shards"
        return (self.message or self.last)[:100]

    @property
    def message(self) -> str:
        """The last line without what the engine's logger writes before it."""
        return _PREFIX.sub("", self.last, count=1)


def rank_mismatches(signs: Mapping[str, Signs], wanted: Mapping[str, tuple[int, ...]], world_size: int) -> list[str]:
    """Ranks in the wrong place and world sizes that differ, a line each: no waiting mends them."""
    out = []
    for host, own in signs.items():
        others = own.world_sizes - {world_size}
        if others:
            out.append(f"{host} was started for {numbers(others)} ranks, the replica has {world_size}")
        stray = own.ranks - set(wanted[host])
        if own.alone and 0 not in wanted[host]:
            stray.add(0)
        if stray:
            out.append(f"{host} took {_noun(stray)} {numbers(stray)}, meant for it: {numbers(set(wanted[host]))}")
    return out


def rank_gaps(signs: Mapping[str, Signs], wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Ranks that did not join yet, a line a host; empty when each of them did, in its place."""
    out = []
    for host, own in signs.items():
        missing = set(wanted[host]) - own.ranks
        if missing:
            out.append(f"{host}: {_noun(missing)} {numbers(missing)} never joined")
    return out


def _noun(ranks: set[int]) -> str:
    return "rank" if len(ranks) == 1 else "ranks"


def numbers(given: Iterable[int]) -> str:
    """`0-7`, or `0, 3`."""
    ordered = sorted(given)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(str(number) for number in ordered)


def tensor_parallel_of(argv: list[str]) -> int:
    """The tensor parallel size on a command line, 1 when it names none."""
    names = ("--tensor-parallel-size", "-tp", "--tp-size", "--tp")
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (argv[at + 1] if at + 1 < len(argv) else "1")
            return int(found) if found.isdigit() else 1
    return 1
