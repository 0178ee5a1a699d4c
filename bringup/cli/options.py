"""Verbs for Invoke: the flags that all of them share, values taken as text and checked by us, one way to end."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from invoke import Argument, Context, Exit, ParserContext, Task

from bringup.base.errors import BringupError, ExitStatus, InputError, StepError
from bringup.base.secrets import SCRUBBER
from bringup.base.streams import silence
from bringup.base.text import nearest


@dataclass(frozen=True)
class Option:
    """A flag of a verb. `default` False makes it a switch; `many` lets it be given again."""

    name: str
    default: Any = None
    help: str = ""
    short: str | None = None
    many: bool = False
    choices: Sequence[str] = ()
    positional: bool = False

    @property
    def key(self) -> str:
        """The name as it stands in Options."""
        return self.name.replace("-", "_")


INVENTORY = Option("inventory", help="inventory name or file; may be given again", short="i", many=True)
LIMIT = Option("limit", help="pattern of hosts, as Ansible reads it", short="l")
CHECK = Option("check", False, "change nothing, say what would change", short="C")
DIFF = Option("diff", False, "show what changes in files", short="D")
FORKS = Option("forks", help="hosts at a time (default: all)", short="f")
EXTRA_VARS = Option("extra-vars", help="key=value, a YAML mapping or @FILE; may be given again", many=True)
FORMAT = Option("format", "text", "text or json", choices=("text", "json"))
REPORT = Option("report", help="also write FILE: .json, .xml (JUnit) or .html; may be given again", many=True)
YES = Option("yes", False, "answer every question with yes", short="y")
ASK_BECOME = Option("ask-become-pass", False, "ask for the sudo password once", short="K")
BECOME_FILE = Option("become-password-file", help="file that holds the sudo password")
ASK_PASS = Option("ask-pass", False, "ask for the SSH password once", short="k")
ASK_KEY = Option("ask-api-key", False, "ask for the endpoint's key once: the variable bringup_api_key")
VAULT_FILE = Option("vault-password-file", help="file that holds the vault password; may be given again", many=True)
VERBOSE = Option("verbose", False, "more lines", short="v")

COMMON = (INVENTORY, LIMIT, CHECK, DIFF, FORKS, EXTRA_VARS, FORMAT, REPORT, YES, ASK_BECOME, BECOME_FILE, ASK_PASS,
          ASK_KEY, VAULT_FILE, VERBOSE)
"""Flags of every verb that meets hosts."""

READING = (INVENTORY, LIMIT, EXTRA_VARS, FORMAT, REPORT, ASK_KEY, VAULT_FILE, VERBOSE)
"""Flags of verbs that contact no host."""


@dataclass(frozen=True)
class Options:
    """The flags of one call, by name with underscores; text as typed, lists for `many`, bools for switches."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def number(self, name: str, *, least: int = 0) -> int | None:
        """A whole number given as text. Raises InputError."""
        value = self.values.get(name)
        if value is None or value == "":
            return None
        try:
            number = int(str(value))
        except ValueError:
            raise InputError(f"--{name.replace('_', '-')} takes a whole number", found=str(value)) from None
        if number < least:
            raise InputError(f"--{name.replace('_', '-')} takes a number from {least} on", found=str(value))
        return number


Body = Callable[[Options], "int | ExitStatus | None"]


class Verb(Task):  # type: ignore[misc]
    """An Invoke task whose flags come from Option rows instead of a Python signature."""

    def __init__(self, body: Body, options: Sequence[Option], name: str) -> None:
        self.options = tuple(options)
        super().__init__(self._entry(body), name=name)

    def _entry(self, body: Body) -> Callable[..., None]:
        @functools.wraps(body)
        def entry(c: Context, **given: Any) -> None:
            if getattr(c.config.run, "dry", False) and "check" in given:
                given["check"] = True
            status = guarded(lambda: body(_checked(self.options, given)))
            if status:
                raise Exit(code=status)

        return entry

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """What Invoke's parser is told: every value is text, switches are bools, `many` are lists."""
        return [_argument(option, self) for option in sorted(self.options, key=lambda o: not o.positional)]

    def show_help(self) -> None:
        """Print what `--help` of a verb with positional values prints, in Invoke's layout, and how they are placed."""
        words = " ".join(option.name.upper() for option in self.options if option.positional)
        print(f"Usage: inv[oke] [--core-opts] {self.name} {words} [--options] [other tasks here ...]\n")
        print(f"Docstring:\n  {inspect.getdoc(self)}\n\nOptions:")
        rows = ParserContext(name=str(self.name), args=self.get_arguments()).help_tuples()
        left = max(len(row[0]) for row in rows) + 5
        width = max(shutil.get_terminal_size((80, 24)).columns - left - 1, 20)
        for spec, text in rows:
            first, *rest = textwrap.wrap(text or "", width) or [""]
            print(f"  {spec:{left - 2}}{first}".rstrip())
            for line in rest:
                print(" " * left + line)
        print()


class _Value(Argument):  # type: ignore[misc]
    """A flag. Invoke's parser copies every flag of every verb in depth; only lists are ever changed in place."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Value:
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(made, name, list(value))
        return made


class _Positional(_Value):
    """A value without a flag. Invoke would take `--help` for it, as it takes the next word whatever it is."""

    def __init__(self, show_help: Callable[[], None], **given: Any) -> None:
        super().__init__(**given)
        self.show_help = show_help

    def set_value(self, value: Any, cast: bool = True) -> None:
        if value in ("--help", "-h"):
            raise Exit(code=guarded(self.show_help))
        super().set_value(value, cast)


def _argument(option: Option, owner: Verb) -> Argument:
    kind: type = list if option.many else bool if isinstance(option.default, bool) else str
    names = (option.name,) if option.short is None else (option.name, option.short)
    default: Any = None if option.positional else option.default
    if option.many:
        default = []
    # Invoke makes an alias of attr_name: one that equals the name would point at itself
    attr_name = option.key if option.key != option.name else None
    given: dict[str, Any] = {"names": names, "attr_name": attr_name, "kind": kind, "default": default,
                             "help": option.help, "positional": option.positional}
    return _Positional(owner.show_help, **given) if option.positional else _Value(**given)


def verb(options: Sequence[Option] = (), *, name: str | None = None) -> Callable[[Body], Verb]:
    """Make an Invoke task of a body that takes Options and returns an exit status (None is 0).

    The docstring's first line is the one-line help. Errors are printed without a traceback and become the exit
    status of `ExitStatus`; an interrupt becomes 130; Invoke's own `--dry` is read as `--check`.
    """

    def make(body: Body) -> Verb:
        return Verb(body, options, name or body.__name__.rstrip("_").replace("_", "-"))

    return make


def guarded(body: Callable[[], int | ExitStatus | None]) -> int:
    """Run a body; print what it raises as a person should see it; return the exit status."""
    if sys.stdout is None or sys.stderr is None:  # closed by who started us
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    try:
        return _flushed(int(body() or 0))
    except BringupError as error:
        show_error(error)
        return int(error.status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitStatus.INTERRUPTED)
    except BrokenPipeError:
        # whoever read our output has left, and output was all that was wanted
        return _silent(int(ExitStatus.DONE))
    except Exception as error:
        return _bug(error)


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _silent(status)
    except OSError as error:
        _silent(status)
        raise StepError(f"the output cannot be written: {error.strerror}") from None
    return status


def _silent(status: int) -> int:
    silence(sys.stdout)
    return status


def _bug(error: Exception) -> int:
    import tempfile
    import traceback

    text = SCRUBBER.text("".join(traceback.format_exception(error)))
    with tempfile.NamedTemporaryFile("w", prefix="bringup-fault-", suffix=".txt", delete=False) as file:
        file.write(text)
    show_error(StepError(
        f"bringup itself failed: {type(error).__name__}: {error}",
        details=["this is a fault of bringup, not of a host; the run stopped where it was"],
        next=f"send {file.name} with a report (secrets are masked in it)",
    ))
    return int(ExitStatus.STEP)


def show_error(error: BringupError) -> None:
    """Print an error to stderr, scrubbed; say that nothing was contacted where that is so."""
    for line in error.lines():
        print(SCRUBBER.text(line), file=sys.stderr)
    if error.status is ExitStatus.INPUT:
        print("nothing was contacted", file=sys.stderr)


def _checked(options: Sequence[Option], given: Mapping[str, Any]) -> Options:
    values: dict[str, Any] = {}
    for option in options:
        value = given.get(option.key)
        if option.many:
            value = [str(item) for item in value or ()]
        elif isinstance(option.default, bool):
            value = bool(value)
        elif value == "":
            value = None
        if option.choices and value not in (None, *option.choices):
            near = nearest(str(value), option.choices)
            raise InputError(f"--{option.name} takes {' or '.join(option.choices)}", found=str(value),
                             next=f"--{option.name} {near}" if near else None)
        values[option.key] = value
    if values.get(REPORT.key):
        from bringup.ui.report import check_reports

        check_reports(values[REPORT.key])
    return Options(values)
