"""Every recorded output is in the table `samples.tsv`: what a reader of ours finds in it, or why it cannot be read.

A line of the table is a sample, a tab, and what `preflight_samples.line` says of it, or `unread: ` and the reason.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from preflight_hosts import HERE, sample
from preflight_samples import READERS, line, names, reader

from bringup.preflight.unread import Unread

TABLE = {name: told for name, _, told in (
    row.partition("\t") for row in (HERE / "samples.tsv").read_text(encoding="utf-8").splitlines())}


def told(name: str, text: str) -> str:
    """What the reader of a sample says of a text."""
    try:
        return line(reader(name)(text))
    except Unread as error:
        return f"unread: {error.reason}"


def test_every_sample_stands_in_the_table_and_nothing_else() -> None:
    assert list(TABLE) == names()


def test_every_reader_reads_a_sample() -> None:
    used = {id(reader(name)) for name in names()}
    assert [pattern for pattern, read in READERS if id(read) not in used] == []


@pytest.mark.parametrize("name", TABLE)
def test_sample(name: str) -> None:
    found = told(name, sample(name))
    assert found == TABLE[name]
    assert found != "unread: ", "an unreadable text is told with its reason"


def torn(text: str, chance: random.Random) -> Iterator[str]:
    """Cut, doubled, shuffled, garbled and localised forms of a text."""
    yield from (text[: chance.randrange(len(text) + 1)] for _ in range(16))
    lines = text.splitlines(keepends=True)
    yield from ("".join(lines[: len(lines) * part // 8]) for part in range(1, 8))
    yield "".join(chance.sample(lines, len(lines)))
    yield text + text
    yield text.swapcase()
    yield text.replace(":", "：").replace("=", "＝")
    yield text.replace(".", ",")
    yield text.replace(" ", "\u00a0")
    yield re.sub(r"\d", "x", text)
    yield re.sub(r"\d+", "99999999999999999999", text)
    yield text.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩"))
    yield text.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    yield text.encode("utf-16", "replace").decode("latin-1")
    yield "\x1b[31m" + text.replace("\n", "\x1b[0m\r\n")
    for _ in range(12):
        letters = list(text)
        for _ in range(max(1, len(letters) // 40)):
            if letters:
                letters[chance.randrange(len(letters))] = chance.choice("\0\x1b[]{}|:,-/ \n%é9A\"")
        yield "".join(letters)


NOTHING = ("", "\n", "\0" * 64, "Segmentation fault\n", "bash: tool: command not found\n", "{}", "[]", "null",
           "{\"a\": [1", "错误: 无法访问\n", "Erreur : périphérique introuvable\n", "<html>502 Bad Gateway</html>\n")


@pytest.mark.parametrize("name", TABLE)
def test_torn_text_is_facts_or_unread_and_nothing_else(name: str) -> None:
    text = sample(name)
    for variant in (*torn(text, random.Random(name)), *NOTHING):
        try:
            reader(name)(variant)
        except Unread as error:
            assert error.reason.strip(), variant[:200]
