"""Long lines cut at words, the rest hung under the text that they belong to."""

from __future__ import annotations

import re
import textwrap

_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|m|h|d|B|kB|MB|GB|TB|MiB|GiB|TiB|Gb/s)\b)")
_LEAD = re.compile(r"\s*(?:\| )?(?:[A-Za-z]+(?: \(ignored\))? {2,})?")


def cut(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` signs unless a word is longer; a number keeps its unit; words stay whole."""
    joined = _UNIT.sub("\u00a0", text)
    lines = textwrap.wrap(joined, width, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                          break_on_hyphens=False, replace_whitespace=False)
    return [line.replace("\u00a0", " ") for line in lines] or [first.rstrip()]


def hung(line: str, width: int) -> list[str]:
    """A line that starts with blanks, a bar or a word of its own column: what does not fit hangs under its text."""
    if len(line) <= width:
        return [line]
    lead = _LEAD.match(line)
    head = lead.group(0) if lead else ""
    return cut(line, width, "", re.sub(r"[^\s|]", " ", head))
