"""Answers in one form: what is taken, what is refused; schemas."""

from __future__ import annotations

import json

import pytest

from bringup.serving.contract.messages import Response, read_message, schema_problem

HEAD = {"id": "a", "created": 1, "model": "glm-5.1"}


def whole(message, finish="stop"):
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    return Response("x", 200, json.dumps({**HEAD, "object": "chat.completion", "choices": [choice]}))


def streamed(*deltas, finish="stop", done=True):
    head = {**HEAD, "object": "chat.completion.chunk"}
    events = [json.dumps({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
              for delta in deltas]
    events.append(json.dumps({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    events += ["[DONE]"] if done else []
    return Response("x", 200, events=tuple((0.0, event) for event in events))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_by_either_name(field):
    assert read_message(whole({"content": "a", field: "b"})).reasoning == "b"
    assert read_message(streamed({field: "b"}, {field: "c"}, {"content": "a"})).reasoning == "bc"


def test_content_null_is_empty():
    assert read_message(whole({"content": None})).content == ""


def test_a_streamed_call_is_put_together():
    message = read_message(streamed(
        {"tool_calls": [{"index": 1, "id": "two", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "one", "function": {"name": "f", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}, finish="tool_calls"))
    assert [(call.id, call.name, call.parsed()) for call in message.calls] == [("one", "f", {"a": 1}),
                                                                             ("two", "g", {})]
    assert message.finish_reason == "tool_calls" and message.done


def test_a_stream_that_breaks_off():
    assert not read_message(streamed({"content": "a"}, done=False)).done


def test_marks_are_found_where_they_stand():
    message = read_message(whole({"content": "<tool_call>x", "reasoning": "</think>"}))
    assert message.leaks() == ["<tool_call> in content", "</think> in reasoning"]


@pytest.mark.parametrize(("response", "words"), [
    (Response("x", 0, error="Connection refused"), "Connection refused"),
    (Response("x", 500, '{"error": {"message": "EngineCore"}}'), "HTTP 500: EngineCore"),
    (Response("x", 401, '{"error": "Unauthorized"}'), "HTTP 401: Unauthorized"),
    (Response("x", 200, "<html>"), "Expecting value"),
    (Response("x", 200, json.dumps({**HEAD, "object": "chat.completion", "choices": []})), "no choices"),
    (Response("x", 200, '{"choices": []}'), "OpenAI's client refuses the answer: id: Field required"),
    (Response("x", 200, json.dumps({**HEAD, "object": "chat.completion", "choices": [
        {"index": 0, "finish_reason": "stop", "message": "text"}]})), "refuses the answer: choices.0.message"),
    (Response("x", 200, events=((0.0, "half a li"),)), "Expecting value"),
    (Response("x", 200, events=((0.0, json.dumps({**HEAD, "object": "chat.completion.chunk", "choices": [
        {"delta": {}, "index": 0, "finish_reason": "done"}]})),)), "refuses a chunk: choices.0.finish_reason"),
    (Response("x", 200, events=((0.0, '{"error": {"message": "gone"}}'),)), "gone"),
])
def test_what_is_no_message(response, words):
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        read_message(response)


SCHEMA = {"type": "object", "required": ["city"], "additionalProperties": False, "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["day", "week"]},
    "tags": {"type": "array", "items": {"type": "string"}}, "exact": {"type": "boolean"}, "lat": {"type": "number"}}}


@pytest.mark.parametrize(("value", "words"), [
    ({"city": "Paris", "days": 3, "unit": "day", "tags": ["a"], "exact": True, "lat": 48}, None),
    ([], "arguments: [] is not of type 'object'"), ({}, "'city' is a required property"),
    ({"city": 3}, "arguments.city: 3 is not of type 'string'"),
    ({"city": "a", "days": "3"}, "arguments.days: '3' is not of type 'integer'"),
    ({"city": "a", "days": True}, "arguments.days: True is not of type 'integer'"),
    ({"city": "a", "unit": "year"}, "'year' is not one of ['day', 'week']"),
    ({"city": "a", "tags": ["a", 1]}, "arguments.tags[1]: 1 is not of type 'string'"),
    ({"city": "a", "more": 1}, "'more' was unexpected"),
])
def test_schemas(value, words):
    problem = schema_problem(value, SCHEMA)
    assert problem is None if words is None else words in problem
