"""Each check against the lab engine: well when it does well, and failing with the right cause for every way to fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from lab_engine_processes import FLAGS, EngineNode, free_port, model_folder, tell, vllm_alone, vllm_node

from bringup.base.errors import InputError
from bringup.base.verdicts import Verdict
from bringup.serving.contract.checks import CHECKS, Served, chosen
from bringup.serving.contract.messages import Response
from bringup.serving.contract.run import check_contract

SERVED = Served("glm-5.1", nonce="kestrel4821", same_words=True, limit=4, version="0.24.0", argv=tuple(FLAGS))
KEYLESS = {f"contract.{check.id}" for check in CHECKS} - {"contract.key.refused"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contract")
    node = vllm_alone(folder, model_folder(folder / "model"), flags=[*FLAGS, "--max-num-seqs", "4"])
    node.model = folder / "model"
    try:
        node.wait_ready()
        yield node
    finally:
        node.end()


def findings(node, served=SERVED, only=()):
    return {finding.check.removeprefix("contract."): finding
            for finding in check_contract(served, node.ask, subject="r1", checks=chosen(only))}


def failed(node, served=SERVED, only=()):
    return {name: finding for name, finding in findings(node, served, only).items()
            if finding.verdict is Verdict.FAIL}


def test_all_checks_pass_on_vllm(engine):
    tell(engine.model, None)
    found = findings(engine)
    assert {f"contract.{name}" for name, finding in found.items() if finding.verdict is Verdict.PASS} == KEYLESS, {
        name: finding.summary for name, finding in found.items() if finding.verdict is not Verdict.PASS}
    assert found["key.refused"].verdict is Verdict.SKIP


FAULTS = [
    ("wrong_name_listed", "models.served", "--served-model-name"),
    ("unknown_model_accepted", "models.unknown", "answers for every name"),
    ("wrong_model_name", "answer.plain", "not of OpenAI's form"),
    ("usage_missing", "answer.plain", "not of OpenAI's form"),
    ("usage_missing", "stream.usage", "streaming"),
    ("unicode_broken", "answer.unicode", "signs of several bytes"),
    ("unicode_broken", "tools.unicode", "signs of several bytes"),
    ("reasoning_leak", "thinking.on", "--reasoning-parser"),
    ("reasoning_swallows", "thinking.on", "--reasoning-parser"),
    ("thinking_ignored", "thinking.off", "ignores enable_thinking"),
    ("preserved_dropped", "thinking.preserved", "drops the earlier thinking"),
    ("late_leak", "thinking.turns", "end of the thinking"),
    ("tool_text", "tools.structured", "--tool-call-parser"),
    ("malformed_arguments", "tools.structured", "drafted tokens"),
    ("malformed_arguments", "tools.typed", "drafted tokens"),
    ("missing_argument", "tools.structured", "reads the call wrongly"),
    ("empty_ids", "tools.structured", "drafted tokens"),
    ("empty_names", "tools.structured", "reads the call wrongly"),
    ("finish_wrong", "tools.structured", "stopped for a tool"),
    ("types_lost", "tools.typed", "as text instead of"),
    ("wrong_tool", "tools.several", "template shows the tools wrongly"),
    ("nested_as_text", "tools.nested", "as text instead of"),
    ("long_arguments_cut", "tools.long", "cut arguments"),
    ("zero_arguments_dropped", "tools.no-arguments", "without arguments in a stream"),
    ("tool_result_lost", "tools.result", "--chat-template-content-format"),
    ("same_ids", "tools.parallel", "apart"),
    ("parallel_dropped", "tools.parallel", "apart"),
    ("unknown_tool_accepted", "tools.unknown", "tool_choice"),
    ("flaky", "tools.repeat", "drafted tokens"),
    ("stream_differs", "stream.equal", "streaming"),
    ("stream_breaks", "stream.equal", "streaming"),
    ("stream_ids_differ", "stream.equal", "streaming"),
    ("finish_twice", "stream.equal", "streaming"),
    ("not_streamed", "stream.usage", "collects"),
    ("length_ignored", "finish.length", "limits"),
    ("cut_leak", "finish.length", "thinking that was cut"),
    ("arg_key_lost", "tools.structured", "--tool-call-parser"),
    ("empty_arguments", "tools.structured", "drafted tokens"),
    ("responses_break", "responses.answer", "/v1/responses"),
    ("responses_break", "responses.tools", "/v1/responses"),
    ("stop_ignored", "finish.stop", "limits"),
    ("bad_request_crashes", "request.bad", "on to the engine"),
    ("answers_mixed", "load.limit", "mixes requests"),
    ("overload_refused", "load.limit", "refuses"),
    ("cancel_ignored", "load.cancel", "client left"),
]


@pytest.mark.parametrize(("fault", "check", "cause"), FAULTS)
def test_a_fault_is_found_by_its_check_with_its_cause(engine, fault, check, cause):
    tell(engine.model, {"name": fault, "most": 2, "seconds": 9})
    try:
        found = failed(engine, only=[check])
        assert set(found) == {check}
        assert cause in found[check].details[0], found[check]
        assert found[check].mend
    finally:
        tell(engine.model, None)


def test_every_fault_of_the_answers_stands_in_the_table(monkeypatch):
    """A new fault of the lab engine needs the check that exists for it."""
    from bringup.lab.engine import OVERLAY

    monkeypatch.syspath_prepend(str(OVERLAY / "site-packages"))
    from bringup_lab_engine import faults

    starting = {"crash_loading", "never_meet", "wrong_rank", "out_of_memory", "port_taken", "die_later", "slow",
                "slow_loading", "hang_loading", "ignore_term", "first_request_fails", "transfer_fails",
                "router_crashes"}
    keyed = {"key_ignored"}
    assert set(faults.NAMES) - starting - keyed - {fault for fault, _, _ in FAULTS} == set()


def test_every_check_has_a_failure_that_it_exists_for():
    """A new check needs a failure of the lab engine that provokes it."""
    provoked = {check for _, check, _ in FAULTS} | {"key.refused"}
    assert {check.id for check in CHECKS} == provoked


def test_the_table_of_the_docs_names_every_check_with_its_failures():
    text = (Path(__file__).parents[4] / "docs/contract.md").read_text()
    told = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`([a-z]+\.[a-z-]+)`", cells[0])
        for name in names if len(cells) == 4 else ():
            told[name] = set(re.findall(r"`([a-z_]+)`", cells[3]))
    wanted = {"key.refused": {"key_ignored"}}
    for fault, check, _ in FAULTS:
        wanted.setdefault(check, set()).add(fault)
    assert told == wanted


@pytest.mark.parametrize(("fault", "only"), [
    ("responses_break", {"responses.answer", "responses.tools"}), ("cut_leak", {"finish.length"}),
    ("same_ids", {"tools.parallel"}), ("types_lost", {"tools.typed", "tools.several"}),
    ("nested_as_text", {"tools.nested"}), ("stop_ignored", {"finish.stop"}), ("wrong_tool", {"tools.several"}),
    ("thinking_ignored", {"thinking.off"}), ("late_leak", {"thinking.turns"}),
])
def test_a_fault_does_not_fail_what_it_does_not_touch(engine, fault, only):
    tell(engine.model, fault)
    try:
        assert set(failed(engine)) == only
    finally:
        tell(engine.model, None)


def test_an_engine_that_is_not_deterministic_may_say_other_words():
    def exchange(requests, at_once=4):
        return [whole("It is kestrel4821.") if not request.stream else streamed("kestrel4821", "!")
                for request in requests]

    served = replace(SERVED, tools=False)
    [strict] = check_contract(served, exchange, subject="r1", checks=chosen(["stream.equal"]))
    [lenient] = check_contract(replace(served, same_words=False), exchange, subject="r1",
                               checks=chosen(["stream.equal"]))
    assert strict.verdict is Verdict.FAIL and "the stream gives" in strict.summary
    assert lenient.verdict is Verdict.PASS


def whole(content):
    return Response("x", 200, json.dumps({
        "id": "a", "object": "chat.completion", "created": 1, "model": "glm-5.1", "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}]}))


def streamed(*pieces):
    chunks = [({"role": "assistant"}, None), *(({"content": piece}, None) for piece in pieces), ({}, "stop")]
    return Response("x", 200, events=tuple((0.0, text) for text in [*(json.dumps({
        "id": "a", "object": "chat.completion.chunk", "created": 1, "model": "glm-5.1", "choices": [
            {"index": 0, "delta": delta, "finish_reason": finish}]}) for delta, finish in chunks), "[DONE]"]))


def test_a_name_that_is_not_served(engine):
    served = replace(SERVED, model="another")
    bad = failed(engine, served, ["models", "thinking"])
    assert "models.served" in bad
    assert "HTTP 404" in bad["thinking.on"].summary and "does not exist" in bad["thinking.on"].summary
    assert "--served-model-name glm-5.1" in bad["thinking.on"].details[0]


def test_a_key_that_nobody_looks_at(tmp_path):
    model = model_folder(tmp_path / "model", "key_ignored")
    node = vllm_alone(tmp_path, model, VLLM_API_KEY="k")
    try:
        node.wait_ready()
        found = failed(node, replace(SERVED, has_key=True), ["key"])
        assert "the same key" in found["key.refused"].details[0]
    finally:
        node.end()


WRONG_FLAGS = [
    ([], "tools.structured", "--enable-auto-tool-choice and --tool-call-parser are missing"),
    ([], "thinking.on", "--reasoning-parser is missing"),
    (["--tool-call-parser", "hermes", "--enable-auto-tool-choice", "--reasoning-parser", "glm47"], "tools.structured",
     "--tool-call-parser hermes does not read"),
    (["--tool-call-parser", "glm47", "--enable-auto-tool-choice", "--reasoning-parser", "deepseek_r1"], "thinking.off",
     "--reasoning-parser deepseek_r1 is not this model's"),
    (["--tool-call-parser", "glm47", "--enable-auto-tool-choice", "--reasoning-parser", "glm47",
      "--chat-template-content-format=openai"], "tools.result", "--chat-template-content-format openai"),
]


@pytest.mark.parametrize(("flags", "check", "cause"), WRONG_FLAGS)
def test_wrong_flags_are_named(tmp_path, flags, check, cause):
    words = [*flags, "--served-model-name", "glm-5.1"]
    if not any("content-format" in word for word in words):
        words.append("--chat-template-content-format=string")
    node = vllm_node(tmp_path, model_folder(tmp_path / "model"), "wrong", words, free_port())
    try:
        node.wait_ready()
        found = failed(node, replace(SERVED, argv=tuple(words)), [check])
        assert cause in found[check].details[0], found[check]
        assert "glm47" in found[check].mend or "string" in found[check].mend
    finally:
        node.end()


def test_an_engine_without_responses_is_not_asked_for_them(tmp_path):
    model = model_folder(tmp_path / "model")
    port = free_port()
    node = EngineNode(tmp_path / "sglang.log", "sglang.launch_server", [
        "--model-path", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "glm-5.1",
        "--tool-call-parser", "glm47", "--reasoning-parser", "glm45"], port)
    try:
        node.wait_ready(30)
        found = findings(node, replace(SERVED, engine="sglang", argv=()), ["responses"])
    finally:
        node.end()
    assert {finding.verdict for finding in found.values()} == {Verdict.SKIP}
    assert "does not offer /v1/responses (HTTP 404)" in found["responses.answer"].summary


def test_what_is_chosen():
    assert [check.id for check in chosen(["finish"])] == ["finish.length", "finish.stop"]
    assert [check.id for check in chosen(["contract.tools.nested", "load.*"])] == ["tools.nested", "load.limit",
                                                                                "load.cancel"]
    with pytest.raises(InputError, match=r"no check of the contract is called `tool\.nested`"):
        chosen(["tool.nested"])
