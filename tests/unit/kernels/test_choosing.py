"""What a build takes on a host, and the name that follows: pure, on probes' answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits import SYSTEM, WRAPPER, compiler, kit, toolkit

from bringup.base.errors import FindingError, InputError, StepError
from bringup.environments.kernels.asking import asked_kernels
from bringup.environments.kernels.choosing import Asked, Toolchain, build_digest, choose, common_variant
from bringup.environments.kernels.recipe import Recipe, load_recipe

KERNELS = Path(__file__).resolve().parents[3] / "kernels"


def recipe(name: str = "deep_gemm") -> Recipe:
    return load_recipe(KERNELS, name)


def digest(name: str = "deep_gemm", asked: Asked | None = None, **more: Any) -> str:
    return build_digest(recipe(name), "s" * 64, choose(recipe(name), asked or Asked(name), kit(**more)))


def test_the_distributions_compiler_is_taken_before_a_wrapper_that_is_first_on_path() -> None:
    chain = choose(recipe(), Asked("deep_gemm"), kit(compilers=[WRAPPER, SYSTEM]))
    assert chain.environment["CXX"] == "/usr/bin/g++" and chain.environment["NVCC_CCBIN"] == "/usr/bin/g++"
    assert chain.programs["g++"] == "/usr/bin/g++"
    assert any("not taken: /opt/wrap/g++ 13.3.0 puts a libstdc++ of its own" in note for note in chain.notes)


def test_a_host_with_nothing_but_the_wrapper_is_refused_before_the_build() -> None:
    with pytest.raises(FindingError) as caught:
        choose(recipe(), Asked("deep_gemm"), kit(compilers=[WRAPPER]))
    assert "puts a libstdc++ of its own" in str(caught.value)


def test_a_compiler_that_is_too_new_for_the_toolkit_gives_way_to_an_older_one_of_the_host() -> None:
    old = toolkit("12.4.131", gcc_max=13)
    python = {**kit()["python"], "torch": {"version": "2.9.1+cu124", "cuda": "12.4", "git": "x", "abi": "1"}}
    chain = choose(recipe(), Asked("deep_gemm"), kit(
        compilers=[compiler("14.2.0"), compiler("12.3.0", "/usr/bin/g++-12")], cuda=[old], python=python))
    assert chain.environment["CXX"] == "/usr/bin/g++-12"
    assert any("/usr/bin/g++ 14.2.0 is newer than gcc 13" in note for note in chain.notes)
    with pytest.raises(FindingError) as caught:
        choose(recipe(), Asked("deep_gemm"), kit(compilers=[compiler("14.2.0")], cuda=[old], python=python))
    assert "install g++-13" in str(caught.value) and "12.4.131" in str(caught.value)


def test_without_the_toolkits_header_the_table_says_which_gcc_is_too_new() -> None:
    python = {**kit()["python"], "torch": {"version": "2.9.1+cu124", "cuda": "12.4", "git": "x", "abi": "1"}}
    with pytest.raises(FindingError, match="no C\\+\\+ compiler"):
        choose(recipe(), Asked("deep_gemm"), kit(compilers=[compiler("14.2.0")], cuda=[toolkit("12.4.131")],
                                                 python=python))


def test_an_assembler_older_than_the_compiler_is_noted_where_instructions_matter() -> None:
    old = {"as": {"path": "/usr/bin/as", "version": "2.38"}}

    def notes(name: str) -> str:
        return "; ".join(choose(recipe(name), Asked(name), kit(programs=old)).notes)

    assert "the assembler 2.38 is older than this compiler (2.40" in notes("kt_kernel")
    assert "older than" not in notes("deep_gemm")


def test_a_compiler_that_is_too_old_is_named() -> None:
    with pytest.raises(FindingError) as caught:
        choose(recipe(), Asked("deep_gemm"), kit(compilers=[compiler("8.5.0")]))
    assert "/usr/bin/g++ 8.5.0 is older than 9" in str(caught.value)


def test_the_toolkit_is_that_of_torch_and_not_that_of_cuda_home() -> None:
    chain = choose(recipe(), Asked("deep_gemm"), kit(
        cuda=[toolkit("12.4.131", why="CUDA_HOME", gcc_max=13), toolkit("13.0.88", gcc_max=15)],
        cuda_home="/usr/local/cuda-12.4"))
    assert chain.environment["CUDA_HOME"] == "/usr/local/cuda-13.0"
    assert any("CUDA_HOME of the account names /usr/local/cuda-12.4" in note for note in chain.notes)


def test_a_wrong_cuda_says_what_was_found_and_what_is_needed() -> None:
    with pytest.raises(StepError) as caught:
        choose(recipe(), Asked("deep_gemm"), kit(cuda=[
            toolkit("12.4.131", why="nvcc on PATH"), {"home": "/opt/nothing", "version": "", "why": ["CUDA_HOME"],
                                                      "gcc_max": None, "headers": False}]))
    text = str(caught.value)
    for part in ("CUDA 13.x as torch 2.11.0+cu130", "/usr/local/cuda-12.4 12.4.131 (nvcc on PATH)",
                 "/opt/nothing has no nvcc (CUDA_HOME)"):
        assert part in text


def test_the_newest_toolkit_is_taken_where_no_torch_says_more() -> None:
    chain = choose(recipe("nccl_tests"), Asked("nccl_tests"), kit(cuda=[toolkit("12.8.61"), toolkit("13.0.88")]))
    assert chain.environment["CUDA_HOME"].endswith("13.0")
    assert chain.environment["NVCC_GENCODE"] == "-gencode=arch=compute_90,code=sm_90"


@pytest.mark.parametrize(("more", "says"), [
    ({"gpus": []}, "shows none"),
    ({"gpus": [{"name": "NVIDIA A100", "capability": "8.0"}]}, "NVIDIA A100 (8.0)"),
    ({"python": None}, "none is named"),
    ({"python": {"path": "/x/python", "broken": "no such program"}}, "does not answer"),
    ({"python": {**kit()["python"], "torch": None}}, "has none"),
    ({"python": {**kit()["python"], "headers": False}}, "Python.h"),
    ({"python": {**kit()["python"], "has": ["torch"]}}, "setuptools, wheel, packaging cannot be imported"),
    ({"cuda": []}, "no toolkit"),
    ({"compilers": []}, "no g++ or c++"),
])
def test_what_is_missing_is_said_before_anything_is_built(more: dict[str, Any], says: str) -> None:
    with pytest.raises(StepError) as caught:
        choose(recipe(), Asked("deep_gemm"), kit(**more))
    assert says in str(caught.value)


def test_nccl_must_be_there() -> None:
    with pytest.raises(StepError, match="nccl"):
        choose(recipe("nccl_tests"), Asked("nccl_tests"), kit(nccl=None))


def test_memory_bounds_how_many_compile_at_a_time() -> None:
    def chosen(memory_asked: int | None = None, **more: Any) -> Toolchain:
        return choose(recipe(), Asked("deep_gemm", memory=memory_asked), kit(**more))

    many = {"cpu": {**kit()["cpu"], "cores": 192}, "memory": 64 << 30}
    chain = chosen(**many)  # 192 cores, 64 GiB free, 4 GiB each
    assert chain.jobs == 15 and chain.memory == 62 << 30
    assert any("15 at a time: 68.7 GB of memory are free, 4.3 GB for each (192 cores)" in note for note in chain.notes)
    assert any("memory: 66.6 GB at most of 68.7 GB that are free" in note for note in chain.notes)
    serving = chosen(**many, serving=[4711])
    assert serving.jobs == 12 and serving.memory == 48 << 30 and any("this host serves" in n for n in serving.notes)
    asked = chosen(9 << 30, **many)
    assert asked.jobs == 2 and asked.memory == 9 << 30
    assert chosen().jobs == 16
    short = chosen(memory=1 << 30)
    assert short.jobs == 1 and short.memory == 512 << 20 and any("it may be stopped" in note for note in short.notes)


@pytest.mark.parametrize("text", ["lots", "4", "4 GB", "0 GiB"])
def test_memory_of_a_kernel_is_a_size(text: str) -> None:
    with pytest.raises(InputError, match="takes a size"):
        asked_kernels({"deployment": {"kernels": [{"name": "deep_gemm", "memory": text}]}})
    assert asked_kernels({"deployment": {"kernels": [{"name": "deep_gemm", "memory": "2 GiB"}]}})[0].memory == 2 << 30


def test_the_variant_is_the_best_that_the_cpu_can_run() -> None:
    def variant(flags: list[str]) -> str:
        chain = choose(recipe("kt_kernel"), Asked("kt_kernel"), kit(cpu={"model": "m", "cores": 2, "flags": flags}))
        return str(chain.facts["cpu"])

    everything = kit()["cpu"]["flags"]
    assert variant(everything) == "amx"
    assert variant([flag for flag in everything if not flag.startswith("amx")]) == "avx512_bf16"
    cascade = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]
    assert variant(cascade) == "avx512_vnni"
    assert variant(["avx2", "fma", "f16c"]) == "avx2"
    with pytest.raises(StepError, match="too few instructions"):
        variant(["sse4_2"])


def test_a_variant_that_the_cpu_lacks_is_refused_with_what_fits() -> None:
    cascade = {"model": "Xeon Gold 6240", "cores": 2, "flags": ["avx2", "fma", "f16c", "avx512f", "avx512bw",
                                                               "avx512dq", "avx512vl", "avx512_vnni"]}
    with pytest.raises(StepError) as caught:
        choose(recipe("kt_kernel"), Asked("kt_kernel", cpu="amx"), kit(cpu=cascade))
    text = str(caught.value)
    assert "amx_tile" in text and "Xeon Gold 6240" in text and "ask for avx512_vnni" in text


def test_the_variant_that_all_hosts_can_run() -> None:
    desktop = kit(cpu={"model": "d", "cores": 2, "flags": ["avx2", "fma", "f16c"]})
    assert common_variant(recipe("kt_kernel"), [kit(), desktop]) == "avx2"
    assert common_variant(recipe("kt_kernel"), [kit(), kit()]) == "amx"


def test_the_name_moves_with_whatever_decides_the_content() -> None:
    torch = {"version": "2.11.0+cu130", "cuda": "13.0", "git": "70d99e9", "abi": "1"}
    base = kit()["python"]
    seen = {
        digest(),
        digest(compilers=[compiler("12.3.0")]),
        digest(compilers=[compiler("13.3.0", "/opt/g/g++")]),
        digest(cuda=[toolkit("13.1.10")]),
        digest(python={**base, "soabi": "cpython-311-x86_64-linux-gnu"}),
        digest(python={**base, "torch": {**torch, "version": "2.12.0+cu130"}}),
        digest(python={**base, "torch": {**torch, "abi": "0"}}),
        digest(gpus=[{"name": "B200", "capability": "10.0"}]),
        digest(glibc="2.36"),
        digest(machine="aarch64"),
        digest(asked=Asked("deep_gemm", options={"DG_JIT_USE_RUNTIME_API": "1"})),
    }
    assert len(seen) == 11
    assert build_digest(recipe(), "t" * 64, choose(recipe(), Asked("deep_gemm"), kit())) not in seen


def test_the_name_does_not_move_with_what_decides_nothing() -> None:
    assert digest() == digest(memory=8 << 30, free=1, serving=[4], cuda_home="/x",
                              cpu={**kit()["cpu"], "cores": 3, "model": "another"})
    named = replace(recipe(), purpose="another text", note="x")
    assert build_digest(named, "s" * 64, choose(named, Asked("deep_gemm"), kit())) == digest()


def test_hosts_with_another_cpu_share_what_has_no_variant_and_part_where_it_has() -> None:
    old = {"model": "o", "cores": 8, "flags": ["avx2", "fma", "f16c"]}
    assert digest() == digest(cpu=old)
    assert digest("kt_kernel") != digest("kt_kernel", cpu=old)
