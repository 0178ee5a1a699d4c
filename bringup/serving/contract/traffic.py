"""Recorded traffic: JSONL of requests and answers, held against the same forms and schemas as the contract.

A line is one attempt: {"request_id", "retry" (0 the first time), "route" (optional), "at" (seconds since the epoch,
optional), "request" (the chat body), "status", and `answer` (the body), `chunks` (the data lines of a stream) or
`error` (why no answer came), "seconds"}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest, plural
from bringup.base.verdicts import Finding, Verdict
from bringup.serving.contract.causes import cause_of
from bringup.serving.contract.check import Served, call_problem
from bringup.serving.contract.messages import Message, read_message, schema_problem
from bringup.serving.contract.request import Response
from bringup.serving.recipes.routes import Route

KEYS = ("request_id", "retry", "route", "at", "request", "status", "answer", "chunks", "error", "seconds")


@dataclass(frozen=True)
class Attempt:
    """One line: a request as it was sent and what came; `place` is FILE:LINE."""

    place: str
    request_id: str
    retry: int
    request: Mapping[str, Any]
    response: Response
    route: str | None = None


def read_traffic(lines: Iterable[str], name: str) -> list[Attempt]:
    """The attempts of a file. Raises InputError with the line that is none."""
    out = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            out.append(_attempt(line, f"{name}:{number}"))
    if not out:
        raise InputError("holds no traffic", where=name, expected="a JSON object a line (docs/contract.md)")
    return out


def _attempt(line: str, place: str) -> Attempt:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InputError("the line is no JSON", where=place, found=str(error)) from None
    if not isinstance(data, dict):
        raise InputError("a line of traffic is a JSON object", where=place, found=type(data).__name__)
    for key in data:
        if key not in KEYS:
            near = nearest(key, KEYS)
            raise InputError(f"a line of traffic knows no `{key}`", where=place, expected=", ".join(KEYS),
                             next=f"nearest: {near}" if near else None)
    request, chunks, answer = data.get("request"), data.get("chunks"), data.get("answer")
    if not isinstance(request, dict) or not data.get("request_id"):
        raise InputError("a line of traffic needs request_id and request", where=place)
    if chunks is not None and not isinstance(chunks, list):
        raise InputError("`chunks` is a list: the data lines of the stream", where=place)
    try:
        retry, status, seconds = (int(data.get("retry") or 0), int(data.get("status") or 0),
                                  float(data.get("seconds") or 0))
    except (TypeError, ValueError):
        raise InputError("`retry` and `status` are whole numbers, `seconds` is a number", where=place) from None
    events = tuple((0.0, chunk if isinstance(chunk, str) else json.dumps(chunk)) for chunk in chunks or ())
    body = answer if isinstance(answer, str) else json.dumps(answer) if answer is not None else ""
    failure = str(data["error"]) if data.get("error") else None
    if not status and not failure:
        raise InputError("a line of traffic needs a status or an error", where=place)
    response = Response(str(data["request_id"]), status, body, events, failure, seconds)
    return Attempt(place, str(data["request_id"]), retry, request, response,
                   str(data["route"]) if data.get("route") else None)


def as_answer(message: Message) -> dict[str, Any]:
    """A message in the form that a route's schema describes. Raises ValueError for arguments that are no JSON."""
    return {"finish_reason": message.finish_reason, "message": {
        "role": message.roles[0] if message.roles else None, "content": message.content or None,
        "reasoning": message.reasoning or None,
        "tool_calls": [{"id": call.id, "name": call.name, "arguments": call.parsed() if call.arguments else {}}
                       for call in message.calls]}}


def broken(attempt: Attempt, routes: Mapping[str, Route]) -> str | None:
    """How an answer broke the contract, None when it did not. A request that the server rightly refuses did not."""
    response, request = attempt.response, attempt.request
    if response.error:
        return response.error
    if 400 <= response.status < 500 and response.status not in (401, 408, 429):
        # a refusal of what is wrong keeps the contract; one for a missing flag does not
        return response.problem() if "--enable-auto-tool-choice" in response.body else None
    try:
        message = read_message(response)
        return _form(message, request) or _route(attempt, message, routes)
    except ValueError as error:
        return str(error)


def _form(message: Message, request: Mapping[str, Any]) -> str | None:
    if message.leaks():
        text = ", ".join(message.leaks())
        return f"a tool call came as text: {text}" if "tool_call" in text or "arg_" in text else text
    tools = [tool for tool in request.get("tools") or () if isinstance(tool, Mapping) and "function" in tool]
    problem = call_problem(message, *tools)
    if problem:
        return problem
    ids = [call.id for call in message.calls]
    if len(set(ids)) < len(ids):
        return f"the calls share the id {ids[0]!r}"
    if message.calls and message.finish_reason not in ("tool_calls", "length"):
        return f"finish_reason is {message.finish_reason} though a tool is called"
    if request.get("stream") and not message.done:
        return "the stream ends without [DONE]"
    if len(message.ids) > 1:
        return f"the chunks have {len(message.ids)} ids"
    thinking = (request.get("chat_template_kwargs") or {}).get("enable_thinking", True)
    if not thinking and message.reasoning:
        return f"the answer has reasoning though thinking is off: {message.reasoning[:60]!r}"
    if not message.content and not message.calls and message.finish_reason == "stop":
        return "the answer is empty" + (": all of it is in the reasoning" if message.reasoning else "")
    return None


def _route(attempt: Attempt, message: Message, routes: Mapping[str, Route]) -> str | None:
    if attempt.route is None:
        return None
    if attempt.route not in routes:
        return None
    problem = schema_problem(as_answer(message), routes[attempt.route].answer, "answer")
    return f"not what the route {attempt.route} must give: {problem}" if problem else None


def judge_traffic(attempts: Sequence[Attempt], routes: Mapping[str, Route], model: str) -> list[Finding]:
    """A finding a request that broke the contract or needed retries, then one for all of them."""
    out: list[Finding] = []
    by_request: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_request.setdefault(attempt.request_id, []).append(attempt)
        if attempt.route is not None and attempt.route not in routes:
            near = nearest(attempt.route, routes)
            raise InputError(f"the recipe has no route `{attempt.route}`", where=attempt.place,
                             expected=", ".join(routes), next=f"nearest: {near}" if near else None)
    bad = 0
    retried = 0
    for name, tries in by_request.items():
        tries.sort(key=lambda attempt: attempt.retry)
        problems = [(attempt, problem) for attempt in tries if (problem := broken(attempt, routes)) is not None]
        retried += tries[-1].retry > 0
        if not problems:
            continue
        last, problem = problems[-1]
        mended = tries[-1] is not last
        bad += not mended
        argued = Served(str(last.request.get("model") or model))
        check = "thinking.on" if "reasoning" in problem else (
            "tools.structured" if last.request.get("tools") else "answer.plain")
        why, mend = cause_of(check, problem, argued)
        often = f" (in {plural(len(problems), 'attempt')} of {len(tries)}" + (
            f", retry {tries[-1].retry} was well)" if mended else ")") if len(tries) > 1 else ""
        out.append(Finding("contract.traffic", name, Verdict.WARN if mended else Verdict.FAIL, problem + often,
                           details=(f"likely  {why}", f"line    {last.place}"), found=problem, mend=mend,
                           data={"attempts": len(tries), "retry": tries[-1].retry, "route": last.route or ""}))
    told = f"{plural(len(by_request), 'request')} in {plural(len(attempts), 'attempt')}: {bad} broke the contract, " \
           f"{retried} needed a retry"
    out.append(Finding("contract.recorded", "traffic", Verdict.PASS if not bad else Verdict.FAIL, told,
                       data={"requests": len(by_request), "attempts": len(attempts), "broken": bad,
                             "retried": retried}))
    return out
