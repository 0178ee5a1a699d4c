"""Errors, exit statuses, secrets and the small text helpers."""

from __future__ import annotations

import base64
import json
import shlex
import urllib.parse

import pytest

from bringup.base.errors import BringupError, ExitStatus, InputError, worst
from bringup.base.origin import Origin
from bringup.base.secrets import MASK, Scrubber, Secret
from bringup.base.text import duration, fold_hosts, nearest, printable, size


def test_the_worst_status_wins_in_the_order_of_the_design() -> None:
    order = [6, 130, 2, 5, 3, 1, 4, 0]
    for place, status in enumerate(order):
        assert worst(ExitStatus(s) for s in order[place:]) == status
    assert worst([]) == ExitStatus.DONE


def test_an_error_says_where_expected_found_and_next() -> None:
    error = InputError("the key `x` is unknown", where=Origin("a.yml", 3, 5), expected="y", found="x", next="fix it")
    assert error.lines() == [
        "a.yml:3:5  the key `x` is unknown",
        "           expected  y",
        "           found     x",
        "           next      fix it",
    ]
    assert BringupError("plain").lines() == ["plain"]


SECRET = "p@ss w/ord'\"\\1"


@pytest.mark.parametrize("form", [
    SECRET,
    base64.b64encode(SECRET.encode()).decode(),
    base64.b64encode(b"user:" + SECRET.encode()).decode(),
    urllib.parse.quote(SECRET, safe=""),
    urllib.parse.quote_plus(SECRET),
    shlex.quote(SECRET),
    json.dumps({"x": SECRET}),
])
def test_a_secret_is_masked_in_every_form(form: str) -> None:
    scrubber = Scrubber()
    scrubber.add(SECRET)
    out = scrubber.text(f"before {form} after")
    assert MASK in out
    assert SECRET not in out
    assert out.startswith("before ")
    assert out.endswith(" after")


def test_each_long_line_of_a_key_is_masked() -> None:
    scrubber = Scrubber()
    scrubber.add("-----BEGIN KEY-----\nAAAABBBBCCCC\n-----END KEY-----\n")
    assert "AAAABBBBCCCC" not in scrubber.text("line: AAAABBBBCCCC")


def test_a_tree_is_masked_with_its_keys() -> None:
    scrubber = Scrubber()
    scrubber.add("topsecret")
    assert scrubber.tree({"topsecret": ["a topsecret", 1]}) == {MASK: [f"a {MASK}", 1]}


def test_a_secret_does_not_show_itself() -> None:
    assert "abc" not in repr(Secret("abcdef"))
    assert Secret("abcdef").reveal() == "abcdef"


def test_folded_hosts() -> None:
    assert fold_hosts(["gpu01", "gpu02", "gpu03", "gpu08"]) == "gpu[01-03,08]"
    assert fold_hosts(["gpu01"]) == "gpu01"
    assert fold_hosts(["head", "w1", "w2", "w10"]) == "head,w[1-2],w10"
    assert fold_hosts(["head", "a9"]) == "head,a9"
    assert fold_hosts([]) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (8.84, "8.8 s"), (41.2, "41 s"), (192, "3 m 12 s"),
                                               (3720, "1 h 02 m")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_and_names() -> None:
    assert size(1.49e12) == "1.49 TB"
    assert size(17) == "17 B"
    assert nearest("workes", ["workers", "head"]) == "workers"
    assert nearest("zzz", ["workers"]) is None
    for name, known in (("nope", "ungrouped"), ("nothere", "rignore")):
        assert nearest(name, [known]) is None
    for name, known in (("gpu3", "gpu03"), ("templte", "template"), ("glm51-vlm", "glm51-vllm"), ("wbe", "web")):
        assert nearest(name, ["all", known, "ungrouped"]) == known
    assert printable("a\x1b[0m\tb") == "a\\x1b[0m\tb"


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
def test_a_secret_inside_a_text_in_base64_is_masked(before: str, after: str) -> None:
    scrubber = Scrubber()
    scrubber.add("Pa55-word!x")
    coded = base64.b64encode(f"{before}Pa55-word!x{after}".encode()).decode()
    assert MASK in scrubber.text(coded)
