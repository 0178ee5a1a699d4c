"""Every flag that our recipes render is one that the lab engine takes; its version speaks for what it is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from bringup.base.errors import InputError
from bringup.lab.engine import OVERLAY
from bringup.serving.planning.deployment import Deployment
from bringup.serving.planning.fit import choose, node_count
from bringup.serving.recipes.load import load_library
from bringup.serving.recipes.render import Request
from bringup.serving.recipes.servers import render_for
from bringup.serving.versions import parse_version

LIBRARY = load_library()


def combinations():
    for recipe, hardware in itertools.product(LIBRARY.recipes.values(), LIBRARY.hardware):
        for engine in ("vllm", *recipe.engines):
            strategies = recipe.engines[engine].strategies if engine != "vllm" else recipe.compatible_strategies
            for strategy, variant in itertools.product(strategies, recipe.variants):
                yield recipe, hardware, engine, strategy, variant


def test_every_rendered_flag_is_taken(monkeypatch):
    monkeypatch.syspath_prepend(str(OVERLAY / "site-packages"))
    from bringup_lab_engine import flags

    seen = 0
    for recipe, hardware, engine, strategy, variant in combinations():
        wanted = Deployment(recipe.name, "/m", "e", engine=engine, hardware=hardware, strategy=strategy,
                            variant=variant)
        try:
            choice = choose(LIBRARY, recipe, wanted)
            nodes = 1 if strategy == "pd_cluster" else node_count(choice, wanted)[0]
        except InputError:
            continue
        part = recipe.engines.get(engine)
        features = tuple(key for key in (part.features if part else recipe.features)
                         if key not in choice.variant.without_features)
        version = {"vllm": "0.24.0", "vllm-ascend": "0.23.0"}.get(engine, "0.5.10")
        got = render_for(LIBRARY, recipe, Request(variant, strategy, hardware, features, nodes), engine, version,
                         model_path="/m")
        parser = flags.vllm_parser() if engine.startswith("vllm") else flags.sglang_parser()
        for arguments in got.nodes or [pool.arguments for pool in (got.prefill, got.decode) if pool]:
            # what the plan fills in
            words = ["13345" if word.endswith("_DP_RPC_PORT") else word for argument in arguments
                     for word in argument.words]
            left = parser.parse_known_args([*got.command[2:], *words] if engine.startswith("vllm") else words)[1]
            assert left == [], (recipe.name, engine, strategy, variant)
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("module", ["bringup_lab_engine.vllm", "sglang.launch_server"])
def test_help_lists_the_flags(module):
    words = ["serve", "--help"] if "vllm" in module else ["--help"]
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=20,
                          env={**os.environ, "PYTHONPATH": str(OVERLAY / "site-packages")})
    assert done.returncode == 0
    assert "--tool-call-parser" in done.stdout and "--served-model-name" in done.stdout


def test_the_version_says_that_it_is_the_lab_engine():
    done = subprocess.run([sys.executable, "-m", "bringup_lab_engine.vllm", "--version"], capture_output=True,
                          text=True, timeout=20, env={**os.environ, "PYTHONPATH": str(OVERLAY / "site-packages")})
    assert "the lab engine of bringup" in done.stdout
    assert parse_version(done.stdout) == (0, 24, 0)


def test_the_program_runs_under_the_interpreter_beside_it(tmp_path):
    (tmp_path / "bin dir").mkdir()
    program = tmp_path / "bin dir" / "vllm"
    program.write_bytes((OVERLAY / "bin" / "vllm").read_bytes())
    program.chmod(0o755)
    (tmp_path / "bin dir" / "python").write_text("#!/bin/sh\necho \"mine $*\"\n")
    (tmp_path / "bin dir" / "python").chmod(0o755)
    done = subprocess.run([str(program), "serve", "a b"], capture_output=True, text=True, timeout=20)
    assert done.stdout == "mine -m bringup_lab_engine.vllm serve a b\n"
