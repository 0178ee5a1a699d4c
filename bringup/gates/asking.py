"""Lines that ask the endpoint: smoke load, traces, the scorecard over the fixed slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bringup.base.errors import StepError
from bringup.base.text import plural
from bringup.base.verdicts import Finding, Verdict
from bringup.gates.definition import Line
from bringup.gates.ground import Came, Ground, setting
from bringup.gates.measure import Sample, latencies, pressure, sample, share
from bringup.gates.tasks import Task, load_tasks, right
from bringup.gates.traces import compare, load_traces, requests
from bringup.serving.contract.check import call_problem
from bringup.serving.contract.request import CHAT, Request, Response
from bringup.serving.recipes.routes import Route

Ask = Callable[[Sequence[Request], int], Sequence[Response]]
OWN = "bringup's own load"
EVERY = 8
"""A look at /metrics goes with every so many requests."""
CHECKERS = 4
"""Checking commands at once."""
SHOWN = 12
"""Findings of one line that are told one by one; the rest are counted."""


def with_metrics(wanted: Sequence[Request], at_once: int, ask: Ask) -> tuple[list[Response], list[str]]:
    """The answers, and the pages of /metrics that were taken among them."""
    mixed: list[Request] = []
    for number, request in enumerate(wanted):
        mixed.append(request)
        if number % EVERY == EVERY - 1:
            mixed.append(Request(f"metrics {number}", "/metrics"))
    mixed.append(Request("metrics last", "/metrics"))
    answers = ask(mixed, at_once + 1)
    pages = [a.body for r, a in zip(mixed, answers, strict=True) if r.path == "/metrics" and a.status == 200]
    return [a for r, a in zip(mixed, answers, strict=True) if r.path != "/metrics"], pages


def smoke(ground: Ground, line: Line) -> Came:
    """A bounded load of streams: does everything come back, and how fast. By `vllm bench serve` where the release's
    environment has it, else by this tool; what was told says which."""
    from bringup.gates import bench

    count, at_once = line.number("requests", 40), line.number("at_once", 8)
    way = bench.way_of(line)
    tool = None if way == "own" else bench.find(ground)
    if way == "bench" and tool is None:
        raise StepError(f"the gate {line.name} asks for {bench.NAME}, which is not in the environment of "
                        f"{ground.label}", next="by: auto in the file of gates takes what is there")
    found: list[Finding] = []
    loaded = bench.load(ground, line, tool) if tool is not None else None
    if way == "bench" and loaded is not None and loaded.problem is not None:
        raise StepError(f"the gate {line.name}: {loaded.problem}", next="by: auto in the file of gates falls back to "
                        f"{OWN}")
    if loaded is not None and loaded.problem is None:
        by, samples, pages = tool.told if tool else "", loaded.samples, loaded.pages
    else:
        if loaded is not None:
            found.append(Finding(f"gate.{line.name}", "load", Verdict.WARN, f"{loaded.problem}; asked by bringup's own "
                                 "load instead", mend="by: own in the file of gates leaves the tool out"))
        by = OWN + ("" if tool or way == "own" else f" ({bench.NAME} is not in the environment)")
        answers, pages = with_metrics(_counting(ground, line, count), at_once, ground.ask)
        samples = [sample(answer) for answer in answers]
    bad = [one for one in samples if one.problem is not None]
    measures = {"errors": float(len(bad)), **latencies(samples), **pressure(pages)}
    found += [Finding(f"gate.{line.name}", f"request {number + 1}", Verdict.FAIL, str(one.problem))
              for number, one in enumerate(samples) if one.problem is not None]
    return Came(measures, f"{plural(count, 'request')}, {at_once} at once, {plural(len(bad), 'error')}; by {by}",
                shown(line, found), {**_series(samples), "by": by})


def _counting(ground: Ground, line: Line, count: int) -> list[Request]:
    """Short streams of a known length."""
    return [Request(f"smoke {number}", CHAT, {
        "model": ground.model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
        "max_tokens": line.number("max_tokens", 256),
        "messages": [{"role": "user", "content": f"Count from 1 to {20 + number % 30} in digits."}]}, stream=True)
        for number in range(count)]


def _series(samples: Sequence[Sample]) -> dict[str, Any]:
    return {"first_token": sorted(round(s.first, 4) for s in samples if s.first is not None),
            "whole": sorted(round(s.whole, 4) for s in samples if s.problem is None)}


def traces(ground: Ground, line: Line) -> Came:
    """Every trace's requests again: forms kept, the same tools called."""
    patterns = [str(pattern) for pattern in setting(line, "files", ["traces/*.jsonl"])]
    loaded = load_traces(ground.folder, patterns)
    routes = ground.routes()
    flat = [request for trace in loaded for request in requests(trace, ground.model)]
    answers = ground.ask(flat, line.number("at_once", 4))
    steps = calls = same = malformed = 0
    problems: list[str] = []
    at = 0
    for trace in loaded:
        replay = compare(trace, answers[at:at + len(trace.steps)], routes)
        at += len(trace.steps)
        steps, calls, same = steps + replay.steps, calls + replay.calls, same + replay.same
        malformed += replay.malformed
        problems += replay.problems
    measures = {"tool_success": share(same, calls), "malformed": share(malformed, steps), "steps": float(steps)}
    found = [Finding(f"gate.{line.name}", problem.partition(":")[0], Verdict.WARN, problem.partition(": ")[2])
             for problem in problems]
    return Came(measures, f"{plural(len(loaded), 'session')}, {plural(steps, 'step')}, {same} of "
                f"{plural(calls, 'tool call')} the same, {malformed} malformed", shown(line, found))


def task_request(task: Task, model: str, route: Route | None) -> Request:
    """A task as its route asks: the same words each time."""
    body: dict[str, Any] = {**(route.request if route is not None else {}), "model": model,
                            "messages": list(task.messages), "temperature": 0, "stream": True,
                            "stream_options": {"include_usage": True}}
    body["max_tokens"] = min(int(body.get("max_tokens") or 4096), 8192)
    if task.tools:
        body["tools"] = list(task.tools)
    return Request(task.id, CHAT, body, stream=True)


def slice_of(folder: Path, line: Line) -> list[Task]:
    """The tasks of a scorecard line. Raises InputError."""
    return load_tasks(folder / str(setting(line, "tasks", "tasks.jsonl")), line.number("slice", 200))


def measured(tasks: Sequence[Task], answers: Sequence[Response], folder: Path
             ) -> tuple[dict[str, float | None], list[tuple[Task, str]], list[Sample]]:
    """Task success and what comes with it: (measures, what failed and why, samples)."""
    samples = [sample(answer) for answer in answers]
    wrong: list[tuple[Task, str]] = []
    called = tool_good = malformed = 0
    with ThreadPoolExecutor(CHECKERS) as pool:
        judged = list(pool.map(lambda pair: _judged(pair[0], pair[1], folder), zip(tasks, samples, strict=True)))
    for task, one, (bad_form, problem) in zip(tasks, samples, judged, strict=True):
        malformed += bad_form is not None
        if task.calls:
            called += 1
            tool_good += one.message is not None and bool(one.message.calls) and bad_form is None
        if problem is not None:
            wrong.append((task, problem))
    measures: dict[str, float | None] = {
        "task_success": share(len(tasks) - len(wrong), len(tasks)), "tool_success": share(tool_good, called),
        "malformed": share(malformed, len(tasks)), **latencies(samples)}
    return measures, wrong, samples


def _judged(task: Task, one: Sample, folder: Path) -> tuple[str | None, str | None]:
    """(what is wrong with the form, what is wrong at all) of an answer."""
    if one.message is None:
        return one.problem, one.problem
    leaks = one.message.leaks()
    bad_form = f"a tool call came as text: {', '.join(leaks)}" if leaks else call_problem(one.message, *task.tools)
    return bad_form, bad_form or right(task, one.message, folder)


def scorecard(ground: Ground, line: Line) -> Came:
    """The fixed slice of tasks: success first, then tools, forms, latency, queue and headroom."""
    tasks = slice_of(ground.folder, line)
    routes: Mapping[str, Route] = ground.routes()
    wanted = [task_request(task, ground.model, routes.get(task.route or str(setting(line, "route", "tool_agent"))))
              for task in tasks]
    answers, pages = with_metrics(wanted, line.number("at_once", 4), ground.ask)
    measures, wrong, samples = measured(tasks, answers, ground.folder)
    measures = {**measures, **pressure(pages), "memory_headroom": memory_headroom(ground)}
    found = [Finding(f"gate.{line.name}", task.id, Verdict.WARN, why, details=(f"task      {task.place}",))
             for task, why in wrong]
    return Came(measures, f"{len(tasks) - len(wrong)} of {plural(len(tasks), 'task')} done", shown(line, found),
                _series(samples))


def memory_headroom(ground: Ground) -> float | None:
    """Percent of the fullest device's memory that is free, over all nodes; None where no tool tells it."""
    from bringup.run.actions import Call

    line = "nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader,nounits"
    hosts = [host for nodes in ground.members.values() for host in nodes]
    results = ground.fleet.call({host: Call("shell", {"cmd": line}, timeout=30, changes=False) for host in hosts})
    free: list[float] = []
    for result in results.values():
        for row in [] if result.bad else str(result.data.get("stdout") or "").splitlines():
            used, _, total = (part.strip() for part in row.partition(","))
            if used.isdigit() and total.isdigit() and int(total):
                free.append(100 * (1 - int(used) / int(total)))
    return round(min(free), 1) if free else None


def shown(line: Line, found: Sequence[Finding]) -> list[Finding]:
    """The first findings, and one that counts the rest."""
    if len(found) <= SHOWN:
        return list(found)
    rest = len(found) - SHOWN
    return [*found[:SHOWN], Finding(f"gate.{line.name}", "more", found[0].verdict, f"{rest} more of the same line")]
