"""The digest of a release, and differences in words."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.releases import on_controller
from bringup.releases.document import Release, differences, flags_of

HEAD = {"role": "head", "node_rank": 0, "ranks": [0], "argv": ["@{env}/bin/vllm", "serve", "/m", "--max-model-len",
        "1024", "--trust-remote-code"], "env": {"A": "1"}, "http_port": 8000, "ports": [8000]}
WORKER = {**HEAD, "role": "worker", "node_rank": 1, "ranks": [1], "http_port": None, "ports": []}
IDENTITY: dict[str, Any] = {
    "format": 1, "engine": "vllm", "engine_version": "0.24.0",
    "environment": {"name": "glm51-vllm", "digest": "e" * 64},
    "model": {"recipe": "zai-org/GLM-5.1", "path": "/m", "manifest": None}, "served_name": "glm-5.1", "world_size": 2,
    "replicas": [[HEAD, WORKER]], "api_key_variable": None}


def changed(**more: Any) -> Release:
    identity = copy.deepcopy(IDENTITY)
    identity.update(more)
    return Release(identity, {"operator": "lin"})


def test_what_stands_beside_names_nothing() -> None:
    assert Release(IDENTITY, {"bringup": "1"}).digest == Release(IDENTITY, {"bringup": "2"}).digest
    assert changed(engine_version="0.24.1").digest != Release(IDENTITY, {}).digest


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert Release(dict(reversed(list(IDENTITY.items()))), {}).digest == Release(IDENTITY, {}).digest


def test_differences_in_words() -> None:
    head, worker = copy.deepcopy(HEAD), copy.deepcopy(WORKER)
    for side in (head, worker):
        side["argv"][4] = "2048"
    head["argv"] += ["--port", "9000"]
    worker["env"] = {"A": "1", "B": "x"}
    new = changed(engine_version="0.24.1", environment={"name": "glm51-vllm", "digest": "f" * 64},
                  replicas=[[head, worker]])
    assert differences(Release(IDENTITY, {}), new) == [
        "vllm 0.24.0 -> 0.24.1", "environment glm51-vllm eeeeeeeeeeee -> glm51-vllm ffffffffffff",
        "--max-model-len 1024 -> 2048", "--port 9000 (new) (head)", "B none -> x (node 1)"]
    assert differences(Release(IDENTITY, {}), Release(IDENTITY, {})) == []


def test_flags_of_a_command_line() -> None:
    assert flags_of(["vllm", "serve", "/m", "--a=1", "--b", "2", "3", "-tp", "8", "--c"]) == {
        "command": "vllm serve /m", "--a": "1", "--b": "2 3", "-tp": "8", "--c": ""}


def test_a_shape_is_found_by_its_size() -> None:
    shape = Release(IDENTITY, {}).shape(2)
    assert [process.role for process in shape] == ["head", "worker"]


def test_the_controllers_copy_is_whole_and_never_changed(tmp_path: Path) -> None:
    made = Release({"served_name": "glm", "world_size": 2, "replicas": []}, {"operator": "ops"})
    assert on_controller.keep(tmp_path, made) is None
    path = on_controller.path_of(tmp_path, made.digest)
    assert path.stat().st_mode & 0o222 == 0
    first = path.stat().st_ino
    assert on_controller.keep(tmp_path, replace(made, beside={"operator": "lin"})) is None
    assert path.stat().st_ino == first, "the same release: the first document stays"
    assert on_controller.load(tmp_path, made.digest) == made
    path.chmod(0o644)
    path.write_text(path.read_text().replace("glm", "other"))
    assert on_controller.load(tmp_path, made.digest) is None, "it no longer has its digest"
    assert on_controller.keep(tmp_path, made) is None
    assert on_controller.load(tmp_path, made.digest) == made
    (tmp_path / "file").write_text("")
    assert "Not a directory" in str(on_controller.keep(tmp_path / "file", made))
