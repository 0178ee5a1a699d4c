"""FlashInfer compiled ahead: which version a build is for, and what its script makes of what FlashInfer offers.

The stand-in has the names that the script takes of FlashInfer 0.6.12 and writes files in place of compiling; what is
compiled for real and computes is proven on devices.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kits import kit

from bringup.agent.modules import kernel_probe
from bringup.environments.kernels.choosing import Asked, build_digest, choose
from bringup.environments.kernels.recipe import load_recipe

FOLDER = Path(__file__).resolve().parents[3] / "kernels"
STAND_IN = {
    "torch/__init__.py": "bfloat16 = 'bf16'\nint32 = 'int32'\n",
    "flashinfer/__init__.py": "__version__ = '0.6.12'\n",
    "flashinfer/jit/__init__.py": """
from . import env
def build_jit_specs(specs, verbose, skip_prebuilt):
    import os
    for spec in specs:
        place = env.FLASHINFER_JIT_DIR / spec.name
        place.mkdir()
        (place / (spec.name + ".so")).write_text(os.environ["FLASHINFER_CUDA_ARCH_LIST"])
""",
    "flashinfer/jit/env.py": "",
    "flashinfer/jit/spec.py": "class Spec:\n    def __init__(self, name):\n        self.name = name\n",
    "flashinfer/jit/activation.py": "from .spec import Spec\ndef gen_act_and_mul_module(act):\n    return Spec(act)\n",
    "flashinfer/jit/sampling.py": "from .spec import Spec\ndef gen_sampling_module():\n    return Spec('sampling')\n",
    "flashinfer/jit/attention.py": """
from .spec import Spec
def gen_batch_mla_module(*, backend, dtype_q, dtype_kv, dtype_o, dtype_idx, head_dim_ckv, head_dim_kpe, use_profiler):
    assert (head_dim_ckv, head_dim_kpe) == (512, 64) and not use_profiler
    return Spec("mla_" + ("sm90_" if backend == "fa3" else "") + backend)
""",
}


def made(folder: Path, archs: str, version: str = "0.6.12") -> subprocess.CompletedProcess[str]:
    for name, text in STAND_IN.items():
        path = folder / "stand-in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run(
        [sys.executable, FOLDER / "flashinfer_aot" / "source" / "ahead.py", "--version", version, "--work",
         folder / "work", "--out", folder / "site" / "flashinfer_jit_cache"], text=True, capture_output=True,
        check=False, env={**os.environ, "PYTHONPATH": str(folder / "stand-in"), "TORCH_CUDA_ARCH_LIST": archs})


@pytest.mark.parametrize(("archs", "list_of", "modules"), [
    ("9.0", "9.0a", ["mla_fa2", "mla_sm90_fa3", "sampling", "silu"]),
    ("8.9", "8.9", ["mla_fa2", "sampling", "silu"]), ("8.9;10.0", "8.9 10.0a", ["mla_fa2", "sampling", "silu"])])
def test_the_package_is_what_flashinfer_looks_for(tmp_path: Path, archs: str, list_of: str, modules: list[str]) -> None:
    done = made(tmp_path, archs)
    assert done.returncode == 0, done.stderr
    libraries = sorted((tmp_path / "site" / "flashinfer_jit_cache" / "jit_cache").glob("*/*.so"))
    assert [path.stem for path in libraries] == modules == [path.parent.name for path in libraries]
    assert {path.read_text() for path in libraries} == {list_of}
    ask = "import flashinfer_jit_cache as c; print(c.__version__, c.get_jit_cache_dir())"
    said = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path / "site", text=True, capture_output=True,
                          check=True)
    assert said.stdout.split() == ["0.6.12", str(tmp_path / "site" / "flashinfer_jit_cache" / "jit_cache")]


def test_another_version_than_the_environments_is_refused(tmp_path: Path) -> None:
    done = made(tmp_path, "9.0", "0.6.3")
    assert done.returncode != 0 and "the environment has flashinfer 0.6.12" in done.stderr
    assert not (tmp_path / "site").exists()


def test_the_version_of_the_environment_is_the_builds() -> None:
    recipe = load_recipe(FOLDER, "flashinfer_aot")
    found = {}
    for version in ("0.6.3", "0.6.12"):
        python = {**kit()["python"], "has": list(recipe.tools), "versions": {"flashinfer-python": version}}
        chain = choose(recipe, Asked("flashinfer_aot"), kit(python=python))
        assert chain.environment["FLASHINFER_VERSION"] == version
        found[build_digest(recipe, "s" * 64, chain)] = version
    assert len(found) == 2


def test_a_python_tells_the_versions_that_it_is_asked_for() -> None:
    told = kernel_probe._python(sys.executable, ["pytest", "no_such_thing", "dist:pytest", "dist:no-such-thing"])
    assert told is not None and told["has"] == ["pytest"]
    assert told["versions"] == {"pytest": importlib.metadata.version("pytest")}
