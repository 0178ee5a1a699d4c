"""Failed, unreachable and lost results as blocks of lines; equal ones of many hosts are one block."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, printable

_WORDS = {Status.FAILED: "FAILED", Status.UNREACHABLE: "UNREACHABLE", Status.LOST: "LOST"}
_TAIL = 20


def failure_blocks(results: Sequence[Result]) -> list[list[str]]:
    """Blocks of lines, in the order in which their first result came."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        key = (result.status, result.task, result.message, result.expected, result.found, result.output, result.next,
               str(result.item), result.ignored)
        groups.setdefault(key, []).append(result)
    return [_block(group) for group in groups.values()]


def _block(group: Sequence[Result]) -> list[str]:
    first = group[0]
    hosts = fold_hosts([result.host for result in group])
    word = _WORDS[first.status] + (" (ignored)" if first.ignored else "")
    where = f" ({first.origin.short})" if first.origin else ""
    item = f", item {first.item}" if first.item is not None else ""
    task = f'in task "{first.task}"{item}{where}' if first.task else ""
    lines = [f"{word:7} {hosts}  {task}".rstrip()]
    message = first.message.rstrip() or "no message"
    lines += [f"        {printable(line)}" for line in message.splitlines()]
    if first.expected is not None:
        lines.append(f"        expected  {printable(first.expected)}")
    if first.found is not None:
        lines.append(f"        found     {printable(first.found)}")
    shown = first.output[-_TAIL:]
    if len(first.output) > len(shown):
        lines.append(f"        ... {len(first.output) - len(shown)} lines before these")
    lines += [f"        | {printable(line)}" for line in shown]
    if first.next:
        lines.append(f"        next      {first.next}")
    return lines
