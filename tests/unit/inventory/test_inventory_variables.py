"""Variables: where they come from, what was typed, what may surprise, what stays secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_here import asks_ansible

from bringup.base.errors import InputError
from bringup.base.secrets import SCRUBBER, Secret
from bringup.base.vault import Vault
from bringup.base.yaml import typed_text, value_origin
from bringup.inventory.values import number_of, open_vaulted

VAULT = str(Path(sys.executable).parent / "ansible-vault")


def test_precedence_and_places(read) -> None:
    inventory = read({
        "h.yml": "all:\n  vars: {a: all, b: all, c: all, d: all}\n  children:\n    g:\n      vars: {b: g, c: g, d: g}\n"
                 "      hosts:\n        h: {d: h}\n",
        "group_vars/g.yml": "c: file\n",
        "play/host_vars/h.yml": "e: play\n",
    }, playbook_dir=Path("play"), extra_vars={"f": "extra"})
    variables = inventory.variables("h")
    assert {key: variables[key] for key in "abcdef"} == {
        "a": "all", "b": "g", "c": "file", "d": "h", "e": "play", "f": "extra"}
    assert str(value_origin(variables, "c")) == "group_vars/g.yml:1:4"
    assert str(value_origin(variables, "d")) == "h.yml:7:16"
    assert inventory.group_names("h") == ["g"]


def test_localhost_is_a_host(read) -> None:
    inventory = read({"h.yml": "all: {vars: {x: 1}, hosts: a}", "host_vars/localhost.yml": "y: 2"})
    variables = inventory.variables("localhost")
    assert variables["ansible_connection"] == "local"
    assert variables["ansible_python_interpreter"] == sys.executable
    assert (variables["x"], variables["y"]) == (1, 2)
    assert "localhost" not in inventory.select("all")


def test_variables_of_no_host(read) -> None:
    with pytest.raises(InputError, match="nearest: gpu01"):
        read({"h.yml": "all: {hosts: gpu01}"}).variables("gpu0l")


def test_what_was_typed_survives_merging(read) -> None:
    inventory = read({"h.ini": "[g]\nh version=3.10\n[g:vars]\nflag=False\n",
                      "group_vars/g.yml": "no: 1\nv: 12.10\nl: [yes]"})
    variables = inventory.variables("h")
    assert [typed_text(variables, key) for key in ("version", "flag", "v")] == ["3.10", "False", "12.10"]
    assert typed_text(variables["l"], 0) == "yes"


@pytest.mark.parametrize("text", ["0x10", "1_000", "022", "1.0", "-1", "yes", ""])
def test_a_number_is_decimal_digits(read, text: str) -> None:
    variables = read({"h.yml": f"all: {{hosts: {{h: {{n: {text or '~'}}}}}}}"}).variables("h")
    with pytest.raises(InputError, match="`n` takes a whole number from 0 on"):
        number_of(variables, "n")


SURPRISES = [
    ({"h.ini": "h a=x#y\n"}, "h.ini:1:1", "comment; quote"),
    ({"h.ini": "h a=1 # it's fine\nb c='d#e'\n"}, None, None),
    ({"h.ini": "h\n[g]\nh2\n[g:vars]\na=x # y\n"}, "h.ini:5:1", "keeps its `#`"),
    ({"h.ini": "h a=yes\n"}, "h.ini:1:1", "stays a text in INI"),
    ({"h.ini": "h a=Yes b=nothing c=True\n"}, "h.ini:1:1", "`a=Yes`"),
    ({"h.yml": "all: {hosts: {h: {a: 22:22}}}"}, "h.yml:1:22", "read as the number 1342"),
    ({"h.yml": "all: {hosts: {h: {a: 0644}}}"}, "h.yml:1:22", "read as the number 420"),
    ({"h.yml": "all: {hosts: {h: {a-b: 1}}}"}, "h.yml:1:24", "no name that a template can use; write a_b"),
    ({"h.yml": "all: {hosts: {h: }}\nh: {hosts: x}"}, "h.yml:1:15", "is a host and a group"),
    ({"h.yml": "a: {hosts: h}\nb: {hosts: {h:22: }}"}, "h.yml:2:13", "the port 22 of `h` is not taken"),
    ({"h.yml": "gpu: {hosts: h}", "group_vars/gpus.yml": "x: 1"}, "group_vars/gpus.yml", "nearest: gpu"),
    ({"h.yml": "g: {hosts: h}", "group_vars/g.yml": "x: 1", "group_vars/g.yaml": "x: 2"}, "group_vars/g.yaml",
     "is not read"),
    ({"h.yml": "g: {hosts: h, vars: {x: 1}}", "group_vars/all.yml": "x: 2"}, "group_vars/all.yml:1:4", "wins over"),
]


@pytest.mark.parametrize(("files", "place", "says"), SURPRISES)
def test_surprises_are_told(read, files: dict[str, str], place: str | None, says: str | None) -> None:
    told = [(str(origin), text) for origin, text in read(files).warnings]
    if place is None:
        assert told == []
    else:
        assert len(told) == 1
        assert told[0][0] == place
        assert says in told[0][1]


def _encrypt(folder: Path, *arguments: str) -> str:
    done = subprocess.run([VAULT, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@asks_ansible
def test_what_ansible_vault_writes_is_read(read, tmp_path) -> None:
    """A vaulted file and a vaulted variable, with and without a vault id, made by ansible-vault itself."""
    (tmp_path / "one").write_text("first password\n")
    (tmp_path / "two").write_text("zweites Paßwort\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text("token: s3cr3t-of-file\nn: 5\n")
    _encrypt(tmp_path, "encrypt", "--vault-password-file", "one", "group_vars/all.yml")
    inline = _encrypt(tmp_path, "encrypt_string", "--vault-id", "dev@two", "--encrypt-vault-id", "dev", "--name", "p",
                      "größe & \"quotes\"\nzwei")
    vault = Vault({"default": [Secret("first password")], "dev": [Secret("zweites Paßwort")]})
    files = {"h.yml": "all:\n  hosts: h\n  vars:\n" + "".join(f"    {line}\n" for line in inline.splitlines())}
    inventory = read(files, vault=vault)
    variables = inventory.variables("h")
    assert (variables["token"], variables["n"]) == ("s3cr3t-of-file", 5)
    assert "s3cr3t-of-file" not in SCRUBBER.text("it is s3cr3t-of-file.")
    opened = open_vaulted(variables, inventory.vault)
    assert opened["p"] == "größe & \"quotes\"\nzwei"
    assert isinstance(opened["p"], Secret)
    assert "größe" not in SCRUBBER.text("got größe & \"quotes\"")

    wrong = Vault({"default": [Secret("wrong")]})
    with pytest.raises(InputError, match=r"group_vars/all.yml  no vault password that was given opens this"):
        read(files, vault=wrong)
    with pytest.raises(InputError, match=r"group_vars/all.yml  is vaulted and no vault password was given"):
        read(files)
    with pytest.raises(InputError, match=r"h.yml:4:\d+  no vault password"):
        open_vaulted(variables["p"], wrong)


def test_plain_passwords_become_known_to_the_scrubber(read) -> None:
    read({"h.ini": "h ansible_password=pl41n-ssh\n[all:vars]\nansible_become_pass=pl41n-sudo\n"})
    assert "pl41n" not in SCRUBBER.text("pl41n-ssh and pl41n-sudo")


def test_a_bare_name_is_looked_up(read) -> None:
    inventory = read({"inventory/h200.ini": "[g]\nfrom_ini\n", "h200": "[g]\nfrom_here\n"}, "h200")
    assert list(inventory.hosts) == ["from_ini"]
    assert inventory.shown_as == "inventory/h200.ini"
    assert list(read({}, "./h200").hosts) == ["from_here"]
    assert list(read({"inventory/lab.yml": "all: {hosts: lab}"}).hosts) == ["lab"]
    assert list(read({}, "h200", "lab").hosts) == ["from_ini", "lab"]


@pytest.mark.parametrize(("text", "kind"), [
    ("---\nall:\n  hosts: {a: }\n", "yaml"), ("# c\nweb:\n  hosts: {a: }\n", "yaml"),
    ('{"all": {"hosts": {"a": null}}}', "yaml"),
    ("a\nb\n", "ini"), ("[web]\na\n", "ini"), ("a x='b: c'\n", "ini"), ("a:22 x=1\n", "ini"),
])
def test_a_file_without_an_ending(read, text: str, kind: str) -> None:
    assert "a" in read({"hosts": text}).hosts
