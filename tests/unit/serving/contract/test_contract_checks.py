"""Each check against the lab engine: well when it does well, and failing when it is told to fail that way."""

from __future__ import annotations

import pytest
from lab_engine_processes import FLAGS, EngineNode, free_port, model_folder, tell, vllm_alone

from bringup.base.verdicts import Verdict
from bringup.serving.contract.checks import CHECKS, Served
from bringup.serving.contract.run import check_contract

SERVED = Served("glm-5.1", nonce="kestrel4821")
KEYLESS = {f"contract.{check.id}" for check in CHECKS} - {"contract.key.refused"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contract")
    node = vllm_alone(folder, model_folder(folder / "model"))
    node.model = folder / "model"
    try:
        node.wait_ready()
        yield node
    finally:
        node.end()


def findings(node, served=SERVED):
    return {finding.check: finding for finding in check_contract(served, node.ask, subject="r1")}


def failed(node, served=SERVED):
    return {name for name, finding in findings(node, served).items() if finding.verdict is Verdict.FAIL}


def test_all_checks_pass_on_vllm(engine):
    tell(engine.model, None)
    found = findings(engine)
    assert {name for name, finding in found.items() if finding.verdict is Verdict.PASS} == KEYLESS
    assert found["contract.key.refused"].verdict is Verdict.SKIP


@pytest.mark.parametrize(("fault", "check"), [
    ("reasoning_leak", "thinking.on"),
    ("reasoning_swallows", "thinking.on"),
    ("thinking_ignored", "thinking.off"),
    ("preserved_dropped", "thinking.preserved"),
    ("malformed_arguments", "tools.structured"),
    ("missing_argument", "tools.structured"),
    ("tool_text", "tools.structured"),
    ("malformed_arguments", "tools.typed"),
    ("zero_arguments_dropped", "tools.no-arguments"),
    ("tool_result_lost", "tools.result"),
    ("same_ids", "tools.parallel"),
    ("unknown_tool_accepted", "tools.unknown"),
    ("flaky", "tools.repeat"),
    ("stream_differs", "stream.equal"),
    ("length_ignored", "finish.length"),
])
def test_a_fault_is_found_by_its_check(engine, fault, check):
    tell(engine.model, fault)
    try:
        assert f"contract.{check}" in failed(engine)
    finally:
        tell(engine.model, None)


def test_a_fault_does_not_fail_what_it_does_not_touch(engine):
    tell(engine.model, "same_ids")
    try:
        assert failed(engine) == {"contract.tools.parallel"}
    finally:
        tell(engine.model, None)


def test_a_name_that_is_not_served(engine):
    bad = failed(engine, Served("another", nonce="kestrel4821"))
    assert "contract.models.served" in bad
    finding = findings(engine, Served("another", nonce="k4821x"))["contract.thinking.on"]
    assert "HTTP 404" in finding.summary and "does not exist" in finding.summary


def test_without_features_their_checks_are_skipped_with_the_reason(engine):
    found = findings(engine, Served("glm-5.1", tools=False, reasoning=False, nonce="kestrel4821"))
    skipped = {name for name, finding in found.items() if finding.verdict is Verdict.SKIP}
    assert {"contract.tools.structured", "contract.thinking.on"} <= skipped
    assert "tool_calling" in found["contract.tools.structured"].summary
    assert found["contract.stream.equal"].verdict is Verdict.PASS


def test_a_dead_endpoint_fails_every_check(tmp_path):
    node = EngineNode.__new__(EngineNode)
    node.port = free_port()
    found = check_contract(SERVED, node.ask, subject="r1")
    assert {finding.check for finding in found if finding.verdict is Verdict.FAIL} == KEYLESS
    assert "Connection refused" in found[0].summary


@pytest.mark.parametrize(("left_out", "check", "words"), [
    ("--reasoning-parser glm47", "thinking.on", "the answer has no reasoning"),
    ("--chat-template-content-format=string", "tools.result", "does not reach the model"),
    ("--tool-call-parser glm47 --enable-auto-tool-choice", "tools.structured", "auto"),
])
def test_a_flag_left_out_is_found(tmp_path, left_out, check, words):
    flags = " ".join(FLAGS).replace(left_out, "").split()
    node = vllm_alone(tmp_path, model_folder(tmp_path / "model"), flags=flags)
    try:
        node.wait_ready()
        finding = findings(node)[f"contract.{check}"]
        assert finding.verdict is Verdict.FAIL and words in finding.summary
        assert finding.mend
    finally:
        node.end()


def test_sglang_and_its_key(tmp_path):
    words = ["--model-path", str(model_folder(tmp_path / "m")), "--host", "127.0.0.1", "--tool-call-parser", "glm47",
             "--reasoning-parser", "glm45", "--served-model-name", "glm-5.1"]
    port = free_port()
    node = EngineNode(tmp_path / "s.log", "sglang.launch_server", [*words, "--port", str(port)], port)
    try:
        node.wait_ready()
        assert failed(node) == set()
        # told that there is a key though there is none, the check must say so
        assert failed(node, Served("glm-5.1", nonce="kestrel4821", has_key=True)) == {"contract.key.refused"}
    finally:
        node.end()
