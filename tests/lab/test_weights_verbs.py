"""weights.check and weights.fetch as a person types them, over SSH to loopback machines, with a hub of real HTTP."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_project import HOSTS, Site
from small_hub import COMMIT, OTHER, Hub, safetensors, small_model

REPO = "demo/GLM-5.1"
MB = 1 << 20


class Fetching(Site):
    hub: Hub

    def use(self, **weights: object) -> None:
        self.write(model_path="{{ bringup_root }}/models/GLM-5.1",
                   weights={"repo": REPO, "revision": COMMIT, "endpoint": self.hub.url, **weights})

    def models_of(self, host: str) -> Path:
        return self.root(host) / "models"

    def whole(self) -> bool:
        files = self.hub.repos[REPO][COMMIT]
        return all((self.models_of(host) / "GLM-5.1" / name).read_bytes() == data
                   for host in HOSTS for name, data in files.items())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fetching]:
    found = Fetching(tmp_path_factory.mktemp("weights"))
    with Hub({REPO: {COMMIT: small_model(shards=4, size=2 * MB)}}) as hub:
        found.hub = hub
        found.use()
        found.run("lab.up")
        yield found
    found.down()


def test_input_that_is_wrong_is_refused_with_its_line_and_nothing_is_contacted(site: Fetching) -> None:
    site.use(revision="main")
    done = site.run("weights.fetch")
    assert done.returncode == 2, done.stdout
    assert "`revision` is no commit" in done.stdout and "/api/models/demo/GLM-5.1/revision/main" in done.stdout
    site.use(rat="5 MB/s")
    done = site.run("weights.fetch")
    assert done.returncode == 2 and "nearest: rate" in done.stdout
    site.write(weights=None)
    done = site.run("weights.fetch")
    assert done.returncode == 2 and "names no weights to be fetched" in done.stdout


@pytest.mark.full
def test_interrupted_it_says_so_and_the_next_run_goes_on_with_what_came(site: Fetching) -> None:
    site.use(rate="1 MB/s")
    run = site.start("weights.fetch")
    staging = site.models_of(HOSTS[0]) / ".GLM-5.1.bringup-new"
    end = time.monotonic() + 90
    while not staging.is_dir():
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130, out
    site.hub.asked.clear()
    site.good("weights.fetch", timeout=180)
    assert site.whole()
    assert len([1 for name, begin in site.hub.asked if name.endswith("safetensors") and not begin]) <= 4
    for host in HOSTS:
        assert os.listdir(site.models_of(host)) == ["GLM-5.1"]


def test_findings_end_with_4_and_name_host_file_and_verb(site: Fetching) -> None:
    site.use()
    site.good("weights.fetch")
    assert "3 complete and equal" in site.good("weights.check")
    shard = site.models_of(HOSTS[1]) / "GLM-5.1/model-00002-of-00004.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-5])
    done = site.run("weights.check")
    assert done.returncode == 4, done.stdout
    assert f"FAIL  {HOSTS[1]}" in done.stdout and "5 bytes short" in done.stdout
    assert "invoke weights.fetch" in done.stdout and f"FAILED on {HOSTS[1]}" in done.stdout
    site.good("weights.fetch")
    assert shard.read_bytes() == data


def test_another_revision_is_brought_beside_it(site: Fetching) -> None:
    site.use()
    site.good("weights.fetch")
    other = {**site.hub.repos[REPO][COMMIT], "model-00001-of-00004.safetensors": safetensors({"x": bytes(MB)})}
    site.hub.repos[REPO][OTHER] = other
    site.use(revision=OTHER)
    done = site.run("weights.fetch")
    assert done.returncode == 1 and f"GLM-5.1@{OTHER[:12]}" in done.stdout
    assert site.whole(), "the first one is as it was"
    beside = site.models_of(HOSTS[2]) / f"GLM-5.1@{OTHER[:12]}"
    assert (beside / "model-00001-of-00004.safetensors").read_bytes() == other["model-00001-of-00004.safetensors"]
