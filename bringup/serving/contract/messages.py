"""Answers of any engine in one form: whole or streamed, `reasoning` or `reasoning_content`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>")
"""Text of the model's own form that a parser must have taken away."""


@dataclass(frozen=True)
class Request:
    """One HTTP request. `body` None is a GET; `timeout` is seconds of silence."""

    id: str
    path: str
    body: Mapping[str, Any] | None = None
    stream: bool = False
    timeout: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        """As the host's module takes it."""
        return {"id": self.id, "path": self.path, "body": self.body, "stream": self.stream, "timeout": self.timeout,
                "headers": dict(self.headers)}


@dataclass(frozen=True)
class Response:
    """What came back. `events` are (second, text) of a stream; status 0 with `error` is no answer."""

    id: str
    status: int
    body: str = ""
    events: tuple[tuple[float, str], ...] = ()
    error: str | None = None
    seconds: float = 0.0

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Response:
        """From what the host's module returned."""
        return cls(id=str(data.get("id")), status=int(data.get("status") or 0), body=str(data.get("body") or ""),
                   events=tuple((float(at), str(text)) for at, text in data.get("events") or ()),
                   error=data.get("error"), seconds=float(data.get("seconds") or 0.0))

    def problem(self) -> str | None:
        """Why this is no good answer, in a line; None for status 200."""
        if self.error:
            return self.error
        if self.status != 200:
            return f"HTTP {self.status}: {error_text(self.body)}"
        return None


def error_text(body: str) -> str:
    """The message in an error's body, else the start of the body."""
    try:
        data = json.loads(body)
    except ValueError:
        return body[:200]
    if isinstance(data, Mapping):
        error = data.get("error", data.get("message", data.get("detail")))
        if isinstance(error, Mapping):
            error = error.get("message")
        if error:
            return str(error)[:200]
    return body[:200]


@dataclass(frozen=True)
class ToolCall:
    """A call: `arguments` is the JSON text as it came."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> Any:
        """The arguments as a value. Raises ValueError."""
        return json.loads(self.arguments)


@dataclass(frozen=True)
class Message:
    """The assistant's message: texts are empty where the engine gave null."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Mapping[str, int] = field(default_factory=dict)
    chunks: int = 0
    done: bool = True

    def leaks(self) -> list[str]:
        """Marks of the model's own form in content or reasoning, with where."""
        return [f"{mark} in {where}" for where, text in (("content", self.content), ("reasoning", self.reasoning))
                for mark in MARKS if mark in text]


def read_message(response: Response) -> Message:
    """The message in a response, streamed or whole. Raises ValueError with what is wrong with it."""
    problem = response.problem()
    if problem:
        raise ValueError(problem)
    return _assemble(response) if response.events else _whole(response.body)


def _whole(body: str) -> Message:
    data = _mapping(json.loads(body), "the answer")
    choice = _first_choice(data)
    message = _mapping(choice.get("message"), "choices[0].message")
    calls = tuple(_call(entry) for entry in message.get("tool_calls") or ())
    return Message(content=str(message.get("content") or ""), reasoning=_reasoning(message), calls=calls,
                   finish_reason=choice.get("finish_reason"), usage=_usage(data))


def _assemble(response: Response) -> Message:
    content, reasoning = [], []
    calls: dict[int, dict[str, str]] = {}
    finish: str | None = None
    usage: Mapping[str, int] = {}
    done = False
    for _, text in response.events:
        if text == "[DONE]":
            done = True
            continue
        data = _mapping(json.loads(text), "a chunk")
        if data.get("error"):
            raise ValueError(f"the stream ends with an error: {error_text(text)}")
        usage = _usage(data) or usage
        if not data.get("choices"):
            continue
        choice = _first_choice(data)
        delta = _mapping(choice.get("delta") or {}, "choices[0].delta")
        content.append(str(delta.get("content") or ""))
        reasoning.append(_reasoning(delta))
        for entry in delta.get("tool_calls") or ():
            _add_call(calls, _mapping(entry, "a tool call"))
        finish = choice.get("finish_reason") or finish
    found = tuple(ToolCall(call["id"], call["name"], call["arguments"]) for _, call in sorted(calls.items()))
    return Message("".join(content), "".join(reasoning), found, finish, usage, len(response.events), done)


def _add_call(calls: dict[int, dict[str, str]], entry: Mapping[str, Any]) -> None:
    call = calls.setdefault(int(entry.get("index") or 0), {"id": "", "name": "", "arguments": ""})
    function = entry.get("function") or {}
    call["id"] = str(entry.get("id") or call["id"])
    call["name"] += str(function.get("name") or "")
    call["arguments"] += str(function.get("arguments") or "")


def _call(entry: Any) -> ToolCall:
    data = _mapping(entry, "a tool call")
    function = _mapping(data.get("function"), "a tool call's function")
    return ToolCall(str(data.get("id") or ""), str(function.get("name") or ""), str(function.get("arguments") or ""))


def _reasoning(message: Mapping[str, Any]) -> str:
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def _usage(data: Mapping[str, Any]) -> Mapping[str, int]:
    usage = data.get("usage")
    return {str(k): v for k, v in usage.items() if isinstance(v, int)} if isinstance(usage, Mapping) else {}


def _first_choice(data: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = data.get("choices")
    if not isinstance(choices, Sequence) or not choices:
        raise ValueError("the answer has no choices")
    return _mapping(choices[0], "choices[0]")


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is no mapping: {str(value)[:80]}")
    return value


def schema_problem(value: Any, schema: Mapping[str, Any], where: str = "arguments") -> str | None:
    """The first thing in which a value is not of its JSON schema (type, required, enum, properties), or None."""
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
        "boolean": (bool,)}
    kind = schema.get("type")
    if kind in kinds and (not isinstance(value, kinds[kind]) or (kind in ("integer", "number")
                                                                 and isinstance(value, bool))):
        return f"{where} is {type(value).__name__}, not {kind}"
    if schema.get("enum") and value not in schema["enum"]:
        return f"{where} is {value!r}, not one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name in schema.get("required") or ():
            if name not in value:
                return f"{where} lacks {name}"
        for name, item in value.items():
            if name not in properties:
                if schema.get("additionalProperties") is False:
                    return f"{where} has {name}, which the schema does not know"
                continue
            problem = schema_problem(item, properties[name], f"{where}.{name}")
            if problem:
                return problem
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for index, item in enumerate(value):
            problem = schema_problem(item, schema["items"], f"{where}[{index}]")
            if problem:
                return problem
    return None
