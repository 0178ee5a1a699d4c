"""A runbook as it is written: Markdown with a title, how to tell, and numbered steps with marked blocks.

    # One rank is down

    ## How to tell

    What is seen. A paragraph `Findings: process.rank, endpoint (is stopped)` names the findings that it is for; what
    stands in parentheses must also be in the finding's text.

    ## Steps

    1. What this step is for.

       ```run
       invoke start --inventory $INVENTORY --yes
       ```

       ```check exit=0
       invoke logs --inventory $INVENTORY
       ```

`run` holds one command of bringup, `run danger` one that is never run unasked, `hand` is done by the person. `check`
belongs to the command before it: `exit=0` or `exit=0,4`, `contains=TEXT`, `lacks=TEXT`; what stands inside is what to
type when it does not hold. A command without a check must end with 0.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest

VARIABLE = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_FINDING = re.compile(r"([\w.*-]+)(?:\s+\(([^)]+)\))?")
_TELL, _STEPS = "How to tell", "Steps"


@dataclass(frozen=True)
class Check:
    """What the outcome of a command must be. `otherwise` is what to type next when it is not."""

    exits: tuple[int, ...] = (0,)
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    otherwise: str = ""

    def fault(self, status: int, output: str) -> str | None:
        """Why the outcome is not as it must be, None when it is."""
        if self.exits and status not in self.exits:
            return f"it ended with {status}, expected {' or '.join(map(str, self.exits))}"
        for text in self.contains:
            if text not in output:
                return f"its output does not say `{text}`"
        for text in self.lacks:
            if text in output:
                return f"its output says `{text}`"
        return None


@dataclass(frozen=True)
class Command:
    """One marked block: `text` as written; `by_hand` when a person does it."""

    text: str
    origin: Origin
    danger: bool = False
    by_hand: bool = False
    check: Check = Check()


@dataclass(frozen=True)
class Step:
    """A numbered step: what it is for, and its commands in order."""

    number: int
    text: str
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class Sign:
    """A finding that a runbook is for: its check's name or pattern, and a text that it must hold ("" for any)."""

    check: str
    text: str = ""


@dataclass(frozen=True)
class Runbook:
    """A whole runbook. `variables` are the values that its commands need, lower case, without the inventory."""

    name: str
    path: Path
    title: str
    tell: str
    signs: tuple[Sign, ...]
    steps: tuple[Step, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        found = [name.lower() for step in self.steps for command in step.commands
                 for name in VARIABLE.findall(command.text)]
        return tuple(dict.fromkeys(name for name in found if name != "inventory"))


def load_all(folder: Path) -> dict[str, Runbook]:
    """Every runbook of a folder by name. Raises InputError for one that is not as it must be."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.md"))}


def find(folder: Path, name: str) -> Runbook:
    """The runbook of this name. Raises InputError, with the nearest name."""
    names = sorted(path.stem for path in folder.glob("*.md"))
    if name not in names:
        near = nearest(name, names)
        raise InputError(f"no runbook is called `{name}`", where=str(folder), expected=", ".join(names) or "NAME.md",
                         next=f"invoke runbook {near}" if near else "invoke runbooks --list")
    return load(folder / f"{name}.md")


def load(path: Path) -> Runbook:
    """Read one file. Raises InputError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from None
    return parse(text, path)


def parse(text: str, path: Path) -> Runbook:
    """Read a runbook's text. Raises InputError with file and line."""
    lines = text.splitlines()
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [(token, tokens[at + 1].content) for at, token in enumerate(tokens)
                if token.type == "heading_open" and token.level == 0]
    if not headings or headings[0][0].tag != "h1":
        raise InputError("a runbook begins with its title", where=Origin(str(path), 1), expected="# TITLE")
    names = [title for token, title in headings[1:] if token.tag == "h2"]
    for at, wanted in enumerate((_TELL, _STEPS)):
        if wanted not in names or (at == 0 and names[0] != wanted):
            where = _line(headings[1][0]) if len(headings) > 1 else 1
            raise InputError(f"the section `{wanted}` is missing" if wanted not in names else
                             f"`{wanted}` comes first", where=Origin(str(path), where), expected=f"## {wanted}")
    tell = _section(lines, headings, _TELL)
    signs, shown = _signs(tell)
    first, last = _span(lines, headings, _STEPS)
    steps = tuple(_steps(tokens, lines, path, first, last))
    if not steps:
        raise InputError("no numbered step", where=Origin(str(path), first), expected="1. TEXT, then a ```run block")
    return Runbook(path.stem, path, headings[0][1], shown, signs, steps)


def _line(token: Token) -> int:
    """The line of a token, from 1."""
    return token.map[0] + 1 if token.map else 0


def _span(lines: Sequence[str], headings: Sequence[tuple[Token, str]], name: str) -> tuple[int, int]:
    """First line behind a section's heading and the line behind its end, from 0."""
    top = [(token, title) for token, title in headings if token.tag in ("h1", "h2")]
    at = next(i for i, (_, title) in enumerate(top) if title == name)
    end = _line(top[at + 1][0]) - 1 if at + 1 < len(top) else len(lines)
    return _line(top[at][0]), end


def _section(lines: Sequence[str], headings: Sequence[tuple[Token, str]], name: str) -> str:
    first, last = _span(lines, headings, name)
    return "\n".join(lines[first:last]).strip()


def _signs(tell: str) -> tuple[tuple[Sign, ...], str]:
    """The findings that the paragraph `Findings:` names, and the text without that paragraph."""
    signs: list[Sign] = []
    shown = []
    for part in re.split(r"\n\s*\n", tell):
        if part.startswith("Findings:"):
            words = " ".join(part.split()).removeprefix("Findings:").replace("`", "").split(",")
            signs += [Sign(found[1], found[2] or "") for word in words if (found := _FINDING.fullmatch(word.strip()))]
        else:
            shown.append(part)
    return tuple(signs), "\n\n".join(shown).strip()


def _steps(tokens: Sequence[Token], lines: Sequence[str], path: Path, first: int, last: int) -> Iterator[Step]:
    number = 0
    item: Token | None = None
    fences: list[Token] = []
    for token in tokens:
        if token.map is None and token.type != "list_item_close":
            continue
        if token.type == "list_item_open" and token.level == 1 and token.markup in (".", ")") \
                and first <= _line(token) - 1 < last:
            item, fences, number = token, [], number + 1
        elif token.type == "fence" and item is not None:
            fences.append(token)
        elif token.type == "fence" and token.info.split()[:1] in (["run"], ["check"], ["hand"]):
            raise InputError(f"a `{token.info}` block outside of a numbered step",
                             where=Origin(str(path), _line(token)), expected="indented as far as the step's text")
        elif token.type == "list_item_close" and token.level == 1 and item is not None:
            yield Step(number, _words(lines, item, fences), tuple(_commands(fences, path)))
            item = None


def _words(lines: Sequence[str], item: Token, fences: Sequence[Token]) -> str:
    """A step's text without its marked blocks."""
    begin, end = item.map or [0, 0]
    inside = {at for fence in fences for at in range(*(fence.map or [0, 0]))}
    text = [lines[at] for at in range(begin, end) if at not in inside]
    text[0] = re.sub(r"^\s*\d+[.)]\s+", "", text[0])
    kept = "\n".join(line.strip() for line in text)
    return re.sub(r"\n{2,}", "\n", kept).strip()


def _commands(fences: Sequence[Token], path: Path) -> Iterator[Command]:
    pending: Command | None = None
    for fence in fences:
        where = Origin(str(path), _line(fence))
        kind, *marks = _info(fence.info, where)
        if kind == "check":
            if pending is None or pending.check != Check():
                raise InputError("a check without a command before it", where=where, expected="```run, then ```check")
            pending = Command(pending.text, pending.origin, pending.danger, pending.by_hand,
                              _check(marks, fence.content.strip(), where))
            continue
        if pending is not None:
            yield pending
        pending = _command(kind, marks, fence.content.strip(), where)
    if pending is not None:
        yield pending


def _info(info: str, where: Origin) -> list[str]:
    try:
        return shlex.split(info) or [""]
    except ValueError as error:
        raise InputError(f"`{info}` cannot be read: {error}", where=where) from None


def _command(kind: str, marks: Sequence[str], text: str, where: Origin) -> Command:
    if kind not in ("run", "hand"):
        raise InputError(f"a block of a step is marked `{kind}`" if kind else "a block of a step is not marked",
                         where=where, expected="run, run danger, hand or check")
    if kind == "hand":
        if marks:
            raise InputError(f"`hand` takes no `{marks[0]}`", where=where)
        return Command(text, where, by_hand=True)
    if list(marks) not in ([], ["danger"]):
        raise InputError(f"`run` takes no `{' '.join(marks)}`", where=where, expected="run, or run danger")
    if len(text.splitlines()) != 1 or not text.startswith("invoke "):
        raise InputError("a `run` block holds one command of bringup", where=where, found=text or "nothing",
                         expected="invoke VERB ... on one line; anything else is a `hand` block")
    try:
        shlex.split(text)
    except ValueError as error:
        raise InputError(f"the command cannot be read: {error}", where=where, found=text) from None
    return Command(text, where, danger=bool(marks))


def _check(marks: Sequence[str], otherwise: str, where: Origin) -> Check:
    exits: tuple[int, ...] = ()
    texts: dict[str, list[str]] = {"contains": [], "lacks": []}
    for mark in marks:
        name, equals, value = mark.partition("=")
        if name == "exit" and re.fullmatch(r"\d+(,\d+)*", value):
            exits = tuple(int(word) for word in value.split(","))
        elif name in texts and equals and value:
            texts[name].append(value)
        else:
            raise InputError(f"a check cannot read `{mark}`", where=where,
                             expected="exit=N, contains=TEXT or lacks=TEXT (quoted when it has spaces)")
    if not marks:
        raise InputError("a check says nothing", where=where, expected="exit=N, contains=TEXT or lacks=TEXT")
    return Check(exits, tuple(texts["contains"]), tuple(texts["lacks"]), otherwise)
