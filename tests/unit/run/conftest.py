"""Runs of small playbooks on hosts of this machine: real agents over local pipes, each with its own root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import Seen, Start, inventory_text

from bringup.base.errors import BringupError
from bringup.cli.options import Options
from bringup.cli.running import Reading, run_reading
from bringup.run.plays import Run


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Run a playbook text: `start(text, hosts="a,b", prepare=function of the Run, **flags)`."""
    monkeypatch.setenv("BRINGUP_PROJECT", str(tmp_path / "project"))

    def go(text: str, *, hosts: str = "a", prepare: Callable[[Run], None] | None = None, inventory: str | None = None,
           **flags: Any) -> Seen:
        playbook = tmp_path / "play.yml"
        playbook.write_text(text)
        (tmp_path / "hosts.yml").write_text(inventory or inventory_text(tmp_path, hosts))
        seen = Seen()
        monkeypatch.setattr("bringup.ui.screen.open_screen", lambda options, verb: seen)
        original = Run.go

        def with_preparation(self: Run) -> Any:
            if prepare is not None:
                prepare(self)
            return original(self)

        monkeypatch.setattr(Run, "go", with_preparation)
        try:
            reading = Reading(Options({"inventory": [str(tmp_path / "hosts.yml")], **flags}), playbook)
            seen.status = int(run_reading(reading, verb="playbook"))
        except BringupError as error:
            seen.error, seen.status = error, int(error.status)
        finally:
            monkeypatch.setattr(Run, "go", original)
        return seen

    return go
