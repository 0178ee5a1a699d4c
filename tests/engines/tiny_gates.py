"""The shipped gates, fitted to the tiny model: a slice of tasks that it learnt, sessions recorded from it."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine_site import ENGINES, EngineSite, ask, python_of
from ideal_engine import NONCE, IdealEngine, findings
from site_project import REPOSITORY, wait_for

from bringup.base.yaml import load_file
from bringup.releases.contract import WORDS

ENVIRONMENT = ("HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=1 "
               "VLLM_CPU_OMP_THREADS_BIND=nobind TORCHDYNAMO_DISABLE=1")


def write_gates(site: EngineSite, changed: Mapping[str, Mapping[str, Any]]) -> Path:
    """The project's folder of gates: the shipped lines with these settings changed, an own slice, no traces yet."""
    folder = site.folder / "gates"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "traces").mkdir(parents=True)
    shutil.copy(REPOSITORY / "gates/check.py", folder)
    data = json.loads(json.dumps(load_file(REPOSITORY / "gates/default.yml")))
    for name, settings in changed.items():
        data["gates"][name] = {**data["gates"][name], **settings}
    (folder / "default.yml").write_text(json.dumps(data, indent=1))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks()))
    return folder


def tasks() -> list[dict[str, Any]]:
    """Tasks that the tiny model can do: words that it must copy, and each call of a tool that it learnt."""
    words = [f"{word}{4700 + number}" for number, word in enumerate(WORDS * 3)]
    out = [{"id": f"word-{word}", "prompt": f"Reply with the word {word} and nothing else.", "route": "fast",
            "check": f"python3 check.py says {word}"} for word in words]
    return [*out,
        {"id": "call-weather", "prompt": "Call get_weather for the city Paris.", "tools": tools_of("get_weather"),
         "calls": True, "check": "python3 check.py calls get_weather city=Paris"},
        {"id": "call-days", "prompt": "Call add_days with days 3 and unit day.", "tools": tools_of("add_days"),
         "calls": True, "check": "python3 check.py calls add_days days=3 unit=day"},
        {"id": "call-time", "prompt": "Call current_time.", "tools": tools_of("current_time"),
         "calls": True, "check": "python3 check.py calls current_time"},
        {"id": "call-wrong", "prompt": "Call get_weather for the city Paris.", "tools": tools_of("get_weather"),
         "calls": True, "check": "python3 check.py calls get_weather city=Rome"}]


def tools_of(name: str) -> list[Any]:
    """The tools as the contract offers them together with this one alone."""
    engine = IdealEngine()
    findings(engine)
    return next(list(body["tools"]) for body in engine.asked
                if [tool["function"]["name"] for tool in body.get("tools") or ()] == [name])


def stand_in(site: EngineSite) -> str:
    """The command of the real engine on this machine, which sees the environments and models of the machines too."""
    python = ENGINES / "envs" / Path(python_of(site.cluster.machines[0])).parts[-3] / "bin/python"
    model = ENGINES / "models" / Path(site.model).name
    return (f"env {ENVIRONMENT} {python} -m vllm.entrypoints.cli.main serve {model} --dtype float32 --enforce-eager "
            "--max-num-seqs 4 --kv-cache-memory-bytes 67108864")


def recorded(site: EngineSite, address: str) -> list[str]:
    """Sessions of an agent, held through the recorder; one file of traffic, then a trace. Returns what was called."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    log = site.folder / "session.jsonl"
    log.unlink(missing_ok=True)
    proxy = site.start("gate.record", "--url", f"http://{address}:8000", "--log", str(log),
                       "--listen", f"127.0.0.1:{port}")
    try:
        assert wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), 30)
        called = session(port)
    finally:
        proxy.send_signal(signal.SIGINT)
        told = proxy.communicate(timeout=60)[0]
    assert "recorded in" in told, told
    site.good("gate.record", "--from-log", str(log), "--to", "gates/traces/weather.jsonl")
    return called


def session(port: int) -> list[str]:
    """An agent's loop: a call, its result, the same call again, two at once, one that a client asked wrongly first."""
    weather = tools_of("get_weather")
    first: dict[str, Any] = {"role": "user", "content": "Call get_weather for the city Paris."}
    called = []
    for _ in range(2):
        calls = made(port, [first], weather)
        called += calls
        result = [{"role": "tool", "tool_call_id": call["id"], "content": f"The weather is {NONCE}."} for call in calls]
        status, body = ask("127.0.0.1", "", port, tools=weather, messages=[
            first, {"role": "assistant", "content": None, "tool_calls": calls}, *result])
        assert status == 200 and NONCE in body["choices"][0]["message"]["content"], body
    twice = "Call get_weather twice, for the city Paris and for the city Rome, in one answer."
    called += made(port, [{"role": "user", "content": twice}], weather)
    refused, _ = ask("127.0.0.1", "Call current_time.", port, tools=tools_of("current_time"), model="nobody")
    assert refused == 404
    called += made(port, [{"role": "user", "content": "Call current_time."}], tools_of("current_time"))
    return [call["function"]["name"] for call in called]


def made(port: int, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The calls that an answer holds."""
    status, body = ask("127.0.0.1", "", port, messages=list(messages), tools=list(tools))
    assert status == 200, body
    calls = body["choices"][0]["message"]["tool_calls"]
    assert calls, body
    return list(calls)
