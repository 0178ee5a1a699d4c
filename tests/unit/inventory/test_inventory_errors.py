"""What is refused: file, line, what was found, the nearest right name. No host is ever contacted by reading."""

from __future__ import annotations

import re

import pytest

from bringup.base.errors import ExitStatus, InputError

REFUSED = [
    # name of the file, its text, line of the first fault, what the message must hold
    ("key twice", "h.yml", "all:\n  hosts:\n    a:\n    b:\n    a:\n", 5, ["`a` stands twice", "line 3", "remove one"]),
    ("list of hosts", "h.yml", "all:\n  hosts: [a, b]\n", 2, ["`hosts`", "is a list", "a:"]),
    ("list of children", "h.yml", "all:\n  children:\n    - web\n", 3, ["`children`", "is a list", "web:"]),
    ("text for vars", "h.yml", "all:\n  hosts: a\n  vars: x\n", 3, ["`vars`", "name: value"]),
    ("group is a list", "h.yml", "web:\n  - a\n", 1, ["`web` is a list", "a mapping belongs there"]),
    ("group is a text", "h.yml", "web: a\n", 1, ["`web` is a single value"]),
    ("host is a text", "h.yml", "web:\n  hosts:\n    a: b\n", 3, ["the host `a` has a single value", "name: value"]),
    ("unknown key", "h.yml", "web:\n  host:\n    a:\n", 2,
     ["`host` is not known", "hosts, vars or children", "hosts:"]),
    ("group beside hosts", "h.yml", "all:\n  web:\n    hosts: a\n", 2, ["`web` is not known", "children"]),
    ("circle", "h.yml",
     "a:\n  children:\n    b:\n      children:\n        a:\n", 3, ["`b` would hold itself", "a > b > a"]),
    ("two values", "h.yml", "a:\n  hosts:\n    h: {x: 1}\nb:\n  hosts:\n    h: {x: 2}\n", 6,
     ["`x` of the host h", "different values", "1 (h.yml:3) and 2"]),
    ("two values of a group", "h.yml", "a: {vars: {x: 1}, hosts: h}\nb: {children: {a: {vars: {x: 2}}}}\n", 2,
     ["`x` of the group a", "different values"]),
    ("range in a group", "h.yml", "web[1:3]:\n  hosts: a\n", 1, ["a range belongs into a host's name"]),
    ("range without an end", "h.yml", "web:\n  hosts:\n    a[1:]:\n", 3, ["`[1:]`", "no range", "[first:last]"]),
    ("range backwards", "h.yml", "web:\n  hosts:\n    a[3:1]:\n", 3, ["empty", "3 comes after 1"]),
    ("range of two widths", "h.yml", "web:\n  hosts:\n    a[01:100]:\n", 3, ["as many digits"]),
    ("range not closed", "h.yml", "web:\n  hosts:\n    'a[01:3':\n", 3, ["not closed"]),
    ("range without a step", "h.yml", "web:\n  hosts:\n    a[1:9:0]:\n", 3, ["step `0`"]),
    ("endless range", "h.yml", "web:\n  hosts:\n    a[1:9999999]:\n", 3, ["more than 100,000"]),
    ("range of a letter and a number", "h.yml", "web:\n  hosts:\n    a[a:3]:\n", 3, ["`a` and `3`", "no range"]),
    ("many documents", "h.yml", "all:\n  hosts: a\n---\nall:\n", 1, ["more than one YAML document"]),
    ("no mapping", "h.yml", "- all\n", 1, ["holds a list where groups belong"]),
    ("plugin", "h.yml", "plugin: amazon.aws.aws_ec2\nregions: [x]\n", 1,
     ["`amazon.aws.aws_ec2`", "not run here", "--yaml"]),
    ("tab", "h.yml", "all:\n\thosts: a\n", 2, ["not valid YAML", "no tab"]),
    ("bomb", "h.yml", "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(7)), 6, ["aliases"]),
    ("anchor in itself", "h.yml", "all:\n  vars: &v\n    x: *v\n", 2, ["holds itself"]),
    ("priority", "h.yml", "web: {hosts: a, vars: {ansible_group_priority: high}}\n", 1, ["whole number", "high"]),
    ("section of no kind", "h.ini", "[web:var]\nx=1\n", 1, ["[web:var]", "[web:vars]"]),
    ("section with blanks", "h.ini", "[my group]\na\n", 1, ["`[my group]` is no section"]),
    ("vars of no group", "h.ini", "[web]\na\n[wbe:vars]\nx=1\n", 3, ["`wbe`", "no section declares", "web"]),
    ("child of no group", "h.ini", "[web]\na\n[site:children]\nwep\n", 4, ["[site:children]", "`wep`", "web"]),
    ("no variable", "h.ini", "[web]\na x y=1\n", 2, ["`x` is no variable", "name=value"]),
    ("no variable of a group", "h.ini", "[web]\na\n[web:vars]\nx: 1\n", 4, ["`x: 1` is no variable"]),
    ("quote not closed", "h.ini", "[web]\na x='1\n", 2, ["no closing quotation"]),
    ("twice on a line", "h.ini", "[web]\na x=1 x=1\n", 2, ["`x` stands twice"]),
    ("two lines, two values", "h.ini", "[web]\na x=1\n[db]\na x=2\n", 4, ["`x` of the host a", "1 (h.ini:2) and 2"]),
    ("YAML in INI", "h.ini", "---\nall:\n", 1, ["begins YAML", ".yml"]),
    ("colon at the end", "h.ini", "[web]\na:\n", 2, ["ends with a colon"]),
    ("host of a placeholder", "h.ini", "[web]\n<% host %>\n", 2, ["placeholder"]),
    ("port", "h.ini", "[web]\na ansible_port=0\nb ansible_port=ssh\n", 2,
     ["`ansible_port`", "1 to 65535", "h.ini:3", "ssh"]),
    ("address of a placeholder", "h.ini", "[web]\na ansible_host=${IP}\n", 2, ["`ansible_host`", "${IP}"]),
    ("TOML", "h.toml", "[all]\n", 0, ["TOML", "--yaml"]),
    ("nothing", "h.ini", "# nothing\n", 0, ["no hosts"]),
    ("groups only", "h.yml", "web:\ndb: {hosts: }\n", 0, ["no hosts"]),
    ("list of variables", "group_vars/all.yml", "- a\n", 1, ["mapping of variables"]),
]


@pytest.mark.parametrize(("name", "file", "text", "line", "says"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refused(read, name: str, file: str, text: str, line: int, says: list[str]) -> None:
    files = {file: text} if "/" not in file else {"ok.yml": "all:\n  hosts: a\n", file: text}
    with pytest.raises(InputError) as caught:
        read(files)
    told = str(caught.value)
    assert caught.value.status is ExitStatus.INPUT
    place = rf"^(\./)?{re.escape(file)}" + (rf":{line}(:\d+)?\b" if line else r"\b")
    assert re.match(place, told), told
    for part in says:
        assert part in told, told


def test_every_fault_of_a_text_is_told_at_once(read) -> None:
    with pytest.raises(InputError) as caught:
        read({"h.yml": "a:\n  host:\nb:\n  hosts: [x]\nc:\n  hosts:\n    d: 1\n"})
    assert [line for line in ("h.yml:2", "h.yml:4", "h.yml:7") if line in str(caught.value)] == [
        "h.yml:2", "h.yml:4", "h.yml:7"]


def test_unknown_name_of_an_inventory(read) -> None:
    read({"inventory/h200.yml": "all: {hosts: a}", "inventory/lab.yml": "all: {hosts: b}"}, "lab")
    with pytest.raises(InputError, match="there is no inventory `h20O`") as caught:
        read({}, "h20O")
    assert "--inventory h200" in str(caught.value)


def test_a_file_that_is_not_utf8(read, tmp_path) -> None:
    (tmp_path / "h.yml").write_bytes(b"all: {hosts: \xff}")
    with pytest.raises(InputError, match="not UTF-8"):
        read({}, "./h.yml")


@pytest.mark.parametrize(("body", "says"), [
    ("exit 3", "ended with 3"), ("echo 'no json'", "printed no JSON"), ("echo '[1]'", "no JSON object"),
    ("echo '{\"g\": {\"hosts\": \"x\"}}'", "`hosts` of the group `g` is no list"),
    ("echo '{\"_meta\": {}, \"g\": [\"x\"]}'", "hostvars"),
    ("echo broken >&2; exit 1", "broken"),
])
def test_a_program_that_fails(read, tmp_path, body: str, says: str) -> None:
    (tmp_path / "cloud").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "cloud").chmod(0o755)
    with pytest.raises(InputError) as caught:
        read({}, "./cloud")
    assert says in str(caught.value)
