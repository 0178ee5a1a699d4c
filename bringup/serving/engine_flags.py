"""Which flags an installed engine knows, read from its own help, and whether a command line fits them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.serving.plan import Argument, ProcessPlan
from bringup.serving.versions import flag_rows

MAY_REPEAT = frozenset({"--middleware"})
"""Flags whose values add up."""
_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w.-]*)")
_CHOICES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Flag:
    """A flag with its other names, whether it takes a value, and the values that it takes where they are a list."""

    names: tuple[str, ...]
    value: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """The flags of one engine by each of their names; underscores count as dashes."""

    flags: Mapping[str, Flag]

    def find(self, name: str) -> Flag | None:
        """The flag of a word; `--speculative-config.method` is a part of `--speculative-config`."""
        plain = name.replace("_", "-")
        return self.flags.get(plain) or (self.flags.get(plain.split(".", 1)[0]) if "." in plain else None)


def read_help(text: str) -> Known:
    """Flags from the help text of an argparse program, as `vllm serve` and SGLang are."""
    found: dict[str, Flag] = {}
    for line in text.splitlines():
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if not bare.startswith("-") or not 1 <= indent <= 8:
            continue
        head = re.split(r"\s{2,}", bare, maxsplit=1)[0]
        braces = _CHOICES.search(head)
        plain = _CHOICES.sub(" VALUE ", head)
        names = tuple(dict.fromkeys(name.replace("_", "-") for name in _FLAG.findall(plain)))
        rest = _FLAG.sub("", plain).replace(",", " ").split()
        exact = bool(braces) and len(set(rest)) == 1
        flag = Flag(names, bool(rest), tuple(braces.group(1).split(",")) if braces and exact else ())
        for name in names:
            found.setdefault(name, flag)
    return Known(found)


def check_flags(process: ProcessPlan, known: Known, engine: str, version: str) -> None:
    """Refuse a flag that the installed engine does not know, one that stands twice under two names, and a value that
    is none of its choices. Raises InputError with the nearest right word and what the table says of versions."""
    seen: dict[Flag, Argument] = {}
    for argument in process.arguments:
        name, _, inline = argument.words[0].partition("=")
        flag = known.find(name)
        if flag is None:
            raise _unknown(argument, name, known, engine, version)
        if "." not in name and flag in seen and not MAY_REPEAT.intersection(flag.names):
            first = seen[flag]
            raise InputError(f"{_told(first)} and {_told(argument)} are one flag of {engine} {version}",
                             host=process.host, found=f"{_whence(first)}; {_whence(argument)}",
                             expected=f"once: {' '.join(flag.names)}",
                             next=f"leave {name} out of `arguments`" if argument.layer == "site"
                             else "a recipe must say it once")
        if "." not in name:
            seen[flag] = argument
        value = inline or (argument.words[1] if len(argument.words) > 1 else "")
        if flag.choices and value and value not in flag.choices:
            near = nearest(value, flag.choices)
            raise InputError(f"{engine} {version} takes no {name} {value}", host=process.host, found=_whence(argument),
                             expected=", ".join(flag.choices), details=_rows(engine, name),
                             next=f"{name} {near}" if near else None)


def _unknown(argument: Argument, name: str, known: Known, engine: str, version: str) -> InputError:
    near = nearest(name, [flag for flag in known.flags if flag.startswith("--")])
    return InputError(f"{engine} {version} knows no flag {name}", found=_whence(argument),
                      expected=f"one of the {len(set(known.flags.values()))} flags of its --help",
                      details=_rows(engine, name), next=near or f"look at the --help of {engine} {version}")


def _rows(engine: str, name: str) -> Sequence[str]:
    return [f"{row.engine} {row.range}: {row.why}" for row in flag_rows(engine, name)]


def _told(argument: Argument) -> str:
    return " ".join(argument.words)


def _whence(argument: Argument) -> str:
    return f"{_told(argument)} ({argument.layer}{': ' + argument.reason if argument.reason else ''})"
