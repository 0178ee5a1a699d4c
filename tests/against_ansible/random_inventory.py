"""Random inventories: a graph of groups without circles, hosts, variables on every level, in INI, YAML and files."""

from __future__ import annotations

import json
import random
from pathlib import Path


def write(folder: Path, seed: int) -> None:
    """Write `a` (INI), `b.yml`, group_vars/ and host_vars/ into a folder."""
    dice = random.Random(seed)
    groups = [f"g{number}" for number in range(dice.randint(2, 8))]
    hosts = [f"h{number:02d}" for number in range(dice.randint(1, 6))]
    (folder / "a").write_text("\n".join(_ini(dice, groups, hosts)) + "\n")
    (folder / "b.yml").write_text(json.dumps(_yaml(dice, groups, hosts), indent=1))
    for kind, names in (("group_vars", [*groups, "all", "ungrouped"]), ("host_vars", hosts)):
        (folder / kind).mkdir()
        for name in names:
            if dice.random() < 0.3:
                ending = dice.choice(["", ".yml", ".yaml", ".json"])
                (folder / kind / f"{name}{ending}").write_text(json.dumps(_variables(dice)))


def _variables(dice: random.Random) -> dict[str, object]:
    values: list[object] = [1, -2, 1.5, True, False, None, "text", "yes", "{{ x }}", [1, "a"], {"k": "v"}]
    return {f"v{dice.randint(0, 5)}": dice.choice(values) for _ in range(dice.randint(0, 3))}


def _ini(dice: random.Random, groups: list[str], hosts: list[str]) -> list[str]:
    lines = [f"lone{dice.randint(0, 2)}"]
    sections = []
    for index, group in enumerate(groups):
        own = [host for host in hosts if dice.random() < 0.4]
        sections.append([f"[{group}]", *own])
        below = [other for other in groups[index + 1 :] if dice.random() < 0.3]
        if below:
            sections.append([f"[{group}:children]", *below])
        variables = [f"v{number}={dice.choice(['1', 'x', 'True', 'yes', '[1]'])}" for number in
                     dice.sample(range(6), dice.randint(0, 3))]
        if variables:
            sections.append([f"[{group}:vars]", *variables])
    dice.shuffle(sections)
    return lines + [line for section in sections for line in section]


def _yaml(dice: random.Random, groups: list[str], hosts: list[str]) -> dict[str, object]:
    chosen = {host: _variables(dice) or None for host in hosts if dice.random() < 0.5}
    out: dict[str, object] = {"all": {"vars": _variables(dice), "hosts": chosen}}
    for index, group in enumerate(groups):
        if dice.random() < 0.5:
            own: dict[str, object] = {"vars": {**_variables(dice), "ansible_group_priority": dice.randint(1, 4)}}
            below = [other for other in groups[index + 1 :] if dice.random() < 0.2]
            if below:
                own["children"] = dict.fromkeys(below)
            out[group] = own
    return out
