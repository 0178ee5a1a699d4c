"""Where a value was written: file, line and column."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """A place in a text that a person wrote. Lines and columns start at 1; 0 means unknown."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        if not self.column:
            return f"{self.file}:{self.line}"
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def short(self) -> str:
        """File and line, without the column."""
        return f"{self.file}:{self.line}" if self.line else self.file
