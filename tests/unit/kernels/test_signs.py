"""Failures say their cause: each sign on the words of the tool itself.

The files under logs/ are what gcc, ld, cmake, nvcc, Python and torch printed when the failure was made on purpose;
the two long ones are real builds of DeepGEMM on a host with an incomplete toolkit. Lines below that stand in the
code are words from the field or from the tools' sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bringup.environments.kernels.signs import cause_of, signs

LOGS = Path(__file__).with_name("logs")


PRINTED = [
    ("memory-virtual", "memory", "virtual memory exhausted"),
    ("gcc-new", "compiler-too-new", "newer than gcc 15"),
    ("assembler", "assembler-too-old", "does not know vfantasy"),
    ("inline-target", "instruction-inline", "instruction set that the source uses"),
    ("submodule-none", "submodule", "the submodule pybind11 is missing"),
    ("submodule-empty", "submodule", "the submodule pybind11 is empty"),
    ("cutlass-missing", "submodule", "headers of the submodule cutlass"),
    ("cuda-mismatch", "cuda-mismatch", "CUDA 13.0 is taken, and torch was built with 12.8"),
    ("cuda-home", "cuda-home", "no CUDA toolkit was found"),
    ("cccl", "cuda-cccl", "cuda/std/utility"),
    ("toolkit-incomplete", "cuda-header", "cusparse.h"),
    ("nvrtc-missing", "link", "libnvrtc"),
    ("link", "link", "libnvrtc"),
    ("arch", "cuda-arch", "older than the devices"),
    ("torch-abi", "torch-abi", "demo_kernel.so was built for another torch (symbol _ZN3c1013MessageLoggerC1EPKciib)"),
    ("python-h", "python-header", "no headers"),
    ("pkg", "system-library", "hwloc-fantasy"),
    ("cmake-old", "cmake-too-old", "cmake 3.25.1 is too old: 9.99 is wanted"),
    ("no-module", "build-tool", "has no pybind11"),
]
FROM_THE_FIELD = [
    ("c++: fatal error: Killed signal terminated program cc1plus", "memory", "the kernel killed cc1plus"),
    ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "memory", "cicc"),
    ("the build took more than the 0.4 GiB that it may take here, and was stopped", "memory", "than the 0.4 GiB"),
    ("MemoryError", "memory", "MemoryError"),
    ("cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes", "memory", "out of memory"),
    ("/tmp/cc.s: write error: No space left on device", "disk", "disk is full"),
    ("g++: error: unrecognized command-line option '-std=c++20'; did you mean '-std=c++2a'?", "compiler-too-old",
     "-std=c++20"),
    ("g++: error: unrecognized command-line option '-mamx-int8'", "instruction-flag", "-mamx-int8"),
    ("Illegal instruction (core dumped)", "instruction", "does not have"),
    ("RuntimeError: The detected CUDA version (12.4) mismatches the version that was used to compile PyTorch (12.8).",
     "cuda-mismatch", "CUDA 12.4 is taken, and torch was built with 12.8"),
    ("ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by a.so)",
     "libstdcxx", "GLIBCXX_3.4.32"),
    ("ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found", "glibc", "GLIBC_2.38"),
    ("  Compatibility with CMake < 3.5 has been removed from CMake.", "cmake-too-new", "no longer knows"),
    ("RuntimeError: CMake is required to build this project", "cmake-missing", "cmake is not there"),
    ("ImportError: libhwloc.so.15: cannot open shared object file: No such file or directory", "run-library",
     "libhwloc.so.15 is not there to load"),
    ("fatal error: numa.h: No such file or directory", "system-header", "numa.h"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "device-busy", "no memory left"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "driver", "kernel image"),
    ("torch/csrc/api/include/torch/all.h:5:2: error: #error C++17 or later compatible compiler is required to use "
     "PyTorch.", "compiler-too-old", "torch's headers"),
    ("c10/util/C++17.h:27:2: error: #error You need C++17 to compile PyTorch", "compiler-too-old", "torch's headers"),
    ("    mismatches the version that was used to compile PyTorch (13.0). Please make sure",  # wrapped by a log
     "cuda-mismatch", "not the one that torch was built with"),
    ("OSError: undefined symbol: _ZNK2at10TensorBase8data_ptrIfEEPT_v", "torch-abi", "_ZNK2at10TensorBase8data_ptr"),
    ("site/deep_gemm/_C.so holds its own copy of libstdc++", "libstdcxx-static", "import and crash"),
    ("the product of 64 x 128 x 128 differs from the reference: 0.9", "wrong-result", "0.9"),
]


@pytest.mark.parametrize(("log", "sign", "says"), PRINTED)
def test_what_the_tools_print(log: str, sign: str, says: str) -> None:
    cause = cause_of((LOGS / f"{log}.txt").read_text().splitlines())
    assert cause is not None and cause.id == sign
    assert says in cause.cause and cause.line and cause.next


@pytest.mark.parametrize(("line", "sign", "says"), FROM_THE_FIELD)
def test_words_from_the_field(line: str, sign: str, says: str) -> None:
    cause = cause_of(["some line", line, "error: command failed with exit code 1"])
    assert cause is not None and cause.id == sign and says in cause.cause


@pytest.mark.parametrize(("result", "sign"), [
    ({"rc": 132, "step": "proof"}, "instruction"), ({"rc": -4, "step": "proof"}, "instruction"),
    ({"rc": -11, "step": "proof"}, "crash"), ({"rc": 139, "step": "proof"}, "crash"),
    ({"rc": 137, "step": "build"}, "memory"), ({"rc": -9, "step": "build"}, "memory"),
    ({"rc": 1, "step": "build", "memory": True}, "memory"),
    ({"rc": 1, "step": "proof", "message": "the sum differs from the reference in 3 values"}, "wrong-result"),
])
def test_what_a_status_says_where_no_line_does(result: dict[str, Any], sign: str) -> None:
    cause = cause_of([], result)
    assert cause is not None and cause.id == sign


def test_a_crash_of_a_compiler_is_no_crash_of_the_extension() -> None:
    assert cause_of([], {"rc": 139, "step": "build"}) is None


def test_what_is_not_known_has_no_cause() -> None:
    assert cause_of(["undefined reference to `foo'", "ninja: build stopped"], {"rc": 1, "step": "build"}) is None
    assert cause_of([]) is None


def test_a_good_log_has_no_cause() -> None:
    lines = (LOGS / "torch-abi.txt").read_text().splitlines()[:-1]
    assert cause_of(lines) is None


def test_every_sign_is_seen_on_words_of_its_tool() -> None:
    seen = set()
    for text in [(LOGS / f"{log}.txt").read_text() for log, _, _ in PRINTED] + [line for line, _, _ in FROM_THE_FIELD]:
        folded = " ".join(text.split())
        seen.add(next(number for number, sign in enumerate(signs())
                      if any(sign.pattern.search(line) for line in ([folded] if sign.across else text.splitlines()))))
    assert [sign.pattern.pattern for number, sign in enumerate(signs()) if number not in seen] == []


def test_every_sign_has_a_cause_and_what_to_do() -> None:
    assert len(signs()) >= 30
    assert all(sign.cause and sign.next for sign in signs())
