"""Rollback in the embedded lab, by the verbs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from site_project import Site, answer, endpoint_of


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.down()


def test_rollback_returns_and_the_endpoint_answers_as_it_did(site: Site) -> None:
    first = site.good("provision")
    endpoint = endpoint_of(first)
    said = answer(endpoint)
    site.write(context_length=65536)
    second = site.good("provision", "--yes")
    assert "was r0001" in second and "undo     invoke rollback" in second
    assert "--max-model-len" in site.good("release.diff", "r0001", "r0002")
    refused = site.run("rollback")
    assert refused.returncode == 4
    assert "everything is prepared" in refused.stdout and "r0002 -> r0001" in refused.stdout
    back = site.good("rollback", "--yes")
    assert "release r0001   was r0002" in back
    assert answer(endpoint) == said
    table = site.data("releases")
    assert [(row["release"], row["state"]) for row in table] == [("r0002", "rolled back from"),
                                                                 ("r0001", "current, good")]


def test_a_second_rollback_does_not_land_on_what_was_left(site: Site) -> None:
    before = site.pids()
    done = site.run("rollback", "--yes")
    assert done.returncode == 4
    assert "no earlier release" in done.stdout and "r0002 rolled back from" in done.stdout
    named = site.run("rollback", "--to", "r0002", "--yes")
    assert named.returncode == 4 and "was rolled back from" in named.stdout
    unknown = site.run("rollback", "--to", "r0009", "--yes")
    assert unknown.returncode == 2 and "r0001" in unknown.stdout
    assert site.pids() == before


def test_a_deploy_that_stopped_half_way_is_told_and_finished(site: Site) -> None:
    site.write()
    site.good("provision")
    link = site.root("lab-w1") / "current"
    old = os.readlink(link)
    other = next(path for path in (site.root("lab-w1") / "releases").iterdir()
                 if path.is_dir() and path.name not in old)
    link.unlink()
    link.symlink_to(f"releases/{other.name}")
    done = site.run("status")
    assert done.returncode == 4 and "hosts use different releases" in done.stdout
    assert site.run("start").returncode == 4
    site.good("provision", "--yes")
    assert os.readlink(link) == old
    assert "nothing wrong found" in site.good("status")
