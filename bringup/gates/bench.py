"""The smoke load by `vllm bench serve`, where the release's environment has it: on the head, beside what serves."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.gates.definition import Line
from bringup.gates.ground import Ground, setting
from bringup.gates.measure import Sample
from bringup.run.actions import Call
from bringup.serving.engine_calls import first_line
from bringup.serving.probing import where

WAYS = ("auto", "bench", "own")
"""What the setting `by` takes: bench where it is there, bench or nothing, bringup's own load."""
NAME = "vllm bench serve"
INPUT = 128
"""Tokens of each prompt at random."""
SECONDS = 900.0
"""How long a load may take, the tool's own start (it imports torch) included."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_RUNNER = r"""
import json, os, re, shutil, subprocess, sys, tempfile, threading, urllib.request
given = json.loads(sys.stdin.read())
folder = tempfile.mkdtemp(prefix="bringup-bench-")
environment = dict(os.environ, **given["environment"])
pages, ended = [], threading.Event()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def look():
    while not ended.wait(0.5):
        try:
            text = opener.open(given["url"] + "/metrics", timeout=5).read().decode("utf-8", "replace")
        except OSError:
            continue
        pages.append("\n".join(line for line in text.splitlines() if re.match("[^#]*(waiting|queue_reqs|usage)", line)))
looking = threading.Thread(target=look, daemon=True)
try:
    looking.start()
    done = subprocess.run(given["argv"] + ["--result-dir", folder, "--result-filename", "result.json"],
                          env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ended.set()
    looking.join()
    path = os.path.join(folder, "result.json")
    result = json.load(open(path)) if os.path.isfile(path) else None
    keys = ("ttfts", "itls", "latencies", "errors", "output_lens", "completed", "failed", "duration")
    print(json.dumps({"rc": done.returncode, "pages": pages, "result": result and {k: result.get(k) for k in keys},
                      "tail": done.stdout.decode("utf-8", "replace").splitlines()[-5:]}))
finally:
    shutil.rmtree(folder, ignore_errors=True)
"""


@dataclass(frozen=True)
class Tool:
    """`vllm bench serve` of an environment."""

    folder: str
    version: str

    @property
    def told(self) -> str:
        return f"{NAME} {self.version}".rstrip()


@dataclass(frozen=True)
class Loaded:
    """What a load came to: a sample a request, pages of /metrics taken meanwhile, or why there is none."""

    samples: Sequence[Sample] = ()
    pages: Sequence[str] = ()
    problem: str | None = None


def find(ground: Ground) -> Tool | None:
    """The tool in the environment that the first replica's head runs from; None in a container and where it lacks."""
    document = ground.documents[ground.replica]
    folder = str((document.get("values") or {}).get("env") or "")
    if not folder or document.get("container"):
        return None
    site = f"{shlex.quote(folder)}/lib/python3*/site-packages"
    line = f"ls -d {site}/vllm/benchmarks/serve.py {site}/vllm-*.dist-info 2>/dev/null; true"
    result = _on_head(ground, "shell", {"cmd": line}, 30)
    found = "" if result.bad else str(result.data.get("stdout") or "")
    if "/vllm/benchmarks/serve.py" not in found:
        return None
    version = re.search(r"/vllm-([^/]+)\.dist-info", found)
    return Tool(folder, version[1] if version else "")


def _on_head(ground: Ground, module: str, args: Mapping[str, Any], seconds: float) -> Any:
    head = ground.members[ground.replica][0]
    return ground.fleet.call({head: Call(module, args, timeout=seconds, changes=False)})[head]


def command(tool: Tool, url: str, model: str, document: Mapping[str, Any], line: Line) -> list[str]:
    """The tool's command line, without where its result goes. Raises InputError for settings that are none."""
    argv = [f"{tool.folder}/bin/vllm", "bench", "serve", "--backend", "openai-chat", "--endpoint",
            "/v1/chat/completions", "--base-url", url, "--model", model, "--tokenizer", str(document["model_path"]),
            "--dataset-name", "random", "--random-input-len", str(INPUT),
            "--random-output-len", str(line.number("max_tokens", 256)),
            "--num-prompts", str(line.number("requests", 40)), "--max-concurrency", str(line.number("at_once", 8)),
            "--temperature", "0", "--disable-tqdm", "--save-result", "--save-detailed"]
    return [*argv, *(["--trust-remote-code"] if "--trust-remote-code" in (document.get("argv") or ()) else [])]


def load(ground: Ground, line: Line, tool: Tool) -> Loaded:
    """Run it on the head. Raises InputError for wrong settings; what else goes wrong is `problem`."""
    document = ground.documents[ground.replica]
    address, port = where(document)
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    kept = {name: str(value) for name, value in (document.get("env") or {}).items() if name == "LD_LIBRARY_PATH"}
    given = {"argv": command(tool, url, ground.model, document, line), "url": url,
             "environment": {**_OFFLINE, **kept, **({"OPENAI_API_KEY": ground.key} if ground.key else {})}}
    result = _on_head(ground, "command", {"argv": [f"{tool.folder}/bin/python", "-c", _RUNNER],
                                          "stdin": json.dumps(given), "expand_argument_vars": False}, SECONDS)
    if result.bad:
        return Loaded(problem=f"{tool.told} did not run: {first_line(result)}")
    try:
        came = json.loads(str(result.data.get("stdout") or "").splitlines()[-1])
    except (ValueError, IndexError):
        return Loaded(problem=f"{tool.told} gave no result")
    if not came["result"]:
        last = next((text for text in reversed(came["tail"]) if text.strip()), "no word")
        return Loaded(problem=f"{tool.told} ended with {came['rc']}: {last[:160]}")
    return Loaded(samples_of(came["result"]), tuple(came["pages"]))


def samples_of(result: Mapping[str, Any]) -> list[Sample]:
    """A sample a request from the tool's detailed result: seconds to the first token, per further token, in all.
    Releases that keep no `latencies` are summed from the gaps between tokens."""
    out = []
    firsts, gaps = result.get("ttfts") or (), result.get("itls") or ()
    errors, wholes, counts = result.get("errors") or (), result.get("latencies") or (), result.get("output_lens") or ()
    for at, first in enumerate(firsts):
        error = str(errors[at]) if at < len(errors) and errors[at] else ""
        own = [float(gap) for gap in gaps[at]] if at < len(gaps) else []
        whole = float(wholes[at]) if at < len(wholes) else float(first) + sum(own)
        if error:
            out.append(Sample(error.strip().splitlines()[-1][:200], None, None, whole))
            continue
        count = int(counts[at]) if at < len(counts) else len(own) + 1
        out.append(Sample(None, float(first), (whole - float(first)) / (count - 1) if count > 1 else None, whole))
    return out


def way_of(line: Line) -> str:
    """The line's setting `by`. Raises InputError."""
    from bringup.base.errors import InputError

    way = str(setting(line, "by", "auto"))
    if way not in WAYS:
        raise InputError(f"the gate {line.name}: `by` takes {', '.join(WAYS)}", found=way)
    return way
