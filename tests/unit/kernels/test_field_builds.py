"""Situations of builds from the field: too many compilers, instructions that a CPU lacks, compilers and assemblers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kits import compiler, kit, toolkit

from bringup.base.errors import FindingError, StepError
from bringup.environments.kernels.choosing import Asked, Toolchain, choose, common_variant
from bringup.environments.kernels.recipe import Recipe, load_recipe
from bringup.environments.kernels.signs import cause_of

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
CASES = Path(__file__).parent / "cases"


def hosts(case: str) -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((CASES / case / "host.yml").read_text())
    found: dict[str, dict[str, Any]] = document["hosts"]
    return found


def recipe(name: str) -> Recipe:
    return load_recipe(KERNELS, name)


def test_c029_as_many_compilers_as_the_memory_feeds() -> None:
    host = hosts("C029")["h200-01"]
    busy = kit(memory=host["mem_available_gib"] << 30)
    busy["cpu"] = {**busy["cpu"], "cores": host["cores"]}
    chain = choose(recipe("deep_gemm"), Asked("deep_gemm"), busy)
    assert chain.jobs == 15  # (64 - 2) GiB, 4 GiB each
    assert any("15 at a time" in note and "192 cores" in note for note in chain.notes)
    assert choose(recipe("deep_gemm"), Asked("deep_gemm", jobs=6), busy).jobs == 6
    reply = host["replies"][0]
    cause = cause_of([reply["stderr"]], {"rc": reply["rc"], "step": reply["cmd"]})
    assert cause is not None and cause.id == "memory" and "jobs" in cause.next


def test_c081_amx_is_refused_where_it_is_missing_and_the_common_variant_is_offered() -> None:
    found = hosts("C081")
    kits = {}
    for host, one in found.items():
        row = kit()
        row["cpu"] = {"model": host, "cores": 16, "flags": [*one["flags"], "fma", "f16c", "avx512dq"]
                      if "avx512f" in one["flags"] else [*one["flags"], "fma", "f16c"]}
        kits[host] = row
    kernel = recipe("kt_kernel")
    amx = next(variant.name for variant in kernel.cpu if any("amx" in flag for flag in variant.flags))
    refused = {}
    for host, row in kits.items():
        try:
            choose(kernel, Asked("kt_kernel", cpu=amx), row)
        except StepError as error:
            refused[host] = str(error)
    assert set(refused) >= {"cascade-01", "desktop-03"}
    assert all("amx" in text and host in text for host, text in refused.items())
    assert common_variant(kernel, list(kits.values())) == "avx2"
    # each by itself gets what it can run, so no build of another kind of CPU is taken for its own
    names = {host: choose(kernel, Asked("kt_kernel"), row).facts["cpu"] for host, row in kits.items()}
    assert names["desktop-03"] == "avx2" and len({names["cascade-01"], names["desktop-03"]}) == 2
    cause = cause_of(["Illegal instruction (core dumped)"], {"rc": 132, "step": "proof"})
    assert cause is not None and cause.id == "instruction"


def taken(one: dict[str, Any], compilers: list[dict[str, Any]], name: str = "deep_gemm") -> Toolchain:
    version = str(one.get("toolkit") or "13.0")
    torch = {"version": "2.9.1", "cuda": version, "git": "x", "abi": "1"}
    programs = {"as": {"path": "/usr/bin/as", "version": str(one.get("binutils") or "2.42")}}
    return choose(recipe(name), Asked(name), kit(
        cuda=[toolkit(version)], compilers=compilers, programs=programs, python={**kit()["python"], "torch": torch}))


def test_c083_a_compiler_that_fits_is_found_and_what_is_taken_is_printed() -> None:
    found = hosts("C083")
    new = found["toonew-01"]
    both = [compiler(str(new["gcc"])), compiler("12.3.0", "/usr/bin/g++-12")]
    chain = taken(new, both)
    assert chain.environment["CXX"] == chain.environment["NVCC_CCBIN"] == "/usr/bin/g++-12"
    assert not any("allow-unsupported" in value for value in chain.environment.values())
    with pytest.raises(FindingError, match="newer than gcc 13"):
        taken(new, both[:1])
    old = found["oldas-02"]
    chain = taken(old, [compiler(str(old["gcc"]))], "kt_kernel")
    assert any(f"the assembler {old['binutils']} is older than this compiler" in note for note in chain.notes)
    conda = [compiler("15.1.0", "/opt/conda/bin/g++"), compiler("12.3.0", "/usr/bin/g++")]
    chain = taken(found["conda-03"], conda)
    assert chain.environment["CXX"] == "/usr/bin/g++" and not any("conda" in part for part in chain.path)
    assert any(note.startswith("compiler /usr/bin/g++ 12.3.0, assembler 2.42") for note in chain.notes)
    assert any("not taken: /opt/conda/bin/g++" in note for note in chain.notes)
