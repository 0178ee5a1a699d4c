"""The record of a runbook that was followed: Markdown, written as it goes, to hand over."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bringup.base.errors import StepError
from bringup.base.secrets import SCRUBBER

FORM = "%Y-%m-%d %H:%M:%S UTC"


class Record:
    """Appends to one file, each part at once, so that a cut leaves what was done. Secrets are masked.
    Raises StepError when it cannot be written."""

    def __init__(self, folder: Path, name: str) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self.path = folder / f"{stamp}-{name}.md"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number = 1
            while True:
                try:
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                    break
                except FileExistsError:  # two in one second
                    number += 1
                    self.path = folder / f"{stamp}-{name}-{number}.md"
        except OSError as error:
            raise self._cannot(error) from None

    def add(self, *lines: str) -> None:
        """Write lines."""
        try:
            with self.path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(SCRUBBER.text("\n".join(lines)) + "\n")
        except OSError as error:
            raise self._cannot(error) from None

    def block(self, text: str) -> None:
        """Write output of a command, fenced: an output that holds a fence gets a longer one."""
        fence = "```"
        while fence in text:
            fence += "`"
        self.add("", fence, text.rstrip("\n"), fence)

    def _cannot(self, error: OSError) -> StepError:
        return StepError("the record cannot be written", where=str(self.path), found=error.strerror or str(error),
                         next="make room or rights for .bringup/runbooks, then the same again")


def now() -> str:
    """This moment, in UTC, as records write it."""
    return time.strftime(FORM, time.gmtime())
