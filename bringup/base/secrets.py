"""Secrets and the scrubber that every sink passes."""

from __future__ import annotations

import base64
import json
import shlex
import threading
import urllib.parse

MASK = "********"


class Secret(str):
    """A text that must not be shown: its repr is masked. Use `reveal()` at the edge that needs the value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def reveal(self) -> str:
        """The plain value."""
        return str.__str__(self)


class Scrubber:
    """Replaces every known secret, in the forms that it may take, by a mask.

    Forms: raw, each line of a multi-line secret, base64, URL-quoted, shell-quoted and JSON-escaped.
    """

    def __init__(self) -> None:
        self._forms: list[str] = []
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def add(self, value: str) -> None:
        """Learn a secret. Values shorter than three characters are not masked: they would blank ordinary text."""
        text = str.__str__(value)
        with self._lock:
            if len(text) < 3 or text in self._known:
                return
            self._known.add(text)
            forms = set(self._forms)
            for part in {text, *(line for line in text.splitlines() if len(line) >= 8)}:
                forms |= _forms_of(part)
            self._forms = sorted(forms, key=len, reverse=True)

    def forget(self) -> None:
        """Know no secret any more: what follows in this process is another run."""
        with self._lock:
            self._known.clear()
            self._forms = []

    def text(self, text: str) -> str:
        """The text with every known secret masked."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def tree(self, value: object, keep: frozenset[str] = frozenset()) -> object:
        """The same for a tree of mappings, lists and texts. Keys in `keep` are names of ours and stay as they are: a
        password may be a word like `status`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k) if isinstance(k, str) and k not in keep else k: self.tree(v, keep)
                    for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(item, keep) for item in value]
        return value


def _forms_of(part: str) -> set[str]:
    raw = part.encode("utf-8", "surrogateescape")
    forms = {part, urllib.parse.quote(part, safe=""), urllib.parse.quote_plus(part), shlex.quote(part)}
    forms.add(json.dumps(part)[1:-1])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms.add(encode(raw).decode("ascii"))
        # base64 inside a longer text starts at any of three offsets; the middle of it is the same for all values
        for offset in (0, 1, 2):
            inner = encode(b"\0" * offset + raw).decode("ascii")[4 if offset else 0:].rstrip("=")[:-1]
            if len(inner) >= 8:
                forms.add(inner)
    return {form for form in forms if len(form) >= 3}


SCRUBBER = Scrubber()
"""The one scrubber of this process: sinks mask what is known here, whoever learned it."""
