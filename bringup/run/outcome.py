"""From what a module returned to the Result that a person and a playbook see."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.base.errors import BringupError
from bringup.base.results import Result, Status
from bringup.run.hosts import Step, Unit

CENSORED = "the output has been hidden because of no_log"
TAIL_LINES = 12
"""Lines of output that a failed result carries."""


def raw_error(error: BringupError) -> dict[str, Any]:
    """A result for an error that the controller found: a template, an argument, a missing file."""
    out: dict[str, Any] = {"failed": True, "changed": False, "msg": error.what}
    for name, value in (("expected", error.expected), ("found", error.found), ("next", error.next),
                        ("where", str(error.where) if error.where else None)):
        if value is not None:
            out[name] = value
    if error.details:
        out["details"] = list(error.details)
    return out


def status_of(raw: Mapping[str, Any], step: Step | None = None) -> Status:
    """The state that a raw result means."""
    if step is not None and step.lost is not None:
        return Status.UNREACHABLE if step.unreachable else Status.LOST
    if raw.get("unreachable"):
        return Status.UNREACHABLE
    if raw.get("failed"):
        return Status.FAILED
    if raw.get("skipped"):
        return Status.SKIPPED
    return Status.CHANGED if raw.get("changed") else Status.OK


def result_of(host: str, unit: Unit, raw: Mapping[str, Any], *, step: Step | None = None, item: Any = None,
              seconds: float = 0.0) -> Result:
    """The Result of a unit, or of one of its items."""
    status = status_of(raw, step)
    failed = status is Status.FAILED
    gone = status in (Status.UNREACHABLE, Status.LOST)
    error = step.lost if step is not None and step.lost is not None else step.error if step is not None else None
    hidden = unit.no_log
    message = "" if hidden else _message(raw, status)
    if unit.task.action == "debug" and status is Status.OK and not message and not hidden:
        values = ((name, value) for name, value in raw.items() if name not in ("changed", "failed"))
        message = "; ".join(f"{name}: {_shown(value)}" for name, value in values)
    if error is not None and not hidden:
        message = message or error.what
    return Result(
        host=host,
        task=unit.name,
        status=status,
        origin=unit.task.origin,
        seconds=seconds,
        message=CENSORED if hidden and (failed or gone) else message,
        expected=None if hidden else _text(raw.get("expected")) or (error.expected if error else None),
        found=None if hidden else _text(raw.get("found")) or (error.found if error else None) or (
            _exit_status(raw) if failed else None),
        output=() if hidden or not (failed or gone) else tuple(_output(raw, step, error)),
        next=None if hidden else _text(raw.get("next")) or (error.next if error else None),
        data={"censored": CENSORED, "changed": bool(raw.get("changed"))} if hidden else raw,
        diff=() if hidden else tuple(_diffs(raw.get("diff"))),
        ignored=(failed and unit.ignore_errors) or (gone and unit.ignore_unreachable),
        rescued=failed and unit.rescuable and not unit.ignore_errors,
        no_log=hidden,
        item=item,
        handler=unit.task.handler,
        module=unit.task.action,
    )


def combined(unit: Unit, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of a loop from those of its items, as `register` gives it."""
    out: dict[str, Any] = {"results": list(results), "changed": any(one.get("changed") for one in results)}
    if not results:
        return {**out, "skipped": True, "skipped_reason": "No items in the list", "skip_reason": "No items in the list"}
    if all(one.get("skipped") for one in results):
        return {**out, "msg": "All items skipped", "skipped": True}
    out["skipped"] = False
    if any(one.get("failed") for one in results):
        return {**out, "failed": True, "msg": "One or more items failed"}
    return {**out, "msg": "All items completed"}


def _message(raw: Mapping[str, Any], status: Status) -> str:
    message = raw.get("msg")
    if status is Status.SKIPPED and not message:
        condition = raw.get("false_condition")
        return f"when: {condition}" if condition is not None else str(raw.get("skip_reason") or "")
    if message in (None, ""):
        return str(raw.get("stderr") or "").strip().splitlines()[-1] if (
            status is Status.FAILED and str(raw.get("stderr") or "").strip()) else ""
    return message if isinstance(message, str) else str(message)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _output(raw: Mapping[str, Any], step: Step | None, error: BringupError | None) -> Iterable[str]:
    lines: list[str] = []
    if error is not None:
        lines += [f"at {error.where}"] if error.where else []
        lines += list(error.details)
    else:
        lines += [f"at {raw['where']}"] if raw.get("where") else []
        lines += [str(line) for line in raw.get("details") or ()]
    for key in ("stdout", "stderr"):
        text = raw.get(key)
        if isinstance(text, str) and text.strip():
            lines += text.rstrip().splitlines()[-TAIL_LINES:]
    if not lines and step is not None:
        lines += list(step.output)[-TAIL_LINES:]
    return lines


def _exit_status(raw: Mapping[str, Any]) -> str | None:
    """How a command of the task ended, when it ended badly: `exit status 2`, `ended by signal SIGKILL`."""
    rc = raw.get("rc")
    if not isinstance(rc, int) or rc == 0 or not raw.get("cmd"):
        return None
    if rc > 0:
        return f"exit status {rc}"
    try:
        return f"ended by signal {signal.Signals(-rc).name}"
    except ValueError:
        return f"ended by signal {-rc}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _diffs(value: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        return [value]
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
