"""Which parser names a server of which version knows, and which one GLM-5 takes: tables, newest row that fits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bringup.base.errors import InputError

Version = tuple[int, ...]

GLM5 = "glm-5"
"""Parser family of GLM-5, 5.1 and their checkpoints."""


@dataclass(frozen=True)
class ParserRow:
    """From `since` on, `engine` takes `use` for the family and knows the names in `known`."""

    engine: str
    kind: str  # reasoning | tool
    since: Version
    use: str
    known: tuple[str, ...]
    why: str


_TABLE = (
    ParserRow("vllm", "reasoning", (0, 24), "glm47", ("glm45", "glm47"), "vLLM from 0.24.0 names it glm47"),
    ParserRow("vllm", "reasoning", (0,), "glm45", ("glm45",), "vLLM before 0.24.0 knows glm45 only"),
    ParserRow("vllm", "tool", (0,), "glm47", ("glm45", "glm47"), "GLM from 4.7 on writes this form of tool calls"),
    ParserRow("vllm-ascend", "reasoning", (0, 24), "glm47", ("glm45", "glm47"), "as the vLLM that it stands on"),
    ParserRow("vllm-ascend", "reasoning", (0,), "glm45", ("glm45",), "as the vLLM before 0.24.0 that it stands on"),
    ParserRow("vllm-ascend", "tool", (0,), "glm47", ("glm45", "glm47"), "GLM from 4.7 on writes this form"),
    ParserRow("sglang", "reasoning", (0,), "glm45", ("glm45",), "every SGLang names it glm45"),
    ParserRow("sglang", "tool", (0,), "glm47", ("glm", "glm45", "glm47"), "GLM from 4.7 on writes this form"),
    ParserRow("sglang-kt", "reasoning", (0,), "glm45", ("glm45",), "every SGLang names it glm45"),
    ParserRow("sglang-kt", "tool", (0,), "glm47", ("glm45", "glm47"), "GLM from 4.7 on writes this form"),
)

@dataclass(frozen=True)
class FlagRow:
    """What is known of a flag over versions: `engine` has it from `since` on and before `until`; empty is no bound.

    `never` marks one that no version has.
    """

    engine: str
    flag: str
    since: str = ""
    until: str = ""
    never: bool = False
    why: str = ""

    @property
    def range(self) -> str:
        """`from 0.24.0 on`, `in no version`."""
        if self.never:
            return "in no version"
        parts = [f"from {self.since} on" if self.since else "", f"before {self.until}" if self.until else ""]
        return " and ".join(part for part in parts if part) or "in every version"


_KT_ONLY = "of sglang-kt only; upstream's SGLang has a part of the kt flags"
_FLAGS = (
    FlagRow("sglang", "--enable-eagle", never=True, why="guides name it; use --speculative-algorithm EAGLE"),
    FlagRow("sglang-kt", "--enable-eagle", never=True, why="guides name it; use --speculative-algorithm EAGLE"),
    FlagRow("sglang", "--kt-gpu-prefill-token-threshold", never=True, why=_KT_ONLY),
    FlagRow("sglang", "--kt-enable-dynamic-expert-update", never=True, why=_KT_ONLY),
    FlagRow("sglang", "--kt-expert-placement-strategy", never=True, why=_KT_ONLY),
)


def flag_rows(engine: str, flag: str) -> list[FlagRow]:
    """What the tables say of a flag: its own rows, and for parser flags which name a version takes."""
    found = [row for row in _FLAGS if row.engine == engine and row.flag == flag]
    kind = {"--reasoning-parser": "reasoning", "--tool-call-parser": "tool"}.get(flag)
    for row in _TABLE:
        if kind and row.engine == engine and row.kind == kind:
            since = ".".join(str(part) for part in row.since)
            found.append(FlagRow(engine, flag, since="" if since == "0" else since,
                                 why=f"{flag} {row.use} ({', '.join(row.known)}): {row.why}"))
    return found


def check_flag_table(engine: str, version: str, words: list[str]) -> None:
    """Refuse a flag that the table knows not to be in this version. Raises InputError."""
    for word in words:
        for row in _FLAGS:
            if row.engine != engine or word.split("=", 1)[0] != row.flag:
                continue
            early = bool(row.since) and not at_least(version, row.since)
            late = bool(row.until) and at_least(version, row.until)
            if row.never or early or late:
                raise InputError(f"{engine} {version} has no flag {row.flag}", found=word, expected=row.range,
                                 next=row.why or None)


_PARTS = re.compile(r"\d+")


def parse_version(text: str) -> Version:
    """`0.24.0`, `0.24.1-lab`, `0.5.10.post1`: the leading numbers. Raises InputError when there are none."""
    head = re.match(r"\s*v?(\d+(?:\.\d+)*)", text)
    if not head:
        raise InputError("is no version", found=text, expected="numbers with dots: 0.24.0")
    return tuple(int(part) for part in _PARTS.findall(head.group(1)))


def at_least(version: str, floor: str) -> bool:
    """True when `version` is `floor` or newer; missing parts count as 0."""
    left, right = parse_version(version), parse_version(floor)
    width = max(len(left), len(right))
    return left + (0,) * (width - len(left)) >= right + (0,) * (width - len(right))


def parser_row(engine: str, kind: str, version: str) -> ParserRow:
    """The row of the table for an engine's version. `kind` is reasoning or tool. Raises InputError."""
    numbers = parse_version(version)
    for row in _TABLE:
        if row.engine == engine and row.kind == kind and numbers >= row.since:
            return row
    raise InputError(f"no {kind} parser is known for {engine} {version}")


def check_parsers(engine: str, version: str, words: list[str]) -> None:
    """Refuse a parser name that this version does not know. Only names of the GLM family are judged.

    Raises InputError with the name that the version takes.
    """
    for flag, kind in (("--reasoning-parser", "reasoning"), ("--tool-call-parser", "tool")):
        value = flag_value(words, flag)
        if value is None or not value.startswith("glm"):
            continue
        row = parser_row(engine, kind, version)
        if value not in row.known:
            raise InputError(f"{engine} {version} knows no {kind} parser `{value}`", expected=" or ".join(row.known),
                             found=f"{flag} {value}", next=f"{flag} {row.use}   ({row.why})")


def flag_value(words: list[str], flag: str) -> str | None:
    """The value of a flag in a command line: the last one given, or None."""
    value = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(flag + "="):
            value = word[len(flag) + 1:]
    return value
