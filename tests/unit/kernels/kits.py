"""What a host's probe said, for tests: a real H200 host's shape, with parts replaced."""

from __future__ import annotations

from typing import Any

SYSTEM = {"cxx": "/usr/bin/g++", "cc": "/usr/bin/gcc", "real": "/usr/bin/x86_64-linux-gnu-g++-13", "version": "13.3.0",
          "kind": "gcc", "shared": True}
WRAPPER = {"cxx": "/opt/wrap/g++", "cc": "/opt/wrap/gcc", "real": "/opt/wrap/g++", "version": "13.3.0", "kind": "gcc",
           "shared": False}


def compiler(version: str, place: str = "/usr/bin/g++", *, shared: bool | None = True, kind: str = "gcc"
             ) -> dict[str, Any]:
    return {"cxx": place, "cc": place.replace("g++", "gcc"), "real": place, "version": version, "kind": kind,
            "shared": shared}


def toolkit(version: str, home: str = "", *, why: str = "/usr/local/cuda", gcc_max: int | None = None,
            headers: bool = True) -> dict[str, Any]:
    return {"home": home or f"/usr/local/cuda-{version[:4]}", "version": version, "why": [why], "gcc_max": gcc_max,
            "headers": headers}


def kit(**more: Any) -> dict[str, Any]:
    """A probe's answer: 16 cores, 128 GB free, CUDA 13.0, torch 2.11 for CUDA 13.0."""
    return {
        "machine": "x86_64", "glibc": "2.39", "memory": 128 << 30, "free": 60 << 30,
        "cpu": {"model": "Xeon 8480+", "cores": 16, "flags": [
            "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16",
            "avx512vbmi", "amx_tile", "amx_int8", "amx_bf16"]},
        "compilers": [SYSTEM], "programs": {"as": {"path": "/usr/bin/as", "version": "2.42"}},
        "cuda": [toolkit("13.0.88", gcc_max=15)], "cuda_home": "", "cann": [],
        "gpus": [{"name": "NVIDIA H200", "capability": "9.0"}],
        "python": {"path": "/opt/bringup/envs/a/bin/python", "soabi": "cpython-312-x86_64-linux-gnu",
                   "include": "/usr/include/python3.12", "headers": True,
                   "torch": {"version": "2.11.0+cu130", "cuda": "13.0", "git": "70d99e9", "abi": "1"}},
        "nccl": {"include": "/e/include", "library": "/e/lib/libnccl.so.2", "version": "2.28.9"},
        "missing": {"pkg_config": [], "headers": [], "programs": []}, "serving": [], "package_manager": "apt",
        "agent_python": "/usr/bin/python3", **more,
    }
