"""Clusters for the tests of this folder. Without root, or without the tools, they are skipped with that reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cluster import Cluster, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.path.parent.name == "machines":
            item.add_marker(pytest.mark.machines)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three machines for the tests of one file, with sudo that asks for no password."""
    with Cluster() as booted:
        yield booted


@pytest.fixture
def boot() -> Iterator[Callable[..., Cluster]]:
    """Boots machines for one test: `boot(size=2, sudo="password")`."""
    booted: list[Cluster] = []

    def make(**options: object) -> Cluster:
        cluster = Cluster(**options)  # type: ignore[arg-type]
        cluster.up()
        booted.append(cluster)
        return cluster

    yield make
    for cluster in booted:
        cluster.down()
