"""The manager `docker` in the embedded lab, by the verbs, with a stand-in client that runs what it is told to run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_project import HOSTS, Site, answer, children_of, endpoint_of, wait_for
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
        path = self.path = str(local.make_environment(base / "env") / "bin")
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


@pytest.mark.full
def test_a_pull_goes_on_without_the_run_and_the_next_run_follows_it(boxes: Boxes) -> None:
    """A run is killed while an image comes; the second run finds the jobs, and nothing is pulled twice."""
    site, name = boxes.site, "registry.example/next:0.24.0"
    site.run("stop", "--yes")
    boxes.docker.image(name, path=boxes.path, digest="sha256:" + "e" * 64, remote=True, id_="sha256:" + "4" * 64)
    boxes.docker.registry(seconds=3)
    boxes.write(image=name)
    began = site.start("provision", "--yes")
    pulls = [words for words in boxes.docker.calls if words[0] == "pull"]
    assert wait_for(lambda: len([w for w in boxes.docker.calls if w[0] == "pull"]) == len(pulls) + 3, 60)
    began.kill()
    began.wait()
    second = site.good("provision", "--yes", timeout=240)
    assert "followed: it was under way already, job image-" in second, second
    assert re.search(r"\d of 6 layers here", second), second
    assert "brought to lab-head,lab-w[1-2]" in second and "24 ranks on 3 nodes" in second
    assert len([words for words in boxes.docker.calls if words[0] == "pull"]) == len(pulls) + 3
    assert "serves already" in site.good("provision", "--yes")

    boxes.docker.image("registry.example/gone:1", remote=True, id_="sha256:" + "5" * 64)
    boxes.docker.registry(error="Error response from daemon: Get https://registry.example/v2/: dial tcp: i/o timeout")
    boxes.write(image="registry.example/gone:1")
    failed = site.run("provision", "--yes")
    assert failed.returncode == 1 and "the image cannot be pulled" in failed.stdout, failed.stdout
    assert "i/o timeout" in failed.stdout and len(boxes.running()) == 3  # what serves is not touched
    site.good("stop", "--yes")


def watched(boxes: Boxes) -> dict[str, dict[str, Any]]:
    out = {}
    for host in HOSTS:
        path = boxes.site.root(host) / f"state/watch/r1-{host}.json"
        out[host] = json.loads(path.read_text())["report"] if path.exists() else {}
    return out


def alerts(boxes: Boxes) -> list[str]:
    path = boxes.site.folder / "alerts"
    return path.read_text().splitlines() if path.exists() else []


def status_of(endpoint: str, key: str | None) -> int:
    """The HTTP status of /v1/models with this key; 0 where nobody answers."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                urllib.request.Request(endpoint + "/v1/models", headers=headers), timeout=5) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.full
def test_a_watcher_starts_a_broken_replica_of_containers_again_and_gives_up_after_two(boxes: Boxes) -> None:
    """A rank of one container goes: all containers stop and start together, with the endpoint's key; twice an hour."""
    site = boxes.site
    boxes.write(api_key="k3y-of-the-site", watcher={"port": 7771, "silence": 20, "restarts": 2, "on_alert":
                f"echo \"$BRINGUP_EVENT $BRINGUP_TEXT\" >> {site.folder}/alerts"})
    first = site.good("provision", "--yes")
    assert "watched on 3 nodes" in first
    endpoint = endpoint_of(first)
    assert status_of(endpoint, "k3y-of-the-site") == 200 and status_of(endpoint, None) == 401
    for host in HOSTS:
        spec = site.root(host) / f"state/secrets/r1-{host}.watch.json"
        assert spec.stat().st_mode & 0o077 == 0
        assert not (site.root(host) / f"state/secrets/r1-{host}.env").exists()
    for attempt, victim in enumerate((HOSTS[2], HOSTS[0]), 1):
        before = {host: found["Id"] for host, found in boxes.running().items()}
        assert sorted(before) == sorted(HOSTS)
        told = len(alerts(boxes))
        for pid in rank_processes(boxes, victim):
            os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda seen=told: any(line.startswith("restarted") for line in alerts(boxes)[seen:]), 90), (
            alerts(boxes), watched(boxes))
        assert wait_for(lambda: {report.get("phase") for report in watched(boxes).values()} == {"watching"}, 60)
        after = {host: found["Id"] for host, found in boxes.running().items()}
        assert sorted(after) == sorted(HOSTS) and not set(after.values()) & set(before.values())
        assert status_of(endpoint, "k3y-of-the-site") == 200 and status_of(endpoint, None) == 401, attempt
        assert "nothing wrong found" in site.good("status")
    for pid in rank_processes(boxes, HOSTS[1]):
        os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: any(line.startswith("gave up") for line in alerts(boxes)), 90), alerts(boxes)
    assert wait_for(lambda: boxes.running() == {}, 60)
    page = site.run("status")
    assert page.returncode == 4 and "its watcher gave up after 2 of 2 restarts this hour" in page.stdout, page.stdout
    assert "serves on 1 of 1" in site.good("start", "--yes")
    site.good("stop", "--yes")
    assert wait_for(lambda: boxes.running() == {}, 30)


def rank_processes(boxes: Boxes, host: str) -> list[int]:
    """The rank processes of a host's container: children of the engine's launcher."""
    pid = boxes.site.pids()[host]
    launcher = children_of(pid) if "vllm serve" not in Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace(
        "\0", " ") else [int(pid)]
    return [child for parent in launcher for child in children_of(str(parent))] or launcher
