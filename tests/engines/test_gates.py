"""The whole gate against a real vLLM on two machines, the rollback rehearsal included."""

from __future__ import annotations

import json

import pytest
from engine_site import EngineSite
from site_project import endpoint_of
from tiny_gates import recorded, stand_in, tasks, write_gates

pytestmark = [pytest.mark.full, pytest.mark.machines]
LINES = ("smoke", "traces", "parsers", "chaos", "rehearsal", "scorecard")


def test_a_real_vllm_goes_through_the_whole_gate(site: EngineSite) -> None:
    site.write(distributed_timeout=60)
    site.good("provision", "--yes")
    before = site.cluster.machines[0].run("readlink /opt/bringup/current").stdout
    site.write(distributed_timeout=60, arguments=["--max-num-seqs", "6"])
    endpoint = endpoint_of(site.good("provision", "--yes"))
    now = site.cluster.machines[0].run("readlink /opt/bringup/current").stdout
    assert now != before
    write_gates(site, {
        "smoke": {"requests": 16},
        "parsers": {"versions": ["0.32.0"], "tool_parsers": ["glm47", "hermes", "glm99"],
                    "reasoning_parsers": ["glm47"], "stand_in": stand_in(site)},
        "chaos": {"silence": 5}})
    called = recorded(site, endpoint.split("//")[1].split(":")[0])
    assert called == ["get_weather"] * 4 + ["current_time"]
    page = site.folder / "gate.html"
    out = site.good("gate", "--yes", "--report", str(page), timeout=2400)
    assert "all 6 gates passed" in out
    kept = json.loads((site.folder / ".bringup/gates/lab.json").read_text())
    assert kept["complete"] and tuple(kept["cycles"]["1"]) == LINES
    measures = {name: line["measures"] for name, line in kept["cycles"]["1"].items()}
    assert measures["smoke"]["errors"] == 0 and measures["smoke"]["first_token_p95"] > 0
    assert measures["smoke"]["cache_headroom"] > 0, "read from the engine's own /metrics"
    assert measures["traces"] == {"tool_success": 100.0, "malformed": 0.0, "steps": 7.0}
    assert (measures["parsers"]["pairs"], measures["parsers"]["passing"], measures["parsers"]["surprises"]) == (3, 1, 0)
    sweep = {row[0]: row[2] for row in kept["cycles"]["1"]["parsers"]["series"]["pairs"]}
    assert sweep == {"0.32.0 glm47/glm47": "pass", "0.32.0 hermes/glm47": "fail", "0.32.0 glm99/glm47": "refuse"}
    assert min(measures["chaos"][f"recovery_{fault}"] for fault in ("worker", "head", "link")) > 0
    assert measures["rehearsal"]["proved"] == 1 and measures["rehearsal"]["rollback"] > 0
    wrong = 100 * (len(tasks()) - 1) / len(tasks())
    assert measures["scorecard"]["task_success"] == pytest.approx(wrong, abs=0.1), "one task has a check that fails"
    assert "call-wrong" in out and measures["scorecard"]["tool_success"] == 100
    assert site.cluster.machines[0].run("readlink /opt/bringup/current").stdout == now, "a rehearsal switches nothing"
    assert "scorecard" in page.read_text() and "recovery_worker" in page.read_text()
    site.good("verify")
