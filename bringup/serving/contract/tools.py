"""Checks of tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.serving.contract.check import (
    GOOD,
    Answers,
    Check,
    Judgement,
    Round,
    Served,
    calls_problem,
    first,
    function,
    user,
)
from bringup.serving.contract.messages import Message, read_message
from bringup.serving.contract.request import Request

WEATHER = function("get_weather", "The weather in a city", {
    "city": {"type": "string", "description": "name of the city"}})
ADD = function("add_days", "A date some days from today", {
    "days": {"type": "integer"}, "unit": {"type": "string", "enum": ["day", "week"]}}, open_=True)
CLOCK = function("current_time", "The time now", {}, open_=True)
ORDER: Mapping[str, Any] = {"type": "function", "function": {
    "name": "place_order", "description": "Order items",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["address", "items"], "properties": {
        "address": {"type": "object", "additionalProperties": False, "required": ["street", "zip"],
                    "properties": {"street": {"type": "string"}, "zip": {"type": "integer"}}},
        "items": {"type": "array", "minItems": 2, "items": {
            "type": "object", "required": ["sku", "count"],
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}}}}}}}
NOTE = function("save_note", "Save a note", {"text": {"type": "string", "description": "the whole text"}})
PARIS = "Call get_weather for the city Paris."
TWO = "Call get_weather twice, for the city Paris and for the city Rome, in one answer."
ORDERED = {"address": {"street": "Elm", "zip": 12345}, "items": [{"sku": "a1", "count": 2}, {"sku": "b2", "count": 5}]}
NESTED = ('Call place_order with address = {"street": "Elm", "zip": 12345} and items = '
          '[{"sku": "a1", "count": 2}, {"sku": "b2", "count": 5}].')
LONG = " ".join(f"item{number}" for number in range(1, 301))
"""More than 2,000 signs of one argument."""
UNICODE = "Zürich-東京-🚀"


def paris(message: Message) -> Judgement:
    """One call of get_weather for Paris."""
    wrong = calls_problem(message, 1, WEATHER)
    if wrong is not None:
        return wrong
    city = message.calls[0].parsed()["city"]
    return GOOD if "paris" in str(city).lower() else Judgement(f"the city is {city!r}", "Paris")


def _typed(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["typed"])
    wrong = calls_problem(message, 1, ADD)
    if wrong is not None:
        return wrong
    days = message.calls[0].parsed()["days"]
    return Judgement(None if days == 3 else f"days is {days!r}", "3, a number")


def _zero(served: Served, answers: Answers) -> Judgement:
    for name in ("zero", "zero stream"):
        message = read_message(answers[name])
        if [call.name for call in message.calls] != ["current_time"]:
            return Judgement(f"{'streamed' if 'stream' in name else 'whole'}: {len(message.calls)} calls, content "
                             f"{message.content[:80]!r}", "one call of current_time")
        arguments = message.calls[0].arguments
        if arguments.strip() and message.calls[0].parsed() != {}:
            return Judgement(f"the arguments are {arguments[:80]}", "{}")
    return GOOD


def _several(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["several"])
    wrong = calls_problem(message, 1, WEATHER, ADD, CLOCK, NOTE)
    if wrong is not None:
        return wrong
    name = message.calls[0].name
    return Judgement(None if name == "add_days" else f"{name} was called", "add_days, the one asked for of four")


def _nested(served: Served, answers: Answers) -> Judgement:
    for name in ("nested", "nested stream"):
        message = read_message(answers[name])
        wrong = calls_problem(message, 1, ORDER)
        if wrong is not None:
            return wrong
        found = message.calls[0].parsed()
        if found != ORDERED:
            return Judgement(f"the nested arguments are {message.calls[0].arguments[:160]}", str(ORDERED))
    return GOOD


def _text(served: Served, answers: Answers, name: str, expected: str, what: str) -> Judgement:
    for one in (name, f"{name} stream"):
        message = read_message(answers[one])
        wrong = calls_problem(message, 1, NOTE)
        if wrong is not None:
            return wrong
        found = str(message.calls[0].parsed()["text"])
        if found != expected:
            at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
                      min(len(found), len(expected)))
            return Judgement(f"{what} of {len(expected)} signs comes with {len(found)}, other from sign {at} on: "
                             f"{found[at:at + 40]!r}", f"...{expected[at:at + 40]!r}")
    return GOOD


def _note(name: str, text: str) -> Round:
    ask = [user(f'Call save_note with the text "{text}".')]
    return first(lambda served: [served.chat(name, ask, tools=[NOTE]),
                                 served.chat(f"{name} stream", ask, tools=[NOTE], stream=True)])


def _tool_result(served: Served, answers: Answers) -> list[Request]:
    try:
        call = read_message(answers["ask"]).calls
    except ValueError:
        return []
    if not call:
        return []
    history = [user(PARIS), {"role": "assistant", "content": None, "tool_calls": [
        {"id": call[0].id, "type": "function", "function": {"name": call[0].name, "arguments": call[0].arguments}}]},
        {"role": "tool", "tool_call_id": call[0].id, "content": f"The weather is {served.nonce}."}]
    return [served.chat("told", history, tools=[WEATHER])]


def _judge_result(served: Served, answers: Answers) -> Judgement:
    if "told" not in answers:
        read_message(answers["ask"])
        return Judgement("no tool call came to give a result to")
    message = read_message(answers["told"])
    if served.nonce not in message.content:
        return Judgement(f"the tool's result does not reach the model, which says {message.content[:80]!r}",
                         f"the word {served.nonce} of the tool's result")
    return GOOD


def _parallel(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["two"])
    wrong = calls_problem(message, 2, WEATHER)
    if wrong is not None:
        return Judgement(wrong.problem, "two calls, for Paris and for Rome")
    ids = [call.id for call in message.calls]
    if len(set(ids)) < len(ids):
        return Judgement(f"the calls share the id {ids[0]!r}", "an id each")
    cities = [str(call.parsed()["city"]) for call in message.calls]
    return Judgement(None if sorted(cities) == ["Paris", "Rome"] else f"the cities are {', '.join(cities)}",
                     "Paris and Rome")


def _repeat(served: Served, answers: Answers) -> Judgement:
    bad = []
    for number in range(served.repeat):
        try:
            judgement = paris(read_message(answers[f"again {number}"]))
        except ValueError as error:
            judgement = Judgement(str(error))
        if judgement.problem:
            bad.append(judgement.problem)
    return Judgement(f"{len(bad)} of {served.repeat} differ: {bad[0]}" if bad else None, "the same call each time")


def _unknown(served: Served, answers: Answers) -> Judgement:
    response = answers["unknown"]
    if response.error:
        return Judgement(response.error)
    if response.status == 200:
        return Judgement("a tool_choice that names a tool which was not offered is accepted", "HTTP 400")
    return Judgement(None if 400 <= response.status < 500 else response.problem(), "HTTP 400")


TOOLS: tuple[Check, ...] = (
    Check("tools.structured", "a tool call", (first(lambda served: [
        served.chat("call", [user(PARIS)], tools=[WEATHER])]),),
        lambda served, answers: paris(read_message(answers["call"])), ("tools",)),
    Check("tools.typed", "arguments have their types", (first(lambda served: [
        served.chat("typed", [user("Call add_days with days 3 and unit day.")], tools=[ADD])]),), _typed, ("tools",)),
    Check("tools.no-arguments", "a tool without arguments", (first(lambda served: [
        served.chat("zero", [user("Call current_time.")], tools=[CLOCK]),
        served.chat("zero stream", [user("Call current_time.")], tools=[CLOCK], stream=True)]),), _zero, ("tools",),
        mend="vLLM 0.24.0 or newer (before, such calls are lost in a stream)"),
    Check("tools.several", "the right one of several tools", (first(lambda served: [
        served.chat("several", [user("Call add_days with days 3 and unit week.")],
                    tools=[WEATHER, NOTE, ADD, CLOCK])]),), _several, ("tools",)),
    Check("tools.nested", "nested arguments", (first(lambda served: [
        served.chat("nested", [user(NESTED)], tools=[ORDER]),
        served.chat("nested stream", [user(NESTED)], tools=[ORDER], stream=True)]),), _nested, ("tools",)),
    Check("tools.long", "a long argument", (_note("long", LONG),),
          lambda served, answers: _text(served, answers, "long", LONG, "an argument"), ("tools",)),
    Check("tools.unicode", "signs beyond ASCII in arguments", (_note("unicode", UNICODE),),
          lambda served, answers: _text(served, answers, "unicode", UNICODE, "an argument"), ("tools",)),
    Check("tools.result", "a tool's result reaches the model", (
        first(lambda served: [served.chat("ask", [user(PARIS)], tools=[WEATHER])]), Round(_tool_result)),
        _judge_result, ("tools",)),
    Check("tools.parallel", "two calls in one answer", (first(lambda served: [
        served.chat("two", [user(TWO)], tools=[WEATHER])]),), _parallel, ("tools",)),
    Check("tools.unknown", "an unknown tool is refused", (first(lambda served: [
        served.chat("unknown", [user(PARIS)], tools=[WEATHER], tool_choice={
            "type": "function", "function": {"name": "no_such_tool"}})]),), _unknown, ("tools",)),
    Check("tools.repeat", "the same call each time", (first(lambda served: [
        served.chat(f"again {number}", [user(PARIS)], tools=[WEATHER]) for number in range(served.repeat)]),),
        _repeat, ("tools",)),
)

