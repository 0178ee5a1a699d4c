"""The sweep over parsers and versions: a stand-in of the engine for each pair, the contract's checks against it.

What the table of parsers says (serving/versions.py) is what must come out: names that do must pass, others must fail
where such a parser fails, names that a version does not know must end the start.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.events import Progress
from bringup.base.text import plural
from bringup.base.verdicts import Finding, Verdict
from bringup.gates.definition import Line
from bringup.gates.direct import Direct
from bringup.gates.ground import Came, Ground, setting
from bringup.lab.engine import OVERLAY
from bringup.serving.contract.check import Served
from bringup.serving.contract.checks import chosen
from bringup.serving.contract.run import check_contract
from bringup.serving.versions import parser_row

CHECKS = ("thinking.on", "thinking.off", "tools.structured", "tools.typed", "tools.no-arguments", "tools.result")
STAND_IN = f"{shlex.quote(sys.executable)} -m bringup_lab_engine.vllm serve {{model}}"
WAIT = 300.0
"""Seconds that a stand-in may take to answer: a real engine on a processor takes a minute under load."""


@dataclass(frozen=True)
class Pair:
    """One combination; `fits` says what the table says of it: pass, fail or refuse."""

    version: str
    tool: str | None
    reasoning: str | None

    @property
    def name(self) -> str:
        return f"{self.version} {self.tool or 'none'}/{self.reasoning or 'none'}"

    @property
    def fits(self) -> str:
        tool = parser_row("vllm", "tool", self.version)
        reasoning = parser_row("vllm", "reasoning", self.version)
        if any(name and name.startswith("glm") and name not in row.known
               for name, row in ((self.tool, tool), (self.reasoning, reasoning))):
            return "refuse"
        good = self.tool in tool.known and self.reasoning in reasoning.known
        return "pass" if good else "fail"


@dataclass(frozen=True)
class Outcome:
    """What a pair did: pass, fail (with the checks), or refuse (with the last line)."""

    pair: Pair
    did: str
    checks: tuple[str, ...] = ()
    said: str = ""

    @property
    def surprise(self) -> bool:
        return self.did != self.pair.fits


def pairs(line: Line) -> list[Pair]:
    """Every combination that the line names. Raises InputError."""
    versions = _names(line, "versions", ["0.23.0", "0.24.0"])
    tools = _names(line, "tool_parsers", ["glm47", "hermes", "none"])
    reasoning = _names(line, "reasoning_parsers", ["glm45", "glm47", "deepseek_r1", "none"])
    return [Pair(version, None if tool == "none" else tool, None if think == "none" else think)
            for version in versions for tool in tools for think in reasoning]


def _names(line: Line, name: str, default: Sequence[str]) -> list[str]:
    value = setting(line, name, default)
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError(f"the gate {line.name}: `{name}` takes a list of names", found=str(value))
    return [str(item) for item in value]


def sweep(ground: Ground, line: Line) -> Came:
    """Start the stand-in for each pair on this machine, one after the other, and compare with the table."""
    command = str(setting(line, "stand_in", STAND_IN))
    outcomes = []
    wanted = pairs(line)
    with tempfile.TemporaryDirectory(prefix="bringup-gate-") as base:
        for number, pair in enumerate(wanted):
            ground.fleet.emit(Progress(line.name, f"{number + 1} of {len(wanted)}: {pair.name}"))
            outcomes.append(tried(pair, command, Path(base) / str(number)))
    return summary(line, outcomes)


def summary(line: Line, outcomes: Sequence[Outcome]) -> Came:
    """The measures and findings of a sweep."""
    strange = [outcome for outcome in outcomes if outcome.surprise]
    found = [Finding(f"gate.{line.name}", outcome.pair.name, Verdict.WARN,
                     f"should {outcome.pair.fits}, did {outcome.did}"
                     + (f": {', '.join(outcome.checks)}" if outcome.checks else f": {outcome.said}"
                        if outcome.said else "")) for outcome in strange]
    good = sum(outcome.did == "pass" for outcome in outcomes)
    rows = [[outcome.pair.name, outcome.pair.fits, outcome.did, ", ".join(outcome.checks) or outcome.said]
            for outcome in outcomes]
    return Came({"surprises": float(len(strange)), "pairs": float(len(outcomes)), "passing": float(good)},
                f"{plural(len(outcomes), 'pair')}: {good} pass, {len(strange)} not as the table says", found,
                {"pairs": rows})


def tried(pair: Pair, command: str, folder: Path) -> Outcome:
    """Start a stand-in with this pair, ask it, end it."""
    folder.mkdir(parents=True)
    model = _model(folder)
    port = _port()
    words = shlex.split(command.format(model=model, port=port, version=pair.version))
    words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "stand-in",
              "--chat-template-content-format=string"]
    if pair.tool:
        words += ["--tool-call-parser", pair.tool, "--enable-auto-tool-choice"]
    if pair.reasoning:
        words += ["--reasoning-parser", pair.reasoning]
    log = folder / "log"
    environment = {**os.environ, "LAB_ENGINE_VERSION": pair.version, "LAB_ENGINE_LOAD_SECONDS": "0.1",
                   "PYTHONPATH": str(OVERLAY / "site-packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("wb") as stream:
        try:
            process = subprocess.Popen(words, env=environment, stdout=stream, stderr=stream, start_new_session=True)
        except OSError as error:
            raise InputError("the stand-in cannot be started", found=f"{words[0]}: {error.strerror}",
                             next="set `stand_in` of the gate") from None
    try:
        if not _ready(process, port):
            said = log.read_text(errors="replace").strip().splitlines()
            return Outcome(pair, "refuse", said=said[-1][:160] if said else "it ended without a word")
        served = Served("stand-in", nonce="kestrel4821", version=pair.version, argv=tuple(words), most_tokens=512)
        found = check_contract(served, Direct(f"http://127.0.0.1:{port}"), subject=pair.name, checks=chosen(CHECKS))
        bad = tuple(finding.check.removeprefix("contract.") for finding in found if finding.blocks)
        return Outcome(pair, "fail" if bad else "pass", bad)
    finally:
        _end(process)


def _model(folder: Path) -> Path:
    """As much of a model as the lab's stand-in looks at; a real one names its own in `stand_in`."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "glm_moe_dsa", "num_attention_heads": 64}))
    return model


def _port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    from bringup.serving.contract.request import Request

    ask = Direct(f"http://127.0.0.1:{port}", timeout=5)
    end = time.monotonic() + WAIT
    while process.poll() is None and time.monotonic() < end:
        if ask([Request("health", "/health")])[0].status == 200:
            return True
        time.sleep(0.1)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the stand-in's own session, all of it."""
    for number in _signals():
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait()


def _signals() -> Iterator[int]:
    yield signal.SIGTERM
    yield signal.SIGKILL


def rows(series: Mapping[str, Any]) -> list[list[str]]:
    """The table of a sweep: pair, by the table, did, checks."""
    return [["pair", "by the table", "did", "where"], *[[str(cell) for cell in row] for row in series["pairs"]]]
