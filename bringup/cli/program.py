"""The console script `bringup`: the same verbs as `invoke`, with our exit status for a mistyped verb or flag."""

from __future__ import annotations

import sys

from invoke import Program
from invoke.exceptions import ParseError

from bringup import __version__
from bringup.base.errors import ExitStatus
from bringup.cli.namespace import namespace


class _Program(Program):  # type: ignore[misc]
    def parse_core(self, argv: list[str] | None) -> None:
        keeps = sys.dont_write_bytecode
        super().parse_core(argv)
        sys.dont_write_bytecode = keeps

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:
        try:
            super().run(argv, exit=exit)
        except SystemExit as end:
            parse_failed = isinstance(end.__context__, ParseError)
            raise SystemExit(int(ExitStatus.INPUT) if parse_failed else end.code) from None


def main() -> None:
    """Run the verb that the command line names."""
    _Program(name="bringup", binary="bringup", version=__version__, namespace=namespace()).run(sys.argv)
