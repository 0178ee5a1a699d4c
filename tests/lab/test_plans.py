"""Plans of other shapes in the embedded lab, by the verbs: flags asked first, data parallel over nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from site_project import HOSTS, Site, answer, endpoint_of

from bringup.serving.recipes.load import DATA


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.down()


@pytest.mark.full
def test_a_flag_that_the_installed_engine_does_not_know_stops_nothing(site: Site) -> None:
    site.write()
    endpoint = endpoint_of(site.good("provision", "--yes"))
    before, said = site.pids(), answer(endpoint)
    for arguments, told in (
            (["--max-modellen", "4096"], "vllm 0.24.0 knows no flag --max-modellen"),
            (["--pipeline-parallel-size=3", "--no-such"], "knows no flag --no-such"),
            (["--max-num-seqs", "4", "--max-num-seqs", "8"], "`arguments` says --max-num-seqs twice")):
        site.write(arguments=arguments)
        done = site.run("provision", "--yes")
        assert done.returncode == 2 and told in done.stdout, done.stdout
    assert "--max-model-len" in site_says(site, ["--max-modellen", "4096"])
    assert site.pids() == before and answer(endpoint) == said
    # asked once: the answer is kept under the environment's digest
    kept = [path for host in HOSTS for path in (site.root(host) / "cache/help").glob("*.json")]
    assert len(kept) == 1


def site_says(site: Site, arguments: list[str]) -> str:
    site.write(arguments=arguments)
    return site.run("provision", "--yes").stdout


@pytest.mark.full
def test_tensor_parallel_inside_and_data_parallel_over_three_nodes_serves(site: Site) -> None:
    """As vllm-ascend runs on several nodes; its own recipe is refused here by preflight: no NPU is replayed."""
    text = (DATA / "models/zai-org/GLM-5.1.yaml").read_text()
    (site.folder / "own.yaml").write_text(text.replace("compatible_strategies: [", "compatible_strategies: "
                                                       "[multi_node_tp_dp, "))
    site.write(recipe="own.yaml", strategy="multi_node_tp_dp", variant="fp8", nodes=3, served_name="zai-org/GLM-5.1",
               tensor_parallel=None, pipeline_parallel=None, arguments=["--enable-expert-parallel"])
    text = site.good("provision", "--yes")
    assert "24 ranks on 3 nodes" in text
    assert answer(endpoint_of(text))
    assert "nothing wrong found" in site.good("status")


@pytest.mark.full
def test_the_plan_tells_what_a_provision_would_change(site: Site) -> None:
    site.write()
    site.good("provision", "--yes")
    before, known = site.pids(), site.data("releases")
    assert "the plan is what is in use; a provision restarts nothing" in site.good("plan", "--running")
    site.write(arguments=["--max-num-seqs", "16"], env={"LAB_ENGINE_LOAD_SECONDS": "0.4"}, context_length=65536)
    text = site.good("plan", "--running")
    for line in ("--max-num-seqs 16 (new)", "LAB_ENGINE_LOAD_SECONDS 0.3 -> 0.4", "--max-model-len 65536 (new)",
                 "differences to the plan"):
        assert line in text, text
    running = site.data("plan", "--running")["running"]
    assert running["in_use"].startswith("r0") and "--max-num-seqs 16 (new)" in running["differences"]
    assert running["values"] == []
    site.write(variables={"cluster_interface": "lab0"})
    assert site.data("plan", "--running")["running"]["values"] == [
        {"hosts": "lab-head,lab-w[1-2]", "text": f"{name} lo -> lab0"}
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    assert site.pids() == before
    assert site.data("releases") == known
