"""Per-host values left as names, and filled in again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bringup.base.errors import StepError
from bringup.serving.plan import Argument, ProcessPlan, ReplicaPlan
from bringup.serving.plan_digest import ProcessTemplate, fill, launches, split, templates


def process(host: str, address: str, rank: int = 0, root: str = "/opt/bringup") -> ProcessPlan:
    return ProcessPlan(
        host, "head" if rank == 0 else "worker", rank, (rank,), ("vllm", "serve", f"{root}/models/GLM"),
        (Argument(("--tensor-parallel-size", "2")), Argument(("--master-addr", "198.18.0.11"), "site"),
         Argument(("--host", "0.0.0.0")), Argument((f"--node-rank={rank}",))),
        {"GLOO_SOCKET_IFNAME": ("eth" + address[-1], "site"), "VLLM_HOST_IP": (address, "site"),
         "VLLM_USE_RUST_FRONTEND": ("1", "recipe"), "CACHE": (f"{root}/cache/x", "site")},
        8000 if rank == 0 else None, (8000, 29501) if rank == 0 else (), ("198.18.0.11", 29501))


def test_the_template_is_the_same_on_hosts_that_differ_in_values_only() -> None:
    one, first = split(process("a", "198.18.0.11"), "/opt/bringup", "/opt/bringup/envs/e1")
    two, second = split(process("b", "198.18.0.12", root="/srv/b"), "/srv/b", "/srv/b/envs/e1")
    assert one == two
    assert first != second
    assert one.argv[:3] == ("@{env}/bin/vllm", "serve", "@{root}/models/GLM")
    assert one.env["CACHE"] == "@{root}/cache/x"
    assert one.env["VLLM_USE_RUST_FRONTEND"] == "1"
    assert "0.0.0.0" in one.argv, "an address that means everywhere is no value of a host"


def test_filled_in_it_is_what_the_plan_said() -> None:
    plan = process("b", "198.18.0.12", root="/srv/b")
    template, values = split(plan, "/srv/b", "/srv/b/envs/e1")
    argv, env = fill(template, values, "b")
    assert argv == ["/srv/b/envs/e1/bin/vllm", *plan.argv[1:]]
    assert env == plan.environment


def test_a_folder_that_only_begins_like_the_root_is_left_alone() -> None:
    plan = replace(process("a", "198.18.0.11"), command=("vllm", "serve", "/opt/bringup-models/GLM"))
    template, _ = split(plan, "/opt/bringup", "/opt/bringup/envs/e1")
    assert template.argv[2] == "/opt/bringup-models/GLM"


def test_a_value_that_is_not_known_is_an_error_with_its_name() -> None:
    template, values = split(process("a", "198.18.0.11"), "/opt/bringup", "/e")
    del values["VLLM_HOST_IP"]
    with pytest.raises(StepError, match="VLLM_HOST_IP"):
        fill(template, values, "a")


def test_a_template_survives_json() -> None:
    template, _ = split(process("a", "198.18.0.11"), "/opt/bringup", "/e")
    assert ProcessTemplate.read(template.document()) == template


def test_launches_carry_the_release_s_own_port_and_each_host_s_values() -> None:
    replica = ReplicaPlan("r1", (process("a", "198.18.0.11"), process("b", "198.18.0.12", 1)), 2,
                          "http://198.18.0.11:9999/v1")
    shapes, values = templates(replica, {"a": "/opt/bringup", "b": "/opt/bringup"}, {"a": "/e", "b": "/e"})
    made = launches(replica, shapes, values, "d" * 64, {"world_size": 2, "served_name": "glm",
                                                        "model_path": "@{root}/models/GLM"})
    assert made["a"]["endpoint"] == "http://198.18.0.11:8000/v1" and made["b"]["endpoint"] is None
    assert made["b"]["name"] == "r1-b" and made["b"]["env"]["GLOO_SOCKET_IFNAME"] == "eth2"
    assert made["a"]["model_path"] == "/opt/bringup/models/GLM"
    assert made["a"]["addresses"] == [], "0.0.0.0 binds everywhere"


def test_what_engines_compile_is_apart_for_each_environment_and_kind_of_device_and_no_part_of_the_name() -> None:
    replica = ReplicaPlan("r1", (replace(process("a", "198.18.0.11"), env={"TRITON_CACHE_DIR": ("/own", "site")}),), 1,
                          "http://198.18.0.11:8000/v1")
    shapes, values = templates(replica, {"a": "/opt/bringup"}, {"a": "/e"})

    def made(digest: str, **common: object) -> dict[str, str]:
        own = {"a": {**values["a"], "environment": digest}}
        found: dict[str, str] = launches(replica, shapes, own, "d" * 64, common)["a"]["env"]
        return found

    env = made("ab" * 32, hardware="h200")
    assert env["VLLM_CACHE_ROOT"] == "/opt/bringup/cache/compiled/abababababababababab-h200/vllm"
    assert env["TRITON_CACHE_DIR"] == "/own", "what the plan says is kept"
    assert made("cd" * 32, hardware="h200")["DG_JIT_CACHE_DIR"] != env["DG_JIT_CACHE_DIR"]
    assert "VLLM_CACHE_ROOT" not in shapes[0].env
