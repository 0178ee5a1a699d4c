"""YAML as Ansible reads it, strictly, with origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.base.yaml import UnsafeText, VaultedText, load, load_all, load_file, origin_of, value_origin


def test_values_are_those_of_yaml_1_1() -> None:
    tree = load("a: yes\nb: off\nc: 0755\nd: 1.5\ne: ~\nf: '5'\n", "f.yml")
    assert tree == {"a": True, "b": False, "c": 0o755, "d": 1.5, "e": None, "f": "5"}


def test_every_value_knows_its_place() -> None:
    tree = load("all:\n  hosts:\n    gpu01: {port: 22}\n  names: [a, b]\n", "inv.yml")
    assert str(origin_of(tree["all"]["hosts"]["gpu01"])) == "inv.yml:3:12"
    assert str(value_origin(tree["all"]["hosts"]["gpu01"], "port")) == "inv.yml:3:19"
    assert str(tree["all"]["names"].item_origins[1]) == "inv.yml:4:14"


def test_a_key_that_stands_twice_names_both_lines() -> None:
    with pytest.raises(InputError) as caught:
        load("workers:\n  gpu02: 1\n  gpu03: 1\n  gpu02: 2\n", "h200.yml")
    assert str(caught.value.where) == "h200.yml:4:3"
    assert "first on line 2" in caught.value.what


def test_a_merge_key_does_not_count_as_twice() -> None:
    tree = load("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n", "f.yml")
    assert tree["use"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(("text", "hint"), [
    ("a:\n\t- b\n", "no tab"),
    ("a: {{ b }}\n", "quote a value that starts with a template"),
    ("a: b: c\n", "quote a value that holds"),
])
def test_bad_yaml_says_what_to_do(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        load(text, "f.yml")
    assert hint in str(caught.value)
    assert str(caught.value.where).startswith("f.yml:")


def test_tags_of_ansible_and_no_others() -> None:
    tree = load("a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  00\nb: !unsafe '{{ x }}'\n", "f.yml")
    assert isinstance(tree["a"], VaultedText)
    assert isinstance(tree["b"], UnsafeText)
    with pytest.raises(InputError, match="not known here"):
        load("a: !python/object x\n", "f.yml")


def test_several_documents_and_an_empty_one() -> None:
    assert load("", "f.yml") is None
    assert load_all("a: 1\n---\nb: 2\n", "f.yml") == [{"a": 1}, {"b": 2}]
    with pytest.raises(InputError, match="more than one"):
        load("a: 1\n---\nb: 2\n", "f.yml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_file(tmp_path / "none.yml")
    bad = tmp_path / "latin.yml"
    bad.write_bytes(b"a: \xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        load_file(bad)
