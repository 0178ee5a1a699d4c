"""What a build takes on a host: compiler, CUDA, CPU variant, how many at a time; and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.agent.modules._cuda import NAMED
from bringup.agent.modules._memory import share
from bringup.base.errors import BringupError, FindingError, StepError
from bringup.base.text import size
from bringup.environments.kernels.recipe import Recipe, Variant
from bringup.environments.toolkits import demand, fitting, numbers

FORMAT = 1
"""Raised when the way of building changes so that what was built before is another build."""
SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
GCC_MAX: tuple[tuple[str, int], ...] = (
    ("11.0", 9), ("11.1", 10), ("11.4", 11), ("12.1", 12), ("12.4", 13), ("12.8", 14), ("13.0", 15))
"""From which CUDA on which gcc is the newest (NVIDIA's installation guides, host compiler table); the toolkit's own
header has the last word where it was read."""

ASSEMBLERS: tuple[tuple[int, str], ...] = ((15, "2.44"), (14, "2.42"), (13, "2.40"), (12, "2.38"))
"""gcc's major version -> the binutils that was released beside it (dates of both projects' releases)."""


@dataclass(frozen=True)
class Asked:
    """What a site asks of a recipe: revision, options, `cpu` variant, `jobs` and `memory` (bytes that the build may
    take), None for worked out."""

    name: str
    revision: str | None = None
    options: Mapping[str, str] | None = None
    cpu: str | None = None
    jobs: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Toolchain:
    """What is taken on a host and the `notes` a person reads: each choice with its reason.

    `facts` is what of it decides the content; `path` the folders of PATH; `programs` what gcc and g++ mean there;
    `memory` bytes that the build is held to.
    """

    facts: Mapping[str, Any]
    environment: Mapping[str, str]
    programs: Mapping[str, str]
    path: tuple[str, ...]
    jobs: int
    notes: tuple[str, ...]
    proof_python: str
    memory: int = 0


class NoCompiler(StepError):
    """A host has no C++ compiler at all."""


def choose(recipe: Recipe, asked: Asked, kit: Mapping[str, Any]) -> Toolchain:
    """Choose for a host from what its probe said (`kit`). Raises StepError naming what is missing and what is
    there, FindingError where its compilers do not fit."""
    notes: list[str] = []
    facts: dict[str, Any] = {"machine": kit["machine"], "glibc": kit.get("glibc")}
    environment = dict(recipe.environment)
    programs: dict[str, str] = {}
    path: list[str] = []
    python = _python(recipe, kit)
    torch = _taken_python(recipe, python, facts, environment, programs) if python is not None else None
    toolkit = _toolkit(recipe, kit, torch, notes)
    if toolkit is not None:
        facts["cuda"] = [toolkit["home"], toolkit["version"]]
        environment["CUDA_HOME"] = environment["CUDA_PATH"] = toolkit["home"]
        path.append(toolkit["home"] + "/bin")
    if "cann" in recipe.uses:
        facts["cann"] = _cann(recipe, kit)
    if "nccl" in recipe.uses:
        nccl = kit.get("nccl")
        if not nccl:
            raise StepError(f"{recipe.name} builds against NCCL, and this host has no nccl.h with a libnccl.so.2",
                            next="name an environment with torch in the deployment, or install libnccl-dev")
        facts["nccl"] = [nccl["library"], nccl["version"]]
        environment.update(NCCL_INCLUDE=nccl["include"], NCCL_LIBRARY=nccl["library"])
        notes.append(f"NCCL {nccl['version']} of {nccl['library']}")
    if "gpu" in recipe.uses:
        environment.update(_gpu(recipe, kit, facts))
    # last of what must be there: one is installed only where nothing else is missing
    if "compiler" in recipe.uses:
        compiler = _compiler(recipe, kit, toolkit, notes)
        facts["compiler"] = [compiler["real"], compiler["version"]]
        cc = compiler["cc"] or compiler["cxx"]
        environment.update(CC=cc, CXX=compiler["cxx"])
        programs.update({"gcc": cc, "cc": cc, "g++": compiler["cxx"], "c++": compiler["cxx"]})
        if toolkit is not None:
            environment.update(CUDAHOSTCXX=compiler["cxx"], NVCC_CCBIN=compiler["cxx"])
    variant = _variant(recipe, asked, kit, notes)
    if variant is not None:
        facts["cpu"] = variant.name
        environment.update(variant.environment)
    environment.update(_options(recipe, asked))
    facts["options"] = sorted((asked.options or {}).items())
    memory = asked.memory or share(int(kit["memory"]), bool(kit.get("serving")))
    jobs = asked.jobs or jobs_for(recipe, kit, memory, notes)
    notes.append(f"memory: {size(memory)} at most" + (
        ", as asked" if asked.memory else f" of {size(kit['memory'])} that are free"
        + (", because this host serves" if kit.get("serving") else "")))
    environment = {name: value.replace("{cuda}", toolkit["home"] if toolkit else "") for name, value in
                   environment.items()}
    environment.setdefault("MAX_JOBS", "{jobs}")
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", "{jobs}")
    proof = python["path"] if recipe.proof.python == "environment" and python else str(kit["agent_python"])
    return Toolchain(facts, environment, programs, (*path, *SYSTEM, "/usr/local/nvidia/bin"), jobs, tuple(notes), proof,
                     memory)


def lacks_compiler(recipe: Recipe, asked: Asked, kit: Mapping[str, Any]) -> bool:
    """Whether a compiler is all that keeps a host from building."""
    try:
        choose(recipe, asked, kit)
    except NoCompiler:
        return True
    except BringupError:
        return False
    return False


def build_digest(recipe: Recipe, source: str, toolchain: Toolchain) -> str:
    """SHA-256 (hex) of what decides the content of a build: the source's digest, the recipe's steps, the toolchain."""
    content = {
        "format": FORMAT, "name": recipe.name, "source": source, "facts": toolchain.facts,
        "commands": recipe.commands, "environment": sorted(recipe.environment.items()), "yields": recipe.yields,
        "links": recipe.links,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def jobs_for(recipe: Recipe, kit: Mapping[str, Any], memory: int, notes: list[str]) -> int:
    """How many compilers at a time: cores, bounded by the memory (bytes) that the build may take."""
    cores = int(kit["cpu"]["cores"])
    jobs = min(cores, max(1, memory // recipe.memory_per_job))
    why = f"{cores} cores" if jobs == cores else (
        f"{size(kit['memory'])} of memory are free, {size(recipe.memory_per_job)} for each ({cores} cores)")
    notes.append(f"{jobs} at a time: {why}")
    if memory < recipe.memory_per_job:
        notes.append(f"one compiler of {recipe.name} may take {size(recipe.memory_per_job)}, and only {size(memory)} "
                     "are to be had: it may be stopped")
    return jobs


def _python(recipe: Recipe, kit: Mapping[str, Any]) -> Mapping[str, Any] | None:
    python: Mapping[str, Any] | None = kit.get("python")
    if not {"python", "torch"} & set(recipe.uses) and recipe.proof.python != "environment":
        return None
    if not python:
        raise StepError(f"{recipe.name} builds for a Python, and none is named",
                        expected="an environment in the deployment that is built here, or bringup_kernel_python",
                        next="invoke env.build")
    if python.get("broken"):
        raise StepError(f"{python['path']} does not answer", found=str(python["broken"]), next="invoke env.verify")
    if "python" in recipe.uses and not python.get("headers"):
        raise StepError(f"{python['path']} has no headers to build against", expected=f"{python['include']}/Python.h",
                        next="install the -dev package of that Python, or name another in bringup_kernel_python")
    return python


def _taken_python(recipe: Recipe, python: Mapping[str, Any], facts: dict[str, Any], environment: dict[str, str],
                  programs: dict[str, str]) -> Mapping[str, Any] | None:
    """Note the Python in what a build takes; its torch, where it has one. Raises StepError for a missing package."""
    facts["python"] = python["soabi"]
    environment.setdefault("PYTHON", python["path"])
    programs["python3"] = programs["python"] = python["path"]
    torch: Mapping[str, Any] | None = python.get("torch")
    if "torch" in recipe.uses and not torch:
        raise StepError(f"{recipe.name} builds against torch, and {python['path']} has none",
                        next="name an environment with torch in the deployment")
    lacking = [tool for tool in recipe.tools if tool not in python.get("has", recipe.tools)]
    if lacking:
        raise StepError(f"{python['path']} lacks what {recipe.name} is built and proven with",
                        found=", ".join(lacking) + " cannot be imported",
                        next="add it to the environment's requirements, then invoke env.lock and env.build")
    known = python.get("versions") or {}
    for variable, package in recipe.versions.items():
        if package in known:
            environment[variable] = str(known[package])
            facts["versions"] = {**facts.get("versions", {}), package: str(known[package])}
    if "torch" in recipe.uses and torch:
        facts["torch"] = [torch["version"], torch.get("git"), torch.get("abi")]
    return torch


def _toolkit(recipe: Recipe, kit: Mapping[str, Any], torch: Mapping[str, Any] | None,
             notes: list[str]) -> Mapping[str, Any] | None:
    """The CUDA toolkit: the one that the inventory names, else of torch's version; never an unusable one."""
    if "cuda" not in recipe.uses:
        return None
    wanted = str((torch or {}).get("cuda") or "")
    best = demand(recipe.name, list(kit.get("cuda") or []), wanted,
                  f"as torch {(torch or {}).get('version')} is built with", recipe.cuda_least)
    named = str(kit.get("cuda_home") or "")
    theirs = [item for item in kit.get("cuda") or [] if {"CUDA_HOME", "CUDA_PATH"} & set(item["why"])]
    notes.append(f"CUDA {best['version']} of {best['home']}" + (f", for torch's {wanted}" if wanted else "")
                 + (f", as {NAMED} says" if NAMED in best["why"] else ""))
    if named and not {"CUDA_HOME", "CUDA_PATH"} & set(best["why"]):
        notes.append(f"CUDA_HOME of the account names {named}, which "
                     + ("does not fit" if fitting(theirs, wanted, recipe.cuda_least) is None else "is another")
                     + ": not taken")
    return best


def gcc_newest(toolkit: Mapping[str, Any] | None) -> int | None:
    """The newest gcc that a toolkit accepts: what its header says, else NVIDIA's table. None without a toolkit."""
    if toolkit is None:
        return None
    if toolkit.get("gcc_max"):
        return int(toolkit["gcc_max"])
    fitting = [newest for version, newest in GCC_MAX if numbers(toolkit["version"]) >= numbers(version)]
    return fitting[-1] if fitting else None


def _compiler(recipe: Recipe, kit: Mapping[str, Any], toolkit: Mapping[str, Any] | None,
              notes: list[str]) -> Mapping[str, Any]:
    """The distribution's compiler before whatever lies first on PATH; one that the toolkit accepts; none that puts a
    libstdc++ of its own into what it links."""
    newest = gcc_newest(toolkit)
    least = numbers(recipe.compiler_least or "0")
    why: list[str] = []
    fitting = []
    for item in kit.get("compilers") or []:
        version = numbers(item["version"])
        if item["kind"] == "gcc" and newest is not None and version[:1] > (newest,):
            why.append(f"{item['cxx']} {item['version']} is newer than gcc {newest}, the newest for CUDA "
                       f"{toolkit['version'] if toolkit else ''}")
        elif item["kind"] == "gcc" and version < least:
            why.append(f"{item['cxx']} {item['version']} is older than {recipe.compiler_least}")
        elif item["shared"] is False:
            why.append(f"{item['cxx']} {item['version']} puts a libstdc++ of its own into what it links")
        elif item["shared"] is None:
            why.append(f"{item['cxx']} {item['version']} compiles no small library")
        elif item["kind"] == "clang" and any(other["kind"] == "gcc" for other in kit["compilers"]):
            why.append(f"{item['cxx']} is clang")
        else:
            fitting.append(item)
    if not kit.get("compilers"):
        raise NoCompiler(f"{recipe.name} is compiled, and this host has no C++ compiler", found="no g++ or c++",
                         expected=f"a compiler from {recipe.compiler_least}" if recipe.compiler_least else "a compiler",
                         next="install g++")
    system = [item for item in fitting if item["real"].startswith("/usr/bin/")]
    if not fitting:
        bound = " and ".join(part for part in (f"from {recipe.compiler_least}" if recipe.compiler_least else "",
                                               f"up to gcc {newest}" if newest else "") if part)
        raise FindingError(f"no C++ compiler of this host can build {recipe.name}",
                           expected=f"a compiler {bound}".strip(), found="; ".join(why),
                           next=f"install g++-{newest}; it is then taken by itself" if newest else "install g++")
    best: Mapping[str, Any] = (system or fitting)[0]
    programs = kit.get("programs") or {}
    assembler = str((programs.get("as") or {}).get("version") or "")
    notes.append(f"compiler {best['cxx']} {best['version']}"
                 + (f", assembler {assembler} of {programs['as']['path']}" if assembler else ""))
    tools = [f"{name} {programs[name]['version']} of {programs[name]['path']}"
             for name in recipe.needs.get("programs", ()) if name in programs]
    if tools:
        notes.append(", ".join(tools))
    oldest = next((needed for major, needed in ASSEMBLERS if numbers(best["version"])[:1] >= (major,)), None)
    if recipe.cpu and best["kind"] == "gcc" and oldest and assembler and numbers(assembler) < numbers(oldest):
        notes.append(f"the assembler {assembler} is older than this compiler ({oldest} came with it): it may not know "
                     "its newest instructions")
    first = next(iter(kit["compilers"]))
    if first["real"] != best["real"]:
        passed = next((text for text in why if text.startswith(first["cxx"])), f"{first['cxx']} is first on PATH")
        notes.append(f"not taken: {passed}")
    return best


def _cann(recipe: Recipe, kit: Mapping[str, Any]) -> list[str]:
    found = kit.get("cann") or []
    if not found:
        raise StepError(f"{recipe.name} needs CANN, and this host has none",
                        expected="/usr/local/Ascend/ascend-toolkit")
    return [found[0]["home"], found[0]["version"]]


def _gpu(recipe: Recipe, kit: Mapping[str, Any], facts: dict[str, Any]) -> dict[str, str]:
    found = sorted({item["capability"] for item in kit.get("gpus") or []}, key=numbers)
    least = recipe.gpu_least
    if not found:
        raise StepError(f"{recipe.name} is built for the devices of a host, and this host shows none",
                        expected="nvidia-smi with a compute capability", next="invoke preflight --only nvidia")
    if least and numbers(found[0]) < numbers(least):
        raise StepError(f"{recipe.name} needs devices of compute capability {least} or newer",
                        found=", ".join(f"{item['name']} ({item['capability']})" for item in kit["gpus"][:4]))
    facts["gpu"] = found
    plain = [item.replace(".", "") for item in found]
    return {"TORCH_CUDA_ARCH_LIST": ";".join(found), "GPU_ARCHES": ";".join(plain),
            "NVCC_GENCODE": " ".join(f"-gencode=arch=compute_{item},code=sm_{item}" for item in plain)}


def _variant(recipe: Recipe, asked: Asked, kit: Mapping[str, Any], notes: list[str]) -> Variant | None:
    """The first variant whose instructions the CPU has, or the one asked for. Raises StepError when it lacks them."""
    if not recipe.cpu:
        return None
    flags = set(kit["cpu"]["flags"])
    if asked.cpu:
        variant = recipe.variant(asked.cpu)
        if variant is None:
            raise StepError(f"{recipe.name} has no CPU variant `{asked.cpu}`",
                            expected=", ".join(item.name for item in recipe.cpu))
        lacking = [flag for flag in variant.flags if flag not in flags]
        if lacking:
            fits = next((item.name for item in recipe.cpu if set(item.flags) <= flags), None)
            raise StepError(f"the CPU lacks what the variant {asked.cpu} of {recipe.name} is compiled for",
                            expected=", ".join(lacking), found=str(kit["cpu"]["model"]),
                            next=f"ask for {fits}, or leave `cpu` out: each kind of host gets its own"
                            if fits else None)
        notes.append(f"CPU variant {variant.name}, as asked")
        return variant
    variant = next((item for item in recipe.cpu if set(item.flags) <= flags), None)
    if variant is None:
        raise StepError(f"the CPU has too few instructions for any variant of {recipe.name}",
                        expected=f"{', '.join(recipe.cpu[-1].flags)} ({recipe.cpu[-1].name})",
                        found=str(kit["cpu"]["model"]))
    notes.append(f"CPU variant {variant.name}: {kit['cpu']['model']}")
    return variant


def _options(recipe: Recipe, asked: Asked) -> dict[str, str]:
    return {name: value for name, value in (asked.options or {}).items() if name in recipe.options}


def common_variant(recipe: Recipe, kits: Sequence[Mapping[str, Any]]) -> str | None:
    """The best variant that the CPUs of all these hosts can run."""
    shared = set.intersection(*(set(kit["cpu"]["flags"]) for kit in kits)) if kits else set()
    return next((item.name for item in recipe.cpu if set(item.flags) <= shared), None)
