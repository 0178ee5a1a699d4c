"""Recorded traffic against the contract: what broke it, how, and what retries mended."""

from __future__ import annotations

import json

import pytest

from bringup.base.errors import InputError
from bringup.base.verdicts import Verdict
from bringup.serving.contract.tools import WEATHER
from bringup.serving.contract.traffic import judge_traffic, read_traffic
from bringup.serving.recipes.routes import DATA, load_routes

ROUTES = load_routes(DATA / "glm-5.yaml")
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def line(name="a", message=None, finish="stop", **more):
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "glm-5.1"}
    body = {**head, "choices": [{"index": 0, "finish_reason": finish, "message": {
        "role": "assistant", "content": None, **(message or {})}}]}
    return json.dumps({"request_id": name, "retry": 0, "status": 200, "seconds": 1.0, "answer": body,
                       "request": {"model": "glm-5.1", "messages": [{"role": "user", "content": "x"}],
                                   "tools": [WEATHER], **more.pop("request", {})}, **more})


def judged(*lines):
    *each, every = judge_traffic(read_traffic(lines, "t.jsonl"), ROUTES, "glm-5.1")
    return {finding.subject: finding for finding in each}, every


def test_traffic_that_keeps_the_contract():
    each, every = judged(line("a", {"content": "hello"}), line("b", {"tool_calls": [CALL]}, "tool_calls"),
                         line("c", status=404, answer={"error": {"message": "no such model"}}))
    assert each == {} and every.verdict is Verdict.PASS
    assert every.data == {"requests": 3, "attempts": 3, "broken": 0, "retried": 0}


@pytest.mark.parametrize(("made", "words", "cause"), [
    ({"message": {"content": "<tool_call>get_weather"}}, "came as text", "--tool-call-parser"),
    ({"message": {"tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Pa'}}]},
      "finish": "tool_calls"}, "no JSON", "broken or cut"),
    ({"message": {"tool_calls": [{**CALL, "id": ""}]}, "finish": "tool_calls"}, "no id", "drafted tokens"),
    ({"message": {"tool_calls": [{**CALL, "function": {"name": "rm", "arguments": "{}"}}]}, "finish": "tool_calls"},
     "which was not offered", "reads the call wrongly"),
    ({"message": {"tool_calls": [CALL, CALL]}, "finish": "tool_calls"}, "share the id", ""),
    ({"message": {"tool_calls": [CALL]}}, "finish_reason is stop", "stopped for a tool"),
    ({"message": {"reasoning": "all of it"}}, "all of it is in the reasoning", "--reasoning-parser"),
    ({"message": {"content": "a", "reasoning": "b"},
      "request": {"chat_template_kwargs": {"enable_thinking": False}, "tools": []}}, "though thinking is off", ""),
    ({"status": 500, "answer": {"error": {"message": "EngineCore"}}}, "HTTP 500: EngineCore", "does not answer"),
    ({"status": 0, "answer": None, "error": "no answer within 60 s"}, "no answer within", "does not answer"),
    ({"answer": None, "chunks": ['{"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", '
                                 '"choices": []}'], "request": {"stream": True}}, "without [DONE]", ""),
    ({"message": {"content": "cut"}, "finish": "length", "route": "summarization"},
     "not what the route summarization must give: answer.finish_reason", ""),
])
def test_a_request_that_broke_it_is_named_with_how(made, words, cause):
    each, every = judged(line("req-7", **made))
    assert words in each["req-7"].summary, each
    assert each["req-7"].verdict is every.verdict is Verdict.FAIL
    assert cause in each["req-7"].details[0]
    assert each["req-7"].details[1] == "line    t.jsonl:1"


def test_retries_are_counted_and_one_that_mends_only_warns():
    bad = {"status": 500, "answer": {"error": {"message": "EngineCore"}}}
    each, every = judged(line("a", retry=0, **bad), line("a", {"content": "well"}, retry=1),
                         line("b", retry=0, **bad), line("b", retry=1, **bad))
    assert each["a"].verdict is Verdict.WARN and "retry 1 was well" in each["a"].summary
    assert each["b"].verdict is Verdict.FAIL and "in 2 attempts of 2" in each["b"].summary
    assert every.data == {"requests": 2, "attempts": 4, "broken": 1, "retried": 2}


@pytest.mark.parametrize(("lines", "words"), [
    ([""], "holds no traffic"), (["{"], "t.jsonl:1"), (["[]"], "is a JSON object"),
    (['{"request_id": "a", "request": {}, "statuss": 200}'], "knows no `statuss`"),
    (['{"request": {}, "status": 200}'], "needs request_id"),
    (['{"request_id": "a", "request": {}}'], "needs a status or an error"),
    (['{"request_id": "a", "request": {}, "status": "well"}'], "whole numbers"),
    ([line(route="coding")], "no route `coding`"),
])
def test_a_file_that_is_no_traffic(lines, words):
    with pytest.raises(InputError) as error:
        judge_traffic(read_traffic(lines, "t.jsonl"), ROUTES, "glm-5.1")
    assert words in "\n".join(error.value.lines())
