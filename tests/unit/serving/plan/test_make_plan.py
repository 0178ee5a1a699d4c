"""From an inventory to a launch plan: replicas, sizes, memory, addresses, ports, layers; and what is refused."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.serving.planner import api_key_of, make_plan
from bringup.serving.planning.site import HostFacts
from bringup.serving.planning.variables import rendered

BASE = {"recipe": "zai-org/GLM-5.1", "engine": "vllm", "hardware": "h200", "strategy": "multi_node_tp",
        "environment": "glm51-vllm", "manager": "systemd", "model_path": "/models/GLM-5.1"}


@pytest.fixture
def site(tmp_path):
    """A project folder; `site(hosts, **deployment)` gives the plan of an inventory there."""

    def make(heads=1, workers=1, *, more="", lab=False, facts=None, **changes):
        deployment = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
        lines = ["all:", "  vars:", "    deployment:"]
        lines += [f"      {key}: {value}" for key, value in deployment.items()]
        lines += ["  children:"]
        number = 0
        for group, count in (("head", heads), ("workers", workers)):
            lines += [f"    {group}:", "      hosts:"]
            for _ in range(count):
                number += 1
                lines.append(f"        gpu{number:02d}: {{ansible_host: 198.18.0.{number}}}")
            if not count:
                lines[-1] += " {}"
        (tmp_path / "site.yml").write_text("\n".join(lines) + "\n" + textwrap.dedent(more))
        inventory = load_inventory([str(tmp_path / "site.yml")], Project(tmp_path))
        return make_plan(inventory, Project(tmp_path), rendered(inventory), lab=lab, facts=facts)

    make.folder = tmp_path
    return make


def flag(process, name):
    return next(a for a in process.arguments if a.words[0].split("=")[0] == name)


def test_two_nodes_of_h200(site):
    plan = site()
    [replica] = plan.replicas
    assert replica.hosts == ("gpu01", "gpu02") and replica.world_size == 16
    assert replica.endpoint == "http://198.18.0.1:8000/v1"
    head, worker = replica.processes
    assert head.ranks == tuple(range(8)) and worker.ranks == tuple(range(8, 16))
    assert head.ports == (8000, 29501) and worker.ports == () and worker.http_port is None
    assert head.rendezvous == worker.rendezvous == ("198.18.0.1", 29501)
    assert head.argv[:3] == ["vllm", "serve", "/models/GLM-5.1"]
    assert "--headless" in worker.argv and "--host" not in worker.argv
    assert plan.served_name == "zai-org/GLM-5.1"


def test_the_recipes_layer_is_untouched_by_the_sites(site):
    head = site(port=9000, arguments="[--max-num-seqs, '64']").replicas[0].head
    recipe = [word for argument in head.arguments if argument.layer == "recipe" for word in argument.words]
    assert " ".join(recipe) == (
        "--trust-remote-code --chat-template-content-format=string --tensor-parallel-size 16 --nnodes 2 "
        "--node-rank 0 --master-addr 198.18.0.1 --tool-call-parser glm47 --enable-auto-tool-choice "
        "--reasoning-parser glm47")
    own = {argument.words[0]: (argument.words[1:], argument.reason) for argument in head.arguments
           if argument.layer == "site"}
    assert own["--port"] == (("9000",), "port in the inventory")
    assert own["--max-num-seqs"] == (("64",), "arguments in the inventory")
    assert all(argument.reason for argument in head.arguments)


def test_a_sites_word_replaces_the_recipes_in_its_place(site):
    head = site(arguments="[--tool-call-parser, glm45]").replicas[0].head
    assert head.argv.count("--tool-call-parser") == 1
    assert flag(head, "--tool-call-parser").layer == "site"
    assert head.argv[head.argv.index("--tool-call-parser") + 1] == "glm45"


def test_environment_with_layers(site):
    env = site(env="{NCCL_DEBUG: INFO}").replicas[0].processes[1].env
    assert env["VLLM_USE_RUST_FRONTEND"] == ("1", "recipe")
    assert env["NCCL_DEBUG"] == ("INFO", "site")
    assert env["VLLM_HOST_IP"] == ("198.18.0.2", "site")
    assert env["NCCL_SOCKET_IFNAME"] == ("$IFACE_NAME", "recipe")


def test_what_was_found_on_hosts_is_used(site):
    plan = site(facts={"gpu01": HostFacts("10.9.0.1", "bond0"), "gpu02": HostFacts("10.9.0.2", "bond1")})
    head, worker = plan.replicas[0].processes
    assert head.rendezvous == ("10.9.0.1", 29501)
    assert worker.environment["GLOO_SOCKET_IFNAME"] == "bond1"
    assert plan.facts["address_reasons"]["gpu02"] == "address on the route between the nodes"


def test_cluster_address_and_interface_win(site):
    more = """
        fabric: {hosts: {gpu01: {cluster_address: 10.8.0.1, cluster_interface: ib0}}}
    """
    plan = site(more=more, facts={"gpu01": HostFacts("10.9.0.1", "bond0")})
    assert plan.replicas[0].head.rendezvous == ("10.8.0.1", 29501)
    assert plan.replicas[0].head.environment["NCCL_SOCKET_IFNAME"] == "ib0"


def test_replicas_are_cut_in_inventory_order_and_the_rest_is_spare(site):
    plan = site(1, 4)
    assert [replica.hosts for replica in plan.replicas] == [("gpu01", "gpu02"), ("gpu03", "gpu04")]
    assert plan.spare == ("gpu05",)


def test_several_heads_lead_a_replica_each(site):
    plan = site(2, 3)
    assert [replica.hosts for replica in plan.replicas] == [("gpu01", "gpu03"), ("gpu02", "gpu04")]
    assert plan.spare == ("gpu05",)


def test_named_replicas(site):
    plan = site(2, 2, replicas="{a: [gpu02, gpu01], b: [gpu04, gpu03]}")
    assert {replica.name: replica.hosts for replica in plan.replicas} == {"a": ("gpu02", "gpu01"),
                                                                         "b": ("gpu04", "gpu03")}


@pytest.mark.parametrize(("replicas", "words"), [
    ("{a: [gpu01, gpu09]}", "`gpu09`, which is no host of the inventory"),
    ("{a: [gpu01, gpu02], b: [gpu02, gpu03]}", "`gpu02` stands in replica `a` and in `b`"),
    ("{a: [gpu01, gpu02], b: [gpu03]}", "the replica `b` has 1 host, the plan needs 2"),
    ("[gpu01]", "`replicas` takes a mapping"),
    ("{a: gpu01}", "takes a list of hosts"),
])
def test_wrong_replicas(site, replicas, words):
    with pytest.raises(InputError) as error:
        site(2, 2, replicas=replicas)
    assert words in str(error.value) and "site.yml:" in str(error.value)


def test_tensor_parallel_24_is_refused_with_the_nearest_that_fits(site):
    with pytest.raises(InputError) as error:
        site(1, 2, nodes=3)
    text = str(error.value)
    assert "tensor parallel 24 does not divide the 64 attention heads" in text
    assert "strategy: multi_node_tp_pp   (bf16, tensor parallel 8 x pipeline 3, 1,786 of 3,384 GB on 3 nodes)" in text


def test_eight_by_three_fits(site):
    plan = site(1, 2, strategy="multi_node_tp_pp", tensor_parallel=8, pipeline_parallel=3)
    assert plan.replicas[0].world_size == 24 and plan.facts["nodes"] == 3
    assert plan.replicas[0].processes[2].ranks == tuple(range(16, 24))


def test_sizes_that_the_strategy_does_not_make(site):
    with pytest.raises(InputError) as error:
        site(1, 2, strategy="multi_node_tp_pp", tensor_parallel=4, pipeline_parallel=6)
    assert "makes tensor parallel 8 x pipeline 3" in str(error.value)
    assert "next      tensor_parallel: 8, pipeline_parallel: 3   (bf16" in str(error.value)


def test_memory_that_is_not_there(site):
    with pytest.raises(InputError) as error:
        site(1, 0, strategy="single_node_tp")
    text = str(error.value)
    assert "needs 1,786 GB, 1 node of 8 x H200 141 GB has 1,128 GB" in text
    assert "variant: fp8   (fp8, 893 of 1,128 GB on one node)" in text
    assert "as bf16   engine: sglang-kt   (bf16, 210 of 1,128 GB on one node)" in text
    # with a second host the same weights fit the same engine
    with pytest.raises(InputError) as error:
        site(1, 1, strategy="single_node_tp")
    assert "as bf16   strategy: multi_node_tp   (bf16, tensor parallel 16, 1,786 of 2,256 GB on 2 nodes)" in str(
        error.value)


def test_weights_that_leave_no_room(site):
    with pytest.raises(InputError) as error:
        site(1, 2, strategy="multi_node_dep", nodes=2)
    assert "leaves no room for the KV cache" in str(error.value) and "strategy: multi_node_tp " in str(error.value)
    plan = site(1, 2, strategy="multi_node_dep", nodes=3)
    # 1,490 GB: 97.4 % in routed experts shared out over 24 devices, the rest on each
    assert plan.facts["weights_per_device_gb"] == pytest.approx(1490 * 0.974 / 24 + 1490 * 0.026, abs=0.1)


def test_fp8_on_one_node(site):
    plan = site(1, 0, strategy="single_node_tp", variant="fp8")
    assert plan.replicas[0].world_size == 8 and plan.replicas[0].head.rendezvous is None
    assert plan.facts["weights_per_device_gb"] == 94.5
    # about 26 GB a device are left for the cache, as was seen with a model of this size
    assert plan.facts["left_per_device_gb"] == pytest.approx(0.9 * 141 - 94.5 - 6, abs=0.1)
    more = site(1, 0, strategy="single_node_tp", variant="fp8", arguments="[--gpu-memory-utilization, '0.95']")
    assert more.facts["left_per_device_gb"] == pytest.approx(0.95 * 141 - 94.5 - 6, abs=0.1)


def test_too_few_hosts(site):
    with pytest.raises(InputError, match="a replica takes 2 nodes and the inventory has 1 host") as error:
        site(1, 0)
    assert error.value.next == "variant: fp8, strategy: single_node_tp   (fp8, 893 of 1,128 GB on one node)"


def test_a_variant_is_also_named_by_its_precision(site):
    plan = site(1, 0, recipe="zai-org/GLM-5.1-FP8", strategy="single_node_tp", variant="fp8")
    assert plan.variant == "default" and plan.served_name == "glm-5.1-fp8"


@pytest.mark.parametrize(("changes", "words"), [
    ({"stratgy": "multi_node_tp"}, "nearest: strategy"),
    ({"strategy": "multi_node_pt"}, "strategy: multi_node_tp"),
    ({"strategy": "pd_cluster"}, "variant: fp8   (fp8, 1,786 of 2,256 GB on 2 nodes)"),
    ({"hardware": "h20"}, "hardware: h200"),
    ({"hardware": "ascend-a2", "variant": "nvfp4"}, "engine: vllm-ascend, variant: w4a8, strategy: multi_node_tp_dp"),
    ({"variant": "nvfp4"}, "next      variant: fp8   ("),
    ({"variant": "fp7"}, "variant: fp8"),
    ({"engine": "vlm"}, "engine: vllm"),
    ({"engine": "vllm-ascend"}, "next      engine: vllm   (bf16"),
    ({"engine": "vllm-ascend", "strategy": "multi_node_tp_dp"}, "engine: vllm, strategy: multi_node_tp "),
    ({"hardware": "ascend-a3"}, "engine: vllm-ascend, strategy: multi_node_tp_dp   (bf16"),
    ({"variant": "w8a8"}, "the variant w8a8 is for vllm-ascend"),
    ({"variant": "w8a8"}, "next      variant: fp8   (fp8"),
    ({"engine": "sglang-kt"}, "next      strategy: single_node_tp   (bf16, 210 of 1,128 GB on one node)"),
    ({"recipe": "zai-org/GLM-51"}, "recipe: zai-org/GLM-5.1"),
    ({"recipe": "glm-5.1"}, "recipe: zai-org/GLM-5.1"),
    ({"manager": "docker"}, "the manager docker needs an `image`"),
    ({"manager": "systemctl"}, "no manager is called `systemctl`"),
    ({"features": "[tool_call]"}, "nearest: tool_calling"),
    ({"features": "tool_calling"}, "features: [tool_calling]"),
    ({"nodes": "two"}, "`nodes` takes a whole number"),
    ({"nodes": 17}, "16 at most"),
    ({"nodes": 17}, "next      nodes: 2   (bf16, tensor parallel 16"),
    ({"port": 70000}, "`port` takes a port"),
    ({"model_path": None}, "`deployment` lacks `model_path`"),
    ({"engine_version": "0.23.0"}, "needs vllm 0.24.0 or newer"),
    ({"variant": "mxfp4", "hardware": "mi355x", "features": "[spec_decoding]"}, "goes without spec_decoding"),
    ({"arguments": "[--reasoning-parser, glm46]"}, "knows no reasoning parser `glm46`"),
])
def test_wrong_deployments_are_told_with_their_line(site, changes, words):
    with pytest.raises(InputError) as error:
        site(**changes)
    assert words in str(error.value)
    assert "site.yml:" in str(error.value) or "arguments" in changes


def test_an_inventory_without_a_deployment(tmp_path):
    (tmp_path / "site.yml").write_text("all: {hosts: {gpu01: {}}}\n")
    inventory = load_inventory([str(tmp_path / "site.yml")], Project(tmp_path))
    with pytest.raises(InputError, match="holds no `deployment:`"):
        make_plan(inventory, Project(tmp_path), rendered(inventory), lab=False)


def test_hosts_with_different_deployments_are_refused(site):
    more = """
        odd: {hosts: {gpu02: {deployment: {recipe: zai-org/GLM-5.1-FP8, environment: e, model_path: /m}}}}
    """
    with pytest.raises(InputError, match="gpu01 and gpu02 have different `deployment:` values"):
        site(more=more)


def test_a_model_folder_may_differ_between_hosts(site):
    plan = site(model_path='"/models/{{ inventory_hostname }}/GLM-5.1"')
    assert [process.argv[2] for process in plan.replicas[0].processes] == ["/models/gpu01/GLM-5.1",
                                                                            "/models/gpu02/GLM-5.1"]


def test_places_survive_templating(site):
    with pytest.raises(InputError, match=r"site\.yml:7:\d+ +no strategy is called"):
        site(model_path='"/models/{{ inventory_hostname }}"', strategy="multi_node_pt")


def test_the_environments_lock_gives_the_version(site):
    folder = site.folder / "envs" / "glm51-vllm" / "locks"
    folder.mkdir(parents=True)
    (folder / "linux.txt").write_text("torch==2.11.0\nvllm==0.24.1 \\\n    --hash=sha256:00\n")
    (folder.parent / "requirements.in").write_text("vllm==0.24.0\n")
    plan = site()
    assert plan.engine_version == "0.24.1" and plan.facts["version_reason"] == "lock of glm51-vllm"


def test_an_environment_that_is_not_there(site):
    (site.folder / "envs" / "glm51-vllm").mkdir(parents=True)
    with pytest.raises(InputError) as error:
        site(environment="glm51-vlm")
    assert "no environment is called `glm51-vlm`" in str(error.value) and "glm51-vllm" in str(error.value)
    assert "site.yml:" in str(error.value)


def test_expert_parallel_over_nodes_serves_on_every_node(site):
    plan = site(strategy="multi_node_dep", variant="fp8")
    head, worker = plan.replicas[0].processes
    assert worker.http_port == 8000 and "--headless" not in worker.argv
    assert worker.argv[worker.argv.index("--data-parallel-start-rank") + 1] == "8"
    assert head.argv[head.argv.index("--data-parallel-rpc-port") + 1] == str(head.rendezvous[1])
    assert plan.replicas[0].world_size == 16


def test_sglang_on_two_nodes(site):
    plan = site(engine="sglang", master_port=21000)
    head, worker = plan.replicas[0].processes
    assert worker.argv[worker.argv.index("--dist-init-addr") + 1] == "198.18.0.1:21000"
    assert head.ports[:2] == (30000, 21000) and worker.ports == (30000,)
    assert head.argv[head.argv.index("--reasoning-parser") + 1] == "glm45"
    assert plan.facts["reasoning_field"] == "reasoning_content"


def test_kt_kernel_takes_the_hosts_cores(site):
    words = {"recipe": "zai-org/GLM-5.1-FP8", "engine": "sglang-kt", "strategy": "single_node_tp"}
    head = site(1, 0, **words).replicas[0].head
    assert head.argv[head.argv.index("--kt-cpuinfer") + 1] == "96"
    plan = site(1, 0, facts={"gpu01": HostFacts(physical_cores=128, numa_nodes=4)}, **words)
    head = plan.replicas[0].head
    assert flag(head, "--kt-cpuinfer").words[1] == "128" and flag(head, "--kt-threadpool-count").words[1] == "4"
    assert flag(head, "--kt-cpuinfer").layer == "site"
    assert any("700 GB of host memory" in warning for warning in plan.warnings)


def test_the_lab_serves_on_its_own_addresses(site):
    plan = site(1, 2, lab=True, strategy="multi_node_tp_pp", nodes=3, manager="detached")
    head = plan.replicas[0].head
    assert head.argv[head.argv.index("--host") + 1] == "198.18.0.1"
    assert head.environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert any("replayed" in warning for warning in plan.warnings)


def test_a_key_never_stands_in_the_plan(tmp_path, site):
    plan = site(api_key="open-sesame-7")
    assert plan.api_key_variable == "VLLM_API_KEY"
    assert "open-sesame-7" not in repr(plan)
    inventory = load_inventory([str(tmp_path / "site.yml")], Project(tmp_path))
    assert api_key_of(inventory, rendered(inventory)).reveal() == "open-sesame-7"
    sglang = site(1, 0, engine="sglang", variant="fp8", strategy="single_node_tp", api_key="open-sesame-7")
    assert sglang.api_key_variable is None
    assert any("argument only" in warning for warning in sglang.warnings)
    assert flag(sglang.replicas[0].head, "--api-key").words == ("--api-key", "$API_KEY")


def test_a_folder_of_recipes_of_the_site(site):
    shelf = Path(__file__).parents[1] / "recipes" / "upstream"
    (site.folder / "shelf").symlink_to(shelf)
    plan = site(1, 0, recipes="shelf", recipe="deepseek-ai/DeepSeek-V4-Flash", strategy="single_node_dep",
                features="[reasoning]", engine_version="0.25.0")
    # the recipe's own words make it four ranks, whatever the strategy would
    assert plan.replicas[0].world_size == 4 and plan.replicas[0].head.ranks == (0, 1, 2, 3)
    with pytest.raises(InputError, match=r"two pools of zai-org/GLM-5\.1 bf16 need 3,572 GB, 2 nodes .* 2,256 GB"):
        site(recipes="shelf", recipe="zai-org/GLM-5.1", strategy="pd_cluster", nodes=2)


def test_a_recipe_file_of_the_site(site):
    source = Path(__file__).parents[1] / "recipes" / "upstream" / "models" / "zai-org" / "GLM-5.1.yaml"
    (site.folder / "glm.yaml").write_text(source.read_text().replace("0.19.1", "0.20.0"))
    plan = site(recipe="glm.yaml", engine_version="0.20.0")
    assert "glm45" in plan.replicas[0].head.argv
    with pytest.raises(InputError, match="there is no recipe file"):
        site(recipe="none.yaml")


def test_sizes_of_the_site_that_do_not_spread(site):
    with pytest.raises(InputError, match="5 ranks cannot be spread evenly over 2 nodes"):
        site(arguments="[--tensor-parallel-size, '5']")
