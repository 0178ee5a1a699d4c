"""What `lab.down` ends: engines too that no record names any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_project import HOSTS, Site, children_of

from bringup.lab.processes import read


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "site")
    yield made
    made.down()


def processes(site: Site) -> set[int]:
    """Engines and their rank processes."""
    engines = [int(pid) for pid in site.pids().values()]
    return {*engines, *(child for pid in engines for child in children_of(str(pid)))}


@pytest.mark.parametrize("lost", ["records", pytest.param("folder", marks=pytest.mark.full)])
def test_engines_without_a_record_go_with_the_lab(site: Site, lost: str) -> None:
    site.good("provision")
    ran = processes(site)
    assert len(ran) > len(HOSTS)
    for host in HOSTS:
        shutil.rmtree(site.root(host) / "processes")
    if lost == "folder":
        site.good("lab.down")
        assert not any(read(pid) for pid in ran)
        site.good("provision")
        ran = processes(site)
        shutil.rmtree(site.folder / ".bringup/lab")
    assert all(read(pid) for pid in ran)
    site.good("lab.down", "--purge")
    assert not any(read(pid) for pid in ran)
