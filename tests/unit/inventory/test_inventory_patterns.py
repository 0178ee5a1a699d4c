"""Patterns of hosts and ranges of names."""

from __future__ import annotations

import pytest

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.inventory.patterns import split
from bringup.inventory.ranges import expand, split_port

SITE = """
all:
  children:
    head: {hosts: {gpu01: }}
    workers: {hosts: {"gpu[02:06]": }}
    rack-a: {children: {head: }, hosts: {gpu02: }}
    empty:
"""


@pytest.mark.parametrize(("pattern", "hosts"), [
    ("all", ["gpu01", "gpu02", "gpu03", "gpu04", "gpu05", "gpu06"]),
    ("head", ["gpu01"]),
    ("head:workers:!gpu03", ["gpu01", "gpu02", "gpu04", "gpu05", "gpu06"]),
    ("workers,head", ["gpu02", "gpu03", "gpu04", "gpu05", "gpu06", "gpu01"]),
    ("rack-a:&workers", ["gpu02"]),
    ("!workers", ["gpu01"]),
    ("workers[0]", ["gpu02"]),
    ("workers[-1]", ["gpu06"]),
    ("workers[1:3]", ["gpu03", "gpu04", "gpu05"]),
    ("workers[3:]", ["gpu05", "gpu06"]),
    ("workers[9:12]", []),
    ("gpu0[1-3]", ["gpu01", "gpu02", "gpu03"]),
    ("~gpu0[24]", ["gpu02", "gpu04"]),
    ("*0?:!rack*", ["gpu03", "gpu04", "gpu05", "gpu06"]),
    ("empty", []),
    ("localhost", ["localhost"]),
    ("gpu06:gpu01", ["gpu06", "gpu01"]),
    (["head", "gpu05"], ["gpu01", "gpu05"]),
])
def test_select(read, pattern, hosts: list[str]) -> None:
    assert read({"h.yml": SITE}).select(pattern) == hosts


@pytest.mark.parametrize(("pattern", "says"), [
    ("workes", "no host or group matches `workes` in h.yml; nearest: workers"),
    ("all:!gpu0l", "`gpu0l` in h.yml; nearest: gpu01"),
    ("head:&rack-b", "`rack-b` in h.yml; nearest: rack-a"),
    ("zzz*", "no host or group matches `zzz*`"),
    ("workers[5]", "workers has 5 hosts, counted from 0"),
    ("~gpu(", "is no regular expression"),
    ("@nowhere", "the file of hosts `nowhere` cannot be read"),
    ("!", "empty part"),
])
def test_select_refuses(read, pattern: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read({"h.yml": SITE}).select(pattern, Origin("play.yml", 2))
    assert str(caught.value).startswith("play.yml:2")
    assert says in str(caught.value)


def test_hosts_from_a_file(read) -> None:
    inventory = read({"h.yml": SITE, "failed": "gpu03\n# not this\n\ngpu05\n"})
    assert inventory.select("@failed") == ["gpu03", "gpu05"]
    assert inventory.select("workers:!@failed".replace("!@failed", "!gpu03")) == ["gpu02", "gpu04", "gpu05", "gpu06"]


@pytest.mark.parametrize(("text", "parts"), [
    ("a:b", ["a", "b"]), ("a, b ,c", ["a", "b", "c"]), ("a[1:3]:b", ["a[1:3]", "b"]), ("fe80::1", ["fe80::1"]),
    ("a:22", ["a:22"]), ("a:&b:!c", ["a", "&b", "!c"]), ("a b", ["a", "b"]), ("h200-a:!h200-b", ["h200-a", "!h200-b"]),
])
def test_split(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(("text", "names"), [
    ("n[01:03]", ["n01", "n02", "n03"]), ("n[8:10]", ["n8", "n9", "n10"]), ("n[0:8:4]x", ["n0x", "n4x", "n8x"]),
    ("r[a:c]", ["ra", "rb", "rc"]), ("r[a:b]n[1:2]", ["ran1", "ran2", "rbn1", "rbn2"]), ("n[:2]", ["n0", "n1", "n2"]),
    ("n[001:002]", ["n001", "n002"]), ("plain", ["plain"]),
])
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == (names, None)


@pytest.mark.parametrize(("text", "host", "port"), [
    ("a:22", "a", 22), ("[2001:db8::1]:22", "2001:db8::1", 22), ("2001:db8::1", "2001:db8::1", None),
    ("n[1:3]:2222", "n[1:3]", 2222), ("a.b.example.com:1", "a.b.example.com", 1), ("a-:22", "a-:22", None),
])
def test_port(text: str, host: str, port: int | None) -> None:
    assert split_port(text) == (host, port)
