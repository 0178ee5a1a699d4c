"""Traces of agent sessions: recorded requests in their order, asked again as they were.

A trace is traffic (docs/contract.md) of one session; what the model called then is what must be called now. Requests
that were retried, calls that were repeated and malformed answers that were sent back stay in it: they are what a parser
meets in the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.serving.contract.messages import read_message
from bringup.serving.contract.request import CHAT, Request, Response
from bringup.serving.contract.traffic import Attempt, broken, read_traffic
from bringup.serving.recipes.routes import Route


@dataclass(frozen=True)
class Trace:
    """One session."""

    name: str
    steps: tuple[Attempt, ...]


@dataclass(frozen=True)
class Replay:
    """How a replay went: steps, those that should call a tool and did the same, malformed answers, each problem."""

    steps: int
    calls: int
    same: int
    malformed: int
    problems: tuple[str, ...]


def load_traces(folder: Path, patterns: Sequence[str]) -> list[Trace]:
    """Every trace that the patterns name, relative to the gates' folder. Raises InputError when there is none."""
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    if not paths:
        raise InputError("there are no traces", where=str(folder), found=", ".join(patterns),
                         next="invoke gate.record makes them of real sessions")
    return [Trace(path.stem, tuple(read_traffic(path.read_text(encoding="utf-8").splitlines(), str(path))))
            for path in paths]


def requests(trace: Trace, model: str, timeout: float | None = None) -> list[Request]:
    """The session's requests for this model, temperature 0 so that the same is called."""
    out = []
    for number, step in enumerate(trace.steps):
        body = {**step.request, "model": model, "temperature": 0}
        out.append(Request(f"{trace.name} {number}", CHAT, body, stream=bool(body.get("stream")), timeout=timeout))
    return out


def names_called(response: Response) -> list[str] | None:
    """The tools that an answer calls; None for an answer that cannot be read."""
    try:
        return [call.name for call in read_message(response).calls]
    except ValueError:
        return None


def compare(trace: Trace, answers: Sequence[Response], routes: Mapping[str, Route]) -> Replay:
    """The answers of now against those of then."""
    calls = same = malformed = 0
    problems = []
    for number, (step, answer) in enumerate(zip(trace.steps, answers, strict=True)):
        now = Attempt(step.place, step.request_id, 0, step.request, answer, step.route)
        problem = broken(now, routes)
        if problem is not None:
            malformed += 1
            problems.append(f"{trace.name} step {number + 1}: {problem}")
        then = names_called(step.response)
        if not then:
            continue
        calls += 1
        found = names_called(answer)
        if found == then and problem is None:
            same += 1
        elif problem is None:
            problems.append(f"{trace.name} step {number + 1}: {', '.join(found or ()) or 'no tool'} was called, "
                            f"{', '.join(then)} then")
    return Replay(len(trace.steps), calls, same, malformed, tuple(problems))


def record_line(request: Mapping[str, Any], status: int, body: str, lines: Sequence[str], request_id: str, retry: int,
                at: float, seconds: float, error: str | None = None) -> str:
    """One attempt as a line of traffic."""
    entry: dict[str, Any] = {"request_id": request_id, "retry": retry, "at": round(at, 3), "request": dict(request),
                             "status": status, "seconds": round(seconds, 4)}
    if error:
        entry["error"] = error
    elif lines:
        entry["chunks"] = list(lines)
    else:
        try:
            entry["answer"] = json.loads(body)
        except ValueError:
            entry["answer"] = body
    return json.dumps(entry, ensure_ascii=False)
