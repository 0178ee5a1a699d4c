"""`invoke gate` on the lab, as a person types it: through, closed, resumed, compared, recorded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_engine_processes import free_port, model_folder, vllm_alone
from site_project import INVOKE, REPOSITORY, Site, endpoint_of, interrupt


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("gate") / "site")
    shutil.copytree(REPOSITORY / "gates", made.folder / "gates")
    # figures of a busy machine's milliseconds are no news here
    path = made.folder / "gates/default.yml"
    path.write_text(path.read_text().replace("slice: 200", "slice: 20").replace(
        "# noise: {first_token: 0.05, whole: 0.1}",
        "noise: {first_token: 60, per_token: 60, whole: 60, recovery: 600, noticed: 600}"))
    try:
        made.endpoint = endpoint_of(made.good("provision", "--yes"))  # type: ignore[attr-defined]
        yield made
    finally:
        made.down()


def tell(site: Site, fault: dict[str, Any] | None) -> None:
    path = site.models() / "lab_engine_fault.json"
    if fault is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps(fault))


def kept(site: Site) -> dict[str, Any]:
    return json.loads((site.folder / ".bringup/gates/lab.json").read_text())  # type: ignore[no-any-return]


def test_a_gate_closes_goes_on_behind_what_passed_and_is_approved(site: Site) -> None:
    tell(site, {"name": "malformed_arguments"})
    try:
        closed = site.run("gate", "--yes", "--skip", "parsers", "--skip", "chaos")
    finally:
        tell(site, None)
    assert closed.returncode == 4, closed.stdout
    assert "the gate traces is closed: malformed" in closed.stdout
    assert "(owner: agents team)" in closed.stdout
    assert kept(site)["cycles"]["1"]["smoke"]["passed"] is True

    report = site.folder / "gate.html"
    through = site.good("gate", "--yes", "--skip", "parsers", "--skip", "chaos", "--report", str(report))
    assert "passed before on r0001: 40 requests" in through
    # the lab's environment has no such tool
    assert "by bringup's own load (vllm bench serve is not in the environment)" in " ".join(through.split())
    assert "0 malformed" in through and "20 of 20 tasks done" in through
    assert "nothing behind it" in " ".join(through.split())
    assert "not run: parsers, chaos" in through
    assert report.read_text().count("<svg") >= 2

    refused = site.run("gate", "--yes", "--approve", "--only", "smoke")
    assert refused.returncode == 4 and "the scorecard was not approved" in refused.stdout


@pytest.mark.full
def test_the_whole_gate_with_chaos_a_rehearsal_and_an_approved_scorecard(site: Site) -> None:
    site.write(arguments=["--max-num-seqs", "8"])
    site.good("provision", "--yes")
    text = (site.folder / "gates/default.yml").read_text()
    small = text.replace("versions: [0.23.0, 0.24.0]", "versions: [0.24.0]").replace(
        "tool_parsers: [glm47, hermes, none]", "tool_parsers: [glm47, hermes]").replace(
        "reasoning_parsers: [glm45, glm47, deepseek_r1]", "reasoning_parsers: [glm47, deepseek_r1]")
    (site.folder / "gates/default.yml").write_text(small)
    out = site.good("gate", "--yes", "--approve", timeout=400)
    assert "4 pairs: 1 pass, 0 not as the table says" in out
    assert "recovered: worker" in out and "head" in out and "link" in out
    assert "could start on all 3 hosts" in out
    assert "all 6 gates passed" in out
    card = json.loads((site.folder / "gates/approved/lab.json").read_text())
    assert card["release"] == "r0002" and card["lines"]["scorecard"]["task_success"] == 100.0

    # worse than approved blocks, though its own pass line holds
    lax = small.replace("task_success: '>= 90'", "task_success: '>= 10'")
    (site.folder / "gates/default.yml").write_text(lax.replace(
        "tool_success: '>= 95', malformed: '<= 1'", "malformed: '<= 100'"))
    tell(site, {"name": "flaky"})
    try:
        worse = site.run("gate", "--yes", "--only", "scorecard")
    finally:
        tell(site, None)
    assert worse.returncode == 4, worse.stdout
    assert "approved 100: worse by more than 5 %" in " ".join(worse.stdout.split())
    (site.folder / "gates/default.yml").write_text(small)


def test_cycles_and_a_line_that_is_not_complete(site: Site) -> None:
    out = site.good("gate", "--yes", "--again", "--cycles", "2", "--only", "smoke")
    assert "cycle 1 of 2" in out and "cycle 2 of 2" in out
    assert set(kept(site)["cycles"]) == {"1", "2"}
    path = site.folder / "gates/empty.yml"
    path.write_text("gates: {smoke: {owner: me, command: x, rollback: '', pass: {errors: '== 0'}}}\n")
    empty = site.run("gate", "--gates", "gates/empty.yml")
    assert empty.returncode == 4 and "rollback is empty" in empty.stdout
    wrong = site.run("gate", "--only", "smok")
    assert wrong.returncode == 2 and "nearest: smoke" in wrong.stdout and "nothing was contacted" in wrong.stdout


def test_a_load_tool_that_does_not_run_is_told_and_replaced(site: Site) -> None:
    """The lab's environment made to look as if it had the tool: its `vllm` then knows no `bench`."""
    [packages] = (site.root("lab-head") / "envs").glob("*/lib/python3*/site-packages")
    tool = packages / "vllm/benchmarks/serve.py"
    tool.parent.mkdir(parents=True)
    tool.write_text("")
    path = site.folder / "gates/default.yml"
    kept = path.read_text()
    try:
        done = site.good("gate", "--yes", "--again", "--only", "smoke")
        text = " ".join(done.split())
        assert "vllm bench serve ended with 2" in text and "invalid choice: 'bench'" in text, done
        assert "0 errors; by bringup's own load" in text, done
        path.write_text(kept.replace("    at_once: 8\n", "    at_once: 8\n    by: bench\n", 1))
        strict = site.run("gate", "--yes", "--only", "smoke")
        assert strict.returncode == 1 and "vllm bench serve ended with 2" in strict.stdout, strict.stdout
        path.write_text(kept.replace("    at_once: 8\n", "    at_once: 8\n    by: hand\n", 1))
        wrong = site.run("gate", "--yes", "--only", "smoke")
        assert wrong.returncode == 2 and "`by` takes auto, bench, own" in wrong.stdout, wrong.stdout
    finally:
        path.write_text(kept)
        shutil.rmtree(packages / "vllm")


def test_two_endpoints_side_by_side(site: Site) -> None:
    out = site.run("gate", "--compare", site.endpoint, "--slice", "12")  # type: ignore[attr-defined]
    assert out.returncode == 0, out.stdout
    assert "12 tasks: 100 % here, 100 % there" in " ".join(out.stdout.split())
    page = site.folder / "none.html"
    nobody = site.run("gate", "--compare", f"http://127.0.0.1:{free_port()}", "--report", str(page))
    assert not page.exists(), "nothing was compared"
    assert nobody.returncode == 4 and "the other endpoint names no model" in nobody.stdout
    assert site.run("gate", "--compare", "here").returncode == 2
    lost = site.run("gate", "--compare", site.endpoint, "--report", "nowhere/x.html")  # type: ignore[attr-defined]
    assert lost.returncode == 2 and "no folder" in lost.stdout


def test_a_side_that_is_worse_is_told_in_page_and_data(site: Site, tmp_path: Path) -> None:
    other = vllm_alone(tmp_path, model_folder(tmp_path / "model"))
    tell(site, {"name": "tool_text"})
    page, data = tmp_path / "c.html", tmp_path / "c.json"
    try:
        other.wait_ready(30)
        done = site.run("gate", "--compare", f"http://127.0.0.1:{other.port}", "--slice", "20", "--report", str(page),
                        "--report", str(data))
    finally:
        tell(site, None)
        other.end()
    assert done.returncode == 4 and "is not as good as" in done.stdout, done.stdout
    kept = json.loads(data.read_text())
    here, there = kept["compare"]["sides"]
    assert here["measures"]["task_success"] < there["measures"]["task_success"] == 100
    assert there["model"] == "glm-5.1" and len(there["series"]["whole"]) == 20
    assert any(one["same_calls"] is False for one in kept["compare"]["each"])
    text = page.read_text()
    assert "here is worse" in text and "tasks that went otherwise" in text and text.count("<svg") >= 3


def test_a_session_is_recorded_held_against_the_contract_and_made_a_trace(site: Site) -> None:
    port, log = free_port(), site.folder / "session.jsonl"
    proxy = subprocess.Popen([str(INVOKE), "gate.record", "--url", site.endpoint, "--log", str(log), "--listen",  # type: ignore[attr-defined]
                              f"127.0.0.1:{port}"], cwd=site.folder, env=site.environment(), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        ask(port, "Reply with the word kestrel.", stream=False)
        ask(port, "Call get_weather for the city Oslo.", stream=True)
    finally:
        said = interrupt(proxy)
    assert "2 requests recorded" in said
    verified = site.run("verify", "--log", str(log))
    assert verified.returncode == 0 and "2 requests in 2 attempts: 0 broke the contract" in verified.stdout
    made = site.good("gate.record", "--from-log", str(log), "--to", "gates/traces/mine.jsonl")
    assert "2 steps, 0 of them malformed" in made
    assert "6 sessions" in site.good("gate", "--yes", "--again", "--only", "traces")


def ask(port: int, text: str, *, stream: bool) -> None:
    from bringup.serving.contract.tools import WEATHER

    body = {"model": "zai-org/GLM-5.1", "stream": stream, "tools": [WEATHER],
            "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 30
    while True:
        try:
            with opener.open(request, timeout=20) as got:
                assert got.status == 200
                got.read()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_a_nightly_timer_is_written(site: Site, tmp_path: Path) -> None:
    out = site.good("gate.schedule", "--at", "03:10", "--to", str(tmp_path), "--skip", "chaos")
    assert "systemctl --user enable --now bringup-gate-lab.timer" in out
    service = (tmp_path / "bringup-gate-lab.service").read_text()
    assert f"ExecStart={Path(sys.executable).parent / 'invoke'} gate" in service and "--skip chaos" in service
    assert "03:10:00" in (tmp_path / "bringup-gate-lab.timer").read_text()
    assert site.run("gate.schedule", "--at", "late", "--to", str(tmp_path)).returncode == 2
