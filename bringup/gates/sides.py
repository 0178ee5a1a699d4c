"""Two endpoints side by side on the same slice: success, tool calls, forms, latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.verdicts import Finding, Verdict
from bringup.gates.asking import Ask, measured, task_request, with_metrics
from bringup.gates.measure import Sample, better_high, pressure, share, worse
from bringup.gates.tasks import Task
from bringup.serving.recipes.routes import Route


@dataclass(frozen=True)
class Side:
    """One endpoint's figures and answers. `url` names it."""

    url: str
    model: str
    measures: Mapping[str, float | None]
    wrong: Sequence[str]
    samples: Sequence[Sample]


def side(url: str, model: str, ask: Ask, tasks: Sequence[Task], routes: Mapping[str, Route], folder: Path,
         at_once: int) -> Side:
    """Ask one endpoint the whole slice."""
    wanted = [task_request(task, model, routes.get(task.route or "tool_agent")) for task in tasks]
    answers, pages = with_metrics(wanted, at_once, ask)
    measures, wrong, samples = measured(tasks, answers, folder)
    return Side(url, model, {**measures, **pressure(pages)}, tuple(task.id for task, _ in wrong), samples)


def compare(here: Side, there: Side, tasks: Sequence[Task], tolerance: float, noise: Mapping[str, float]
            ) -> list[Finding]:
    """What is worse here than there beyond the tolerance, tool calls that differ, then the sum."""
    found = [Finding("gate.compare", measure, Verdict.FAIL,
                     f"{measure} {now:g} here, {then:g} there: worse by more than {tolerance:g} %",
                     required=f"{then:g} within {tolerance:g} %", found=f"{now:g}")
             for measure, now, then in worse(here.measures, there.measures, tolerance, noise)]
    pairs = [(task, called(a), called(b)) for task, a, b in zip(tasks, here.samples, there.samples, strict=True)
             if task.calls]
    same = sum(a == b for _, a, b in pairs)
    consistent = share(same, len(pairs))
    if consistent is not None and consistent < 100 - tolerance:
        which = ", ".join(task.id for task, a, b in pairs if a != b)
        found.append(Finding("gate.compare", "consistent", Verdict.FAIL,
                             f"{same} of {len(pairs)} tool calls are the same on both sides",
                             required=f"{100 - tolerance:g} %", found=f"{consistent:g} %",
                             details=(f"differ    {which[:160]}",)))
    only = [name for name in here.wrong if name not in there.wrong]
    if only:
        found.append(Finding("gate.compare", "tasks", Verdict.NOTE,
                             f"right there and wrong here: {', '.join(only)[:200]}"))
    found.append(Finding("gate.compare", "sum", Verdict.NOTE,
                         f"{len(tasks)} tasks: {_shown(here, 'task_success')} % here, "
                         f"{_shown(there, 'task_success')} % there; {same} of {len(pairs)} tool calls the same"))
    return found


def called(one: Sample) -> list[tuple[str, Any]] | None:
    """The calls of an answer with their arguments; None for an answer that cannot be read."""
    if one.message is None:
        return None
    try:
        return [(call.name, call.parsed()) for call in one.message.calls]
    except ValueError:
        return None


def _shown(one: Side, measure: str) -> str:
    value = one.measures.get(measure)
    return "?" if value is None else f"{value:g}"


def table(here: Side, there: Side) -> list[list[str]]:
    """Measure by measure: here, there, which is better."""
    rows = [["measure", here.url, there.url, "better"]]
    for measure in here.measures:
        left, right = here.measures.get(measure), there.measures.get(measure)
        word = ""
        if left is not None and right is not None and left != right:
            word = "here" if (left > right) is better_high(measure) else "there"
        rows.append([measure, _shown(here, measure), _shown(there, measure), word])
    return rows
