"""Checks of plain answers, streams, ends and refusals."""

from __future__ import annotations

import json
from typing import Any

from bringup.serving.contract.check import GOOD, Answers, Check, Judgement, Served, first, said, user, word
from bringup.serving.contract.messages import Message, read_message
from bringup.serving.contract.request import CHAT, Request, error_text
from bringup.serving.contract.tools import PARIS, WEATHER

SIGNS = "Zürich 東京 🚀"
STOP = "juniper"
BAD: tuple[tuple[str, Any], ...] = (
    ("no messages", {}), ("messages as text", {"messages": "hello"}), ("max_tokens -1", {
        "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}))
"""Requests that must be refused: what is wrong, the body without the model.

Roles are the template's business: a real vLLM takes any."""


def _models(served: Served, answers: Answers) -> Judgement:
    response = answers["models"]
    if response.problem():
        return Judgement(response.problem())
    if f'"{served.model}"' not in response.body:
        return Judgement(f"/v1/models does not list {served.model}: {response.body[:200]}", f"the model {served.model}")
    return GOOD


def _unknown(served: Served, answers: Answers) -> Judgement:
    response = answers["unknown"]
    if response.error:
        return Judgement(response.error)
    if response.status == 200:
        return Judgement("a request for a model that is not served is answered", "HTTP 404")
    return Judgement(None if response.status == 404 else response.problem(), "HTTP 404")


def _plain(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["plain"])
    if message.finish_reason != "stop":
        return Judgement(f"finish_reason is {message.finish_reason}", "stop")
    if not message.usage.get("prompt_tokens") or not message.usage.get("completion_tokens"):
        return Judgement("the answer has no usage", "prompt_tokens and completion_tokens")
    if message.models != (served.model,):
        return Judgement(f"the answer names the model {message.models[0]!r}", served.model)
    return said(served, message)


def _unicode(served: Served, answers: Answers) -> Judgement:
    for name in ("signs", "signs stream"):
        message = read_message(answers[name])
        missing = [part for part in SIGNS.split() if part not in message.content]
        if missing:
            return Judgement(f"{missing[0]} is lost: {message.content[:80]!r}", SIGNS)
    return GOOD


def _same_requests(served: Served) -> list[Request]:
    out = [served.chat("whole", word(served), **served.quiet),
           served.chat("streamed", word(served), stream=True, **served.quiet)]
    if served.tools:
        out += [served.chat("call whole", [user(PARIS)], tools=[WEATHER]),
                served.chat("call streamed", [user(PARIS)], tools=[WEATHER], stream=True)]
    return out


def _same(served: Served, answers: Answers) -> Judgement:
    for what, one, other in (("text", "whole", "streamed"), ("tool call", "call whole", "call streamed")):
        if one not in answers:
            continue
        left, right = read_message(answers[one]), read_message(answers[other])
        problem = _form(right) or _differs(served, left, right)
        if problem:
            return Judgement(f"{what}: {problem}", "the stream in the form of the whole answer")
    return GOOD


def _form(stream: Message) -> str | None:
    if not stream.done:
        return "the stream ends without [DONE]"
    if len(stream.ids) != 1:
        return f"the chunks have {len(stream.ids)} ids: {', '.join(stream.ids[:3])}"
    if stream.roles != ("assistant",):
        return "no chunk names the role" if not stream.roles else f"the role is {', '.join(stream.roles)}"
    if len(stream.finishes) != 1:
        return f"{len(stream.finishes)} chunks have a finish_reason"
    return None


def _differs(served: Served, left: Message, right: Message) -> str | None:
    if left.finish_reason != right.finish_reason:
        return f"finish_reason {right.finish_reason} streamed, {left.finish_reason} whole"
    if bool(left.reasoning) != bool(right.reasoning):
        return "reasoning comes in one of the two forms only"
    if bool(left.content.strip()) != bool(right.content.strip()):
        return "content comes in one of the two forms only"
    if [call.name for call in left.calls] != [call.name for call in right.calls]:
        return f"{len(right.calls)} calls streamed, {len(left.calls)} whole"
    for call in right.calls:
        try:
            call.parsed()
        except ValueError as error:
            return f"the streamed arguments are no JSON ({error}): {call.arguments[:80]}"
    if not served.same_words:
        return None
    if left.content.strip() != right.content.strip():
        return f"the stream gives {right.content[:60]!r}, the whole answer {left.content[:60]!r}"
    if [_value(call.arguments) for call in left.calls] != [_value(call.arguments) for call in right.calls]:
        return f"the calls differ: {[c.arguments for c in right.calls]} streamed, {[c.arguments for c in left.calls]}"
    return None


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _usage(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["usage"])
    if not message.usage.get("completion_tokens"):
        return Judgement("the stream ends without usage though it was asked for", "a last chunk with usage")
    if message.chunks < 8:
        return Judgement(f"the answer came in {message.chunks} chunks: it is not streamed")
    return GOOD


def _length(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["cut"])
    if message.finish_reason != "length":
        return Judgement(f"finish_reason is {message.finish_reason} after 3 tokens", "length")
    if served.reasoning and message.content and not message.reasoning:
        return Judgement(f"cut in its thinking, the answer has that as content: {message.content[:60]!r}",
                         "what was thought so far as reasoning")
    return Judgement(", ".join(message.leaks()) or None)


def _stop(served: Served, answers: Answers) -> Judgement:
    message = read_message(answers["stop"])
    if STOP in message.content:
        return Judgement(f"the answer goes on behind the stop word: {message.content[:80]!r}", f"an end before {STOP}")
    return Judgement(None if message.finish_reason == "stop" else f"finish_reason is {message.finish_reason}", "stop")


def _bad(served: Served, answers: Answers) -> Judgement:
    for name, _ in BAD:
        response = answers[name]
        if response.error:
            return Judgement(f"{name}: {response.error}")
        if response.status == 200:
            return Judgement(f"{name}: accepted", "HTTP 400 or 422")
        if not 400 <= response.status < 500:
            return Judgement(f"{name}: {response.problem()}", "HTTP 400 or 422, the engine unharmed")
        if not error_text(response.body).strip():
            return Judgement(f"{name}: HTTP {response.status} without a word", "a message that says what is wrong")
    return GOOD


def _no_key(served: Served, answers: Answers) -> Judgement:
    status = answers["no key"].status
    return Judgement(None if status == 401 else f"a request with a wrong key is answered with {status}", "HTTP 401")


ANSWERS: tuple[Check, ...] = (
    Check("answer.plain", "a plain answer", (first(lambda served: [
        served.chat("plain", word(served), **served.quiet)]),), _plain),
    Check("answer.unicode", "signs beyond ASCII", (first(lambda served: [
        served.chat(name, [user(f'Reply with exactly "{SIGNS}" and nothing else.')], stream=stream, **served.quiet)
        for name, stream in (("signs", False), ("signs stream", True))]),), _unicode),
)
STREAMS: tuple[Check, ...] = (
    Check("stream.equal", "a stream has the form of the whole answer", (first(_same_requests),), _same),
    Check("stream.usage", "a stream ends with usage", (first(lambda served: [
        served.chat("usage", [user("Count from 1 to 12 in digits.")], stream=True)]),), _usage),
)
ENDS: tuple[Check, ...] = (
    Check("finish.length", "a cut answer says so", (first(lambda served: [
        served.chat("cut", [user("Count from one to fifty in words.")], max_tokens=3)]),), _length),
    Check("finish.stop", "a stop word ends the answer", (first(lambda served: [
        served.chat("stop", [user(f'Reply with exactly "marble {STOP} lantern" and nothing else.')], stop=[STOP],
                    **served.quiet)]),), _stop),
)
REFUSALS: tuple[Check, ...] = (
    Check("models.served", "the served name is listed", (first(lambda served: [Request("models", "/v1/models")]),),
          _models),
    Check("models.unknown", "an unknown model is refused", (first(lambda served: [Request(
        "unknown", CHAT, {"model": f"no-such-{served.nonce}", "messages": word(served), "max_tokens": 16})]),),
        _unknown),
    Check("request.bad", "bad requests are refused well", (first(lambda served: [
        Request(name, CHAT, {"model": served.model, **body}, raw=True) for name, body in BAD]),), _bad),
    Check("key.refused", "a wrong key is refused", (first(lambda served: [
        Request("no key", "/v1/models", headers={"Authorization": "Bearer wrong"})]),), _no_key, ("key",)),
)
