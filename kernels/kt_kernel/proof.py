"""A small layer of experts through kt-kernel against torch in float32, on the classes that this CPU can run."""

import glob
import json
import os
import sys
import time

site = os.path.join(os.environ["OUT"], "site")
sys.path.insert(0, site)

import kt_kernel  # noqa: E402
import torch  # noqa: E402
from kt_kernel import kt_kernel_ext as ext  # noqa: E402

BOUND = 0.02
EXPERTS, CHOSEN, HIDDEN, INNER, TOKENS = 8, 2, 512, 256, 4


def fail(text):
    print(json.dumps({"message": text}))
    sys.exit(1)


def drawn(*shape):
    return (torch.randn(*shape) / 20).to(torch.bfloat16).contiguous()


if not kt_kernel.__file__.startswith(site):
    fail("another kt_kernel is loaded: %s" % kt_kernel.__file__)
torch.manual_seed(0)
gate, up, down = drawn(EXPERTS, INNER, HIDDEN), drawn(EXPERTS, INNER, HIDDEN), drawn(EXPERTS, HIDDEN, INNER)
rows = drawn(TOKENS, HIDDEN) * 20
picked = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(TOKENS)]).contiguous()
weights = torch.rand(TOKENS, CHOSEN).contiguous()
reference = torch.zeros(TOKENS, HIDDEN)
for token in range(TOKENS):
    for place in range(CHOSEN):
        expert, row = int(picked[token, place]), rows[token].float()
        inner = torch.nn.functional.silu(row @ gate[expert].float().T) * (row @ up[expert].float().T)
        reference[token] += weights[token, place] * (inner @ down[expert].float().T)

engine = ext.CPUInfer(2)
with open("/proc/cpuinfo") as handle:
    flags = handle.read()
wanted = [name for name in ("AMXBF16_MOE", "AVX512BF16_MOE", "AVX2BF16_MOE") if hasattr(ext.moe, name)]
if "avx512_bf16" not in flags:
    wanted = [name for name in wanted if name.startswith("AVX2")] or wanted
figures = {}
for name in wanted:
    config = ext.moe.MOEConfig(EXPERTS, CHOSEN, HIDDEN, INNER, 0)
    config.max_len, config.pool = 512, engine.backend_
    config.gate_proj, config.up_proj, config.down_proj = gate.data_ptr(), up.data_ptr(), down.data_ptr()
    config.gate_scale = config.up_scale = config.down_scale = 0
    layer = getattr(ext.moe, name)(config)
    order = torch.arange(EXPERTS, dtype=torch.int64)
    engine.submit(layer.load_weights_task(order.data_ptr()))
    engine.sync()
    out = torch.full((TOKENS, HIDDEN), float("nan"), dtype=torch.bfloat16)
    size = torch.tensor([TOKENS])
    began = time.time()
    engine.submit(layer.forward_task(size.data_ptr(), CHOSEN, picked.data_ptr(), weights.data_ptr(), rows.data_ptr(),
                                     out.data_ptr(), False))
    engine.sync()
    seconds = time.time() - began
    if not bool(torch.isfinite(out).all()):
        fail("%s differs from the reference: not every value was written" % name)
    error = float((out.float() - reference).abs().mean() / reference.abs().mean())
    if not error < BOUND:
        fail("%s differs from the reference by %.4f" % (name, error))
    figures[name] = {"error": round(error, 5), "ms": round(seconds * 1000, 2)}
if not figures:
    fail("the build has no expert layer for this CPU: %s" % ", ".join(sorted(vars(ext.moe))))
libraries = [os.path.basename(path) for path in glob.glob(os.path.join(site, "**", "*.so"), recursive=True)]
print(json.dumps({"proof": "expert layers against torch: %s" % ", ".join(
    "%s error %.4f" % (name, row["error"]) for name, row in sorted(figures.items())),
    "figures": dict(figures, cuda=hasattr(engine, "submit_with_cuda_stream"), libraries=sorted(libraries))}))
