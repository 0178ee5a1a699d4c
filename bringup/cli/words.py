"""A command line that Invoke cannot read: told as every other input error is, before Invoke tells it its own way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from invoke import Argument, Collection, Exit, ParseError, Parser, ParserContext, Program

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.cli.options import guarded

_PROGRAMS = ("invoke", "inv")
_UNKNOWN = re.compile(r"No idea what '(?P<word>.*)' is!", re.S)
_NO_VALUE = re.compile(r"Flag (?:'(?P<typed>.*)'|<\w+: (?P<name>\S+).*>) needed value", re.S)


def refuse_unreadable(verbs: Collection, argv: Sequence[str]) -> None:
    """Read Invoke's command line `argv` as Invoke will. Raises Exit (status 2) for one that it would not read.

    Nothing is done where another program loads the verbs, or where a shell asks for completions.
    """
    if not argv or not _is_invoke(PurePath(argv[0])) or "--complete" in argv:
        return
    core = Program().initial_context
    try:
        given = Parser(initial=core, ignore_unknown=True).parse_argv(list(argv[1:]))
        read = Parser(initial=core, contexts=_named(verbs, given.unparsed)).parse_argv(given.unparsed)
        _help_is_asked_of_a_verb(given[0].args["help"], verbs)
        _ends_with_its_value(read[-1], argv[-1])
    except ParseError as error:
        unreadable = error
        raise Exit(code=guarded(lambda: _refuse(unreadable, verbs, core))) from None


def _is_invoke(program: PurePath) -> bool:
    return program.name in _PROGRAMS or program.parts[-2:] == ("invoke", "__main__.py")


def _named(verbs: Collection, words: Sequence[str]) -> list[ParserContext]:
    """The verbs that occur in a command line, as Invoke's parser knows them: it copies all that it is told."""
    return [ParserContext(name=name, aliases=aliases, args=verbs[name].get_arguments())
            for name, aliases in verbs.task_names.items() if not {name, *aliases}.isdisjoint(words)]


def _ends_with_its_value(verb: ParserContext, last: str) -> None:
    """Invoke takes a flag that may be given again for one that was not given at all when it ends the line."""
    if last in verb.flags and verb.flags[last].kind is list and verb.flags[last].value[-1:] != [last]:
        raise ParseError(f"Flag '{last}' needed value", verb)


def _help_is_asked_of_a_verb(asked: Argument, verbs: Collection) -> None:
    if isinstance(asked.value, str) and asked.value not in verbs.task_names:
        raise ParseError(f"No idea what '{asked.value}' is!")


def _refuse(error: ParseError, verbs: Collection, core: ParserContext) -> int:
    said = str(error)
    verb = error.context.name if error.context is not None else None
    unknown, no_value = _UNKNOWN.search(said), _NO_VALUE.search(said)
    help_of = f"invoke {verb} --help" if verb else "invoke --list"
    if no_value:
        flag = no_value["typed"] or f"--{no_value['name']}"
        raise InputError(f"{flag} is given without its value", next=help_of)
    if not unknown:
        raise InputError(said.rstrip("!"), next=help_of)
    word = unknown["word"]
    if word.startswith("-"):
        known = [flag for context in (error.context, core) if context is not None for flag in context.flags]
        what = f"`{verb}` has no flag `{word}`" if verb else f"there is no flag `{word}`"
    else:
        known = [name for task, aliases in verbs.task_names.items() for name in (task, *aliases)]
        what = f"there is no verb `{word}`"
    near = nearest(word, known)
    raise InputError(what + (f"; nearest: {near}" if near else ""), next=help_of)


