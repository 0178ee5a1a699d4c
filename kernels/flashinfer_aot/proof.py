"""Sampling, activation and MLA attention from the compiled cache against torch; nothing may be compiled meanwhile."""

import json
import os
import sys
import tempfile

site = os.path.join(os.environ["OUT"], "site")
sys.path.insert(0, site)
os.environ["FLASHINFER_DISABLE_JIT"] = "1"
os.environ["FLASHINFER_WORKSPACE_BASE"] = tempfile.mkdtemp()  # no cache of the account

import flashinfer  # noqa: E402
import torch  # noqa: E402
from flashinfer.jit import env  # noqa: E402

VOCABULARY, ROWS, HEADS, LENGTH, CKV, KPE = 154880, 64, 32, 333, 512, 64
BOUND = 0.01  # bf16 keeps 8 bits: 0.4 % a value


def fail(text):
    print(json.dumps({"message": text}))
    sys.exit(1)


def differs(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


if not str(env.FLASHINFER_AOT_DIR).startswith(site):
    fail("another cache of FlashInfer is loaded: %s" % env.FLASHINFER_AOT_DIR)
torch.manual_seed(7)
figures = {}
wanted = torch.randint(VOCABULARY, (ROWS,), device="cuda")
certain = torch.zeros(ROWS, VOCABULARY, device="cuda").scatter_(1, wanted[:, None], 1.0)
if not bool((flashinfer.sampling.sampling_from_probs(certain).long() == wanted).all()):
    fail("sampling from certain distributions differs from the reference")
probs = torch.softmax(torch.randn(ROWS, VOCABULARY, device="cuda") * 3, -1)
best = probs.topk(50, -1)
reference = torch.zeros_like(probs).scatter_(1, best.indices, best.values)
reference = reference / reference.sum(-1, keepdim=True)
figures["top_k"] = differs(flashinfer.sampling.top_k_renorm_probs(probs, 50), reference)
rows = torch.randn(256, 2 * 2048, device="cuda", dtype=torch.bfloat16)
half = rows.double()
figures["silu"] = differs(flashinfer.activation.silu_and_mul(rows),
                          torch.nn.functional.silu(half[:, :2048]) * half[:, 2048:])
nope = torch.randn(1, HEADS, CKV, device="cuda", dtype=torch.bfloat16)
pe = torch.randn(1, HEADS, KPE, device="cuda", dtype=torch.bfloat16)
ckv = torch.randn(LENGTH, 1, CKV, device="cuda", dtype=torch.bfloat16)
kpe = torch.randn(LENGTH, 1, KPE, device="cuda", dtype=torch.bfloat16)
scale = 1.0 / (256 ** 0.5)
scores = (nope[0].double() @ ckv[:, 0].double().T + pe[0].double() @ kpe[:, 0].double().T) * scale
exact = torch.softmax(scores, -1) @ ckv[:, 0].double()


def number(*values):
    return torch.tensor(values, device="cuda", dtype=torch.int32)


for name in sorted(os.listdir(str(env.FLASHINFER_AOT_DIR))):
    if "mla" not in name:
        continue
    backend = "fa3" if "sm90" in name else "fa2"
    attention = flashinfer.mla.BatchMLAPagedAttentionWrapper(
        torch.empty(128 << 20, device="cuda", dtype=torch.uint8), backend=backend)
    attention.plan(number(0, 1), number(0, LENGTH), torch.arange(LENGTH, device="cuda", dtype=torch.int32),
                   number(LENGTH), HEADS, CKV, KPE, 1, False, scale, torch.bfloat16, torch.bfloat16)
    figures["mla_" + backend] = differs(attention.run(nope, pe, ckv, kpe)[0], exact)
if "mla_fa2" not in figures:
    fail("there is no attention in the cache: %s" % ", ".join(sorted(os.listdir(str(env.FLASHINFER_AOT_DIR)))))
for name, error in sorted(figures.items()):
    if not error < BOUND:
        fail("%s differs from the reference by %.4f" % (name, error))
print(json.dumps({"proof": "sampling, silu, MLA from the cache against torch, worst %.4f, nothing compiled, on %s" % (
    max(figures.values()), torch.cuda.get_device_name(0)), "figures": figures}))
