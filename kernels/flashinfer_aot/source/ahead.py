"""Compile modules of the installed FlashInfer into a package `flashinfer_jit_cache`, where FlashInfer looks first.

The sources are those that FlashInfer's own wheel carries; its packaging script wants a checkout, this does not.
"""

import argparse
import os
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--version", required=True)
parser.add_argument("--work", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()
# instructions of the very architecture (wgmma) want its `a`: 9.0 alone leaves them out
archs = os.environ["TORCH_CUDA_ARCH_LIST"].split(";")
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = " ".join(arch + "a" if int(arch.split(".")[0]) >= 9 else arch
                                                   for arch in archs)

import flashinfer  # noqa: E402
import torch  # noqa: E402
from flashinfer.jit import build_jit_specs, env  # noqa: E402
from flashinfer.jit.activation import gen_act_and_mul_module  # noqa: E402
from flashinfer.jit.attention import gen_batch_mla_module  # noqa: E402
from flashinfer.jit.sampling import gen_sampling_module  # noqa: E402

if flashinfer.__version__ != args.version:
    sys.exit("the environment has flashinfer %s, and the build is named for %s: build the environment again"
             % (flashinfer.__version__, args.version))
env.FLASHINFER_WORKSPACE_DIR = args.work
env.FLASHINFER_JIT_DIR = args.work / "cached_ops"
env.FLASHINFER_GEN_SRC_DIR = args.work / "generated"
for folder in (env.FLASHINFER_JIT_DIR, env.FLASHINFER_GEN_SRC_DIR):
    folder.mkdir(parents=True, exist_ok=True)
backends = ["fa2"] + (["fa3"] if "9.0" in archs else [])
specs = [gen_sampling_module(), gen_act_and_mul_module("silu")]
# GLM-5.1 keeps 512 compressed values and 64 positional ones of each token
specs += [gen_batch_mla_module(backend=backend, dtype_q=torch.bfloat16, dtype_kv=torch.bfloat16,
                               dtype_o=torch.bfloat16, dtype_idx=torch.int32, head_dim_ckv=512, head_dim_kpe=64,
                               use_profiler=False) for backend in backends]
build_jit_specs(specs, verbose=True, skip_prebuilt=False)
for spec in specs:
    target = args.out / "jit_cache" / spec.name / (spec.name + ".so")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((env.FLASHINFER_JIT_DIR / spec.name / (spec.name + ".so")).read_bytes())
(args.out / "__init__.py").write_text('''"""FlashInfer's modules compiled ahead of time for this host."""
import pathlib

__version__ = "%s"


def get_jit_cache_dir():
    return str(pathlib.Path(__file__).parent / "jit_cache")
''' % args.version)
