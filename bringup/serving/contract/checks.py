"""The checks, each a pair of pure functions: which requests to send, what their answers must hold.

A check may have a second round that is made of the first one's answers (a tool's result goes back to the model).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.serving.contract.messages import Message, Request, Response, read_message, schema_problem

CHAT = "/v1/chat/completions"
WEATHER: Mapping[str, Any] = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city"],
                   "properties": {"city": {"type": "string", "description": "name of the city"}}}}}
ADD: Mapping[str, Any] = {"type": "function", "function": {
    "name": "add_days", "description": "A date some days from today",
    "parameters": {"type": "object", "required": ["days", "unit"],
                   "properties": {"days": {"type": "integer"}, "unit": {"type": "string", "enum": ["day", "week"]}}}}}
CLOCK: Mapping[str, Any] = {"type": "function", "function": {
    "name": "current_time", "description": "The time now",
    "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class Served:
    """What is checked: the served name, what the deployment promises, a word that nobody can guess, repetitions."""

    model: str
    tools: bool = True
    reasoning: bool = True
    nonce: str = "nonce"
    repeat: int = 3
    has_key: bool = False
    most_tokens: int = 4096

    def chat(self, name: str, messages: Sequence[Mapping[str, Any]], **more: Any) -> Request:
        """A chat request with temperature 0."""
        body = {"model": self.model, "messages": list(messages), "temperature": 0, "max_tokens": self.most_tokens,
                **more}
        if more.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return Request(name, CHAT, body, stream=bool(more.get("stream")))


@dataclass(frozen=True)
class Judgement:
    """How a check went: None is well, else what is wrong and what was expected."""

    problem: str | None
    expected: str | None = None


Answers = Mapping[str, Response]
Build = Callable[[Served], list[Request]]
Next = Callable[[Served, Answers], list[Request]]
Judge = Callable[[Served, Answers], Judgement]


@dataclass(frozen=True)
class Check:
    """`needs` is tools, reasoning, key or nothing; `mend` is what most often mends it."""

    id: str
    title: str
    build: Build
    judge: Judge
    needs: tuple[str, ...] = ()
    then: Next | None = None
    mend: str | None = None


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def word(served: Served) -> list[dict[str, Any]]:
    """Messages that ask for the nonce."""
    return [user(f"Reply with the word {served.nonce} and nothing else.")]


PARIS = "Call get_weather for the city Paris."
TWO = "Call get_weather twice, for the city Paris and for the city Rome, in one answer."


def _models(served: Served, answers: Answers) -> Judgement:
    response = answers["models"]
    if response.problem():
        return Judgement(response.problem())
    if f'"{served.model}"' not in response.body:
        return Judgement(f"/v1/models does not list {served.model}: {response.body[:200]}", f"the model {served.model}")
    return Judgement(None)


def _thinking_on(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["on"])
    if not message.reasoning:
        return Judgement("the answer has no reasoning", "thinking in `reasoning` or `reasoning_content`")
    if not message.content:
        return Judgement("the whole answer is in the reasoning, the content is empty")
    return _said(served, message)


def _thinking_off(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["off"])
    if message.reasoning:
        return Judgement(f"the answer has reasoning though thinking is off: {message.reasoning[:80]!r}")
    if not message.content:
        return Judgement("the content is empty with thinking off")
    return _said(served, message)


def _said(served: Served, message: Message) -> Judgement:
    if message.leaks():
        return Judgement(", ".join(message.leaks()), "content without marks")
    if served.nonce not in message.content:
        return Judgement(f"the content does not hold the word asked for: {message.content[:80]!r}", served.nonce)
    return Judgement(None)


def _preserved(served: Served) -> list[Request]:
    thought = " ".join(f"step {number} of a long thought" for number in range(12))
    history = [user("Think of a number."),
               {"role": "assistant", "content": "I have one.", "reasoning": thought, "reasoning_content": thought},
               *word(served)]
    return [served.chat(name, history, chat_template_kwargs={"enable_thinking": True, "clear_thinking": clear})
            for name, clear in (("kept", False), ("cleared", True))]


def _judge_preserved(served: Served, answers: Answers) -> Judgement:
    kept, cleared = read_message(answers["kept"]), read_message(answers["cleared"])
    first, second = kept.usage.get("prompt_tokens", 0), cleared.usage.get("prompt_tokens", 0)
    if first <= second:
        return Judgement(f"the earlier thinking does not reach the model: {first} prompt tokens with clear_thinking "
                         f"false, {second} with true", "more tokens when it is kept")
    return _said(served, kept)


def _structured(served: Served, answers: Answers) -> Judgement:
    return _paris(read_message(answers["call"]))


def _paris(message: Message) -> Judgement:
    if message.leaks():
        return Judgement("a tool call came as text: " + ", ".join(message.leaks()), "tool_calls")
    if len(message.calls) != 1:
        return Judgement(f"{len(message.calls)} tool calls came, content {message.content[:80]!r}", "one tool call")
    problem = call_problem(message, WEATHER)
    if problem:
        return Judgement(problem)
    city = message.calls[0].parsed()["city"]
    if "paris" not in str(city).lower():
        return Judgement(f"the city is {city!r}", "Paris")
    if message.finish_reason != "tool_calls":
        return Judgement(f"finish_reason is {message.finish_reason}", "tool_calls")
    return Judgement(None)


def call_problem(message: Message, *tools: Mapping[str, Any]) -> str | None:
    """The first call that is not one of these tools with valid arguments."""
    known = {tool["function"]["name"]: tool["function"] for tool in tools}
    for call in message.calls:
        if not call.id:
            return "a tool call has no id"
        if call.name not in known:
            return f"the call names {call.name!r}, which was not offered"
        try:
            arguments = call.parsed()
        except ValueError as error:
            return f"the arguments are no JSON ({error}): {call.arguments[:120]}"
        problem = schema_problem(arguments, known[call.name]["parameters"])
        if problem:
            return problem
    return None


def _typed(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["typed"])
    if not message.calls:
        return Judgement(f"no tool call came, content {message.content[:80]!r}", "add_days with a number")
    problem = call_problem(message, ADD)
    if problem:
        return Judgement(problem)
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
    return Judgement(None)


def _same(served: Served, answers: Answers) -> Judgement:
    for what, one, other in (("text", "whole", "streamed"), ("tool call", "call whole", "call streamed")):
        if one not in answers:
            continue
        left, right = read_message(answers[one]), read_message(answers[other])
        if not right.done:
            return Judgement(f"{what}: the stream ends without [DONE]")
        if left.content.strip() != right.content.strip():
            return Judgement(f"{what}: the stream gives {right.content[:60]!r}, the whole answer "
                             f"{left.content[:60]!r}")
        if [(call.name, _value(call.arguments)) for call in left.calls] != [
                (call.name, _value(call.arguments)) for call in right.calls]:
            return Judgement(f"{what}: the calls differ: {[c.arguments for c in right.calls]} streamed, "
                             f"{[c.arguments for c in left.calls]} whole")
        if left.finish_reason != right.finish_reason:
            return Judgement(f"{what}: finish_reason {right.finish_reason} streamed, {left.finish_reason} whole")
        if bool(left.reasoning) != bool(right.reasoning):
            return Judgement(f"{what}: reasoning comes in one of the two forms only")
    return Judgement(None)


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _usage(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["usage"])
    if not message.usage.get("completion_tokens"):
        return Judgement("the stream ends without usage though it was asked for", "a last chunk with usage")
    if message.chunks < 4:
        return Judgement(f"the answer came in {message.chunks} chunks: it is not streamed")
    return Judgement(None)


def _tool_result(served: Served, answers: Answers) -> list[Request]:
    call = read_message(answers["ask"]).calls
    if not call:
        return []
    history = [user(PARIS), {"role": "assistant", "content": None, "tool_calls": [
        {"id": call[0].id, "type": "function", "function": {"name": call[0].name, "arguments": call[0].arguments}}]},
        {"role": "tool", "tool_call_id": call[0].id, "content": f"The weather is {served.nonce}."}]
    return [served.chat("told", history, tools=[WEATHER])]


def _judge_result(served: Served, answers: Answers) -> Judgement:
    if "told" not in answers:
        return Judgement("no tool call came to give a result to")
    message = read_message(answers["told"])
    if served.nonce not in message.content:
        return Judgement(f"the tool's result does not reach the model, which says {message.content[:80]!r}",
                         f"the word {served.nonce} of the tool's result")
    return Judgement(None)


def _length(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["cut"])
    if message.finish_reason != "length":
        return Judgement(f"finish_reason is {message.finish_reason} after 3 tokens", "length")
    return Judgement(", ".join(message.leaks()) or None)


def _parallel(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["two"])
    if len(message.calls) < 2:
        return Judgement(f"{len(message.calls)} tool calls came", "two, for Paris and for Rome")
    problem = call_problem(message, WEATHER)
    if problem:
        return Judgement(problem)
    ids = [call.id for call in message.calls]
    return Judgement(None if len(set(ids)) == len(ids) else f"the calls share the id {ids[0]!r}", "an id each")


def _repeat(served: Served, answers: Answers) -> Judgement:
    bad = []
    for number in range(served.repeat):
        try:
            judgement = _paris(read_message(answers[f"again {number}"]))
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


def _no_key(served: Served, answers: Answers) -> Judgement:
    status = answers["no key"].status
    return Judgement(None if status == 401 else f"a request with a wrong key is answered with {status}", "HTTP 401")


def _on(served: Served) -> list[Request]:
    return [served.chat("on", word(served), chat_template_kwargs={"enable_thinking": True})]


def _same_requests(served: Served) -> list[Request]:
    off = {"chat_template_kwargs": {"enable_thinking": False}} if served.reasoning else {}
    out = [served.chat("whole", word(served), **off), served.chat("streamed", word(served), stream=True, **off)]
    if served.tools:
        out += [served.chat("call whole", [user(PARIS)], tools=[WEATHER]),
                served.chat("call streamed", [user(PARIS)], tools=[WEATHER], stream=True)]
    return out


CHECKS: tuple[Check, ...] = (
    Check("models.served", "the served name is listed", lambda served: [Request("models", "/v1/models")], _models),
    Check("thinking.on", "thinking on", _on, _thinking_on, ("reasoning",),
          mend="--reasoning-parser glm47 (vLLM from 0.24.0), glm45 (vLLM before, every SGLang)"),
    Check("thinking.off", "thinking off",
          lambda served: [served.chat("off", word(served), chat_template_kwargs={"enable_thinking": False})],
          _thinking_off, ("reasoning",), mend="a reasoning parser of the GLM family"),
    Check("thinking.preserved", "thinking preserved", _preserved, _judge_preserved, ("reasoning",),
          mend="the model's own chat template"),
    Check("tools.structured", "a tool call", lambda served: [served.chat("call", [user(PARIS)], tools=[WEATHER])],
          _structured, ("tools",), mend="--tool-call-parser glm47 --enable-auto-tool-choice"),
    Check("tools.typed", "arguments have their types",
          lambda served: [served.chat("typed", [user("Call add_days with days 3 and unit day.")], tools=[ADD])],
          _typed, ("tools",), mend="--tool-call-parser glm47"),
    Check("tools.no-arguments", "a tool without arguments",
          lambda served: [served.chat("zero", [user("Call current_time.")], tools=[CLOCK]),
                          served.chat("zero stream", [user("Call current_time.")], tools=[CLOCK], stream=True)],
          _zero, ("tools",), mend="vLLM 0.24.0 or newer (before, such calls are lost in a stream)"),
    Check("tools.result", "a tool's result reaches the model",
          lambda served: [served.chat("ask", [user(PARIS)], tools=[WEATHER])], _judge_result, ("tools",),
          then=_tool_result, mend="--chat-template-content-format=string"),
    Check("tools.parallel", "two calls in one answer",
          lambda served: [served.chat("two", [user(TWO)], tools=[WEATHER])], _parallel, ("tools",)),
    Check("tools.unknown", "an unknown tool is refused",
          lambda served: [served.chat("unknown", [user(PARIS)], tools=[WEATHER], tool_choice={
              "type": "function", "function": {"name": "no_such_tool"}})], _unknown, ("tools",)),
    Check("tools.repeat", "the same call each time",
          lambda served: [served.chat(f"again {number}", [user(PARIS)], tools=[WEATHER])
                          for number in range(served.repeat)],
          _repeat, ("tools",), mend="fewer draft tokens (num_speculative_tokens 1)"),
    Check("stream.equal", "a stream equals the whole answer", _same_requests, _same),
    Check("stream.usage", "a stream ends with usage",
          lambda served: [served.chat("usage", word(served), stream=True)], _usage),
    Check("finish.length", "a cut answer says so",
          lambda served: [served.chat("cut", [user("Count from one to fifty in words.")], max_tokens=3)], _length),
    Check("key.refused", "a wrong key is refused",
          lambda served: [Request("no key", "/v1/models", headers={"Authorization": "Bearer wrong"})], _no_key,
          ("key",), mend="the key reaches the engine through VLLM_API_KEY"),
)
