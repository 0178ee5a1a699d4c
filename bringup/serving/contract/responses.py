"""Checks of /v1/responses, where the engine offers it: agents of newer clients stream from there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bringup.base.text import plural
from bringup.serving.contract.check import (
    Answers,
    Check,
    Judgement,
    Served,
    call_problem,
    first,
    said,
    word,
)
from bringup.serving.contract.messages import Message, ToolCall
from bringup.serving.contract.request import RESPONSES, Request, Response, error_text
from bringup.serving.contract.tools import PARIS, WEATHER

if TYPE_CHECKING:
    from openai.types.responses import Response as Answer
    from openai.types.responses import ResponseStreamEvent

FLAT = {"type": "function", **WEATHER["function"]}
"""A tool in the form of this path: its name beside its type."""
ENDS = ("response.completed", "response.incomplete", "response.failed")
DELTAS = {"response.output_text.delta": "text", "response.reasoning_text.delta": "reasoning",
          "response.function_call_arguments.delta": "arguments"}
"""Kinds of events that carry a piece of something."""


@dataclass(frozen=True)
class Pieces:
    """What a stream's pieces make together, before its last event repeats all of it."""

    text: str
    reasoning: str
    arguments: str


def not_offered(response: Response) -> str | None:
    """Why the path is not asked: the server does not know it. A 404 for the model is another matter."""
    if response.status in (404, 405, 501) and "does not exist" not in response.body:
        return f"the engine does not offer {RESPONSES} (HTTP {response.status})"
    return None


def message_of(answer: Answer) -> Message:
    """An answer of this path in the form of the others."""
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for item in answer.output:
        if item.type == "reasoning":
            reasoning += [part.text for part in item.content or ()]
        elif item.type == "function_call":
            calls.append(ToolCall(item.call_id, item.name, item.arguments))
    ended = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}.get(str(answer.status))
    usage = {} if answer.usage is None else {"prompt_tokens": answer.usage.input_tokens,
                                             "completion_tokens": answer.usage.output_tokens}
    return Message(answer.output_text, "".join(reasoning), tuple(calls), ended or str(answer.status), usage,
                   ids=(answer.id,), models=(str(answer.model),))


def read_whole(response: Response) -> Message:
    """A whole answer. Raises ValueError for one that is none or not of OpenAI's form."""
    from bringup.serving.contract.client import read_response

    problem = response.problem()
    if problem:
        raise ValueError(problem)
    return message_of(read_response(response.body))


def read_streamed(response: Response) -> Message:
    """A streamed answer: begun and ended as it must be, its last event what its pieces make. Raises ValueError."""
    from bringup.serving.contract.client import read_response, read_response_events

    problem = response.problem()
    if problem:
        raise ValueError(problem)
    lines = [text for _, text in response.events if text != "[DONE]"]
    data = [json.loads(line) for line in lines]
    for line, one in zip(lines, data, strict=True):
        if not isinstance(one, dict) or one.get("type") == "error" or one.get("error"):
            raise ValueError(f"the stream ends with an error: {error_text(line)}")
    _framed(data)
    message = message_of(read_response(json.dumps(data[-1]["response"])))
    pieces = _pieces(read_response_events(lines))
    told = "".join(call.arguments for call in message.calls)
    for what, left, right in (("text", pieces.text, message.content), ("thinking", pieces.reasoning, message.reasoning),
                              ("arguments", pieces.arguments, told)):
        if left != right:
            raise ValueError(f"the pieces of the {what} make {left[:60]!r}, the last event says {right[:60]!r}")
    return message


def _framed(data: list[dict[str, Any]]) -> None:
    """Raise ValueError for a stream that does not begin, count and end as OpenAI's does."""
    kinds = [str(one.get("type")) for one in data]
    if kinds[:1] != ["response.created"]:
        raise ValueError(f"the stream begins with {kinds[0] if kinds else 'nothing'}, not with response.created")
    if kinds[-1] not in ENDS:
        raise ValueError(f"the stream breaks off behind {plural(len(kinds), 'event')}: the last is {kinds[-1]}")
    numbers = [int(one.get("sequence_number") or 0) for one in data]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise ValueError(f"the events' sequence numbers do not rise: {numbers[:12]}")
    ids = [(one.get("response") or {}).get("id") for one in (data[0], data[-1])]
    if ids[0] != ids[1]:
        raise ValueError(f"the answer begins as {ids[0]} and ends as {ids[1]}")


def _pieces(events: list[ResponseStreamEvent]) -> Pieces:
    found: dict[str, list[str]] = {"text": [], "reasoning": [], "arguments": []}
    for event in events:
        name = DELTAS.get(event.type)
        if name is not None:
            found[name].append(str(getattr(event, "delta", "")))
    return Pieces(*("".join(found[name]) for name in ("text", "reasoning", "arguments")))


def _ask(served: Served, name: str, given: Any, **more: Any) -> list[Request]:
    body = {"model": served.model, "input": given, "temperature": 0, "max_output_tokens": served.most_tokens, **more}
    return [Request(name, RESPONSES, body), Request(f"{name} stream", RESPONSES, {**body, "stream": True}, stream=True)]


def _both(answers: Answers, name: str) -> tuple[Message, Message]:
    whole = read_whole(answers[name])
    try:
        return whole, read_streamed(answers[f"{name} stream"])
    except ValueError as error:
        raise ValueError(f"streamed: {error}") from None


def _answer(served: Served, answers: Answers) -> Judgement:
    absent = not_offered(answers["text"])
    if absent:
        return Judgement(None, skip=absent)
    for what, message in zip(("", "streamed: "), _both(answers, "text"), strict=True):
        if message.finish_reason != "stop":
            return Judgement(f"{what}the status is {message.finish_reason}", "completed")
        judgement = said(served, message)
        if judgement.problem:
            return Judgement(what + judgement.problem, judgement.expected)
    return Judgement(None)


def _call(served: Served, answers: Answers) -> Judgement:
    absent = not_offered(answers["call"])
    if absent:
        return Judgement(None, skip=absent)
    for what, message in zip(("", "streamed: "), _both(answers, "call"), strict=True):
        if message.leaks():
            return Judgement(f"{what}a tool call came as text: {', '.join(message.leaks())}", "a function_call")
        if len(message.calls) != 1:
            return Judgement(f"{what}{len(message.calls)} tool calls came, content {message.content[:80]!r}",
                             "one function_call")
        problem = call_problem(message, WEATHER)
        if problem:
            return Judgement(what + problem)
        if "paris" not in str(message.calls[0].parsed()["city"]).lower():
            return Judgement(f"{what}the city is {message.calls[0].parsed()['city']!r}", "Paris")
    return Judgement(None)


RESPONSE_CHECKS: tuple[Check, ...] = (
    Check("responses.answer", f"{RESPONSES} answers and streams", (first(
        lambda served: _ask(served, "text", word(served)[0]["content"])),), _answer),
    Check("responses.tools", f"a tool call by {RESPONSES}", (first(
        lambda served: _ask(served, "call", PARIS, tools=[FLAT])),), _call, ("tools",)),
)
