"""The inventory file and the lab agree on the machines."""

from __future__ import annotations

from pathlib import Path

from bringup.base.yaml import load_file
from bringup.lab.machines import NAMES
from bringup.lab.models import model_config

INVENTORY = Path(__file__).resolve().parents[3] / "inventory" / "lab.yml"


def test_hosts_of_the_inventory_are_the_machines_of_the_lab() -> None:
    children = load_file(INVENTORY)["all"]["children"]
    assert [*children["head"]["hosts"], *children["workers"]["hosts"]] == list(NAMES)


def test_the_model_divides_as_the_inventory_says() -> None:
    deployment = load_file(INVENTORY)["all"]["vars"]["deployment"]
    config = model_config()
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    assert isinstance(heads, int) and isinstance(layers, int)
    assert heads % deployment["tensor_parallel"] == 0 and heads % 24 != 0
    assert layers % deployment["pipeline_parallel"] == 0
    assert config["model_type"] == "glm_moe_dsa"
