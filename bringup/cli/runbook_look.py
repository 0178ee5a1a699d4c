"""The look at the live state that `invoke runbooks` proposes from; nothing on a host is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bringup.base.errors import ExitStatus
from bringup.cli.options import Options

if TYPE_CHECKING:
    from bringup.base.events import Event, Findings, Note, TaskEnded
    from bringup.base.verdicts import Finding
    from bringup.runbooks.document import Runbook
    from bringup.runbooks.looking import Seen


@dataclass
class _Taker:
    """Takes the events of a look; true for each that needs no line of its own."""

    seen: Seen
    said: str = ""
    noted: set[str] = field(default_factory=set)

    def __call__(self, event: Event) -> bool:
        from bringup.base.events import Findings, Line, Note, StageSummary, TaskEnded

        if isinstance(event, Findings):
            self._found(event)
        elif isinstance(event, Line):
            self.seen.lines.append((event.host, event.text))
        elif isinstance(event, StageSummary):
            self.said = self.said or f"{event.subject}: {event.text}"  # that of status comes first
        elif isinstance(event, TaskEnded):
            return self._ended(event)
        elif isinstance(event, Note):
            return self._noted(event)
        return True

    def _noted(self, note: Note) -> bool:
        """True for a host without a log, or that could not be asked: findings say it; and for one told before."""
        again = note.text in self.noted
        self.noted.add(note.text)
        return again or bool(note.host)

    def _found(self, event: Findings) -> None:
        if "status" in event.tables:
            self.seen.rows = event.tables["status"]
            self.seen.status += event.findings
        elif event.title == "contract":
            self.seen.contract += event.findings
        else:
            self.seen.devices += event.findings

    def _ended(self, event: TaskEnded) -> bool:
        from bringup.base.results import Status

        result = event.result
        if result.status in (Status.UNREACHABLE, Status.LOST):
            self.seen.unreached.setdefault(result.host, result.message or f"the host is {result.status.value}")
            return True
        # what is found is told as findings; a look that failed in another way is told as it is
        return result.status is not Status.FAILED or bool(self.seen.rows)


def look(options: Options, books: Iterable[Runbook], *, quick: bool = False
         ) -> tuple[ExitStatus, list[Finding], str]:
    """Look at processes, endpoints, logs and devices; where all of that is well, ask for a few tool calls, too. With
    `quick` only what `invoke status` looks at. Returns the exit status of the look itself (3 where a host was not
    reached), what was found, and the release in a line."""
    from bringup.cli.serve import read_stages, run_data
    from bringup.runbooks.looking import ASKED, Seen, checks_of

    seen = Seen()
    taker = _Taker(seen)
    extra = {"look_quick": quick, "look_checks": checks_of(books)}
    status = run_data(read_stages(options, "runbooks", extra, whole=False), "runbooks", taker)
    if status is ExitStatus.FINDING:
        status = ExitStatus.DONE
    found = seen.findings()
    if status is ExitStatus.DONE and not quick and seen.rows and not found:
        # with check mode nothing is marked on the hosts
        asking = replace(options, values={**options.values, "check": True})
        extra = {"contract_only": list(ASKED), "contract_repeat": 1, "contract_timeout": 30}
        run_data(read_stages(asking, "verify", extra, whole=False), "runbooks", taker)
        found = seen.findings()
    return status, found, taker.said
