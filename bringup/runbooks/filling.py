"""The values of a call put into a runbook's commands, as they are shown and as they are run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.runbooks.document import VARIABLE, Command, Runbook, Step


@dataclass(frozen=True)
class Filling:
    """`values` by lower-case name. `inventories` as typed (none: the verbs take their default). `flags` are further
    words for each verb (vault and sudo files), and `takes(verb)` the flags that a verb has."""

    values: Mapping[str, str]
    inventories: Sequence[str] = ()
    flags: Sequence[tuple[str, str]] = ()
    takes: Callable[[str], frozenset[str]] = lambda verb: frozenset()

    def words(self, command: str) -> list[str]:
        """The words of a command of bringup, first `invoke`."""
        out: list[str] = []
        for word in shlex.split(command):
            if word == "$INVENTORY" and out and out[-1] in ("--inventory", "-i"):
                flag = out.pop()
                for name in self.inventories:
                    out += [flag, name]
            else:
                out.append(VARIABLE.sub(lambda found: self._value(found[1], found[0]), word))
        if len(out) > 1:
            taken = self.takes(out[1])
            for flag, value in self.flags:
                if flag in taken:
                    out += [flag, value]
        return out

    def text(self, text: str) -> str:
        """Any other text: words for a person, and commands inside."""
        given = " ".join(f"--inventory {shlex.quote(name)}" for name in self.inventories)
        text = text.replace(" --inventory $INVENTORY", f" {given}" if given else "")
        return VARIABLE.sub(lambda found: self._value(found[1], found[0]), text)

    def _value(self, name: str, written: str) -> str:
        if name == "INVENTORY":
            return ",".join(self.inventories) or written
        return self.values.get(name.lower(), written)


def read_values(runbook: Runbook, given: Iterable[str], hosts: Sequence[str]) -> dict[str, str]:
    """`--set name=value` of a call. Raises InputError: not of that form, unknown, missing, or no host of it."""
    values: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        name = name.strip().lower()
        if not equals or not name or not value.strip() or value.startswith("-") or not value.isprintable():
            raise InputError("--set takes NAME=VALUE", found=word)
        if name not in runbook.variables:
            near = nearest(name, runbook.variables)
            raise InputError(f"the runbook {runbook.name} takes no `{name}`",
                             expected=", ".join(runbook.variables) or "no --set at all",
                             next=f"--set {near}={value}" if near else None)
        values[name] = value.strip()
    missing = [name for name in runbook.variables if name not in values]
    if missing:
        raise InputError(f"the runbook {runbook.name} needs " + " and ".join(f"--set {name}=..." for name in missing),
                         where=_where(runbook, missing[0]),
                         next=f"invoke runbook {runbook.name} " + " ".join(f"--set {n}={n.upper()}" for n in missing))
    for name in ("node", "spare"):
        if name in values and values[name] not in hosts:
            near = nearest(values[name], hosts)
            raise InputError(f"no host of the inventory is called `{values[name]}`",
                             next=f"--set {name}={near}" if near else "invoke inventory --list names them")
    return values


def _where(runbook: Runbook, name: str) -> str:
    return next(str(command.origin) for step in runbook.steps for command in step.commands
                if f"${name.upper()}" in command.text)


def filled(step: Step, filling: Filling) -> Step:
    """The step with every value in place."""
    return replace(step, text=filling.text(step.text), commands=tuple(_filled(c, filling) for c in step.commands))


def _filled(command: Command, filling: Filling) -> Command:
    text = filling.text(command.text) if command.by_hand else shlex.join(filling.words(command.text))
    return replace(command, text=text,
                   check=replace(command.check, otherwise=filling.text(command.check.otherwise)))
