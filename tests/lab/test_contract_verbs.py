"""`invoke verify` and `invoke clients` as a person types them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from site_project import Site, endpoint_of

SECRET = "open-sesame-4711"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("verify") / "site")
    made.write(api_key=SECRET)
    try:
        made.good("provision", "--yes")
        yield made
    finally:
        made.down()


def test_a_part_of_it_some_times_and_the_reports(site: Site) -> None:
    xml = site.folder / "v.xml"
    out = site.good("verify", "--only", "tools.nested,key", "--times", "2", "--replica", "r1", "--report", str(xml))
    assert "pass 2 of 2 checks" in out
    assert site.data("verify", "--only", "key.refused")["findings"][0]["check"] == "contract.key.refused"
    (site.models() / "lab_engine_fault.json").write_text('{"name": "nested_as_text"}')
    try:
        bad = site.run("verify", "--only", "tools", "--report", str(xml))
    finally:
        (site.models() / "lab_engine_fault.json").unlink()
    assert bad.returncode == 4
    assert "likely  --tool-call-parser gives arguments as text" in bad.stdout
    cases = {case.get("name"): case for case in ElementTree.parse(xml).iter("testcase")}
    assert any("contract.tools.nested" in str(name) and case.find("failure") is not None
               for name, case in cases.items()), list(cases)
    assert SECRET not in bad.stdout and SECRET not in xml.read_text()


@pytest.mark.full
def test_an_approval_is_told_by_releases_and_what_fails_later_by_drift(site: Site) -> None:
    assert site.data("releases")[0]["contract"] == "not approved"
    assert "never approved" in site.good("drift", "-v")
    early = site.run("drift", "--contract")
    assert early.returncode == 4 and "no approved contract" in early.stdout and "verify --approve" in early.stdout
    site.good("verify", "--approve")
    approved = site.data("releases")[0]["contract"]
    assert re.fullmatch(r"approved \d{4}-\d\d-\d\d by \S+@\S+", approved), approved
    site.good("drift")
    fault = site.models() / "lab_engine_fault.json"
    fault.write_text('{"name": "flaky"}')
    try:
        done = site.run("drift", "--contract", "--times", "4")
        assert done.returncode == 4, done.stdout
        assert approved in " ".join(done.stdout.split())
        often = re.search(r"contract\.tools\.repeat +(\d) of 4 times", done.stdout)
        assert often and 0 < int(often[1]) <= 4, done.stdout
        again = site.run("drift")
        assert again.returncode == 4 and often[0] in again.stdout, "the hosts remember it"
    finally:
        fault.unlink()
    assert "failed later" in site.data("releases")[0]["contract"]
    # one check asked again and well leaves the others as they were
    site.good("verify", "--only", "tools.repeat")
    left = site.run("drift")
    assert left.returncode == 4 and "contract.tools.repeat" not in left.stdout, left.stdout
    site.good("verify")
    site.good("drift")
    assert site.data("releases")[0]["contract"] == approved
    for words, said in ((("--times", "3"), "--contract"), (("--contract", "--times", "0"), "from 1 on"),
                        (("--contract", "--against", "lab"), "--against compares")):
        wrong = site.run("drift", *words)
        assert wrong.returncode == 2 and said in wrong.stdout, wrong.stdout


@pytest.mark.parametrize(("words", "said"), [
    (("--only", "tool.nested"), "no check of the contract"), (("--replica", "r9"), "no replica is called `r9`"),
    (("--times", "0"), "from 1 on"), (("--approve", "--only", "tools"), "--approve takes the whole contract"),
    (("--log", "/nowhere"), "cannot be read"), (("--log", "x", "--times", "3"), "--log reads a file"),
])
def test_wrong_words_contact_nothing(site: Site, words: tuple[str, ...], said: str) -> None:
    out = site.run("verify", *words)
    assert out.returncode == 2 and said in out.stdout and "nothing was contacted" in out.stdout, out.stdout


def test_any_endpoint_is_held_against_the_contract_by_its_address(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    url = endpoint_of(site.good("provision", "--yes"))
    keyless = site.run("verify", "--url", url)
    assert keyless.returncode == 4 and "names no model" in keyless.stdout and "GLM_API_KEY" in keyless.stdout
    monkeypatch.setenv("GLM_API_KEY", SECRET)
    out = site.good("verify", "--url", url, "--only", "models.*,tools.structured,key.refused")
    assert "FAIL" not in out and "a wrong key is refused" in out and SECRET not in out
    assert "SKIP" in site.good("verify", "--url", url, "--only", "tools.structured", "--without", "tools")
    other = site.run("verify", "--url", url, "--model", "nobody", "--only", "models.*")
    assert other.returncode == 4 and "nobody" in other.stdout
    refused = site.run("verify", "--url", url, "--approve")
    assert refused.returncode == 2 and "--approve belongs to a deployment of ours" in refused.stdout


def test_recorded_traffic_is_told_worst_first(site: Site) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    lines = [{"request_id": "well", "request": request, "status": 200, "answer": {
                 "id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [
                     {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}},
             {"request_id": "ill", "request": request, "status": 500, "answer": {"error": {"message": "EngineCore"}}}]
    log = site.folder / "t.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    out = site.run("verify", "--log", str(log), "--report", str(site.folder / "t.xml"))
    assert out.returncode == 4
    assert out.stdout.startswith("FAIL  ill") and "HTTP 500: EngineCore" in out.stdout and f"{log}:2" in out.stdout
    assert "2 requests in 2 attempts: 1 broke the contract" in out.stdout
    assert site.data("verify", "--log", str(log))["findings"][0]["subject"] == "ill"


def test_settings_of_clients_name_the_key_and_never_print_it(site: Site) -> None:
    out = site.good("clients")
    assert SECRET not in out and "GLM_API_KEY" in out
    assert all(f"## {name}" in out for name in ("openai", "claude-code", "roo-code", "kilo-code"))
    data = site.data("clients", "--client", "roo-code", "--route", "fast", "--url", "http://gateway:80/v1")
    profile = data["clients"]["roo-code"]["settings"]["providerProfiles"]["apiConfigs"]["bringup fast"]
    assert profile["openAiBaseUrl"] == "http://gateway:80/v1" and SECRET not in json.dumps(data)
    assert "summarization" in site.good("clients", "--route", "all")
    for words, said in ((("--route", "fasst"), "--route fast"), (("--client", "kilo"), "--client kilo-code"),
                        (("--replica", "r9"), "no replica"), (("--url", "gateway"), "takes an address")):
        wrong = site.run("clients", *words)
        assert wrong.returncode == 2 and said in wrong.stdout, wrong.stdout
