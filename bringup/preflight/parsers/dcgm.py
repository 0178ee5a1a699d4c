"""DCGM: the diagnosis as JSON or table, NVLink states and error counts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread

_WIDTH = 45
"""Letters of a message in a line of the table."""
_RESULTS = ("pass", "fail", "warn", "skip", "not run", "error")


def diagnosis(text: str) -> dict[str, tuple[str, str]]:
    """Each test of `dcgmi diag` as (result in small letters, what it says). Raises Unread.

    The worst result of a test's devices counts. JSON of DCGM 3 and 4, or the table.
    """
    start = text.find("{")
    found = _of_json(text[start:]) if start >= 0 else _of_table(plain(text))
    if not found:
        raise Unread("the diagnosis names no test")
    return found


def _of_json(text: str) -> dict[str, tuple[str, str]]:
    try:
        document, _ = json.JSONDecoder().raw_decode(text)
        root = next((value for key, value in document.items() if key.upper().startswith("DCGM") and
                     isinstance(value, dict)), document)
        out = {}
        for category in root["test_categories"]:
            for test in category["tests"]:
                results = [*test.get("results", ()), *([test["test_summary"]] if "test_summary" in test else [])]
                words = [str(one["status"]).lower() for one in results]
                worst = max(words, key=_badness, default="not run")
                said = next((_said(one) for one in results if str(one["status"]).lower() == worst and _said(one)), "")
                out[str(test["name"])] = (worst, said)
        return out
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unread(f"the diagnosis is no JSON of DCGM: {error}") from None


def _said(one: Mapping[str, Any]) -> str:
    warnings = one.get("warnings") or one.get("info") or one.get("warning") or ""
    if isinstance(warnings, list):
        warnings = "; ".join(str(item.get("warning", item)) if isinstance(item, dict) else str(item)
                             for item in warnings)
    return " ".join(str(warnings).split())


def _badness(word: str) -> int:
    return {"pass": 0, "skip": 1, "not run": 1, "warn": 3}.get(word, 4)


def _of_table(text: str) -> dict[str, tuple[str, str]]:
    out: dict[str, tuple[str, str]] = {}
    name = ""
    for line in text.splitlines():
        match = re.match(r"^\|\s(.{25})\s\|\s(.*?)\s?\|$", line)
        if not match:
            continue
        left, right = match.group(1).strip(), match.group(2)
        word = right.split(" - ")[0].strip().lower()
        if left in ("Diagnostic", "") and word in ("result", ""):
            continue
        if left in ("Error", "Warning", "Info"):
            name = name if left != "Error" or name else "Error"
            old = out.get(name, ("error", ""))
            out[name] = ("error" if left == "Error" else old[0], right[:_WIDTH])
        elif left and word in _RESULTS:
            name = left
            out[name] = (word, "" if word == "pass" else right.partition(" - ")[2])
        elif not left and name:
            old = out[name]
            if word in _RESULTS:
                worst = max(old[0], word, key=_badness)
                out[name] = (worst, right.partition(" - ")[2] if worst == word else old[1])
            else:
                # a long message is broken inside words
                out[name] = (old[0], old[1] + right[:_WIDTH])
    ended = bool(re.search(r"\n\+-+\+-+\+\s*$", "\n" + text.rstrip()))
    if out and not ended and all(word in ("pass", "skip", "not run") for word, _ in out.values()):
        raise Unread("the diagnosis stops half way")
    if "Diagnostic" in text and not out:
        raise Unread("the diagnosis stops before its first result")
    return {name: (word, said.strip()) for name, (word, said) in out.items()}


def nvlink_states(text: str) -> dict[int, str]:
    """`dcgmi nvlink -s`: a letter for each link by GPU (U up, D down, X disabled, _ not there). Raises Unread."""
    out: dict[int, str] = {}
    gpu = None
    for line in plain(text).splitlines():
        words = line.split()
        if match := re.match(r"\s*gpuId (\d+):", line):
            gpu = int(match.group(1))
        elif gpu is not None and words and all(word in ("U", "D", "X", "_") for word in words):
            out[gpu] = "".join(words)
            gpu = None
        else:
            gpu = None
    if not out:
        raise Unread("no GPU in the answer about NVLinks")
    return out


def nvlink_errors(text: str) -> dict[str, int]:
    """`dcgmi nvlink -e`, JSON or table: `Link 0 CRC Data Error` -> count, zeros too. Raises Unread."""
    out: dict[str, int] = {}
    if text.lstrip().startswith("{"):
        try:
            for link, value in json.loads(text)["body"].items():
                for name, one in value["children"].items():
                    out[f"{link} {name}"] = int(one["value"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Unread(f"the answer about NVLinks is no JSON of DCGM: {error}") from None
    link = ""
    for line in plain(text).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.fullmatch(r"Link \d+", cells[0]):
            link = cells[0]
        elif link and cells[0].startswith("-> ") and len(cells) > 1 and cells[1].isdecimal():
            out[f"{link} {cells[0][3:]}"] = int(cells[1])
    if not out:
        raise Unread("no count of NVLink errors")
    return out
