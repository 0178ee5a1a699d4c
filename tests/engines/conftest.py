"""Real engines on real machines. Run alone (one process): two cores carry one vLLM at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import why_not
from engine_site import NUMA, EngineCluster, EngineSite, tiny_model

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if reason is None and os.uname().machine != "x86_64":
        reason = "the engines' wheels are for x86_64"
    elif reason is None and not NUMA.exists():
        reason = "vLLM for CPUs needs libnuma1"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engines)
            if "site" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.machines)
                if reason:
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[EngineCluster]:
    with EngineCluster(2, prefix="e") as machines:
        yield machines


@pytest.fixture(scope="session")
def site(cluster: EngineCluster, tmp_path_factory: pytest.TempPathFactory) -> EngineSite:
    """The project folder, environment built through our own role, the tiny model trained."""
    made = EngineSite(tmp_path_factory.mktemp("site"), cluster)
    made.write()
    made.good("env.build", "--limit", cluster.machines[0].name, timeout=1800)  # the other machine sees the same folder
    made.model = tiny_model(cluster.machines[0])
    return made
