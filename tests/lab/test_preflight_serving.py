"""A serving cluster is healthy: preflight beside a running release finds nothing, and disturbs no request."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from site_project import Site, endpoint_of


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.down()


class Load(threading.Thread):
    """Asks the endpoint without a pause until it is told to stop; counts answers and keeps what failed."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.over = threading.Event()
        self.answers = 0
        self.failed: list[str] = []

    def run(self) -> None:
        body = json.dumps({"model": "zai-org/GLM-5.1", "max_tokens": 8,
                           "messages": [{"role": "user", "content": "What is 6 times 7?"}]}).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self.over.is_set():
            asked = urllib.request.Request(f"{self.endpoint}/v1/chat/completions", body,
                                           {"Content-Type": "application/json"})
            try:
                with opener.open(asked, timeout=20) as answer:
                    if json.load(answer)["choices"]:
                        self.answers += 1
                    else:
                        self.failed.append("no choice")
            except (OSError, ValueError, KeyError) as error:
                self.failed.append(str(error))
            time.sleep(0.01)


@pytest.mark.parametrize("tier", ["fast", "deep"])
def test_preflight_beside_a_serving_release(site: Site, tier: str, served: str) -> None:
    before = site.pids()
    threads = [Load(served) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        report = site.folder / f"{tier}.json"
        done = site.run("preflight", "--tier", tier, "--report", str(report))
    finally:
        for thread in threads:
            thread.over.set()
        for thread in threads:
            thread.join(30)
    assert done.returncode == 0, done.stdout
    findings = json.loads(report.read_text())["findings"]
    assert not [one for one in findings if one["verdict"] in ("fail", "unknown")]
    assert not [one for one in findings if one["check"].startswith("process.") and one["verdict"] == "warn"]
    shown = [one for one in findings if one["check"] == "process.ports" and one["verdict"] == "pass"]
    assert shown, "the ports that the running release holds are looked at"
    if tier == "deep":
        reasons = {one["check"]: one["summary"] for one in findings if one["verdict"] == "skip"}
        assert "recording" in reasons["copy.host"]
    assert [failure for thread in threads for failure in thread.failed] == []
    assert all(thread.answers for thread in threads)
    assert site.pids() == before


@pytest.fixture(scope="module")
def served(site: Site) -> str:
    return endpoint_of(site.good("provision"))
