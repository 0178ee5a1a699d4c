"""Inventories from the field: each comes out as its case.yml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bringup.base import yaml as strict
from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.base.yaml import typed_text
from bringup.inventory.load import load_inventory
from bringup.inventory.values import flag_of, text_of

CASES = Path(__file__).parents[2] / "data" / "cases"
OTHER_TEXTS = ("playbook.yml", "onkey.yml", "versions.yml")


def _files() -> list[tuple[str, str, dict[str, Any]]]:
    out = []
    for case in ("C039", "C041", "C043", "C045", "C073", "C075", "C077", "C079"):
        told = yaml.safe_load((CASES / case / "case.yml").read_text())
        listed = {**dict.fromkeys(path.name for path in (CASES / case).glob("inventory.*")), **told["files"]}
        out += [(case, file, says or {"outcome": "works"}) for file, says in listed.items() if file not in OTHER_TEXTS]
    return out


@pytest.mark.parametrize(("case", "file", "says"), _files(), ids=[f"{case}-{file}" for case, file, _ in _files()])
def test_case(case: str, file: str, says: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / case)
    if says["outcome"] == "refuse":
        with pytest.raises(InputError) as caught:
            load_inventory([f"./{file}"], Project(Path("/nowhere")))
        for part in [*says.get("say", ()), *(f"{file}:{line}" for line in says.get("lines", ()))]:
            assert part in str(caught.value)
        return
    inventory = load_inventory([f"./{file}"], Project(Path("/nowhere")))
    for group, hosts in says.get("groups", {}).items():
        assert inventory.group_hosts(group) == hosts
    if "hosts" in says:
        assert list(inventory.hosts) == says["hosts"]
    for path, wanted in says.get("values", {}).items():
        assert _value(inventory, path, wanted) == wanted
    if says.get("warnings") == 0:
        assert inventory.warnings == []


def _value(inventory: Any, path: str, wanted: Any) -> Any:
    """The value as the one who needs it reads it: a flag where a flag is wanted, else what was typed."""
    head, _, rest = path.partition(".")
    if head in inventory.hosts:
        host, names = head, rest.split(".")
    else:
        host, names = next(iter(inventory.hosts)), path.split(".")
    mapping: Any = inventory.variables(host)
    for name in names[:-1]:
        mapping = mapping[name]
    return flag_of(mapping, names[-1]) if isinstance(wanted, bool) else text_of(mapping, names[-1])


def test_a_word_that_is_no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "C039")
    variables = load_inventory(["./inventory.yml"], Project(Path("/nowhere"))).variables("h200-01")
    with pytest.raises(InputError, match=r"inventory.yml:10:14  `verbose` takes yes or no") as caught:
        flag_of(variables, "verbose")
    assert "maybe" in str(caught.value)
    assert "yes, no, on, off" in str(caught.value)


def test_words_of_ini_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "C039")
    inventory = load_inventory(["./inventory.ini"], Project(Path("/nowhere")))
    told = [f"{origin.short} {text}" for origin, text in inventory.warnings]
    assert any("inventory.ini:2 `keep_old=no` stays a text" in line for line in told)


def test_versions_as_typed() -> None:
    versions = strict.load_file(CASES / "C077" / "versions.yml")
    wanted = yaml.safe_load((CASES / "C077" / "case.yml").read_text())["files"]["versions.yml"]["values"]
    assert {key: typed_text(versions, key) for key in wanted} == wanted


def test_limit_with_a_letter_for_a_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "C045")
    inventory = load_inventory(["./inventory.yml"], Project(Path("/nowhere")))
    with pytest.raises(InputError, match="nearest: h200-01"):
        inventory.select("h200-0l")
    with pytest.raises(InputError, match="nearest: h200_workers"):
        inventory.select("h200-workers")


def test_a_pattern_with_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES / "C041")
    inventory = load_inventory(["./inventory.yml"], Project(Path("/nowhere")))
    assert inventory.select("glm-serving:!h200-head") == ["h200-02", "h200-03"]
