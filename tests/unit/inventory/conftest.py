"""An inventory from a text, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bringup.base.paths import Project
from bringup.inventory.load import load_inventory
from bringup.inventory.model import Inventory

Read = Callable[..., Inventory]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Writes files into an empty folder and loads the first, or the named sources."""
    monkeypatch.chdir(tmp_path)

    def load(files: dict[str, str], *sources: str, **options: Any) -> Inventory:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        chosen = sources or (f"./{next(iter(files))}",)
        return load_inventory(chosen, Project(tmp_path), **options)

    return load
