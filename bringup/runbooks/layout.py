"""Words of a runbook as a terminal shows them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator


def wrapped(text: str, width: int) -> Iterator[str]:
    """The lines of a text at most `width` wide. Paragraphs are filled anew; tables, lists and blocks stay."""
    for part in re.split(r"\n\s*\n", text):
        lines = part.splitlines()
        if any(re.match(r"\||\s|[-*+] |\d+[.)] |```", line) for line in lines):
            yield from lines
        else:
            yield from textwrap.wrap(" ".join(lines), max(width, 20), break_on_hyphens=False, break_long_words=False)
        yield ""
