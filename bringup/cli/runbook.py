"""Verbs of the runbooks: follow one, and say which fits what is found now."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus
from bringup.cli.options import (
    BECOME_FILE,
    CHECK,
    COMMON,
    EXTRA_VARS,
    INVENTORY,
    VAULT_FILE,
    YES,
    Option,
    Options,
    verb,
)

if TYPE_CHECKING:
    from bringup.base.verdicts import Finding
    from bringup.inventory.model import Inventory
    from bringup.runbooks.document import Runbook, Step
    from bringup.runbooks.filling import Filling
    from bringup.runbooks.record import Record

_PASSED_ON = (EXTRA_VARS, BECOME_FILE, VAULT_FILE)
_SHOW = replace(CHECK, help="show everything, run nothing")
_GO_ON = replace(YES, help="ask only before steps marked danger and those that a person does")


@verb((Option("name", positional=True, help="the runbook, as `invoke runbooks --list` names it"), INVENTORY,
       Option("set", help="a value that its commands need, as node=gpu03; may be given again", many=True),
       Option("from", help="begin at this step"), _SHOW, _GO_ON, EXTRA_VARS, BECOME_FILE, VAULT_FILE))
def runbook(options: Options) -> ExitStatus:
    """Follow a runbook step by step: say, ask, run, judge, and write a record to hand over."""
    from bringup.base.paths import Project
    from bringup.cli.inventory import load_for
    from bringup.cli.serve import say
    from bringup.runbooks.document import find
    from bringup.runbooks.filling import filled, read_values
    from bringup.runbooks.following import Following

    project = Project.find()
    book = find(folder_of(project.root), options.name)
    first = _first_step(options, book)
    _refuse_unknown(book)
    inventory = load_for(options)
    filling = _filling(options, read_values(book, options.set, tuple(inventory.hosts)))
    steps = tuple(filled(step, filling) for step in book.steps)
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    _head(book, filling, say, width)
    if options.check:
        _show_all(steps, say)
        return ExitStatus.DONE
    if not options.yes and not _terminal():
        _show_all(steps, say)
    record = _record(project.state / "runbooks", book, filling, inventory)
    following = Following(book, steps, project.root, record, say, _ask, bool(options.yes),
                          lambda number: _again(options, book, filling, number), width)
    status = following.follow(first)
    say("")
    say(f"done     {book.name}: every step ended as it must")
    say(f"record   {record.path}")
    return status


@verb((*COMMON, Option("list", False, "only list the runbooks; no host is asked"),
       Option("quick", False, "look at processes and endpoints alone, not at logs, devices and tool calls")))
def runbooks(options: Options) -> ExitStatus:
    """Look at what runs and propose the runbook that fits (exit 4 when there is one); nothing is changed."""
    from bringup.base.paths import Project
    from bringup.cli.runbook_look import look
    from bringup.runbooks.document import load_all
    from bringup.runbooks.proposing import propose

    books = load_all(folder_of(Project.find().root))
    if options.list:
        _list(options, books)
        return ExitStatus.DONE
    status, findings, release = look(options, books.values(), quick=options.quick)
    proposals, left = propose(findings, books)
    if options.format == "json":
        _as_json(options, release, proposals, left)
    else:
        _as_text(options, release, proposals, left)
    return ExitStatus.FINDING if status is ExitStatus.DONE and (proposals or left) else status


def folder_of(project: Path) -> Path:
    """The project's `runbooks/`, else the one that bringup came with."""
    own = project / "runbooks"
    return own if own.is_dir() else Path(__file__).resolve().parents[2] / "runbooks"


def _refuse_unknown(book: Runbook) -> None:
    """Raises InputError for a command whose verb or flag bringup does not have, before any of them is run."""
    from invoke.exceptions import ParseError
    from invoke.parser import Parser

    from bringup.base.errors import InputError
    from bringup.cli.namespace import namespace

    contexts = namespace().to_contexts()
    for step in book.steps:
        for command in step.commands:
            if command.by_hand:
                continue
            try:
                Parser(contexts=contexts).parse_argv(shlex.split(command.text)[1:])
            except ParseError as error:
                raise InputError(f"bringup has no such command: {error}", where=command.origin, found=command.text,
                                 next="invoke --list names the verbs, invoke VERB --help its flags") from None


def _first_step(options: Options, book: Runbook) -> int:
    from bringup.base.errors import InputError

    first = options.number("from", least=1) or 1
    if first > len(book.steps):
        raise InputError(f"{book.name} has {len(book.steps)} steps", found=f"--from {first}")
    return first


def _filling(options: Options, values: Mapping[str, str]) -> Filling:
    from bringup.runbooks.filling import Filling

    flags = []
    for option in _PASSED_ON:
        given = options.values.get(option.key)
        values_given = given if isinstance(given, list) else [given]
        flags += [(f"--{option.name}", str(value)) for value in values_given if value]
    return Filling(values, tuple(options.inventory), tuple(flags), flags_of)


def flags_of(verb_name: str) -> frozenset[str]:
    """The flags that a verb takes, `--name` each; none for a verb that does not exist."""
    from bringup.cli.namespace import namespace

    root = namespace()
    try:
        task = root[verb_name]
    except KeyError:
        return frozenset()
    return frozenset(f"--{option.name}" for option in task.options if not option.positional)


def _head(book: Runbook, filling: Filling, say: Callable[[str], None], width: int) -> None:
    from bringup.runbooks.layout import wrapped

    say(f"{book.title}   (runbook {book.name}, {len(book.steps)} steps)")
    say("")
    say("How to tell that it is the right one")
    for line in list(wrapped(filling.text(book.tell), width - 2))[:-1]:
        say(f"  {line}".rstrip())


def _show_all(steps: Sequence[Step], say: Callable[[str], None]) -> None:
    for step in steps:
        say("")
        say(f"{step.number}. " + "\n   ".join(step.text.splitlines()))
        for command in step.commands:
            mark = "by hand" if command.by_hand else "danger" if command.danger else "run"
            for line in command.text.splitlines():
                say(f"   {mark:8} {line}")


def _record(folder: Path, book: Runbook, filling: Filling, inventory: Inventory) -> Record:
    import getpass
    import socket

    from bringup import __version__
    from bringup.runbooks.record import Record, now

    _learn_secrets()
    record = Record(folder, book.name)
    values = ", ".join(f"{name}={value}" for name, value in filling.values.items())
    replayed = [host for host in inventory.hosts
                if any(inventory.variables(host).get(name) for name in ("bringup_lab", "bringup_replay"))]
    record.add(f"# {book.title}", "", f"- runbook: `{book.name}` ({book.path})", f"- begun: {now()}",
               f"- by: {getpass.getuser()}@{socket.gethostname()}, bringup {__version__}",
               f"- inventory: {', '.join(filling.inventories) or 'the default one'}",
               *([f"- values: {values}"] if values else []),
               *([f"- replayed: devices of {', '.join(replayed)} are recordings, not hardware"] if replayed else []))
    return record


def _learn_secrets() -> None:
    """Values of the environment that are secrets by their name are masked, too."""
    import os
    import re

    from bringup.base.secrets import SCRUBBER

    for name, value in os.environ.items():
        if re.search(r"(_|^)(TOKEN|KEY|SECRET|PASSWORD|PASS)$", name) and len(value) >= 8:
            SCRUBBER.add(value)


def _terminal() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())


def _ask(question: str) -> str | None:
    if not _terminal():
        return None
    print(f"  {question} ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower()


def _again(options: Options, book: Runbook, filling: Filling, number: int) -> str:
    words = ["invoke", "runbook", book.name]
    for name in filling.inventories:
        words += ["--inventory", name]
    for name, value in filling.values.items():
        words += ["--set", f"{name}={value}"]
    for flag, value in filling.flags:
        words += [flag, value]
    return shlex.join([*words, "--from", str(number)] if number > 1 else words)


def _list(options: Options, books: Mapping[str, Runbook]) -> None:
    from bringup.cli.serve import say

    if options.format == "json":
        say(json.dumps([{"name": book.name, "title": book.title, "file": str(book.path), "steps": len(book.steps),
                         "needs": list(book.variables), "for": [s.check for s in book.signs]}
                        for book in books.values()], indent=2))
        return
    width = max((len(name) for name in books), default=0)
    for book in books.values():
        needs = "".join(f" --set {name}=..." for name in book.variables)
        say(f"{book.name:{width}}  {book.title}{f'   ({needs.strip()})' if needs else ''}")


def _as_json(options: Options, release: str, proposals: Sequence[Any], left: Sequence[Finding]) -> None:
    from bringup.cli.serve import say

    say(json.dumps({
        "status": release,
        "proposed": [{"runbook": p.runbook.name, "title": p.runbook.title, "command": p.command(options.inventory),
                      "because": [_plain(f) for f in p.findings]} for p in proposals],
        "without_runbook": [_plain(f) for f in left]}, indent=2, ensure_ascii=False))


def _plain(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "subject": finding.subject, "verdict": finding.verdict.value,
            "summary": finding.summary, "mend": finding.mend}


def _as_text(options: Options, release: str, proposals: Sequence[Any], left: Sequence[Finding]) -> None:
    from bringup.cli.serve import say

    for proposal in proposals:
        say(f"{proposal.runbook.name}: {proposal.runbook.title}")
        for finding in proposal.findings:
            say(f"  because  {finding.subject}  {finding.check}  {finding.summary}")
        say(f"  type     {proposal.command(options.inventory)}")
    for finding in left:
        say(f"no runbook for  {finding.subject}  {finding.check}  {finding.summary}")
        if finding.mend:
            say(f"  mend     {finding.mend}")
    if release:
        say(release + ("" if proposals or left else ", nothing wrong found"))
