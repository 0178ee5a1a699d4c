"""Two endpoints side by side as data that is kept, and as one HTML page that needs nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bringup.base.errors import StepError
from bringup.base.verdicts import Finding
from bringup.gates.measure import better_high
from bringup.gates.page import STYLE, curves, escaped, pairs_of_bars
from bringup.gates.sides import Side, called
from bringup.gates.tasks import Task

SHARES = ("task_success", "tool_success", "malformed", "cache_headroom", "memory_headroom")
_PLOTS = (("first_token", "seconds to the first token"), ("per_token", "seconds per further token"),
          ("whole", "seconds of whole answers"))


def path_of(root: Path, inventory: str) -> Path:
    """`.bringup/gates/NAME-compare.json`: the last comparison."""
    return root / ".bringup" / "gates" / f"{inventory}-compare.json"


def record(here: Side, there: Side, tasks: Sequence[Task], found: Sequence[Finding], tolerance: float
           ) -> dict[str, Any]:
    """The comparison as data: figures and every answer's seconds of both sides, and how each task went on each.

    `each` holds for a task `right` (here, there), `same_calls` (None where no tool is to be called) and `whole`
    seconds.
    """
    each = [{"id": task.id, "right": [task.id not in here.wrong, task.id not in there.wrong],
             "same_calls": called(a) == called(b) if task.calls else None, "whole": [a.whole, b.whole]}
            for task, a, b in zip(tasks, here.samples, there.samples, strict=True)]
    return {"at": round(time.time()), "tolerance": tolerance, "tasks": len(tasks),
            "sides": [_side(one) for one in (here, there)], "each": each,
            "findings": [{"subject": one.subject, "verdict": one.verdict.value, "summary": one.summary,
                          "details": list(one.details)} for one in found]}


def _side(one: Side) -> dict[str, Any]:
    samples = [sample for sample in one.samples if sample.problem is None]
    series = {"first_token": [s.first for s in samples if s.first is not None],
              "per_token": [s.token for s in samples if s.token is not None], "whole": [s.whole for s in samples]}
    return {"name": one.url, "model": one.model, "measures": dict(one.measures), "wrong": list(one.wrong),
            "series": {name: sorted(round(value, 5) for value in values) for name, values in series.items()}}


def keep(path: Path, data: Mapping[str, Any]) -> None:
    """Write it. Raises StepError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    except OSError as error:
        raise StepError("the comparison cannot be kept", where=str(path), found=error.strerror or str(error)) from None


def load(path: Path) -> dict[str, Any] | None:
    """The comparison that was kept, None where none was. Raises StepError for one that cannot be read."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepError("the comparison cannot be read", where=str(path), found=str(error)) from None
    return data if isinstance(data, dict) else None


def page(data: Mapping[str, Any]) -> str:
    """The whole page: verdicts, both sides' figures, plots, the tasks on which they differ."""
    here, there = data["sides"]
    names = [f"here: {here['name']}", f"there: {there['name']} {there['model']}"]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(data["at"])))
    title = f"{here['name']} against {there['name']}"
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{escaped(title)}</title><style>{STYLE}</style>",
             f"<h1>{escaped(title)}</h1><p class=small>{data['tasks']} tasks, the same on both sides · {when} · "
             f"tolerance {float(data['tolerance']):g} % · here is asked from its head's own host, there from the "
             "controller</p>", _findings(data["findings"]), _table(here, there, names),
             "<h2>plots</h2>"]
    for name, words in _PLOTS:
        sides = {names[0]: here["series"][name], names[1]: there["series"][name]}
        if any(len(values) > 1 for values in sides.values()):
            parts.append(curves(words, sides))
    shares = {name: (here["measures"].get(name), there["measures"].get(name)) for name in SHARES}
    known = {name: pair for name, pair in shares.items() if any(value is not None for value in pair)}
    if known:
        parts.append(pairs_of_bars("percent", known, (names[0], names[1])))
    parts.append(_differing(data["each"]))
    return "\n".join(parts) + "</html>\n"


def _findings(found: Sequence[Mapping[str, Any]]) -> str:
    rows = ""
    for one in found:
        kind = "no" if one["verdict"] == "fail" else "small"
        rows += (f"<tr><td class={kind}>{escaped(str(one['verdict']).upper())}<td>{escaped(str(one['subject']))}"
                 f"<td>{escaped(str(one['summary']))}")
    closed = any(one["verdict"] == "fail" for one in found)
    word = "<p class=no>here is worse</p>" if closed else "<p class=ok>here is as good, within the tolerance</p>"
    return f"{word}<table>{rows}</table>"


def _table(here: Mapping[str, Any], there: Mapping[str, Any], names: Sequence[str]) -> str:
    rows = ""
    for measure, left in here["measures"].items():
        right = there["measures"].get(measure)
        if left is None and right is None:
            continue
        better = "" if left is None or right is None or left == right else \
            "here" if (left > right) is better_high(measure) else "there"
        rows += f"<tr><td>{escaped(measure)}<td class=n>{_number(left)}<td class=n>{_number(right)}<td>{better}"
    return f"<table><tr><th>measure<th>{escaped(names[0])}<th>{escaped(names[1])}<th>better{rows}</table>"


def _number(value: Any) -> str:
    return "not measured" if value is None else f"{float(value):.4g}"


def _differing(each: Sequence[Mapping[str, Any]]) -> str:
    rows = ""
    for one in each:
        left, right = one["right"]
        if left == right and one["same_calls"] is not False:
            continue
        calls = "" if one["same_calls"] is None else "the same" if one["same_calls"] else "differ"
        rows += (f"<tr><td>{escaped(str(one['id']))}<td>{'right' if left else 'wrong'}"
                 f"<td>{'right' if right else 'wrong'}<td>{calls}")
    if not rows:
        return "<h2>tasks</h2><p>No task went otherwise on one side than on the other.</p>"
    return f"<h2>tasks that went otherwise</h2><table><tr><th>task<th>here<th>there<th>tool calls{rows}</table>"
