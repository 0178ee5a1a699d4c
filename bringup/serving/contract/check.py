"""What a check is: rounds of requests, then a judge of their answers; all of it pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.serving.contract.messages import Message, schema_problem
from bringup.serving.contract.request import CHAT, Request, Response

LIMIT = 16
"""Requests at once that the contract sends at most; a deployment's own limit may be lower."""


@dataclass(frozen=True)
class Served:
    """What is checked: the served name, what the deployment promises, a word that nobody can guess, repetitions.

    `limit` is how many requests the engine takes at once; `same_words` says that the same request always gets the same
    words (the lab engine). `engine`, `version` and `argv` are the running process's, for the cause of a failure.
    """

    model: str
    tools: bool = True
    reasoning: bool = True
    nonce: str = "nonce"
    repeat: int = 3
    has_key: bool = False
    most_tokens: int = 4096
    limit: int = LIMIT
    same_words: bool = False
    engine: str = "vllm"
    version: str = ""
    argv: tuple[str, ...] = ()

    def chat(self, name: str, messages: Sequence[Mapping[str, Any]], *, close_after: int | None = None, **more: Any
             ) -> Request:
        """A chat request with temperature 0."""
        body = {"model": self.model, "messages": list(messages), "temperature": 0, "max_tokens": self.most_tokens,
                **more}
        if more.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return Request(name, CHAT, body, stream=bool(more.get("stream")), close_after=close_after)

    @property
    def at_once(self) -> int:
        """Requests that the load checks keep in flight."""
        return max(1, min(self.limit, LIMIT))

    @property
    def quiet(self) -> dict[str, Any]:
        """The switch that turns thinking off, where there is thinking."""
        return {"chat_template_kwargs": {"enable_thinking": False}} if self.reasoning else {}


@dataclass(frozen=True)
class Judgement:
    """How a check went: no problem is well, else what is wrong and what was expected. `skip` is why it is not asked."""

    problem: str | None
    expected: str | None = None
    skip: str | None = None


GOOD = Judgement(None)
Answers = Mapping[str, Response]


@dataclass(frozen=True)
class Round:
    """Requests made of the answers so far. `at_once` None: together with those of other checks."""

    build: Callable[[Served, Answers], list[Request]]
    at_once: Callable[[Served], int] | None = None


@dataclass(frozen=True)
class Check:
    """`needs` is tools, reasoning, key or nothing; `mend` is what most often mends it."""

    id: str
    title: str
    rounds: tuple[Round, ...]
    judge: Callable[[Served, Answers], Judgement]
    needs: tuple[str, ...] = ()
    mend: str | None = None


def first(build: Callable[[Served], list[Request]]) -> Round:
    """A round that needs no earlier answer."""
    return Round(lambda served, answers: build(served))


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def word(served: Served, nonce: str | None = None) -> list[dict[str, Any]]:
    """Messages that ask for the nonce."""
    return [user(f"Reply with the word {nonce or served.nonce} and nothing else.")]


def function(name: str, description: str, properties: Mapping[str, Any], *, open_: bool = False) -> Mapping[str, Any]:
    """A tool with these properties, all of them required."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if properties:
        schema["required"] = list(properties)
    if not open_:
        schema["additionalProperties"] = False
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def said(served: Served, message: Message, nonce: str | None = None) -> Judgement:
    """The content holds the word asked for, and no marks of the model's own form."""
    if message.leaks():
        return Judgement(", ".join(message.leaks()), "content without marks")
    if (nonce or served.nonce) not in message.content:
        return Judgement(f"the content does not hold the word asked for: {message.content[:80]!r}",
                         nonce or served.nonce)
    return GOOD


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


def calls_problem(message: Message, count: int, *tools: Mapping[str, Any]) -> Judgement | None:
    """What is wrong with an answer that should hold `count` calls of these tools, None when nothing is."""
    if message.leaks():
        return Judgement("a tool call came as text: " + ", ".join(message.leaks()), "tool_calls")
    if len(message.calls) != count:
        return Judgement(f"{len(message.calls)} tool calls came, content {message.content[:80]!r}",
                         "one tool call" if count == 1 else f"{count} tool calls")
    problem = call_problem(message, *tools)
    if problem:
        return Judgement(problem)
    if message.finish_reason != "tool_calls":
        return Judgement(f"finish_reason is {message.finish_reason} though a tool is called", "tool_calls")
    return None
