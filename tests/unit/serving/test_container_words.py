"""What `docker run` is told, for each vendor; every option is one that the real client knows."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.processes import container_words
from bringup.agent.processes.launch import Place

FOLDER = Path(__file__).parents[2] / "containers"
RECORDED = (FOLDER / "docker-run-help.txt").read_text()
spec = importlib.util.spec_from_file_location("stand_in", FOLDER / "stand_in.py")
assert spec is not None and spec.loader is not None
stand_in = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stand_in)

ASCEND = {"/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", "/usr/local/dcmi", "/usr/local/bin/npu-smi",
          "/usr/local/Ascend/driver/lib64", "/usr/local/Ascend/driver/version.info", "/etc/ascend_install.info",
          "/etc/hccn.conf", *(f"/dev/davinci{number}" for number in range(16))}


class Seen:
    """A host with these files, each of the group that it is given."""

    def __init__(self, *paths: str, groups: dict[str, int] | None = None, outside: tuple[str, ...] = ()) -> None:
        self.paths, self.groups, self.linked = set(paths), groups or {}, list(outside)

    def exists(self, path: str) -> bool:
        return path in self.paths

    def group(self, path: str) -> int | None:
        return self.groups.get(path)

    def glob(self, pattern: str) -> list[str]:
        lead = pattern.rstrip("*")
        return sorted(path for path in self.paths if path.startswith(lead))

    def outside(self, folder: str) -> list[str]:
        return self.linked


def document(brand: str, *, nodes: int = 1, devices: tuple[int, ...] = tuple(range(8)), whole: bool = True,
             kind: str = "docker", **more: Any) -> dict[str, Any]:
    box = {"client_kind": kind, "client": None, "brand": brand, "nodes": nodes, "user": "account", "shm_gb": 32,
           "mounts": [], "options": [], "devices": list(devices), "whole": whole, "image": "glm@sha256:1", **more}
    return {"name": "r1-n1", "replica": "r1", "node": "n1", "node_rank": 0, "role": "head", "ranks": list(devices),
            "world_size": 8, "release": "a" * 64, "ports": [8000], "addresses": [], "model_path": "/models/GLM-5.1",
            "container": box}


def words(doc: dict[str, Any], seen: Seen, owner: Any = ("bringup", 901, 902, "/var/lib/bringup"),
          env_file: str | None = None) -> list[str]:
    return list(container_words.run_words(Place("/opt/bringup", "r1-n1"), doc, owner, env_file, 30, "mark", seen))


def values(argv: list[str], option: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == option]


def test_nvidia_on_one_node_publishes_its_port_and_takes_all_devices() -> None:
    argv = words(document("NVIDIA"), Seen())
    assert argv == [
        "--detach", "--name", "bringup-r1-n1", "--restart", "no", "--pull", "never", "--init",
        "--log-driver", "json-file", "--label", "bringup.root=/opt/bringup", "--label", "bringup.name=r1-n1",
        "--label", "bringup.release=" + "a" * 64, "--label", values(argv, "--label")[3],
        "--stop-signal", "SIGTERM", "--stop-timeout", "30", "--ulimit", "memlock=-1:-1",
        "--ulimit", "nofile=1048576:1048576", "--ulimit", "core=0:0", "--shm-size", "32g", "--publish", "8000:8000",
        "--gpus", "all", "--user", "901:902",
        "--mount", f"type=bind,source=/opt/bringup/releases/{'a' * 64}/launch/r1-n1.sh,"
                   f"target=/opt/bringup/releases/{'a' * 64}/launch/r1-n1.sh,readonly",
        "--mount", "type=bind,source=/opt/bringup/processes/r1-n1/work,target=/opt/bringup/processes/r1-n1/work",
        "--mount", "type=bind,source=/models/GLM-5.1,target=/models/GLM-5.1,readonly",
        "--env", "BRINGUP_PROCESS=mark", "--env", "HOME=/opt/bringup/processes/r1-n1/work", "--env", "LANG=C.UTF-8",
        "--env", "LOGNAME=bringup", "--env", "USER=bringup", "--workdir", "/opt/bringup/processes/r1-n1/work",
        "--entrypoint", "/bin/sh", "glm@sha256:1", f"/opt/bringup/releases/{'a' * 64}/launch/r1-n1.sh"]
    kept = json.loads(values(argv, "--label")[3].removeprefix("bringup.record="))
    assert kept["ranks"] == list(range(8)) and kept["mark"] == "mark" and kept["ports"] == [8000]


def test_several_nodes_take_the_hosts_network_and_its_rdma_devices() -> None:
    argv = words(document("NVIDIA", nodes=2), Seen("/dev/infiniband"))
    assert values(argv, "--network") == ["host"] and values(argv, "--ipc") == ["host"]
    assert values(argv, "--device") == ["/dev/infiniband"] and values(argv, "--cap-add") == ["IPC_LOCK"]
    assert "--publish" not in argv and "--shm-size" not in argv
    assert "/dev/infiniband" not in words(document("NVIDIA", nodes=2), Seen())


def test_some_devices_are_named() -> None:
    argv = words(document("NVIDIA", devices=(0, 1), whole=False), Seen())
    assert values(argv, "--gpus") == ['"device=0,1"']
    argv = words(document("NVIDIA", devices=(4, 5), whole=False, kind="podman"), Seen())
    assert values(argv, "--device") == ["nvidia.com/gpu=4", "nvidia.com/gpu=5"] and "--gpus" not in argv
    assert "--init" not in argv and "--log-driver" not in argv


def test_amd_takes_kfd_and_dri_with_the_hosts_own_groups() -> None:
    seen = Seen("/dev/kfd", "/dev/dri", "/dev/dri/card0", "/dev/dri/renderD128",
                groups={"/dev/kfd": 109, "/dev/dri/renderD128": 109, "/dev/dri/card0": 44})
    argv = words(document("AMD"), seen)
    assert values(argv, "--device") == ["/dev/kfd", "/dev/dri"]
    assert values(argv, "--group-add") == ["109", "44"]
    assert values(argv, "--security-opt") == ["seccomp=unconfined"] and values(argv, "--cap-add") == ["SYS_PTRACE"]
    assert values(words(document("AMD"), Seen("/dev/kfd", "/dev/dri")), "--group-add") == ["video", "render"]


@pytest.mark.parametrize(("nodes", "devices"), [(1, tuple(range(8))), (2, tuple(range(16))), (1, (2, 3))])
def test_ascend_takes_its_npus_the_managers_and_the_drivers_files(nodes: int, devices: tuple[int, ...]) -> None:
    seen = Seen(*ASCEND, groups={"/dev/davinci_manager": 1000})
    argv = words(document("Huawei", nodes=nodes, devices=devices), seen)
    assert values(argv, "--device") == [*(f"/dev/davinci{number}" for number in devices), "/dev/davinci_manager",
                                        "/dev/devmm_svm", "/dev/hisi_hdc"]
    sources = [mount.split(",")[1].removeprefix("source=") for mount in values(argv, "--mount")]
    assert sources[3:] == ["/usr/local/Ascend/driver/lib64", "/usr/local/Ascend/driver/version.info",
                           "/etc/ascend_install.info", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/etc/hccn.conf"]
    assert all(mount.endswith(",readonly") for mount in values(argv, "--mount")[2:])
    assert values(argv, "--group-add") == ["1000"] and values(argv, "--network") == ["host"]


def test_what_the_host_lacks_is_named_before_a_start() -> None:
    without = Seen(*(ASCEND - {"/dev/davinci9", "/etc/hccn.conf", "/usr/local/dcmi"}))
    lacking = container_words.needed(document("Huawei", nodes=2, devices=tuple(range(16))), without)
    assert [path for path, _ in lacking] == ["/dev/davinci9", "/usr/local/dcmi", "/etc/hccn.conf"]
    one = container_words.needed(document("Huawei", devices=tuple(range(8))), without)
    assert [path for path, _ in one] == ["/usr/local/dcmi"]
    assert [path for path, _ in container_words.needed(document("AMD"), Seen("/dev/dri"))] == ["/dev/kfd"]
    assert container_words.needed(document("NVIDIA", mounts=["/data:/in:rw"]), Seen()) == [
        ("/data", "mount of the inventory")]


def test_the_sites_wishes_and_links_out_of_the_model_folder() -> None:
    doc = document("NVIDIA", mounts=["/data:/in:rw", "/etc/ssl"], options=["--memory", "900g"], user="image")
    argv = words(doc, Seen(outside=("/cache/blobs",)))
    assert values(argv, "--mount")[3:] == ["type=bind,source=/cache/blobs,target=/cache/blobs,readonly",
                                           "type=bind,source=/data,target=/in",
                                           "type=bind,source=/etc/ssl,target=/etc/ssl,readonly"]
    assert values(argv, "--memory") == ["900g"] and "--user" not in argv
    assert not [word for word in values(argv, "--env") if word.startswith("HOME=")]


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_what_engines_compile_is_kept_on_the_host_for_the_next_container(kind: str) -> None:
    folder = "/opt/bringup/cache/compiled/image-0123-h200"
    argv = words(document("NVIDIA", kind=kind, caches=folder), Seen())
    assert f"type=bind,source={folder},target={folder}" in values(argv, "--mount")  # may be written to


def test_secrets_stand_in_a_file_alone() -> None:
    argv = words(document("NVIDIA"), Seen(), env_file="/opt/bringup/state/secrets/r1-n1.env")
    assert values(argv, "--env-file") == ["/opt/bringup/state/secrets/r1-n1.env"]


@pytest.mark.parametrize("source", ["recorded", "installed"])
def test_every_option_is_one_that_the_real_client_knows(source: str) -> None:
    text = RECORDED
    if source == "installed":
        if not shutil.which("docker"):
            pytest.skip("no docker client is installed here")
        text = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True, check=True).stdout
    known = stand_in.options_of(text)
    assert known["--gpus"] and known["--mount"] and not known["--detach"] and known["-v"]
    every = Seen(*ASCEND, "/dev/kfd", "/dev/dri", "/dev/infiniband")
    for brand in ("NVIDIA", "AMD", "Huawei"):
        for nodes in (1, 2):
            for owner in (("bringup", 901, 902, "/x"), ("root", 0, 0, "/root"), None):
                argv = words(document(brand, nodes=nodes), every, owner, "/secret")
                at = 0
                while argv[at].startswith("-"):
                    assert argv[at] in known, argv[at]
                    at += 2 if known[argv[at]] else 1
                assert argv[at] == "glm@sha256:1"
