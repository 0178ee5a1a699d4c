"""The manager `docker` in the embedded lab, by the verbs, with a stand-in client that runs what it is told to run."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_project import HOSTS, Site, answer, endpoint_of
from stand_in_docker import DIGEST, StandIn

spec = importlib.util.spec_from_file_location("local_fleet", Path(__file__).parents[1] / "unit/serving/local_fleet.py")
assert spec is not None and spec.loader is not None
local = sys.modules.setdefault("local_fleet", importlib.util.module_from_spec(spec))
spec.loader.exec_module(local)

IMAGE = f"registry.example/glm@{DIGEST}"
OTHER = "local/glm:2"


class Boxes:
    """A site whose engine runs in containers."""

    def __init__(self, base: Path) -> None:
        self.docker = StandIn(base / "client")
        path = str(local.make_environment(base / "env") / "bin")
        self.docker.image("registry.example/glm:0.24.0", path=path)
        self.docker.image(OTHER, path=path, digest=None, archive=True, layers=("sha256:cc",), id_="sha256:" + "2" * 64)
        self.archive = base / "glm.tar"
        self.archive.write_text(OTHER)
        self.site = Site(base / "site")

    def write(self, **deployment: Any) -> None:
        wanted = {"manager": "docker", "image": IMAGE, "engine_version": "0.24.0", "environment": None,
                  "container": {"client": str(self.docker.client)}, **deployment}
        self.site.write(**wanted)

    def running(self) -> dict[str, Any]:
        """host -> its container's document."""
        out = {}
        for path in (self.docker.folder / "state").glob("*/config.json"):
            found = json.loads(path.read_text())
            if found["State"]["Running"]:
                out[found["Name"].removeprefix("bringup-r1-")] = found
        return out


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxes]:
    made = Boxes(tmp_path_factory.mktemp("boxes"))
    yield made
    made.site.run("stop", "--yes")
    made.site.down()


@pytest.mark.full
def test_provision_status_logs_a_bad_start_rollback_and_stop_in_containers(boxes: Boxes) -> None:
    site = boxes.site
    boxes.write()
    first = site.good("provision")
    assert "none to build: the deployment runs an image" in first and "24 ranks on 3 nodes" in first
    endpoint = endpoint_of(first)
    said = answer(endpoint)
    assert sorted(boxes.running()) == sorted(HOSTS)
    asked, run, *_ = boxes.docker.runs()[-4:]  # the engine in the image was asked for its flags, then three started
    assert "--help" in asked and "--rm" in asked and "--detach" not in asked
    assert run[run.index("--entrypoint") + 2] == IMAGE and run[run.index("--network") + 1] == "host"
    pids = site.pids()
    assert "serves already, nothing was restarted" in site.good("provision") and site.pids() == pids
    assert "nothing wrong found" in site.good("status")
    lines = [line for line in site.good("logs", "--lines", "4", "--limit", "lab-w1").splitlines()
             if line.startswith("lab-w1  ")]
    assert len(lines) == 4

    boxes.write(image=OTHER, image_archive=str(boxes.archive))
    second = site.good("provision", "--yes")
    assert f"{OTHER}: brought to" in second and "was r0001" in second
    images = {found["Image"] for found in boxes.running().values()}
    assert images == {"sha256:" + "2" * 64}

    boxes.write(env={"LAB_ENGINE_LOAD_SECONDS": "0.3", "LAB_ENGINE_FAULT": "crash_loading:node_rank=1"},
                image=OTHER, image_archive=str(boxes.archive))
    failed = site.run("provision", "--yes")
    assert failed.returncode == 1 and "r0002 serves again on r1" in failed.stdout, failed.stdout
    assert "told to crash while loading" in failed.stdout

    back = site.good("rollback", "--to", "r0001", "--yes")
    assert "r0001" in back and answer(endpoint_of(back)) == said
    assert {found["Image"] for found in boxes.running().values()} == {"sha256:" + "1" * 64}
    site.good("stop", "--yes")
    assert boxes.running() == {}
    assert {node["state"] for node in site.nodes().values()} == {"stopped"}


@pytest.mark.full
def test_a_release_of_an_environment_and_one_of_an_image_follow_each_other(boxes: Boxes) -> None:
    site = boxes.site
    boxes.write()
    site.good("provision", "--yes")
    site.write()
    first = site.good("provision", "--yes")
    assert boxes.running() == {} and "24 ranks on 3 nodes" in first
    back = site.good("rollback", "--yes")
    assert sorted(boxes.running()) == sorted(HOSTS), back
    boxes.write()
    assert "serves already" in site.good("provision", "--yes")


def test_wrong_wishes_are_refused_before_any_host(boxes: Boxes) -> None:
    site = boxes.site
    for wrong, told in (({"image": None}, "the manager docker needs an `image`"),
                        ({"manager": "detached"}, "`image` is for containers, the manager is detached"),
                        ({"container": {"clients": "x"}}, "nearest: client"),
                        ({"container": {"options": ["--restart=always"]}}, "`--restart=always` is set by bringup"),
                        ({"container": {"mounts": ["data"]}}, "a mount is /path"),
                        ({"image_archive": "/x.tar"}, "has no digest of a registry")):
        boxes.write(**wrong)
        done = site.run("provision")
        assert done.returncode == 2 and told in done.stdout and "nothing was contacted" in done.stdout, done.stdout
