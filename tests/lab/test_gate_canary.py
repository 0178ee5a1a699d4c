"""`provision --canary`: one replica first, a stop, then the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from site_project import Site

ALONE = {"strategy": "single_node_tp", "pipeline_parallel": None, "variant": "fp8", "recipe": "zai-org/GLM-5.1",
         "replicas": {"r1": ["lab-head"], "r2": ["lab-w1"], "r3": ["lab-w2"]}}


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("canary") / "site")
    made.write(**ALONE)
    try:
        yield made
    finally:
        made.down()


@pytest.mark.full
def test_the_rest_waits_for_a_word(site: Site) -> None:
    out = site.run("provision", "--yes", "--canary", "head")
    assert out.returncode == 4, out.stdout
    assert "canary head" in out.stdout and "the canary head is well; the rest is as it was" in out.stdout
    assert "no terminal to ask at" in out.stdout and "--go-on" in out.stdout
    states = {host: node["state"] for host, node in site.nodes().items()}
    assert states["lab-head"] == "running" and states["lab-w1"] != "running" and states["lab-w2"] != "running"

    done = site.good("provision", "--yes", "--canary", "head", "--go-on")
    assert "the rest" in done
    assert {node["state"] for node in site.nodes().values()} == {"running"}


def test_a_canary_that_is_ill_stops_it(site: Site) -> None:
    site.write(**ALONE, fault="crash_loading")
    out = site.run("provision", "--yes", "--canary", "head", "--go-on")
    assert out.returncode == 1, out.stdout
    assert "the rest" not in out.stdout


def test_a_canary_that_is_none(site: Site) -> None:
    for words, said in ((("--canary", "all"), "is all of the hosts"), (("--canary", "nobody"), "nobody"),
                        (("--go-on",), "--go-on belongs to --canary")):
        out = site.run("provision", *words)
        assert out.returncode == 2 and said in out.stdout, out.stdout
        assert "nothing was contacted" in out.stdout
