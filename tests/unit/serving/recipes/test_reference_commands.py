"""The command lines that rendering must give, argument for argument."""

from __future__ import annotations

import shlex

import pytest

from bringup.base.errors import InputError
from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.render import Request
from bringup.serving.recipes.servers import render_for

KT = """python -m sglang.launch_server --host 0.0.0.0 --port 30000 --model /path/to/GLM-5.1-FP8
 --kt-weight-path /path/to/GLM-5.1-FP8 --kt-cpuinfer 96 --kt-threadpool-count 2 --kt-num-gpu-experts 30
 --kt-method FP8 --kt-gpu-prefill-token-threshold 1024 --kt-enable-dynamic-expert-update
 --kt-expert-placement-strategy uniform --trust-remote-code --mem-fraction-static 0.75 --served-model-name GLM5.1
 --enable-mixed-chunk --tensor-parallel-size 8 --enable-p2p-check --disable-shared-experts-fusion
 --chunked-prefill-size 16384 --max-running-requests 4 --max-total-tokens 128000 --attention-backend flashinfer
 --fp8-gemm-backend cutlass --kv-cache-dtype bf16 --tool-call-parser glm47 --reasoning-parser glm45
 --watchdog-timeout 3000"""
HEAD = """vllm serve zai-org/GLM-5.1 --trust-remote-code --chat-template-content-format=string
 --tensor-parallel-size 16 --nnodes 2 --node-rank 0 --master-addr $HEAD_IP --tool-call-parser glm47
 --enable-auto-tool-choice --reasoning-parser glm47"""
WORKER = """vllm serve zai-org/GLM-5.1 --trust-remote-code --chat-template-content-format=string
 --tensor-parallel-size 16 --nnodes 2 --node-rank 1 --master-addr $HEAD_IP --headless --tool-call-parser glm47
 --enable-auto-tool-choice --reasoning-parser glm47"""
FP8 = """vllm serve zai-org/GLM-5.1-FP8 --tensor-parallel-size 8 --speculative-config.method mtp
 --speculative-config.num_speculative_tokens 3 --tool-call-parser glm47 --reasoning-parser glm47
 --enable-auto-tool-choice --chat-template-content-format=string --served-model-name glm-5.1-fp8"""
BOTH = ("tool_calling", "reasoning")


def rendered(recipe, request, engine="vllm", version="0.24.0"):
    library = load_library()
    return render_for(library, find_recipe(library, recipe), request, engine, version)


def test_sglang_with_kt_kernel_on_one_node():
    got = rendered("zai-org/GLM-5.1-FP8", Request("default", "single_node_tp", "h200", BOTH), "sglang-kt", "0.5.3")
    assert got.argv(0) == shlex.split(KT)
    assert got.env == {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "SGLANG_ENABLE_JIT_DEEPGEMM": "0"}


def test_vllm_on_two_nodes():
    got = rendered("zai-org/GLM-5.1", Request("default", "multi_node_tp", "h200", BOTH, 2))
    assert got.argv(0) == shlex.split(HEAD)
    assert got.argv(1) == shlex.split(WORKER)
    assert got.env == {"GLOO_SOCKET_IFNAME": "$IFACE_NAME", "NCCL_SOCKET_IFNAME": "$IFACE_NAME",
                       "VLLM_USE_RUST_FRONTEND": "1"}


def test_vllm_fp8_on_one_node_with_drafting():
    features = ("spec_decoding", *BOTH)
    got = rendered("zai-org/GLM-5.1-FP8", Request("default", "single_node_tp", "h200", features))
    assert got.argv(0) == shlex.split(FP8)


@pytest.mark.parametrize(("engine", "version", "parser"), [
    ("vllm", "0.23.0", "glm45"), ("vllm", "0.19.1", "glm45"), ("vllm", "0.24.0", "glm47"), ("vllm", "0.24.1", "glm47"),
    ("vllm", "1.0", "glm47"), ("sglang", "0.5.10.post1", "glm45"), ("sglang", "0.5.23", "glm45"),
    ("sglang-kt", "0.7.2", "glm45"),
])
def test_reasoning_parser_follows_engine_and_version(engine, version, parser):
    strategy = "single_node_tp"
    recipe = "zai-org/GLM-5.1-FP8"
    argv = rendered(recipe, Request("default", strategy, "h200", BOTH), engine, version).argv(0)
    assert argv[argv.index("--reasoning-parser") + 1] == parser
    assert argv[argv.index("--tool-call-parser") + 1] == "glm47"


def test_sglang_on_two_nodes_meets_at_the_head():
    got = rendered("zai-org/GLM-5.1", Request("default", "multi_node_tp", "h200", BOTH, 2), "sglang", "0.5.10.post1")
    tail = got.argv(1)[got.argv(1).index("--nnodes"):]
    assert tail[:6] == ["--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "$HEAD_IP:20000"]
    assert got.argv(0)[:7] == ["python", "-m", "sglang.launch_server", "--model-path", "/path/to/GLM-5.1", "--tp-size",
                               "16"]


def test_fp8_on_amd_has_the_aiter_backends():
    got = rendered("zai-org/GLM-5.1", Request("fp8", "single_node_tp", "mi300x", BOTH))
    words = " ".join(got.argv(0))
    assert "--linear-backend aiter --moe-backend aiter" in words
    assert got.env["VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS"] == "1"
    assert int(got.env["VLLM_ENGINE_READY_TIMEOUT_S"]) > 600


def test_an_engine_that_the_recipe_does_not_know_is_refused():
    with pytest.raises(InputError) as error:
        rendered("zai-org/GLM-5.1-FP8", Request("default", "single_node_tp", "h200", BOTH), "vllm-ascend", "0.23.0")
    assert "vllm-ascend" in str(error.value)
