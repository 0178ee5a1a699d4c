"""`pd_cluster`: two pools and the router before them, on one node or on two; what does not fit is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.releases.pooled import rivals, together, wholes_of
from bringup.releases.starting import Step
from bringup.serving.plan import LaunchPlan
from bringup.serving.plan_digest import launches, split, templates
from bringup.serving.planner import make_plan
from bringup.serving.planning.variables import rendered

ROOT = Path(__file__).parents[4]


def write(folder: Path, hosts: int = 1, **changes: object) -> Path:
    wanted = {"recipe": "zai-org/GLM-5.1", "hardware": "b300", "strategy": "pd_cluster", "variant": "fp8",
              "environment": "e", "model_path": "/m", **changes}
    (folder / "site.yml").write_text(json.dumps({"all": {"vars": {"deployment": wanted}, "hosts": {
        f"n{number}": {"ansible_host": f"198.18.0.{number}"} for number in range(1, hosts + 1)}}}))
    return folder / "site.yml"


def plan(folder: Path, hosts: int = 1, *, shown: bool = True, **changes: object) -> LaunchPlan:
    inventory = load_inventory([str(write(folder, hosts, **changes))], Project(folder))
    return make_plan(inventory, Project(folder), rendered(inventory), lab=False, pools=shown)


def test_both_pools_share_a_node(tmp_path: Path) -> None:
    made = plan(tmp_path, arguments=["--max-num-seqs", "32"], served_name="glm")
    assert [replica.name for replica in made.replicas] == ["r1-prefill", "r1-decode", "r1-router"]
    assert list(made.wholes) == ["r1"] and [replica.public for replica in made.replicas] == [False, False, True]
    prefill, decode, router = (replica.head for replica in made.replicas)
    assert (prefill.role, decode.role) == ("prefill", "decode") and {prefill.host, decode.host, router.host} == {"n1"}
    assert prefill.argv == [
        "vllm", "serve", "/m", "--trust-remote-code", "--chat-template-content-format=string", "--port", "8001",
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail"}',
        "--tensor-parallel-size", "4", "--tool-call-parser", "glm47", "--enable-auto-tool-choice",
        "--reasoning-parser", "glm47", "--served-model-name", "glm", "--host", "0.0.0.0", "--max-num-seqs", "32"]
    assert "kv_consumer" in decode.argv[8] and decode.argv[6] == "8002"
    assert prefill.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert decode.environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert prefill.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "198.18.0.1"
    assert prefill.ports == (8001, 5557) and decode.ports == (8002, 5558)
    assert prefill.ranks == decode.ranks == (0, 1, 2, 3)  # two engines, each counts its own
    assert router.argv == [
        "vllm-router", "--vllm-pd-disaggregation", "--policy", "round_robin", "--prefill", "http://198.18.0.1:8001",
        "--decode", "http://198.18.0.1:8002", "--host", "0.0.0.0", "--port", "8000"]
    assert router.ranks == () and router.ports == (8000, 29000)
    assert made.facts["weights_per_device_gb"] == 189.0 and made.facts["world_size"] == 8


def test_a_node_for_each_pool_takes_all_of_its_devices(tmp_path: Path) -> None:
    made = plan(tmp_path, 5, hardware="h200", arguments=["--max-num-seqs", "32"])
    assert list(made.wholes) == ["r1", "r2"] and made.spare == ("n5",)  # half a node would leave no room
    prefill, decode, router = (part.head for part in made.wholes["r2"])
    assert (prefill.host, decode.host, router.host) == ("n3", "n4", "n3")
    for process in (prefill, decode):
        argv = process.argv
        assert argv[argv.index("--tensor-parallel-size") + 1] == "8" and process.ranks == tuple(range(8))
        assert process.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert decode.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "198.18.0.4"
    assert router.argv[router.argv.index("--decode") + 1] == "http://198.18.0.4:8002"
    assert made.wholes["r2"][2].endpoint == "http://198.18.0.3:8000/v1"
    assert made.facts["weights_per_device_gb"] == 94.5


def test_every_replica_of_pools_is_one_shape_and_documents_of_a_node_share_their_values(tmp_path: Path) -> None:
    made = plan(tmp_path, 4, hardware="h200")
    hosts = {host: "/opt/bringup" for replica in made.replicas for host in replica.hosts}
    shapes = [[templates(part, hosts, dict.fromkeys(hosts, "/e"))[0] for part in parts]
              for parts in made.wholes.values()]
    assert shapes[0] == shapes[1]
    parts = made.wholes["r1"]
    values: dict[str, dict[str, str]] = {}
    for part in parts:
        values.setdefault(part.head.host, {}).update(split(part.head, "/opt/bringup", "/e")[1])
    common = {"world_size": 16, "served_name": "glm", "model_path": "/m"}
    documents = [launches(part, shape, values, "d" * 64, common)[part.head.host]
                 for part, shape in zip(parts, shapes[0], strict=True)]
    assert [document["name"] for document in documents] == ["r1-prefill-n1", "r1-decode-n2", "r1-router-n1"]
    assert [document["endpoint"] for document in documents] == [None, None, "http://198.18.0.1:8000/v1"]
    assert {document["group"] for document in documents} == {"r1"} and documents[0]["world_size"] == 8
    assert "http://198.18.0.2:8002" in documents[2]["argv"]


def test_weights_that_leave_a_pool_no_room(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"189\.0 GB of weights on each of its 4 devices of 141 GB") as caught:
        plan(tmp_path, hardware="h200", nodes=1)
    assert caught.value.next == "strategy: single_node_tp   (fp8, 893 of 1,128 GB on one node)"
    with pytest.raises(InputError, match="a replica takes 2 nodes and the inventory has 1 host"):
        plan(tmp_path, hardware="h200")
    with pytest.raises(InputError, match="leaves no room") as caught:
        plan(tmp_path, 2, hardware="h200", variant="default", nodes=2)
    assert caught.value.next == "variant: fp8   (fp8, 1,786 of 2,256 GB on 2 nodes)"
    with pytest.raises(InputError, match="3 nodes do not make two pools of the same size") as caught:
        plan(tmp_path, 3, nodes=3)
    assert "site.yml" in str(caught.value)
    assert caught.value.next == "nodes: 1   (fp8, 1,786 of 2,144 GB on one node)"
    with pytest.raises(InputError, match="32 nodes is more than recipes know"):
        plan(tmp_path, 3, nodes=32)


def test_pools_of_several_nodes_each(tmp_path: Path) -> None:
    """BF16 on H200: each pool holds 1,490 GB of weights, which are two nodes."""
    made = plan(tmp_path, 4, hardware="h200", variant="default", master_port=29700)
    assert made.facts["nodes"] == 4 and made.facts["weights_per_device_gb"] == 93.1
    assert made.facts["nodes_reason"].startswith("2 nodes for prefill and 2 for decode")
    prefill, decode, router = made.replicas
    assert (prefill.hosts, decode.hosts, router.hosts) == (("n1", "n2"), ("n3", "n4"), ("n1",))
    assert prefill.world_size == decode.world_size == 16
    first, second = decode.processes
    said = " ".join(first.argv)
    for words in ("--tensor-parallel-size 16", "--nnodes 2", "--node-rank 0", "--master-addr 198.18.0.3",
                  "--master-port 29700", "--port 8002"):
        assert words in said
    assert "--headless" in second.argv and "--port" not in second.argv and "--host" not in second.argv
    assert second.argv[second.argv.index("--node-rank") + 1] == "1" and second.ranks == tuple(range(8, 16))
    assert second.http_port is None and second.rendezvous == first.rendezvous == ("198.18.0.3", 29700)
    assert first.ports == (8002, 5558, 29700) and second.ports == (5558,)
    for process, address in ((first, "198.18.0.3"), (second, "198.18.0.4")):
        assert process.role == "decode" and process.environment["VLLM_HOST_IP"] == address
        assert process.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == address
        assert process.environment["NCCL_SOCKET_IFNAME"] == "$IFACE_NAME"
        assert process.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    urls = [router.head.argv[router.head.argv.index(flag) + 1] for flag in ("--prefill", "--decode")]
    assert urls == ["http://198.18.0.1:8001", "http://198.18.0.3:8002"]
    more = plan(tmp_path, 16, hardware="h200", variant="default", nodes=8)
    assert list(more.wholes) == ["r1", "r2"] and more.wholes["r2"][1].hosts == ("n13", "n14", "n15", "n16")
    with pytest.raises(InputError, match="tensor parallel 48 of the prefill pool does not divide the 64") as caught:
        plan(tmp_path, 12, hardware="h200", variant="default", nodes=12)
    assert str(caught.value.next).startswith("nodes: 4 ")


def test_a_recipe_may_say_how_many_nodes_a_pool_has(tmp_path: Path) -> None:
    pool = "{parallelism: dep, nodes: {default: 2, gb300: 1}}"
    shelf_with(tmp_path, f"strategy_overrides: {{pd_cluster: {{prefill: {pool}, decode: {pool}}}}}")
    wanted = {"recipes": "shelf", "hardware": "h200"}
    assert plan(tmp_path, 4, **{**wanted, "hardware": "gb300", "variant": "nvfp4"}).facts["nodes"] == 2
    made = plan(tmp_path, 4, **wanted)
    assert made.facts["nodes_reason"].startswith("the recipe's 2 nodes for prefill and 2 for decode")
    first, second = made.replicas[0].processes
    for process, start in ((first, "0"), (second, "8")):
        argv = process.argv
        assert argv[argv.index("--data-parallel-size") + 1] == "16"
        assert argv[argv.index("--data-parallel-size-local") + 1] == "8"
        assert argv[argv.index("--data-parallel-start-rank") + 1] == start
        assert argv[argv.index("--data-parallel-address") + 1] == "198.18.0.1"
    assert first.ports == (8001, *range(5557, 5565), 13345) and second.ports == tuple(range(5565, 5573))
    assert "--headless" in second.argv and second.ranks == tuple(range(8, 16)) and second.rendezvous == (
        "198.18.0.1", 13345)


def shelf_with(folder: Path, own: str) -> None:
    """A folder of recipes in which GLM-5.1 has these changes of strategies."""
    shelf, data = folder / "shelf", ROOT / "bringup/serving/recipes/data"
    (shelf / "models/zai-org").mkdir(parents=True)
    for name in ("strategies", "taxonomy.yaml"):
        (shelf / name).symlink_to(data / name)
    text = (data / "models/zai-org/GLM-5.1.yaml").read_text()
    assert "strategy_overrides: {}" in text
    (shelf / "models/zai-org/GLM-5.1.yaml").write_text(text.replace("strategy_overrides: {}", own))


def test_data_parallel_pools_want_a_node_each(tmp_path: Path) -> None:
    shelf_with(tmp_path, "strategy_overrides: {pd_cluster: {prefill: {parallelism: dep}, decode: {parallelism: dep}}}")
    with pytest.raises(InputError, match="the prefill pool has 8 ranks and 4 devices of 1 node") as caught:
        plan(tmp_path, 2, recipes="shelf", nodes=1)
    assert str(caught.value.next).startswith("nodes: 2")
    prefill, decode, _ = (replica.head for replica in plan(tmp_path, 2, recipes="shelf").replicas)
    assert prefill.ports == (8001, *range(5557, 5565), 13345) and decode.ports[-1] == 13346
    assert prefill.argv[prefill.argv.index("--data-parallel-address") + 1] == "198.18.0.1"


def test_a_router_that_the_environment_does_not_bring_is_shown_and_refused(tmp_path: Path) -> None:
    shown = plan(tmp_path)
    assert any("provision refuses this" in warning and "vllm-router" in warning for warning in shown.warnings)
    with pytest.raises(InputError, match="the environment e brings no vllm-router") as caught:
        plan(tmp_path, shown=False)
    assert "envs/e/requirements.in" in str(caught.value.next)
    (tmp_path / "envs/e/locks").mkdir(parents=True)
    (tmp_path / "envs/e/locks/linux-x86_64.txt").write_text("vllm==0.24.0\nvllm-router==0.1.14\n")
    assert not [warning for warning in plan(tmp_path, shown=False).warnings if "router" in warning]
    made = plan(tmp_path, shown=False, environment="e", port=9000, router={
        "program": "/opt/proxy/run", "arguments": ["--policy", "cache_aware", "--log-level", "debug"]})
    router = made.replicas[2].head
    assert router.argv[:4] == ["/opt/proxy/run", "--vllm-pd-disaggregation", "--policy", "cache_aware"]
    assert router.argv[-2:] == ["--log-level", "debug"] and router.ports == (9000,)
    for wrong, told in (({"policy": "x"}, "`router` knows no key `policy`"), ("x", "takes a mapping"),
                        ({"arguments": ["--port", "1"]}, "`--port` of the router is worked out"),
                        ({"arguments": "--x"}, "takes a list")):
        with pytest.raises(InputError, match=told):
            plan(tmp_path, router=wrong)


def test_containers_share_the_host_and_a_router_gets_no_device(tmp_path: Path) -> None:
    made = plan(tmp_path, environment=None, manager="docker", image="r.example/glm:0.24.0", shown=False)
    assert made.container is not None and made.container["nodes"] == 2  # the host's network and IPC
    values = {"root": "/opt/bringup", "env": "", "image": "glm@sha256:1", "client": ""}
    boxes = []
    for part in made.replicas:
        shape, own = split(part.head, "/opt/bringup", "")
        document = launches(part, [shape], {"n1": {**values, **own}}, "d" * 64, {
            "model_path": "/m", "container": dict(made.container)})["n1"]
        boxes.append(document["container"])
    # each container sees all devices and its variable chooses: counted anew from 0 they would be others
    assert [box["devices"] for box in boxes] == [list(range(8)), list(range(8)), []]
    assert [box["brand"] for box in boxes] == ["NVIDIA", "NVIDIA", ""]


def test_parts_are_replaced_together() -> None:
    parts = {name: {"n1": {"group": "r1", "role": name.partition("-")[2]}}
             for name in ("r1-prefill", "r1-decode", "r1-router")}
    every = {**parts, "r2": {"n2": {"role": "head"}}}
    steps = [Step("r2", "keep", "serves it"), Step("r1-decode", "replace", "a rank of it is gone"),
             Step("r1-prefill", "keep", "serves it"), Step("r1-router", "keep", "serves it")]
    done = together(steps, every)
    assert [[step.replica for step in whole] for whole in wholes_of(done, every)] == [
        ["r2"], ["r1-prefill", "r1-decode", "r1-router"]]
    assert {step.replica: step.what for step in done} == {
        "r2": "keep", "r1-prefill": "replace", "r1-decode": "replace", "r1-router": "replace"}
    assert rivals(every, "r1-router") == ["r2"] and rivals(every, "r2") == ["r1-router"]
    assert together(steps[:1] + steps[2:], every) == steps[:1] + steps[2:]


def test_it_is_shown(tmp_path: Path) -> None:
    path = str(write(tmp_path, environment="glm51-vllm"))
    for columns in (80, 100):
        done = subprocess.run([sys.executable, "-m", "invoke", "plan", "--inventory", path], cwd=ROOT, text=True,
                              env={**os.environ, "COLUMNS": str(columns)}, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "prefill and decode side by side" in done.stdout and "vllm-router" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= columns
    done = subprocess.run([sys.executable, "-m", "invoke", "provision", "--inventory", path], cwd=ROOT, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 2 and "brings no vllm-router" in said and "nothing was contacted" in said


def test_pools_of_different_sizes_are_the_recipes(tmp_path: Path) -> None:
    pools = "{prefill: {parallelism: dep, nodes: 1}, decode: {parallelism: dep, nodes: 2}}"
    shelf_with(tmp_path, f"strategy_overrides: {{pd_cluster: {pools}}}")
    made = plan(tmp_path, 3, recipes="shelf", hardware="h200")
    assert made.facts["nodes_reason"].startswith("the recipe's 1 node for prefill and 2 for decode")
    prefill, decode, router = made.replicas
    assert (prefill.hosts, decode.hosts, router.hosts) == (("n1",), ("n2", "n3"), ("n1",))
    assert (prefill.world_size, decode.world_size) == (8, 16)
    assert "--data-parallel-size-local" in prefill.head.argv and prefill.head.rendezvous is None
    with pytest.raises(InputError, match="5 nodes do not make two pools of the same size") as caught:
        plan(tmp_path, 5, recipes="shelf", hardware="h200", nodes=5)
    assert "or 3, the recipe's 1 for prefill and 2 for decode" in str(caught.value.expected)
    with pytest.raises(InputError, match="leaves no room for the KV cache") as caught:
        plan(tmp_path, 3, recipes="shelf", hardware="h200", variant="default", nodes=3)
    assert caught.value.next
