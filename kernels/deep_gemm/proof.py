"""An FP8 product on the device against float64; the output is poisoned first, so that nothing unwritten counts as
right. The bound is what FP8's own rounding leaves on unit normal data (3.7 % was seen), and half of that more."""

import json
import os
import sys
import time

site = os.path.join(os.environ["OUT"], "site")
sys.path.insert(0, site)

import deep_gemm  # noqa: E402
import torch  # noqa: E402
from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8  # noqa: E402

BOUND = 0.055


def fail(text):
    print(json.dumps({"message": text}))
    sys.exit(1)


def cast(function, value):
    try:
        return function(value, use_ue8m0=False)
    except TypeError:  # older revisions know no such choice
        return function(value)


if not deep_gemm.__file__.startswith(site):
    fail("another deep_gemm is loaded: %s" % deep_gemm.__file__)
torch.manual_seed(5)
figures = {}
worst = 0.0
shapes = [(128, 128, 128), (256, 7168, 2048), (4096, 7168, 2048)]
for m, n, k in shapes:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    left, right = cast(per_token_cast_to_fp8, a), cast(per_block_cast_to_fp8, b)
    began = time.time()
    deep_gemm.fp8_gemm_nt(left, right, out)
    torch.cuda.synchronize()
    figures["first_%dx%dx%d_s" % (m, n, k)] = round(time.time() - began, 2)
    if not bool(torch.isfinite(out).all()):
        fail("the product of %d x %d x %d differs from the reference: not every value was written" % (m, n, k))
    reference = a.double() @ b.double().T
    error = float((out.double() - reference).norm() / reference.norm())
    worst = max(worst, error)
    if not error < BOUND:
        fail("the product of %d x %d x %d differs from the reference by %.3f" % (m, n, k, error))
for _ in range(10):
    deep_gemm.fp8_gemm_nt(left, right, out)
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
for _ in range(50):
    deep_gemm.fp8_gemm_nt(left, right, out)
end.record()
torch.cuda.synchronize()
milli = begin.elapsed_time(end) / 50
figures.update(error=worst, ms=round(milli, 4), tflops=round(2 * m * n * k / milli / 1e9, 1))
cache = os.environ.get("DG_JIT_CACHE_DIR")
figures["jit_files"] = sum(len(names) for _, _, names in os.walk(cache)) if cache else 0
print(json.dumps({"proof": "FP8 products against float64, error %.3f; %.0f TFLOP/s at %d x %d x %d on %s" % (
    worst, figures["tflops"], m, n, k, torch.cuda.get_device_name(0)), "figures": figures}))
