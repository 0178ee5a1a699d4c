"""release.gc and kernel builds: what a release names and the newest of a recipe stay, what nothing uses goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from folder_fleet import FolderFleet
from site_project import HOSTS, Site
from small_kernels import quick

from bringup.agent.modules import kernel_space
from bringup.agent.task import Task
from bringup.releases.history import HostStore
from bringup.releases.spare_builds import builds_on, spare_builds


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++", path="/usr/bin") is None, reason="no /usr/bin/g++")
def test_what_releases_name_and_the_newest_stay(tmp_path: Path) -> None:
    lab = Site(tmp_path / "lab-site")
    source = quick(lab.folder)

    def builds() -> set[str]:
        return {path.name for path in (lab.root(HOSTS[1]) / "builds").iterdir()}

    try:
        lab.write(kernels=["quick"])
        made: list[str] = []
        for number, verb in enumerate(("provision", "provision", "kernel.build", "kernel.build")):
            source.write_text(f"int x = {number};\n")
            lab.good(verb, "--yes", timeout=300)
            made += sorted(builds() - set(made))
        first, second, spare, newest = made
        left = lab.root(HOSTS[1]) / "builds" / f".{'c' * 20}.new"
        left.mkdir()
        (left / "spec.json").write_text("{}")
        shown = lab.good("release.gc", "--check")
        assert f"quick {spare[:12]}" in shown and "would go" in shown and f"unfinished build {'c' * 12}" in shown
        assert first[:12] not in shown and second[:12] not in shown
        assert "the newest build of quick" in " ".join(shown.split())
        assert builds() == {first, second, spare, newest, left.name}
        refused = lab.run("release.gc")
        assert refused.returncode == 4 and spare in builds()
        assert "freed" in lab.good("release.gc", "--yes")
        assert builds() == {first, second, newest}
        assert "nothing to remove" in lab.good("release.gc", "--yes")
        lab.good("rollback", "--yes", timeout=300)
    finally:
        lab.down()


def made_build(root: Path, letter: str, built_at: float, name: str = "one") -> Path:
    digest = letter * 64
    folder = root / "builds" / digest[:20]
    folder.mkdir(parents=True)
    (folder / "bringup-build.json").write_text(json.dumps(
        {"name": name, "digest": digest, "path": str(folder), "files": {}, "built_at": built_at}))
    return folder


def listed(root: Path) -> dict[str, str | None]:
    found = kernel_space.run(Task({"action": "list"}, root=str(root)))["builds"]
    return {item["path"]: item["keep"] for item in found.values()}


def test_a_strange_folder_a_moved_build_and_one_that_an_environment_names_stay(tmp_path: Path) -> None:
    old, named, new = (made_build(tmp_path, letter, at) for letter, at in (("a", 1), ("b", 2), ("d", 3)))
    packages = tmp_path / "envs/x/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "kernels.pth").write_text(f"{named}\n")
    strange = tmp_path / "builds/by-hand"
    strange.mkdir()
    moved = tmp_path / "builds" / ("e" * 20)
    shutil.copytree(old, moved)
    keep = listed(tmp_path)
    assert keep.pop(str(old)) is None
    assert keep == {str(named): "a process or an environment uses it", str(new): "the newest build of one",
                    str(strange): "it was not made here by bringup", str(moved): "it was not made here by bringup"}
    done = kernel_space.run(Task({"action": "remove", "digests": ["a" * 64, "b" * 64, "f" * 64]}, root=str(tmp_path)))
    assert list(done["removed"]) == ["a" * 64] and list(done["kept"]) == ["b" * 64]
    assert not old.exists() and named.is_dir()


def test_nothing_goes_where_a_release_cannot_be_read(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        made_build(tmp_path / host, "a", 1)
        made_build(tmp_path / host, "b", 2)
    found = builds_on(FolderFleet(tmp_path, tmp_path, ("n1", "n2"), {}))
    stores = {"n1": HostStore(None, {}, {}, {}, []), "n2": HostStore(None, {}, {"9" * 64: "cut"}, {}, [])}
    assert {host: sorted(spare) for host, spare in spare_builds(found, stores, set()).items()} == {
        "n1": ["a" * 64, "b" * 64]}
    assert "n2" in spare_builds(found, stores, {"9" * 64})
