"""The model folder of the lab: GLM-5.1's configuration without weights."""

from __future__ import annotations

import json
from pathlib import Path

from bringup.lab.machines import LabFolder

MODEL = "GLM-5.1"


def write_models(folder: LabFolder) -> None:
    """Lay the model's small files into the lab's folder; files that are there are left as they are."""
    target = folder.models / MODEL
    target.mkdir(parents=True, exist_ok=True)
    config = target / "config.json"
    if not config.exists():
        config.write_text(json.dumps(model_config(), indent=2) + "\n")


def model_config() -> dict[str, object]:
    """A `config.json` as GLM-5.1 has it (model type glm_moe_dsa)."""
    text = Path(__file__).with_name("glm51_config.json").read_text()
    data: dict[str, object] = json.loads(text)
    return data
