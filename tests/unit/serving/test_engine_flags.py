"""The installed engine's own help: its flags are read, and a command line that does not fit is an input error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import engine_help
from bringup.agent.task import Task
from bringup.base.errors import InputError
from bringup.serving.engine_flags import Known, check_flags, read_help
from bringup.serving.plan import Argument, ProcessPlan
from bringup.serving.versions import check_flag_table, flag_rows

# the forms that argparse prints before and from Python 3.13 on, and what lies between them in the help of engines
HELP = """usage: vllm serve [model_tag] [options]

positional arguments:
  model_tag             The model tag to serve. (default: None)

options:
  -h, --help            show this help message and exit
  --headless            Run in headless mode. See --data-parallel-size
                        --not-a-flag stands in a text
  --host HOST           Host name. (default: None)

ModelConfig:
  --trust-remote-code, --no-trust-remote-code
                        Trust remote code. (default: False)
  --dtype {auto,bfloat16,float16}
                        Data type. (default: auto)
  --tool-call-parser {glm45,glm47} or name registered in --tool-parser-plugin
                        (default: None)
  --max-model-len MAX_MODEL_LEN
  --speculative-config SPECULATIVE_CONFIG, -sc SPECULATIVE_CONFIG

ParallelConfig:
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
                        Number of tensor parallel groups.
  --enable-expert-parallel, --no-enable-expert-parallel, -ep, -no-ep
  --middleware MIDDLEWARE
  -pp, --pipeline-parallel-size, --pp PIPELINE_PARALLEL_SIZE
  --block-size {1,8,16}  size
"""


@pytest.fixture
def known() -> Known:
    return read_help(HELP)


def test_names_values_and_choices_are_read(known: Known) -> None:
    tp = known.find("-tp")
    assert tp is not None and tp is known.find("--tensor-parallel-size") and tp.value
    expert = known.find("--no-enable-expert-parallel")
    assert expert is not None and not expert.value and expert.names[2:] == ("-ep", "-no-ep")
    dtype, parser, pp = known.find("--dtype"), known.find("--tool_call_parser"), known.find("--pp")
    assert dtype is not None and dtype.choices == ("auto", "bfloat16", "float16")
    assert parser is not None and parser.choices == () and parser.value  # other names may be registered
    assert pp is not None and pp.value and pp is known.find("-pp")
    block = known.find("--block-size")
    assert block is not None and block.choices == ("1", "8", "16")
    assert known.find("--speculative-config.method") is known.find("-sc")
    assert known.find("--not-a-flag") is None and known.find("--tensor-parallel") is None


def process(*arguments: tuple[str, ...], layer: str = "site") -> ProcessPlan:
    return ProcessPlan("gpu01", "head", 0, (0,), ("vllm", "serve", "/m"),
                       tuple(Argument(words, layer, "arguments in the inventory") for words in arguments), {}, 8000,
                       (8000,))


def test_a_command_line_that_fits(known: Known) -> None:
    check_flags(process(("--tensor-parallel-size", "8"), ("--speculative-config.method", "mtp"),
                        ("--speculative-config.num_speculative_tokens", "3"), ("--dtype=auto",), ("--middleware", "a"),
                        ("--middleware", "b"), ("--tool-call-parser", "mine"), ("--headless",)),
                known, "vllm", "0.24.0")


@pytest.mark.parametrize(("arguments", "told", "mend"), [
    ([("--max-modellen", "1")], "vllm 0.24.0 knows no flag --max-modellen", "--max-model-len"),
    ([("--quiet",)], "knows no flag --quiet", "look at the --help of vllm 0.24.0"),
    ([("--tensor-parallel-size", "8"), ("-tp", "16")],
     "--tensor-parallel-size 8 and -tp 16 are one flag of vllm 0.24.0", "leave -tp out of `arguments`"),
    ([("--trust-remote-code",), ("--no-trust-remote-code",)], "are one flag", "leave --no-trust-remote-code out"),
    ([("--dtype", "bf16")], "vllm 0.24.0 takes no --dtype bf16", "--dtype bfloat16"),
])
def test_a_command_line_that_does_not(known: Known, arguments: Any, told: str, mend: str) -> None:
    with pytest.raises(InputError) as error:
        check_flags(process(*arguments), known, "vllm", "0.24.0")
    assert told in error.value.what and mend in str(error.value.next or "") and error.value.status == 2


def test_parser_flags_come_with_the_table_of_versions() -> None:
    text = "  --reasoning-parser {deepseek-r1,glm45,qwen3}\n"
    with pytest.raises(InputError) as error:
        check_flags(process(("--reasoning-parser", "glm47")), read_help(text), "sglang", "0.5.10.post1")
    assert error.value.next == "--reasoning-parser glm45"
    assert list(error.value.details) == [
        "sglang in every version: --reasoning-parser glm45 (glm45): every SGLang names it glm45"]
    rows = [f"{row.range}: {row.why}" for row in flag_rows("vllm", "--reasoning-parser")]
    assert rows[0].startswith("from 0.24 on: --reasoning-parser glm47") and len(rows) == 2


def test_flags_that_guides_name_and_no_version_has() -> None:
    with pytest.raises(InputError, match=r"sglang 0\.5\.10 has no flag --enable-eagle") as error:
        check_flag_table("sglang", "0.5.10", ["x", "--enable-eagle"])
    assert "--speculative-algorithm EAGLE" in str(error.value.next)
    with pytest.raises(InputError, match="kt-enable-dynamic"):
        check_flag_table("sglang", "0.5.10", ["--kt-enable-dynamic-expert-update"])
    check_flag_table("sglang-kt", "0.5.3", ["--kt-enable-dynamic-expert-update"])


PROGRAM = """#!{python}
import argparse, sys
open({calls!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--tensor-parallel-size", "-tp", type=int)
parser.add_argument("--dtype", choices=["auto", "bfloat16"])
parser.add_argument("--a-flag-with-a-rather-long-name-for-one-line", metavar="NAME", help="--no-flag of ours")
parser.parse_args()
"""


def ask(root: Path, **args: Any) -> dict[str, Any]:
    filled = {name: spec.get("default") for name, spec in engine_help.ARGUMENTS.items()}
    return dict(engine_help.run(Task({**filled, **args}, root=str(root))))


def test_the_engine_is_asked_once_for_an_environment(tmp_path: Path) -> None:
    program, calls = tmp_path / "engine", tmp_path / "calls"
    program.write_text(PROGRAM.format(python=sys.executable, calls=str(calls)))
    program.chmod(0o755)
    commands = [[str(program), "--help=all"], [str(program), "--help"]]
    first = ask(tmp_path, commands=commands, key="one")
    assert not first["cached"] and first["reason"] is None
    known = read_help(first["text"])
    assert set(known.flags) == {"-h", "--help", "-tp", "--tensor-parallel-size", "--dtype",
                                "--a-flag-with-a-rather-long-name-for-one-line"}
    assert ask(tmp_path, commands=commands, key="one") == {**first, "cached": True}
    assert calls.read_text().splitlines() == ["--help=all", "--help"]
    ask(tmp_path, commands=commands, key="two")
    assert len(calls.read_text().splitlines()) == 4
    gone = ask(tmp_path, commands=[["/bin/false", "--help"]], key="three")
    assert gone["text"] is None and "--help ended with 1" in gone["reason"]


def test_the_lab_engine_tells_its_flags() -> None:
    overlay = Path(__file__).parents[3] / "bringup/lab/engine/overlay/site-packages"
    done = subprocess.run([sys.executable, "-m", "sglang.launch_server", "--help"], capture_output=True, text=True,
                          check=True, env={"PYTHONPATH": str(overlay), "COLUMNS": "4000"})
    known = read_help(done.stdout)
    parser = known.find("--reasoning-parser")
    assert parser is not None and "glm45" in parser.choices and "glm47" not in parser.choices
    assert known.find("--tp") is known.find("--tensor-parallel-size")
