"""Figures of answers, tasks and their checks, traces, state, what is worse than approved, the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.base.errors import InputError, StepError
from bringup.gates import approved, bench, state, versus
from bringup.gates.asking import measured
from bringup.gates.definition import load_definition
from bringup.gates.measure import latencies, percentile, pressure, sample, share, worse
from bringup.gates.page import page
from bringup.gates.parsers import Outcome, Pair, summary
from bringup.gates.sides import Side, compare
from bringup.gates.tasks import load_tasks, right
from bringup.gates.traces import compare as compare_trace
from bringup.gates.traces import load_traces, record_line, requests
from bringup.serving.contract.request import Response

GATES = Path(__file__).parents[3] / "gates"
HEAD = {"id": "a", "created": 1, "model": "m"}


def whole(content=None, calls=(), finish=None):
    message = {"role": "assistant", "content": content, "tool_calls": [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(calls)]}
    return Response("x", 200, json.dumps({**HEAD, "object": "chat.completion", "choices": [
        {"index": 0, "finish_reason": finish or ("tool_calls" if calls else "stop"), "message": message}]}),
        seconds=1.0)


def streamed(times, tokens):
    chunk = {**HEAD, "object": "chat.completion.chunk"}
    events = [(at, json.dumps({**chunk, "choices": [{"index": 0, "finish_reason": None, "delta": {
        "role": "assistant", "content": "x"}}]})) for at in times]
    events.append((times[-1], json.dumps({**chunk, "choices": [], "usage": {
        "prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}})))
    return Response("x", 200, events=((*events, (times[-1], "[DONE]"))), seconds=times[-1])


def test_the_first_token_is_the_second_line_and_the_rest_is_per_token():
    one = sample(streamed([0.1, 0.5, 1.0, 2.5], 5))
    assert one.first == 0.5 and one.token == pytest.approx(0.5) and one.whole == 2.5
    assert sample(Response("x", 0, error="Connection refused")).problem == "Connection refused"
    got = latencies([sample(streamed([0.1, second, 9.0], 3)) for second in (0.2, 0.4, 0.6, 0.8)])
    assert (got["first_token_p50"], got["first_token_p95"]) == (0.4, 0.8)


def test_percentiles_and_shares():
    assert percentile([], 50) is None and percentile([3], 99) == 3
    assert percentile(range(1, 101), 95) == 95
    assert share(1, 3) == 33.3 and share(0, 0) is None


def test_pressure_of_both_engines():
    vllm = 'vllm:num_requests_waiting{model_name="m"} 3\nvllm:kv_cache_usage_perc{model_name="m"} 0.25\n'
    assert pressure([vllm, 'sglang:num_queue_reqs{x="y"} 7.0\nsglang:token_usage 0.5']) == {
        "queue_most": 7.0, "cache_headroom": 50.0}
    assert pressure([]) == {"queue_most": None, "cache_headroom": None}


def test_worse_knows_which_way_is_better_and_what_is_noise():
    before = {"task_success": 98.0, "first_token_p95": 1.0, "per_token_p50": 0.02, "malformed": 0.0}
    assert worse({**before, "task_success": 95.0}, before, 5) == []
    assert worse({**before, "task_success": 90.0}, before, 5) == [("task_success", 90.0, 98.0)]
    assert worse({**before, "first_token_p95": 1.04}, before, 5) == []
    assert worse({**before, "first_token_p95": 1.2, "malformed": 1.0}, before, 5) == [
        ("first_token_p95", 1.2, 1.0), ("malformed", 1.0, 0.0)]
    assert worse({**before, "first_token_p95": 0.1}, before, 5) == []


def test_the_slice_that_is_shipped_and_its_checks():
    tasks = load_tasks(GATES / "tasks.jsonl", 200)
    assert len(tasks) == len({task.id for task in tasks}) == 200
    assert sum(task.calls for task in tasks) > 100
    weather = next(task for task in tasks if task.id == "weather-001")
    city = weather.check.rpartition("=")[2]
    good = sample(whole(calls=[("get_weather", {"city": city})])).message
    assert right(weather, good, GATES) is None
    assert "no call of get_weather" in right(weather, sample(whole("it is warm")).message, GATES)
    measures, wrong, _ = measured([weather, weather], [
        whole(calls=[("get_weather", {"city": city})]), whole("<tool_call>get_weather")], GATES)
    assert (measures["task_success"], measures["tool_success"], measures["malformed"]) == (50.0, 50.0, 50.0)
    assert "came as text" in wrong[0][1]


@pytest.mark.parametrize(("text", "words"), [
    ("", "holds no tasks"), ("{", "is no JSON"), ('{"id": "a"}', "needs id, prompt"),
    ('{"id": "a", "prompts": "x"}', "knows no `prompts`"),
    ('{"id": "a", "prompt": "x", "check": "true"}\n{"id": "a", "prompt": "x", "check": "true"}', "stands twice")])
def test_tasks_that_are_none(tmp_path, text, words):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_tasks(path, 200)
    assert words in "\n".join(error.value.lines())


def test_traces_that_are_shipped_hold_repeats_retries_and_malformed_answers():
    traces = {trace.name: trace for trace in load_traces(GATES, ["traces/*.jsonl"])}
    assert {"edit-and-test", "repeated-calls", "retries", "malformed-sent-back", "parallel"} <= set(traces)
    assert {step.retry for step in traces["retries"].steps} == {0, 1}
    sent = requests(traces["parallel"], "other")
    assert all(request.body["model"] == "other" and request.body["temperature"] == 0 for request in sent)
    same = compare_trace(traces["parallel"], [step.response for step in traces["parallel"].steps], {})
    assert (same.steps, same.calls, same.same, same.malformed) == (2, 1, 1, 0)
    other = compare_trace(traces["parallel"], [whole("no"), whole("<think>x")], {})
    assert other.same == 0 and other.malformed == 1 and len(other.problems) == 2
    with pytest.raises(InputError, match="no traces"):
        load_traces(GATES, ["traces/none*"])


def test_a_recorded_line_is_traffic():
    from bringup.serving.contract.traffic import read_traffic

    line = record_line({"model": "m", "messages": []}, 200, "", ["{}", "[DONE]"], "req-1", 1, 5.0, 0.25)
    [attempt] = read_traffic([line, ""], "x")
    assert attempt.retry == 1 and [text for _, text in attempt.response.events] == ["{}", "[DONE]"]


def test_a_gate_goes_on_for_the_same_release_and_gates_only(tmp_path):
    path = tmp_path / "gates/lab.json"
    kept = state.load_state(path, "r1", "d1")
    kept.keep(1, "smoke", passed=True, seconds=1.0, measures={"errors": 0.0}, told="fine")
    kept.keep(1, "traces", passed=False, seconds=1.0, measures={}, told="bad")
    same = state.load_state(path, "r1", "d1")
    assert same.passed(1, "smoke")["told"] == "fine"
    assert same.passed(1, "traces") is None and same.passed(2, "smoke") is None
    for other in (state.load_state(path, "r2", "d1"), state.load_state(path, "r1", "d2"),
                  state.load_state(path, "r1", "d1", again=True)):
        assert other.cycles == {}
    same.write(complete=True)
    assert state.load_state(path, "r1", "d1").cycles == {}
    path.write_text("{")
    with pytest.raises(StepError, match="cannot be read"):
        state.load_state(path, "r1", "d1")


def test_what_is_worse_than_approved_blocks(tmp_path):
    definition = load_definition(GATES / "default.yml")
    path = tmp_path / "approved/lab.json"
    assert approved.load(path) == {}
    approved.save(path, "r0001", "ops@here", {"scorecard": {"measures": {"task_success": 99.0, "rollback": None}}})
    card = approved.load(path)
    assert card["lines"] == {"scorecard": {"task_success": 99.0}}
    assert approved.compared("scorecard", {"task_success": 98.0}, card, definition) == []
    [bad] = approved.compared("scorecard", {"task_success": 80.0}, card, definition)
    assert bad.blocks and bad.summary == "task_success 80, approved 99: worse by more than 5 %"


def test_two_sides():
    tasks = load_tasks(GATES / "tasks.jsonl", 200)
    tool = [task for task in tasks if task.calls][:2]
    samples = [sample(whole(calls=[("get_weather", {"city": "Rome"})])), sample(whole("no"))]
    here = Side("here", "m", {"task_success": 50.0}, (tool[1].id,), samples)
    there = Side("there", "m", {"task_success": 100.0}, (), [samples[0], samples[0]])
    found = {finding.subject: finding for finding in compare(here, there, tool, 5, {})}
    assert found["task_success"].blocks and found["consistent"].blocks
    assert tool[1].id in found["tasks"].summary
    assert not any(finding.blocks for finding in compare(there, here, tool, 5, {})
                   if finding.subject == "task_success")


def test_two_sides_as_data_and_as_a_page_that_needs_nothing_else():
    tasks = [task for task in load_tasks(GATES / "tasks.jsonl", 200) if task.calls][:2]
    rome, none = sample(whole(calls=[("get_weather", {"city": "Rome"})])), sample(whole("no"))
    quick = [sample(streamed([0.1, 0.2, 0.3], 3)), sample(streamed([0.1, 0.4, 0.5], 3))]
    here = Side("r0002 <glm>", "m", {"task_success": 50.0, "first_token_p50": 0.2}, (tasks[1].id,), [rome, none])
    there = Side("10.0.0.9:8000", "n", {"task_success": 100.0, "first_token_p50": None}, (), [rome, rome])
    data = json.loads(json.dumps(versus.record(here, there, tasks, compare(here, there, tasks, 5, {}), 5)))
    assert [one["right"] for one in data["each"]] == [[True, True], [False, True]]
    assert [one["same_calls"] for one in data["each"]] == [True, False]
    assert data["sides"][0]["wrong"] == [tasks[1].id] and data["sides"][1]["model"] == "n"
    text = versus.page(data)
    assert "r0002 &lt;glm&gt;" in text and "<glm>" not in text and "here is worse" in text
    assert tasks[1].id in text and tasks[0].id not in text.partition("tasks that went otherwise")[2]
    assert "<script" not in text and "src=" not in text and "href=" not in text
    fast = versus.record(Side("a", "m", {}, (), quick), Side("b", "m", {}, (), quick), tasks, [], 5)
    shown = versus.page(fast)
    assert shown.count("<polyline") == 6 and "here: a" in shown and "No task went otherwise" in shown


def test_what_is_kept_of_a_comparison(tmp_path):
    path = versus.path_of(tmp_path, "lab")
    assert versus.load(path) is None
    versus.keep(path, {"tasks": 1})
    assert versus.load(path) == {"tasks": 1}
    path.write_text("{")
    with pytest.raises(StepError, match="cannot be read"):
        versus.load(path)


def test_what_vllm_bench_serve_measured():
    recorded = json.loads((Path(__file__).parent / "bench_serve.json").read_text())
    good = bench.samples_of(recorded["good"])
    assert [one.problem for one in good] == [None] * 3
    assert good[0].first == pytest.approx(0.05501, abs=1e-5) and good[0].whole == pytest.approx(0.12762, abs=1e-5)
    assert good[0].token == pytest.approx((0.12762 - 0.05501) / 15, abs=1e-5)
    # releases that keep no `latencies`: the first token and the gaps behind it
    older = bench.samples_of({key: value for key, value in recorded["good"].items() if key != "latencies"})
    assert older[0].whole == pytest.approx(good[0].whole, rel=0.1)
    failed = bench.samples_of(recorded["failed"])
    assert [one.problem for one in failed] == ["Not Found"] * 2 and failed[0].first is None


def test_what_the_table_of_parsers_says():
    assert Pair("0.24.0", "glm47", "glm47").fits == "pass"
    assert Pair("0.23.0", "glm47", "glm47").fits == "refuse"
    assert Pair("0.24.0", "hermes", "glm47").fits == Pair("0.24.0", None, "glm45").fits == "fail"
    line = load_definition(GATES / "default.yml").line("parsers")
    came = summary(line, [Outcome(Pair("0.24.0", "glm47", "glm47"), "pass"),
                          Outcome(Pair("0.24.0", "hermes", "glm47"), "pass")])
    assert came.measures["surprises"] == 1
    assert came.findings[0].summary == "should fail, did pass"


def test_the_page_needs_nothing_else():
    definition = load_definition(GATES / "default.yml")
    entry = {"passed": True, "seconds": 2.0, "told": "fine <b>", "measures": {"errors": 0.0, "recovery_head": 4.0},
             "series": {"first_token": [0.1, 0.2, 0.4], "whole": [1.0, 2.0]}}
    text = page("gates of lab", definition, {"release": "abc", "cycles": {"1": {"smoke": entry}, "2": {
        "smoke": {**entry, "passed": False}}}}, {"release": "r1", "by": "ops", "lines": {"smoke": {"errors": 1.0}}})
    assert text.count("<svg") == 4 and "fine &lt;b&gt;" in text and "FAIL" in text
    assert "http" not in text and "<script" not in text and "not run" in text


def test_measures_for_the_screen_success_first():
    from bringup.gates.measure import told

    assert told({"first_token_p50": 0.5, "first_token_p95": 1.25, "queue_most": 3.0, "task_success": 97.5,
                 "memory_headroom": None, "steps": 4.0}) == [
        ("shares", "task success 97.5 %"), ("first token", "p50 0.5 s, p95 1.25 s"), ("queue", "3 waited at most")]
