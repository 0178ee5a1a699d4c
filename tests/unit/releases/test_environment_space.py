"""Environments that are removed, with what engines compiled for them, and what stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bringup.agent.modules import environment_space
from bringup.agent.task import Task

GOING, STAYING = "ab12" * 16, "cd34" * 16


def call(root: Path, action: str, *digests: str, check: bool = False) -> dict[str, Any]:
    return environment_space.run(Task({"action": action, "digests": list(digests)}, root=str(root), check=check))


def environment(root: Path, digest: str) -> Path:
    path = root / "envs" / digest[:20]
    path.mkdir(parents=True)
    (path / "bringup-env.json").write_text(json.dumps({"digest": digest, "name": "one", "path": str(path)}))
    return path


def test_with_an_environment_goes_what_engines_compiled_for_it(tmp_path: Path) -> None:
    going, staying = environment(tmp_path, GOING), environment(tmp_path, STAYING)
    compiled = tmp_path / "cache" / "compiled"
    away = tmp_path / "away"
    for folder in (compiled / f"{GOING[:20]}-h200", compiled / GOING[:20], compiled / f"{STAYING[:20]}-h200", away):
        (folder / "triton").mkdir(parents=True)
    (compiled / f"{GOING[:20]}-link").symlink_to(away)
    assert set(call(tmp_path, "list")["environments"]) == {GOING, STAYING}
    assert call(tmp_path, "remove", GOING, check=True)["changed"] and going.exists()
    assert (compiled / GOING[:20]).exists()
    told = call(tmp_path, "remove", GOING)
    assert list(told["removed"]) == [GOING] and told["kept"] == {}
    assert not going.exists() and staying.exists()
    assert sorted(path.name for path in compiled.iterdir()) == [f"{GOING[:20]}-link", f"{STAYING[:20]}-h200"]
    assert (away / "triton").is_dir()
