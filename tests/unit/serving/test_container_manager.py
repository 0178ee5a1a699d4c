"""The manager `docker` with a stand-in client that runs the command: start, status, log, stop, what is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in_docker import DIGEST, StandIn

from bringup.agent.modules import container_image, engine_process, job
from bringup.agent.processes import container_client, containers, proc
from bringup.agent.task import Failure, Task
from bringup.releases.images import pulled

RELEASE = "a" * 64
IMAGE = f"registry.example/glm@{DIGEST}"


class Box:
    """A host's root with a client of its own."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.root.mkdir()
        self.docker = StandIn(base / "client")
        self.docker.image("registry.example/glm:1", path=str(Path(sys.executable).parent))

    def call(self, **args: Any) -> dict[str, Any]:
        filled = {name: spec.get("default") for name, spec in engine_process.ARGUMENTS.items()}
        filled.update({"manager": "docker", "name": "r1-n1", **args})
        return dict(engine_process.run(Task(filled, root=str(self.root), run_id="run1")))

    def launch(self, script: str, *, release: str = RELEASE, ports: tuple[int, ...] = (), image: str = IMAGE,
               model: str = "", **env: str) -> dict[str, Any]:
        box = {"client_kind": "docker", "client": str(self.docker.client), "brand": "NVIDIA", "nodes": 2,
               "user": "account", "shm_gb": 32, "mounts": [], "options": [], "devices": [0], "whole": True,
               "image": image}
        return {"name": "r1-n1", "replica": "r1", "node": "n1", "node_rank": 0, "role": "head", "ranks": [0],
                "world_size": 1, "release": release, "argv": [sys.executable, "-u", "-c", script], "env": env,
                "ports": list(ports), "addresses": [], "model_path": model, "container": box}

    def start(self, script: str, **more: Any) -> dict[str, Any]:
        secrets = more.pop("secrets", {})
        return self.call(action="start", launch=self.launch(script, **more), secrets=secrets)

    def seen(self) -> dict[str, Any]:
        return dict(self.call(action="status", names=["r1-n1"])["processes"]["r1-n1"])

    def until(self, state: str) -> dict[str, Any]:
        end = time.time() + 20
        while (seen := self.seen())["state"] != state:
            assert time.time() < end, seen
            time.sleep(0.05)
        return seen

    def line(self, text: str) -> list[Any]:
        end = time.time() + 20
        while True:
            found = [line for line in self.call(action="logs", lines=100)["lines"] if text in line[1]]
            if found:
                return list(found[0])
            assert time.time() < end, text
            time.sleep(0.05)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    made = Box(tmp_path)
    monkeypatch.setenv("PATH", f"{made.docker.folder}:{os.environ['PATH']}")
    yield made
    (made.docker.folder / "down").unlink(missing_ok=True)
    made.call(action="stop", grace=0.0)


SLEEP = "import time; print('up'); time.sleep(600)"


def test_start_is_idempotent_and_status_names_the_processes(box: Box) -> None:
    first = box.start(SLEEP)
    assert first["changed"] and first["record"]["manager"] == "docker" and first["record"]["image"] == IMAGE
    assert not box.start(SLEEP)["changed"]
    assert len(box.docker.runs()) == 1
    seen = box.until("running")
    assert seen["pid"] == first["record"]["pid"] and seen["pid"] in [p["pid"] for p in seen["pids"]]
    assert seen["unit"] == "bringup-r1-n1" and seen["ranks"] == [0]
    moment, text = box.line("up")
    assert text == "up" and abs(moment - time.time()) < 60
    with pytest.raises(Failure, match="runs release aaaa"):
        box.start(SLEEP, release="b" * 64)


def test_what_an_engine_compiles_is_there_for_the_next_container(box: Box) -> None:
    folder = box.root / "cache" / "compiled" / "image-0123-h200"
    script = """
import os, time
place = os.path.join(os.environ["TRITON_CACHE_DIR"], "kernel")
print("found" if os.path.exists(place) else "compiled", flush=True)
os.makedirs(os.path.dirname(place), exist_ok=True)
open(place, "w").close()
time.sleep(600)
"""
    document = box.launch(script, TRITON_CACHE_DIR=str(folder / "triton"))
    document["container"]["caches"] = str(folder)
    box.call(action="start", launch=document)
    assert box.line("compiled")[1] == "compiled"
    mounts = [word for word in box.docker.runs()[0] if word.startswith("type=bind")]
    assert f"type=bind,source={folder},target={folder}" in mounts
    box.call(action="stop", grace=0.0)
    box.call(action="start", launch=document)
    assert box.line("found")[1] == "found"
    (folder / "triton" / "kernel").unlink()
    folder.rename(folder.with_name("aside"))
    folder.symlink_to("/etc")
    box.call(action="stop", grace=0.0)
    with pytest.raises(Failure, match="folder of compiled caches cannot be had"):
        box.call(action="start", launch=document)


def test_secrets_go_by_a_private_file_that_is_gone_afterwards(box: Box) -> None:
    box.start("import os, time; print('key', os.environ['VLLM_API_KEY'], os.environ['X']); time.sleep(600)",
              secrets={"VLLM_API_KEY": 'a"b$c\\d'}, X="plain")
    assert box.line("key")[1] == 'key a"b$c\\d plain'
    assert ["env-file", "600"] in box.docker.calls
    assert 'a"b$c' not in json.dumps(box.docker.runs())
    assert not [p for p in box.root.rglob("*") if p.is_file() and 'a"b$c' in p.read_text()]
    with pytest.raises(Failure, match="line break"):
        box.call(action="stop", grace=0.0)
        box.start(SLEEP, secrets={"K": "a\nb"})


def test_exit_status_and_signal_are_kept_and_the_next_start_makes_room(box: Box) -> None:
    box.start("print('bye'); raise SystemExit(7)")
    ended = box.until("exited")
    assert ended["exit"]["code"] == 7 and abs(ended["exit"]["at"] - time.time()) < 60
    assert box.line("bye")
    box.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert box.until("exited")["exit"]["signal"] == 9
    assert len(box.docker.runs()) == 2


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    os.execve('/bin/sleep', ['sleep', '600'], {k: v for k, v in os.environ.items() if k != 'STAND_IN_CONTAINER'})
print('deaf')
time.sleep(600)
"""


def test_stop_ends_what_ignores_term_and_what_outlives_the_container(box: Box) -> None:
    box.start(STUBBORN)
    box.line("deaf")
    end = time.time() + 10
    while len(pids := box.until("running")["pids"]) < 2 and time.time() < end:
        time.sleep(0.05)
    assert len(pids) == 2
    assert box.call(action="stop", grace=1.0)["changed"]
    assert not [p for p in pids if proc.alive(p["pid"], p["ticks"])]
    seen = box.until("stopped")
    assert seen["leftover"] == [] and box.line("deaf")
    assert not box.call(action="stop", grace=1.0)["changed"]


def test_a_rank_that_outlives_its_killed_container_is_a_leftover(box: Box) -> None:
    box.start(STUBBORN.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", ""))
    box.line("deaf")
    end = time.time() + 10
    while len(box.until("running")["pids"]) < 2 and time.time() < end:
        time.sleep(0.05)
    os.kill(box.seen()["pid"], signal.SIGKILL)
    left = box.until("exited")["leftover"]
    assert [p["comm"] for p in left] == ["sleep"]
    with pytest.raises(Failure, match="1 processes of an earlier start of r1-n1 are still there"):
        box.start(SLEEP)
    assert box.call(action="stop", grace=0.0)["changed"]
    assert not proc.alive(left[0]["pid"], left[0]["ticks"])
    assert box.start(SLEEP)["changed"]


def test_a_lost_record_is_read_from_the_labels(box: Box) -> None:
    box.start(SLEEP)
    (box.root / "processes/r1-n1/record.json").unlink()
    seen = box.call(action="status")["processes"]["r1-n1"]
    assert seen["state"] == "running" and seen["release"] == RELEASE and seen["pids"]
    assert not box.start(SLEEP)["changed"]
    assert box.call(action="stop", grace=0.0)["changed"]
    assert box.seen()["state"] == "stopped"


def test_a_container_of_somebody_else_is_left_alone(box: Box, tmp_path: Path) -> None:
    box.start(SLEEP)
    other = Box.__new__(Box)
    other.root, other.docker = tmp_path / "other", box.docker
    other.root.mkdir()
    with pytest.raises(Failure, match="was not made by bringup here; it is left alone"):
        other.start(SLEEP)
    assert box.seen()["state"] == "running"


def test_the_log_is_followed_by_time_and_no_line_comes_twice(box: Box) -> None:
    box.start("import time\nfor n in range(40): print('line', n); time.sleep(0.01)\ntime.sleep(600)")
    got: list[str] = []
    after = {"r1-n1": ""}
    end = time.time() + 20
    while len(got) < 40 and time.time() < end:
        seen = box.call(action="status", names=["r1-n1"], after=after, wait=1.0)["processes"]["r1-n1"]
        got += [text for _, text in seen["lines"]]
        after = {"r1-n1": seen["after"]}
    assert got == [f"line {n}" for n in range(40)]
    assert box.call(action="logs", after=after)["lines"] == []


def test_prove_names_an_engine_that_is_down_and_an_image_that_is_not_here(box: Box, tmp_path: Path) -> None:
    assert box.call(action="prove", launch=box.launch("pass"))["problems"] == []
    document = box.launch("pass", image="registry.example/other@sha256:2", model=str(tmp_path / "none"))
    problems = box.call(action="prove", launch=document)["problems"]
    assert [p["check"] for p in problems] == ["image", "model"]
    box.docker.break_engine()
    problem = box.call(action="prove", launch=box.launch("pass"))["problems"][0]
    assert "Cannot connect to the Docker daemon" in problem["found"] and problem["next"] == "systemctl start docker"
    document = box.launch("pass")
    document["container"]["client"] = "/nowhere/docker"
    assert box.call(action="prove", launch=document)["problems"][0]["found"] == "/nowhere/docker is not on this host"


def test_an_engine_that_refuses_is_told_in_its_own_words(box: Box) -> None:
    with pytest.raises(Failure, match="No such image: nobody/knows"):
        box.start(SLEEP, image="nobody/knows")
    failed = container_client.failure("docker", "it was not started", 125, "docker: Error response from daemon: could "
                                      "not select device driver \"\" with capabilities: [[gpu]].\nSee 'docker run'")
    assert "nvidia-container-toolkit" in failed.fields["next"]


def image(docker: StandIn, root: Path, **args: Any) -> dict[str, Any]:
    filled = {name: spec.get("default") for name, spec in container_image.ARGUMENTS.items()}
    return dict(container_image.run(Task({**filled, "client": str(docker.client), **args}, root=str(root))))


def brought(docker: StandIn, root: Path, **args: Any) -> dict[str, Any]:
    """Start the job that brings it, wait for its end, and ask what came of it."""
    started = image(docker, root, action="start", **args)
    if started["job"]:
        filled = {name: spec.get("default") for name, spec in job.ARGUMENTS.items()}
        end = time.time() + 30
        while job.run(Task({**filled, "action": "status", "id": started["job"]}, root=str(root)))["state"] in (
                "running", "starting"):
            assert time.time() < end
            time.sleep(0.05)
    return image(docker, root, action="outcome", **args)


def test_an_image_is_known_by_digest_or_by_its_layers_once_an_archive_was_loaded(box: Box, tmp_path: Path) -> None:
    there = image(box.docker, tmp_path, action="start", image=IMAGE)
    assert not there["changed"] and there["job"] is None and there["digests"] == [IMAGE]
    box.docker.image("local/glm:2", digest=None, archive=True)
    archive = {"image": "local/glm:2", "archive": str(tmp_path / "glm.tar")}
    assert image(box.docker, tmp_path, action="look", image="local/glm:2")["id"] is None
    with pytest.raises(Failure, match="archive of the image is not there"):
        image(box.docker, tmp_path, action="start", **archive)
    (tmp_path / "glm.tar").write_text("local/glm:2")
    loaded = brought(box.docker, tmp_path, **archive)
    assert loaded["changed"] and loaded["digests"] == [] and loaded["layers"] == there["layers"]
    assert not image(box.docker, tmp_path, action="start", **archive)["changed"]


def test_a_pull_is_a_job_that_is_found_again_and_told_when_it_fails(box: Box, tmp_path: Path) -> None:
    name = "far/glm:3"
    box.docker.image(name, remote=True, id_="sha256:" + "3" * 64)
    box.docker.registry(seconds=0.3)
    first = image(box.docker, tmp_path, action="start", image=name)
    second = image(box.docker, tmp_path, action="start", image=name)
    assert first["job"] == second["job"] and not first["attached"] and second["attached"]
    assert brought(box.docker, tmp_path, image=name)["id"] == "sha256:" + "3" * 64
    assert [words for words in box.docker.calls if words[0] == "pull"] == [["pull", name]]
    (tmp_path / "refused").mkdir()
    for error, told, mend in (
            ("write /var/lib/docker/tmp/x: no space left on device", "no space left on device", "free disk"),
            ("Error response from daemon: unauthorized: authentication required", "unauthorized", None)):
        (box.docker.folder / ("pulled-" + "3" * 12)).unlink(missing_ok=True)
        box.docker.registry(error=error)
        with pytest.raises(Failure, match=f"the image cannot be pulled: .*{told}") as caught:
            brought(box.docker, tmp_path, image=name)
        assert mend is None or mend in str(caught.value.fields["next"])
    box.docker.registry()
    assert brought(box.docker, tmp_path, image=name)["changed"]  # a job that failed is begun again
    with pytest.raises(Failure, match="not the one that was asked for"):
        container_image._same("docker", "far/glm@sha256:1", {"digests": ["far/glm@sha256:2"]})


def test_how_far_a_pull_is() -> None:
    docker = (f"3: Pulling from x\n{'a' * 12}: Pulling fs layer\n{'b' * 12}: Already exists\n"
              f"{'c' * 12}: Downloading")
    assert pulled(docker) == "1 of 3 layers here" and pulled("") == "" and pulled("Loaded image: x") == ""
    assert pulled(f"{docker}\n{'a' * 12}: Pull complete\n") == "2 of 3 layers here"
    podman = (f"Copying blob sha256:{'d' * 64}\nCopying blob {'e' * 12} done   |\n"
              f"Copying blob {'f' * 12} skipped: already exists")
    assert pulled(podman) == "2 of 3 layers here"


def test_times_of_both_engines_are_read() -> None:
    assert container_client.moment("2026-11-30T12:00:00.5Z") == container_client.moment("2026-11-30T14:00:00.5+02:00")
    assert container_client.moment("0001-01-01T00:00:00Z") is None and container_client.moment("words") is None
    stamps = ["2026-11-30T12:00:00.51Z", "2026-11-30T12:00:00.5Z", "2026-11-30T12:00:00Z"]
    assert sorted(map(containers._padded, stamps)) == [containers._padded(s) for s in reversed(stamps)]


def test_podman_is_kept_the_same_way(box: Box) -> None:
    document = box.launch(SLEEP)
    document["container"].update(client_kind="podman")
    started = box.call(action="start", manager="podman", launch=document)
    assert started["record"]["manager"] == "podman"
    run = box.docker.runs()[0]
    assert "--gpus" not in run and run[run.index("--device") + 1] == "nvidia.com/gpu=all" and "--init" not in run
    # a later call that names no manager takes the one of the record
    assert box.call(action="status", manager="detached", names=["r1-n1"])["processes"]["r1-n1"]["state"] == "running"
    assert box.call(action="stop", manager="detached", grace=0.0)["changed"]
    assert box.seen()["state"] == "stopped"
