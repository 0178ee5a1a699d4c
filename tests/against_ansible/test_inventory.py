"""Every inventory of the tests gives the same JSON as `ansible-inventory`, but for the differences listed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_here import asks_ansible
from answers import inventory as ansible_says

from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.base.secrets import Secret
from bringup.base.vault import Vault
from bringup.inventory import listing
from bringup.inventory.load import load_inventory
from bringup.inventory.model import Inventory

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent
CASES = TESTS / "data" / "cases"

SAME = {
    "nested": ("nested", ["site.yml"]),
    "ini": ("ini", ["hosts"]),
    "folder": ("folder", ["."]),
    "json": ("json", ["site.json"]),
    "script": ("script", ["cloud.py"]),
    "script asked for each host": ("script", ["old.py"]),
    "script and file": (".", ["script/cloud.py", "json/site.json"]),
    "later source wins": ("many", ["a.yml", "b.ini"]),
    "other order": ("many", ["b.ini", "a.yml"]),
    "host list": ("many", ["h1,other:2222,"]),
    "anchors": ("merged", ["anchors.yml"]),
    "priority": ("priority", ["site.yml"]),
    "words": ("words", ["site.yml"]),
    "vaulted": ("vaulted", ["site.yml"]),
    "beside the playbook": ("playbook", ["inv/hosts.ini"]),
    **{f"case {name}": (CASES / name, [file]) for name, file in (
        ("C039", "inventory.yml"), ("C039", "inventory.ini"), ("C041", "inventory.yml"), ("C043", "inventory.yml"),
        ("C043", "inventory.ini"), ("C045", "inventory.yml"), ("C075", "expr.yml"))},
    **{f"ours: {path.name}": (path.parent, [path.name]) for path in sorted((ROOT / "inventory").glob("*.yml"))},
}

DIFFERENT = {
    # what Ansible reads, and why it is refused here
    "range in an address": (CASES / "C073", "inventory.yml", "every host would get the very text of the range"),
    "range in an address, INI": (CASES / "C073", "inventory.ini", "every host would get the very text of the range"),
    "placeholder": (CASES / "C075", "shell.yml", "a host named ${WORKER_1} cannot be meant"),
    "port": (CASES / "C077", "badport.yml", "22:22 becomes 1342, and 70000 is no port"),
}


def _ours(folder: Path, sources: list[str], monkeypatch: pytest.MonkeyPatch, play: Path | None = None) -> Inventory:
    monkeypatch.chdir(folder)
    password = Secret((HERE / "inventories/vaulted/password").read_text().strip())
    return load_inventory(sources, Project(Path("/nowhere")), vault=Vault({"default": [password]}), playbook_dir=play)


def _arguments(folder: Path, sources: list[str]) -> list[str]:
    arguments = [part for source in sources for part in ("-i", source)]
    if (folder / "password").exists():
        arguments += ["--vault-password-file", "password"]
    return arguments


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("name", SAME)
def test_list_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, sources = SAME[name]
    folder = HERE / "inventories" / where
    arguments = _arguments(folder, sources)
    play = folder / "play" if (folder / "play").exists() else None
    if play:
        arguments += ["--playbook-dir", "play"]
    expected = ansible_says(folder, [*arguments, "--list"])
    assert expected is not None, "Ansible refuses this inventory"
    assert _as_json(listing.as_list(_ours(folder, sources, monkeypatch, play))) == expected


@pytest.mark.parametrize("name", ["nested", "ini", "priority", "words", "vaulted"])
def test_every_host_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, sources = SAME[name]
    folder = HERE / "inventories" / where
    ours = _ours(folder, sources, monkeypatch)
    for host in list(ours.hosts)[:3]:
        expected = ansible_says(folder, [*_arguments(folder, sources), "--host", host])
        assert _as_json(listing.as_host(ours, host)) == expected


@pytest.mark.parametrize("pattern", [
    "all", "web", "web:db", "web:&db", "site:!web", "!db", "&web", "web[0]", "web[-1]", "web[1:2]", "web[1:]",
    "web,db", "~(db|late)", "www*", "*.com", "web-a:web-b", "db[0:1]:!db01", "late1,&late", "db0?", "ungrouped",
])
def test_limit_is_the_same(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = HERE / "inventories/ini"
    expected = ansible_says(folder, ["-i", "hosts", "--list", "--limit", pattern])
    ours = _ours(folder, ["hosts"], monkeypatch)
    assert _as_json(listing.as_list(ours, ours.select(pattern))) == expected


@pytest.mark.parametrize("name", DIFFERENT)
def test_ansible_reads_and_we_refuse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file, _why = DIFFERENT[name]
    assert ansible_says(folder, ["-i", file, "--list"]) is not None
    with pytest.raises(InputError):
        _ours(folder, [file], monkeypatch)


def test_keys_that_park_anchors_are_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible makes a group of `.defaults` and `x-rdma`, and which of two merged mappings wins depends on PyYAML."""
    theirs = ansible_says(CASES / "C079", ["-i", "inventory.yml", "--list"])
    ours = _as_json(listing.as_list(_ours(CASES / "C079", ["inventory.yml"], monkeypatch)))
    assert theirs["all"]["children"] == ["ungrouped", ".defaults", "x-rdma", "gpu"]
    assert ours["all"]["children"] == ["ungrouped", "gpu"]
    assert ours["gpu"] == theirs["gpu"]
    assert ours["_meta"]["hostvars"]["h200-01"]["nccl_if"] == "ens1f0"


def test_a_host_list_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible makes one host of `h[1:3]` there, unless a plugin that is off by default is on."""
    folder = HERE / "inventories/many"
    assert ansible_says(folder, ["-i", "h[1:3],", "--list"])["ungrouped"]["hosts"] == ["h[1:3]"]
    assert list(_ours(folder, ["h[1:3],"], monkeypatch).hosts) == ["h1", "h2", "h3"]


def test_names_that_look_like_numbers_stay_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible refuses the file: 0010 and 8 are the same number to it."""
    assert ansible_says(CASES / "C077", ["-i", "inventory.yml", "--list"]) is None
    assert list(_ours(CASES / "C077", ["inventory.yml"], monkeypatch).hosts) == ["001", "0010", "8", "07", "2026-04-07"]


def test_no_inventory_of_the_tests_is_left_out() -> None:
    """A new inventory beside these is compared too: its name must stand in one of the tables."""
    named = {str(HERE / "inventories" / where).split("/inventories/")[-1].split("/")[0] for where, _ in SAME.values()}
    assert {path.name for path in (HERE / "inventories").iterdir() if path.is_dir()} <= named


def test_the_verb_prints_the_same(tmp_path: Path) -> None:
    folder = HERE / "inventories/nested"
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "-r", str(ROOT), "inventory", "-i", "./site.yml", "--format", "json"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "BRINGUP_PROJECT": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ansible_says(folder, ["-i", "site.yml", "--list"])


@pytest.mark.full
@asks_ansible
@pytest.mark.parametrize("seed", range(12))
def test_random_inventories_are_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from random_inventory import write

    write(tmp_path, seed)
    environment = {**os.environ, "ANSIBLE_CONFIG": "/nonexistent/ansible.cfg"}
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-inventory"), "-i", "a", "-i", "b.yml", "--list"],
                          cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _as_json(listing.as_list(_ours(tmp_path, ["./a", "./b.yml"], monkeypatch))) == json.loads(done.stdout)
