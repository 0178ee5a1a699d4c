"""Following a runbook: say, ask, run, judge, write down; stop at the first outcome that is not as it must be."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import ExitStatus, FindingError, StepError
from bringup.base.secrets import SCRUBBER
from bringup.base.text import duration, printable
from bringup.runbooks.document import Command, Runbook, Step
from bringup.runbooks.layout import wrapped
from bringup.runbooks.record import Record, now

Say = Callable[[str], None]
Ask = Callable[[str], "str | None"]
"""Puts a question; the answer in lower case, None where there is no terminal."""


@dataclass(frozen=True)
class Following:
    """One call: `steps` with their values in place, `again` the command that would go on at a step."""

    runbook: Runbook
    steps: Sequence[Step]
    project: Path
    record: Record
    say: Say
    ask: Ask
    yes: bool
    again: Callable[[int], str]
    width: int = 120

    def follow(self, first: int = 1) -> ExitStatus:
        """Every step from `first` on. Raises StepError at an outcome that is not as it must be, FindingError where a
        person must answer or answered no."""
        for step in self.steps[first - 1:]:
            try:
                self._step(step)
            except KeyboardInterrupt:
                self._interrupted(step)
                raise
        self.record.add("", f"Done at {now()}: every step of `{self.runbook.name}` ended as it must.")
        return ExitStatus.DONE

    def _step(self, step: Step) -> None:
        self.say("")
        head = f"step {step.number} of {len(self.steps)}  "
        for at, line in enumerate(list(wrapped(step.text, self.width - len(head)))[:-1]):
            self.say((head if at == 0 else " " * len(head)) + line)
        self.record.add("", f"## Step {step.number} of {len(self.steps)}", "", step.text)
        for command in step.commands:
            self._one(step, command)

    def _interrupted(self, step: Step) -> None:
        """Write and say where it stopped, and the command that goes on there."""
        place, again = f"step {step.number} of {len(self.steps)}", self.again(step.number)
        self.record.add("", f"Interrupted in {place} at {now()}.", "", f"Next: `{again}`")
        self.say("")
        self.say(f"interrupted in {place} of {self.runbook.name}")
        self.say(f"  record    {self.record.path}")
        self.say(f"  next      {again}")

    def _one(self, step: Step, command: Command) -> None:
        for line in command.text.splitlines():
            self.say(f"  {'by hand' if command.by_hand else 'will run'}  {line}")
        if command.danger:
            self.say("  danger    it may stop what serves, or cannot be taken back")
        if not self._agreed(step, command):
            self.record.add("", f"Skipped by the person at {now()}: `{command.text}`")
            return
        if command.by_hand:
            self.record.add("", f"Done by hand, says the person, at {now()}:")
            self.record.block(command.text)
            return
        self._run(step, command)

    def _agreed(self, step: Step, command: Command) -> bool:
        """True to do it, False to skip it. Raises FindingError for no, and where nobody can be asked."""
        if self.yes and not command.danger and not command.by_hand:
            return True
        answer = self.ask("Is it done? [y/N/skip]" if command.by_hand else "Run it? [y/N/skip]")
        if answer in ("y", "yes"):
            return True
        if answer in ("s", "skip"):
            return False
        if answer is None:
            why = "only a person can do it" if command.by_hand else "it is never run unasked" if self.yes else \
                "nobody can be asked: no terminal"
            mend = f"at a terminal: {self.again(step.number)}"
            if not self.yes and not command.danger and not command.by_hand:
                mend = f"{self.again(step.number)} --yes"
        else:
            why, mend = "the answer was no", self.again(step.number)
        self.record.add("", f"Stopped before step {step.number} at {now()}: {why}.", "", f"Next: `{mend}`")
        raise FindingError(f"stopped at step {step.number} of {len(self.steps)}: {why}", where=self.runbook.name,
                           details=[f"record    {self.record.path}"], next=mend)

    def _run(self, step: Step, command: Command) -> None:
        began = time.monotonic()
        self.record.add("", f"Run at {now()}: `{command.text}`")
        status, output, interrupted = self._output_of(command.text)
        took = duration(time.monotonic() - began)
        self.record.block(output or "(it printed nothing)")
        fault = command.check.fault(status, output)
        told = "as it must" if fault is None else f"NOT as it must: {fault}"
        self.record.add("", f"Ended with {status} after {took}, {told}.")
        if interrupted:
            raise KeyboardInterrupt
        if fault is None:
            self.say(f"  well      ended with {status} after {took}, as it must")
            return
        following = [line for line in command.check.otherwise.splitlines() if line.strip()]
        self.record.add("", *(f"Next: `{line}`" for line in following), "",
                        f"When that is mended: `{self.again(step.number)}`")
        raise StepError(f"step {step.number} of {len(self.steps)} is not as it must be: {fault}",
                        where=self.runbook.name,
                        details=[f"ran       {command.text}", f"record    {self.record.path}",
                                 f"go on     {self.again(step.number)}"],
                        next=" · ".join(following) or "invoke runbooks proposes which runbook fits now")

    def _output_of(self, text: str) -> tuple[int, str, bool]:
        """Run a command of bringup, each line shown as it comes: its exit status, its output, whether Ctrl-C came.

        It has a session of its own, so that Ctrl-C reaches it once, from here, and what it does at its end is seen.
        """
        words = [sys.executable, "-m", "invoke", *shlex.split(text)[1:]]
        lines: list[str] = []
        interrupted = False
        with subprocess.Popen(words, cwd=self.project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
                              start_new_session=True) as process:
            assert process.stdout is not None
            while True:
                try:
                    for line in process.stdout:
                        clean = SCRUBBER.text(line.rstrip("\n"))
                        lines.append(clean)
                        self.say(f"  | {printable(clean)}".rstrip())
                    status = process.wait()
                    break
                except KeyboardInterrupt:
                    interrupted = True
                    process.send_signal(signal.SIGINT)
                except BaseException:
                    process.send_signal(signal.SIGINT)
                    raise
        return (status if status >= 0 else 128 - status), "\n".join(lines), interrupted
