"""What a host answered to the probes: raw text with exit status, untouched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Answer:
    """The answer to one probe. `seconds` is wall time on the host; `files` maps a path to its text.

    `missing` says that the tool, or every file asked for, is not there; `skipped` why the probe was not asked.
    """

    probe: str
    rc: int | None = 0
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    timed_out: bool = False
    missing: bool = False
    truncated: bool = False
    abandoned: str = ""
    skipped: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_host(cls, raw: Mapping[str, Any]) -> Answer:
        """An answer as the probe module returns it."""
        rc = raw.get("rc")
        return cls(
            probe=str(raw.get("id", "")),
            rc=rc if isinstance(rc, int) else None,
            stdout=str(raw.get("stdout", "")),
            stderr=str(raw.get("stderr", "")),
            seconds=float(raw.get("seconds") or 0.0),
            timed_out=bool(raw.get("timed_out")),
            missing=bool(raw.get("missing")),
            truncated=bool(raw.get("truncated")),
            abandoned=str(raw.get("abandoned") or ""),
            skipped=str(raw.get("skipped") or ""),
            files={str(k): str(v) for k, v in dict(raw.get("files") or {}).items()},
            errors={str(k): str(v) for k, v in dict(raw.get("errors") or {}).items()},
        )


@dataclass(frozen=True)
class Answers:
    """All answers of one host. `clock` is the host's clock against ours in seconds, with the doubt, where measured.
    `connect` is how many seconds connecting took, and of these until the SSH server greeted, where it was by SSH.
    `site` is what the probes asked about on this host: `root` (bringup_root) and `login` (the connecting account).
    """

    host: str
    items: Mapping[str, Answer] = field(default_factory=dict)
    replayed: str = ""
    clock: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    site: Mapping[str, str] = field(default_factory=dict)
    connect: tuple[float, float] | None = None

    @classmethod
    def of(cls, host: str, answers: Iterable[Answer], *, replayed: str = "") -> Answers:
        """Answers by probe id; a later one replaces an earlier one."""
        return cls(host, {answer.probe: answer for answer in answers}, replayed)

    def get(self, probe: str) -> Answer:
        """The answer to a probe; one that was not asked answers as a host without that tool."""
        found = self.items.get(probe)
        return found if found is not None else Answer(probe, rc=127, missing=True)

    def text(self, probe: str, *, any_status: bool = False) -> str:
        """What the probe printed. Raises Unread when it did not run, hung, or (by default) ended with a status."""
        answer = self.get(probe)
        self._whole(answer)
        if answer.rc and not any_status:
            raise Unread(f"{probe} ended with {answer.rc}: {_first(answer)}")
        if answer.truncated:
            raise Unread(f"{probe} printed more than can be taken")
        return answer.stdout

    def files(self, probe: str) -> Mapping[str, str]:
        """The files read. Raises Unread when none was there, or none could be read."""
        answer = self.get(probe)
        self._whole(answer)
        if not answer.files:
            reason = "; ".join(f"{path}: {text}" for path, text in answer.errors.items())
            raise Unread(reason or f"{probe}: nothing to read", absent=not reason)
        return answer.files

    def file(self, probe: str, name: str = "") -> str:
        """The one file of a probe, or the one whose path ends with `name`. Raises Unread."""
        for path, text in self.files(probe).items():
            if path.endswith(name):
                return text
        raise Unread(f"{name} is not there", absent=True)

    @staticmethod
    def _whole(answer: Answer) -> None:
        if answer.skipped:
            raise Unread(answer.skipped, absent=True)
        if answer.missing:
            raise Unread(f"{answer.probe} is not there", absent=True)
        if answer.timed_out:
            state = f", stuck in state {answer.abandoned}" if answer.abandoned else ""
            raise Unread(f"{answer.probe} did not end within {answer.seconds:.0f} s{state}")


def _first(answer: Answer) -> str:
    for text in (answer.stderr, answer.stdout):
        for line in text.splitlines():
            if line.strip():
                return line.strip()[:160]
    return "it printed nothing"
