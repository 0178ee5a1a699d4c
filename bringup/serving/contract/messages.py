"""Answers of any engine in one form: whole or streamed, `reasoning` or `reasoning_content`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bringup.serving.contract.request import Request as Request
from bringup.serving.contract.request import Response as Response
from bringup.serving.contract.request import error_text

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
         "</arg_value>")
"""Text of the model's own form that a parser must have taken away."""


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
    """The assistant's message: texts are empty where the engine gave null.

    `ids`, `models` and `finishes` are the different ones that the answer or its chunks name; `roles` those of chunks.
    """

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Mapping[str, int] = field(default_factory=dict)
    chunks: int = 0
    done: bool = True
    ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    finishes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def leaks(self) -> list[str]:
        """Marks of the model's own form in content or reasoning, with where."""
        return [f"{mark} in {where}" for where, text in (("content", self.content), ("reasoning", self.reasoning))
                for mark in MARKS if mark in text]


def read_message(response: Response) -> Message:
    """The message in a response, streamed or whole, as OpenAI's client reads it. Raises ValueError."""
    from bringup.serving.contract.client import read_stream, read_whole

    problem = response.problem()
    if problem:
        raise ValueError(problem)
    if not response.events:
        return _whole(read_whole(response.body))
    lines = [text for _, text in response.events]
    for line in lines:
        if line != "[DONE]":
            data = json.loads(line)
            if isinstance(data, Mapping) and data.get("error"):
                raise ValueError(f"the stream ends with an error: {error_text(line)}")
    return _assemble(read_stream(lines), len(lines), "[DONE]" in lines)


def _whole(data: ChatCompletion) -> Message:
    if not data.choices:
        raise ValueError("the answer has no choices")
    choice = data.choices[0]
    message = choice.message
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments)
                  for call in message.tool_calls or () if call.type == "function")
    return Message(
        content=message.content or "", reasoning=_reasoning(message.model_extra), calls=calls,
        finish_reason=choice.finish_reason, usage=_usage(data.usage), ids=(data.id,), models=(data.model,),
        finishes=(choice.finish_reason,) if choice.finish_reason else (), roles=(message.role,))


def _assemble(chunks: Sequence[ChatCompletionChunk], count: int, done: bool) -> Message:
    content: list[str] = []
    reasoning: list[str] = []
    finishes: list[str] = []
    roles: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    usage: Mapping[str, int] = {}
    for chunk in chunks:
        usage = _usage(chunk.usage) or usage
        for choice in chunk.choices[:1]:
            delta = choice.delta
            content.append(delta.content or "")
            reasoning.append(_reasoning(delta.model_extra))
            roles += [delta.role] if delta.role else []
            finishes += [choice.finish_reason] if choice.finish_reason else []
            for entry in delta.tool_calls or ():
                call = calls.setdefault(entry.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = entry.id or call["id"]
                if entry.function is not None:
                    call["name"] += entry.function.name or ""
                    call["arguments"] += entry.function.arguments or ""
    found = tuple(ToolCall(call["id"], call["name"], call["arguments"]) for _, call in sorted(calls.items()))
    return Message("".join(content), "".join(reasoning), found, finishes[-1] if finishes else None, usage, count, done,
                   _each(chunk.id for chunk in chunks), _each(chunk.model for chunk in chunks), tuple(finishes),
                   _each(roles))


def _each(values: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(value) for value in values))


def _reasoning(extra: Mapping[str, Any] | None) -> str:
    return str((extra or {}).get("reasoning") or (extra or {}).get("reasoning_content") or "")


def _usage(usage: Any) -> Mapping[str, int]:
    if usage is None:
        return {}
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: value for name in names if isinstance(value := getattr(usage, name, None), int)}


def schema_problem(value: Any, schema: Mapping[str, Any], where: str = "arguments") -> str | None:
    """The first thing in which a value is not of its JSON schema, with its place, or None."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return None
    place = where + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return f"{place}: {error.message[:200]}"
