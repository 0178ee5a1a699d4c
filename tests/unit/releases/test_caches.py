"""Who gives compiled caches to whom, and what is packed, as whom, and what never is."""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from bringup.agent.modules import compiled_cache
from bringup.agent.processes import launch
from bringup.agent.task import Failure, Task
from bringup.releases.caches import Held, cache_folders, ways
from bringup.serving.plan_digest import cache_folder, cache_variables, host_variables

KIND = "ab12" * 5 + "-h200"


def held(host: str, files: int, machine: str = "x86_64 1 10de:2335", path: str = f"/opt/bringup/cache/compiled/{KIND}"
         ) -> Held:
    return Held(host, path, files, files * 1000, machine, "/out")


def test_the_fullest_of_a_kind_gives_to_those_that_have_nothing() -> None:
    hosts = [held("a", 3), held("b", 0), held("c", 9), held("d", 0), held("e", 1),
             held("f", 0, machine="aarch64 1 19e5:d802"), held("g", 0, path="/srv/bringup/cache/compiled/x")]
    found = ways({item.host: item for item in hosts})
    assert [(way.source.host, way.takers) for way in found] == [("c", ("b", "d"))]
    assert ways({item.host: item for item in (held("a", 0), held("b", 0))}) == []
    assert ways({item.host: item for item in (held("a", 2), held("b", 1))}) == []


def document(root: str, hardware: str = "h200", **more: Any) -> dict[str, Any]:
    values = {"root": root, "environment": "ab12" * 16}
    return {"values": values, "env": cache_variables(values, hardware), **more}


def test_the_folder_of_a_host_is_that_of_its_launch_file_unless_the_site_says_another() -> None:
    own = document("/opt/bringup")
    own["env"]["TRITON_CACHE_DIR"] = "/scratch/triton"
    found = cache_folders({"r1": {"a": document("/opt/bringup"), "b": document("/srv/b")},
                           "r2": {"c": {**document("/opt/bringup"), "env": {}, "container": {"user": "image"}},
                                  "d": own}})
    assert found == {"a": f"/opt/bringup/cache/compiled/{KIND}", "b": f"/srv/b/cache/compiled/{KIND}"}


def test_containers_keep_theirs_by_the_image() -> None:
    values = {"root": "/opt/bringup", "image": "glm:1", "image_digest": "sha256:" + "cd34" * 16}
    folder = "/opt/bringup/cache/compiled/image-" + "cd34" * 5 + "-h200"
    assert cache_folder(values, "h200") == folder
    env = host_variables(values, "h200", {"user": "account"})
    assert env["TRITON_CACHE_DIR"] == folder + "/triton" and "CUDA_HOME" not in env
    document = {"values": values, "env": env, "container": {"caches": folder}}
    assert cache_folders({"r1": {"a": document}}) == {"a": folder}
    assert host_variables(values, "h200", {"user": "image"}) == {}
    assert host_variables({"root": "/opt/bringup", "image": "glm:1"}, "h200", {"user": "account"}) == {}


def test_the_cuda_toolkit_of_the_environment_reaches_its_processes_alone() -> None:
    values = {"root": "/opt/bringup", "environment": "ab12" * 16, "cuda_home": "/usr/local/cuda-13.0"}
    assert host_variables(values, "h200", None)["CUDA_HOME"] == "/usr/local/cuda-13.0"
    assert "CUDA_HOME" not in host_variables({**values, "image_digest": "sha256:1"}, "h200", {"user": "account"})


def test_the_folder_that_a_container_needs_is_made_and_no_link_is_followed(tmp_path: Path) -> None:
    place = launch.Place(str(tmp_path), "r1-a")
    compiled = tmp_path / "cache" / "compiled"
    compiled.mkdir(parents=True)
    owner = ("nobody", 65534, 65534, "/") if os.geteuid() == 0 else None
    launch.make_caches(place, str(compiled / "image-1"), owner)
    launch.make_caches(place, str(compiled / "image-1"), owner)
    assert (compiled / "image-1").stat().st_uid == (65534 if owner else os.geteuid())
    away = tmp_path / "away"
    away.mkdir()
    (compiled / "image-2").symlink_to(away)
    with pytest.raises(Failure, match="cannot be had"):
        launch.make_caches(place, str(compiled / "image-2"), owner)
    assert away.stat().st_uid == os.geteuid()
    with pytest.raises(Failure, match="no folder of compiled caches"):
        launch.make_caches(place, str(away), owner)


def call(root: Path, action: str, **args: Any) -> dict[str, Any]:
    full = {"action": action, "path": str(root / "cache/compiled" / KIND), "settled": 60.0, **args}
    return compiled_cache.run(Task(full, root=str(root)))


def put(root: Path, name: str, text: str = "x", age: float = 3600.0) -> Path:
    path = root / "cache/compiled" / KIND / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age,) * 2)
    return path


def carried(root: Path, other: Path) -> None:
    out = Path(call(other, "look")["folder"])
    out.mkdir(parents=True)
    shutil.copyfile(Path(call(root, "look")["folder"]) / "caches.tar", out / "caches.tar")


def test_whole_files_come_with_their_times_and_what_is_there_stays(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    kept = put(one, "triton/ab/kernel.cubin", "binary")
    kept.chmod(0o755)
    put(one, "flashinfer/x/build.ninja", "rule")
    put(one, "vllm/torch_compile_cache/cd/rank_0_0/graph.py", "theirs")
    for name in ("cuda/index", "triton/ab.lock", "triton/tmp.pid_7_x/half.cubin", "deep_gemm/.tmp.9/k.so"):
        put(one, name)
    put(one, "deep_gemm/young.so", age=1.0)
    (one / "cache/compiled" / KIND / "triton/link").symlink_to("/etc/shadow")
    packed = call(one, "pack")
    assert packed["files"] == 3 and packed["entries"][0]["sha256"]
    own = put(two, "vllm/torch_compile_cache/cd/rank_0_0/graph.py", "own")
    carried(one, two)
    assert call(two, "unpack")["files"] == 2
    came = two / "cache/compiled" / KIND / "triton/ab/kernel.cubin"
    assert came.read_text() == "binary" and came.stat().st_mode & 0o777 == 0o755
    assert int(came.stat().st_mtime) == int(kept.stat().st_mtime)
    assert own.read_text() == "own"
    assert sorted(path.name for path in (two / "cache/compiled").iterdir()) == [KIND]
    call(two, "drop")
    assert not (two / "cache/compiled-out" / KIND).exists() and came.exists()
    assert call(two, "look")["files"] == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_reads_and_writes_there_as_the_account_that_owns_it(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/tmp"):
            os.chmod(path, path.stat().st_mode | 0o011)
    root = tmp_path / "one"
    secret = tmp_path / "secret"
    secret.write_text("only for root")
    secret.chmod(0o600)
    put(root, "triton/a.cubin", "binary")
    os.link(secret, root / "cache/compiled" / KIND / "triton/b.cubin")
    os.utime(secret, (0, 0))
    base = root / "cache/compiled"
    for path in (base, *base.rglob("*")):
        if path.name != "b.cubin":
            os.chown(path, 65534, 65534)
    assert call(root, "pack")["files"] == 1
    two = tmp_path / "two"
    carried(root, two)
    call(two, "unpack", user="nobody")
    assert {path.stat().st_uid for path in (two / "cache/compiled").rglob("*")} == {65534}
    assert (two / "cache/compiled-out").stat().st_uid == 0


def test_an_archive_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    out = Path(call(tmp_path, "look")["folder"])
    out.mkdir(parents=True)
    for name, kind in (("../../escaped", tarfile.REGTYPE), ("x", tarfile.SYMTYPE)):
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        with tarfile.open(out / "caches.tar", "w") as archive:
            archive.addfile(entry)
        with pytest.raises(Failure, match="no plain file"):
            call(tmp_path, "unpack")
    with pytest.raises(Failure, match="no folder of compiled caches"):
        compiled_cache.run(Task({"action": "drop", "path": "/etc"}, root=str(tmp_path)))
