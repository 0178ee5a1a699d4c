"""The command lines of vllm-ascend, SGLang and the baseline, word for word; every combination of GLM-5.1 renders."""

from __future__ import annotations

import itertools
import json
import lzma
import shlex
from pathlib import Path

import pytest

from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.render import Rendering, Request
from bringup.serving.recipes.rows import render_rows
from bringup.serving.recipes.servers import render_for

BASELINE = Path(__file__).parent / "baseline" / "deepseek-ai__DeepSeek-V3.1.json.xz"
BOTH = ("tool_calling", "reasoning")
ASCEND_ENV = {"HCCL_OP_EXPANSION_MODE": "AIV", "OMP_PROC_BIND": "false", "OMP_NUM_THREADS": "1",
              "HCCL_BUFFSIZE": "200", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
              "VLLM_ASCEND_BALANCE_SCHEDULING": "1"}
ASCEND_NODES = {"HCCL_IF_IP": "$NODE_IP", "HCCL_SOCKET_IFNAME": "$IFACE_NAME", "TP_SOCKET_IFNAME": "$IFACE_NAME",
                "GLOO_SOCKET_IFNAME": "$IFACE_NAME", "VLLM_RPC_TIMEOUT": "600"}
BASE = """vllm serve /path/to/GLM-5.1 --trust-remote-code --chat-template-content-format=string
 --tensor-parallel-size {tp} --enable-expert-parallel --max-num-seqs 8 --max-num-batched-tokens 4096
 --gpu-memory-utilization 0.95 --compilation-config '{{"cudagraph_mode": "FULL_DECODE_ONLY"}}'"""
SHARED = """ --additional-config '{"multistream_overlap_shared_expert": true}'"""
OVER_ROCE = """ --additional-config '{"multistream_overlap_shared_expert": true, "enable_mc2_hierarchy_comm": true}'"""
TAIL = " --tool-call-parser glm47 --enable-auto-tool-choice --reasoning-parser glm45"
TWO = (" --data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-address $HEAD_IP"
       " --data-parallel-rpc-port 12890")


def rendered(variant: str, strategy: str, hardware: str, nodes: int = 1, *, engine: str = "vllm-ascend",
             version: str = "0.23.0", recipe: str = "zai-org/GLM-5.1", features: tuple[str, ...] = BOTH) -> Rendering:
    library = load_library()
    return render_for(library, find_recipe(library, recipe),
                      Request(variant, strategy, hardware, features, nodes), engine, version)


@pytest.mark.parametrize(("variant", "hardware", "words"), [
    ("w4a8", "ascend-a3", BASE.format(tp=16) + SHARED + " --quantization ascend" + TAIL),
    ("w4a8", "ascend-a2", BASE.format(tp=8) + SHARED + " --quantization ascend --max-model-len 32768" + TAIL),
    ("w8a8", "ascend-a3", BASE.format(tp=16) + SHARED + " --quantization ascend --max-model-len 40960" + TAIL),
])
def test_vllm_ascend_on_one_node(variant: str, hardware: str, words: str) -> None:
    got = rendered(variant, "single_node_tep", hardware)
    assert got.argv(0) == shlex.split(words)
    assert got.env == {**ASCEND_ENV, **({"VLLM_ASCEND_ENABLE_MLAPO": "1"} if variant == "w8a8" else {})}


@pytest.mark.parametrize(("variant", "hardware", "tp", "config", "quantization"), [
    ("w8a8", "ascend-a3", 16, SHARED, " --quantization ascend"), ("default", "ascend-a3", 16, SHARED, ""),
    ("w4a8", "ascend-a2", 8, OVER_ROCE, " --quantization ascend"),
])
def test_vllm_ascend_on_two_nodes_is_data_parallel_over_them(variant: str, hardware: str, tp: int, config: str,
                                                             quantization: str) -> None:
    got = rendered(variant, "multi_node_tp_dp", hardware, 2)
    front, back = BASE.format(tp=tp), quantization + TAIL
    worker = " --headless --data-parallel-start-rank 1"
    if config == SHARED:
        head_words, worker_words = front + SHARED + TWO + back, front + SHARED + TWO + worker + back
    else:  # what a later layer says stands where it was said last
        head_words, worker_words = front + TWO + OVER_ROCE + back, front + TWO + worker + OVER_ROCE + back
    assert got.argv(0) == shlex.split(head_words)
    assert got.argv(1) == shlex.split(worker_words)
    assert got.env == {**ASCEND_ENV, **ASCEND_NODES,
                       **({"VLLM_ASCEND_ENABLE_MLAPO": "1"} if variant == "w8a8" else {})}
    assert (got.tp, got.pp, got.dp) == (tp, 1, 2)


def test_vllm_ascend_drafts_as_its_own_flag_wants() -> None:
    words = rendered("w8a8", "single_node_tep", "ascend-a3", features=("spec_decoding",)).argv(0)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "num_speculative_tokens": 3, "method": "deepseek_mtp", "enforce_eager": True}


SGLANG = {
    ("zai-org/GLM-5.1-FP8", "default", "h200", 1):
        "--model-path /path/to/GLM-5.1-FP8 --tp-size 8 --mem-fraction-static 0.85",
    ("zai-org/GLM-5.1-FP8", "default", "h100", 2):
        "--model-path /path/to/GLM-5.1-FP8 --tp-size 16 --mem-fraction-static 0.85 --nnodes 2 --node-rank 0 "
        "--dist-init-addr $HEAD_IP:20000",
    ("zai-org/GLM-5.1", "default", "h200", 2):
        "--model-path /path/to/GLM-5.1 --tp-size 16 --trust-remote-code --mem-fraction-static 0.85 --nnodes 2 "
        "--node-rank 0 --dist-init-addr $HEAD_IP:20000",
    ("zai-org/GLM-5.1-FP8", "default", "mi300x", 1):
        "--model-path /path/to/GLM-5.1-FP8 --tp-size 8 --mem-fraction-static 0.85 --nsa-prefill-backend tilelang "
        "--nsa-decode-backend tilelang",
    ("zai-org/GLM-5.1", "default", "mi355x", 2):
        "--model-path /path/to/GLM-5.1 --tp-size 16 --trust-remote-code --mem-fraction-static 0.85 --nnodes 2 "
        "--node-rank 0 --dist-init-addr $HEAD_IP:20000 --nsa-prefill-backend tilelang --nsa-decode-backend tilelang",
}


@pytest.mark.parametrize(("recipe", "variant", "hardware", "nodes"), list(SGLANG))
def test_sglang_on_nvidia_and_amd(recipe: str, variant: str, hardware: str, nodes: int) -> None:
    got = rendered(variant, "multi_node_tp" if nodes > 1 else "single_node_tp", hardware, nodes, engine="sglang",
                   version="0.5.10.post1", recipe=recipe)
    name = "glm-5.1-fp8" if recipe.endswith("FP8") else "glm-5.1"
    assert got.argv(0) == shlex.split(
        f"python -m sglang.launch_server {SGLANG[recipe, variant, hardware, nodes]} --tool-call-parser glm47 "
        f"--reasoning-parser glm45 --served-model-name {name}")
    assert got.env == ({"GLOO_SOCKET_IFNAME": "$IFACE_NAME", "NCCL_SOCKET_IFNAME": "$IFACE_NAME"} if nodes > 1 else {})


def test_sglang_drafting() -> None:
    got = rendered("default", "single_node_tp", "h200", engine="sglang", version="0.5.10.post1",
                   recipe="zai-org/GLM-5.1-FP8", features=("spec_decoding",))
    assert shlex.join(got.argv(0)).endswith(
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --served-model-name glm-5.1-fp8")
    assert got.env == {"SGLANG_ENABLE_SPEC_V2": "1"}


def test_the_baseline_renders_every_row_as_upstream_does() -> None:
    rows = json.loads(lzma.decompress(BASELINE.read_bytes()))
    asked = ("variant", "strategy", "hardware", "features", "nodes")
    lines = [json.dumps({"recipe": "deepseek-ai/DeepSeek-V3.1", **{key: row[key] for key in asked}}) for row in rows]
    got = list(render_rows(load_library(), lines, "rows"))
    assert len(got) == 312
    assert got == [{"recipe": "deepseek-ai/DeepSeek-V3.1", **row} for row in rows]


def test_every_strategy_variant_and_hardware_of_glm_5_1_renders() -> None:
    """What upstream's page offers for vLLM, each with the flags that must never be missing."""
    library = load_library()
    recipe = find_recipe(library, "zai-org/GLM-5.1")
    hardware = ("h100", "h200", "b200", "gb200", "b300", "gb300", "mi300x", "mi325x", "mi355x")
    strategies = ("single_node_tp", "single_node_tep", "multi_node_tp", "multi_node_tp_pp", "multi_node_tep",
                  "multi_node_dep", "pd_cluster")
    assert recipe.compatible_strategies == strategies and set(recipe.hardware) == set(hardware)
    seen = 0
    for variant, strategy, name in itertools.product(("default", "fp8", "nvfp4", "mxfp4"), strategies, hardware):
        got = rendered(variant, strategy, name, 4, engine="vllm", version="0.24.0")
        pools = [got.prefill, got.decode] if strategy == "pd_cluster" else []
        lines = [argument.words for pool in pools if pool for argument in pool.arguments] or [
            argument.words for argument in got.nodes[0]]
        words = [word for line in lines for word in line]
        assert "--chat-template-content-format=string" in words and "--enable-auto-tool-choice" in words
        assert words[words.index("--reasoning-parser") + 1] == "glm47"
        env = pools[0].env if pools and pools[0] else got.env
        assert env["VLLM_USE_RUST_FRONTEND"] == "1"
        if variant == "fp8" and name.startswith("mi"):
            assert "aiter" in words and env["VLLM_ROCM_USE_AITER"] == "1"
            assert env["VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS"] == "1"
            assert int(env["VLLM_ENGINE_READY_TIMEOUT_S"]) > 600
        if strategy == "multi_node_dep":
            assert "--headless" not in got.argv(1) and "--data-parallel-start-rank" in got.argv(1)
        elif strategy.startswith("multi_node"):
            assert "--headless" in got.argv(1) and "--headless" not in got.argv(0)
        seen += 1
    assert seen == 4 * 7 * 9
