"""The arithmetic of `invoke plan --options`, worked out by hand here; every option that fits makes a plan."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.serving.planner import make_plan
from bringup.serving.planning.choices import Option, as_lines, options_of
from bringup.serving.planning.variables import rendered

CACHE = 78 * 576 * 2  # bytes a token: 78 layers, 576 numbers of 2 bytes


def site(folder: Path, hosts: int, **deployment: object) -> Path:
    wanted = {"recipe": "zai-org/GLM-5.1", "environment": "e", "model_path": "/m", "hardware": "h200", **deployment}
    lines = ["all:", "  vars:", "    deployment:"]
    lines += [*(f"      {key}: {value}" for key, value in wanted.items()), "  hosts:"]
    lines += [f"    n{number}: {{ansible_host: 198.18.0.{number}}}" for number in range(1, hosts + 1)]
    (folder / "site.yml").write_text("\n".join(lines) + "\n")
    return folder / "site.yml"


def options(folder: Path, hosts: int, **deployment: object) -> list[Option]:
    inventory = load_inventory([str(site(folder, hosts, **deployment))], Project(folder))
    return options_of(inventory, rendered(inventory))


def pick(found: list[Option], engine: str, variant: str, strategy: str, nodes: int) -> Option:
    [one] = [o for o in found if (o.engine, o.variant, o.strategy, o.nodes) == (engine, variant, strategy, nodes)]
    return one


@pytest.mark.parametrize(("engine", "variant", "strategy", "nodes", "hardware", "weights", "share", "split", "times"), [
    # weights of a device, share of it that the engine takes, layers split over stages, ranks with a cache of their own
    ("vllm", "fp8", "single_node_tp", 1, "h200", 756 / 8, 0.9, 1, 1),
    ("sglang", "fp8", "single_node_tp", 1, "h200", 756 / 8, 0.85, 1, 1),
    ("vllm", "default", "multi_node_tp_pp", 2, "h200", 1490 / 16, 0.9, 2, 1),
    ("vllm", "fp8", "multi_node_dep", 2, "h200", 756 * 0.974 / 16 + 756 * 0.026, 0.9, 1, 16),
    ("vllm-ascend", "w8a8", "multi_node_tp_dp", 2, "ascend-a3", 756 * 0.974 / 32 + 756 * 0.026 / 16, 0.95, 1, 2),
    ("vllm-ascend", "w4a8", "single_node_tep", 1, "ascend-a2", 410 / 8, 0.95, 1, 1),
])
def test_weights_rest_and_tokens(tmp_path: Path, engine: str, variant: str, strategy: str, nodes: int, hardware: str,
                                 weights: float, share: float, split: int, times: int) -> None:
    found = options(tmp_path, 2, hardware=hardware, engine=engine)
    one = pick(found, engine, variant, strategy, nodes)
    device = {"h200": 1128 / 8, "ascend-a3": 64.0, "ascend-a2": 64.0}[hardware]
    working = 0 if engine == "sglang" else 6
    left = device * share - working - weights
    assert one.problem is None
    assert one.weights_gb == pytest.approx(weights, abs=0.06) and one.left_gb == pytest.approx(left, abs=0.06)
    assert one.kv_tokens == pytest.approx(left * 1e9 / (CACHE / split) * times, rel=1e-4)
    assert one.replicas == 2 // nodes and one.context == 202752


def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    found = options(tmp_path, 2)
    assert "has 1,128 GB" in str(pick(found, "vllm", "default", "single_node_tp", 1).problem)
    assert "129.4 GB of weights on each device" in str(pick(found, "vllm", "default", "multi_node_dep", 2).problem)
    assert pick(found, "sglang-kt", "default", "single_node_tp", 1).host_memory_gb == 1400
    assert pick(options(tmp_path, 2, context_length=50688), "vllm", "fp8", "single_node_tp", 1).context == 50688


@pytest.mark.parametrize(("hardware", "engine"), [("h200", "vllm"), ("h100", "vllm"), ("gb300", "vllm"),
                                                  ("mi355x", "sglang"), ("ascend-a3", "vllm-ascend")])
def test_every_option_that_fits_makes_a_plan(tmp_path: Path, hardware: str, engine: str) -> None:
    fitting = [option for option in options(tmp_path, 4, hardware=hardware, engine=engine) if option.problem is None]
    assert fitting
    for option in fitting:
        path = site(tmp_path, 4, hardware=hardware, engine=option.engine, variant=option.variant,
                    strategy=option.strategy, nodes=option.nodes)
        inventory = load_inventory([str(path)], Project(tmp_path))
        plan = make_plan(inventory, Project(tmp_path), rendered(inventory), lab=False, pools=True)
        assert len(plan.wholes) == option.replicas and plan.facts["kv_tokens"] == option.kv_tokens
        for part in plan.wholes["r1"]:
            ranks = [rank for process in part.processes for rank in process.ranks]
            assert ranks == list(range(part.world_size))


def test_nodes_are_the_fewest_whose_devices_divide_the_heads(tmp_path: Path) -> None:
    """BF16 on H100: 1,786 GB want three nodes of 640 GB, tensor parallel 24 divides no 64 heads, 32 does."""
    path = site(tmp_path, 4, hardware="h100", engine="sglang", strategy="multi_node_tp")
    inventory = load_inventory([str(path)], Project(tmp_path))
    plan = make_plan(inventory, Project(tmp_path), rendered(inventory), lab=False)
    assert plan.facts["nodes"] == 4 and plan.replicas[0].world_size == 32
    assert plan.facts["nodes_reason"] == ("the fewest nodes whose memory holds 1,786 GB and whose devices divide 64 "
                                          "heads")


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_table_keeps_to_the_width_and_shows_more_where_there_is_room(tmp_path: Path, width: int) -> None:
    lines = list(as_lines(options(tmp_path, 2), width))
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:2] == ["engine", "variant"] and "contexts" in lines[0]
    assert ("weights each" in lines[0]) == (width == 160)
    assert asdict(options(tmp_path, 2)[0])["problem"] is None


@pytest.mark.parametrize(("hardware", "engine", "precision", "nodes", "sizes"), [
    # what the makers of the engines say of GLM-5.1
    ("h200", "vllm", "fp8", 1, "TP 8"), ("h200", "vllm", "bf16", 2, "TP 16"),
    ("h200", "sglang", "fp8", 1, "TP 8"), ("h200", "sglang", "bf16", 2, "TP 16"),
    ("h100", "sglang", "fp8", 2, "TP 16"), ("h100", "sglang", "bf16", 4, "TP 32"),
    ("gb200", "vllm", "nvfp4", 1, "TP 4"), ("mi355x", "vllm", "mxfp4", 1, "TP 8"),
    ("ascend-a2", "vllm-ascend", "w4a8", 1, "TP 8"), ("ascend-a3", "vllm-ascend", "w4a8", 1, "TP 16"),
    ("ascend-a2", "vllm-ascend", "w8a8", 2, "TP 8 x DP 2"), ("ascend-a3", "vllm-ascend", "w8a8", 1, "TP 16"),
    ("ascend-a2", "vllm-ascend", "bf16", 4, "TP 8 x DP 4"), ("ascend-a3", "vllm-ascend", "bf16", 2, "TP 16 x DP 2"),
])
def test_the_fewest_nodes_are_those_that_the_makers_name(tmp_path: Path, hardware: str, engine: str, precision: str,
                                                         nodes: int, sizes: str) -> None:
    found = [option for option in options(tmp_path, 4, hardware=hardware, engine=engine)
             if (option.engine, option.precision, option.problem) == (engine, precision, None)]
    least = min(option.nodes for option in found)
    assert least == nodes and sizes in [option.sizes for option in found if option.nodes == least]


@pytest.mark.parametrize("width", [80, 160])
def test_the_page_says_which_weights_take_how_many_nodes(tmp_path: Path, width: int) -> None:
    lines = list(as_lines(options(tmp_path, 2), width))
    assert max(map(len, lines)) <= width and not any(line.endswith("...") for line in lines)
    text = " ".join(" ".join(lines).split())
    assert ("fp8 one node as single_node_tp (vllm): needs 893 of 1,128 GB; a device 90% of 141 - 94.5 weights - 6 the "
            "engine works in = 26.4 GB for 293,803 tokens in all") in text
    assert "bf16 2 nodes as multi_node_tp (vllm): needs 1,786 of 2,256 GB; a device 90% of 141 - 93.1 weights" in text
    alone = " ".join(" ".join(as_lines(options(tmp_path, 1), width)).split())
    assert "bf16 2 nodes" not in alone and "needs 1,786 GB, 1 node of 8 x H200 141 GB has 1,128 GB" in alone


def test_a_request_has_the_cache_of_one_data_parallel_rank(tmp_path: Path) -> None:
    path = site(tmp_path, 2, variant="fp8", strategy="multi_node_dep", nodes=2, context_length=1000000)
    inventory = load_inventory([str(path)], Project(tmp_path))
    plan = make_plan(inventory, Project(tmp_path), rendered(inventory), lab=False)
    assert plan.facts["kv_tokens"] == 16 * plan.facts["kv_tokens_of_rank"] > 1000000 > plan.facts["kv_tokens_of_rank"]
    assert any("of a data parallel rank holds about" in warning for warning in plan.warnings)
