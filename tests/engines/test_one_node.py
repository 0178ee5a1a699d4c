"""A real vLLM on one machine: provisioned through our own roles and units, judged by our own contract."""

from __future__ import annotations

from engine_site import EngineSite, ask
from ideal_engine import MODEL, IdealEngine, findings
from site_project import endpoint_of

from bringup.base.verdicts import Verdict


def test_the_contract_can_be_met_and_every_question_has_an_answer() -> None:
    """What the tiny model learns passes all of the contract: a check that changes asks for another answer here."""
    assert {one.check: one.summary for one in findings(IdealEngine()) if one.verdict is not Verdict.PASS} == {}


def test_provision_makes_a_real_vllm_serve_and_the_contract_holds(site: EngineSite) -> None:
    site.write(nodes=1)
    out = site.good("provision", "--yes")
    endpoint = endpoint_of(out)
    head = site.cluster.machines[0]
    assert endpoint == f"http://{head.address}:8000"
    status, body = ask(head.address, "Reply with the word walrus1234 and nothing else.")
    assert status == 200 and body["model"] == MODEL
    assert body["choices"][0]["message"]["content"] == "walrus1234"
    assert body["choices"][0]["message"]["reasoning"] == "Easy."
    main = head.run("systemctl show bringup-r1-e1 -p User -p ActiveState").stdout
    assert "User=bringup" in main and "ActiveState=active" in main
    bad = {name: one for name, one in site.findings().items() if one["verdict"] not in ("pass", "skip")}
    assert not bad, bad
