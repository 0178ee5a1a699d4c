"""Ask and judge: what can go together in one go, then further rounds, then the checks at the limit, then findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from bringup.base.verdicts import Finding, Verdict
from bringup.serving.contract.causes import cause_of
from bringup.serving.contract.checks import CHECKS, Check, Judgement, Served
from bringup.serving.contract.client import as_client_sends
from bringup.serving.contract.request import Request, Response

TOGETHER = 4
"""Requests in flight where checks go together: few enough for an engine of four sequences."""


class Exchange(Protocol):
    """Does requests where the endpoint can be reached, `at_once` of them in flight; one response each, in order."""

    def __call__(self, requests: Sequence[Request], at_once: int = TOGETHER, /) -> Sequence[Response]: ...


def check_contract(served: Served, exchange: Exchange, *, subject: str, checks: Sequence[Check] = CHECKS
                   ) -> list[Finding]:
    """A finding for each check, in their order: pass, fail, or skip with the reason. Raises what `exchange` raises."""
    wanted = [check for check in checks if not _missing(check, served)]
    answers: dict[str, dict[str, Response]] = {check.id: {} for check in wanted}
    together = [check for check in wanted if all(part.at_once is None for part in check.rounds)]
    for number in range(max((len(check.rounds) for check in together), default=0)):
        flat = [(check.id, request) for check in together if number < len(check.rounds)
                for request in check.rounds[number].build(served, answers[check.id])]
        _ask(exchange, flat, answers, TOGETHER)
    for check in wanted:
        if check in together:
            continue
        for part in check.rounds:
            flat = [(check.id, request) for request in part.build(served, answers[check.id])]
            _ask(exchange, flat, answers, part.at_once(served) if part.at_once is not None else TOGETHER)
    return [_finding(check, served, answers.get(check.id), subject) for check in checks]


def _missing(check: Check, served: Served) -> str | None:
    has = {"tools": served.tools, "reasoning": served.reasoning, "key": served.has_key}
    lacking = [need for need in check.needs if not has[need]]
    names = {"tools": "the deployment has no feature tool_calling", "reasoning": "the deployment has no feature "
             "reasoning", "key": "the deployment has no api_key"}
    return names[lacking[0]] if lacking else None


def _ask(exchange: Exchange, flat: Sequence[tuple[str, Request]], answers: dict[str, dict[str, Response]],
         at_once: int) -> None:
    if not flat:
        return
    sent = [replace(as_client_sends(request), id=f"{name}/{request.id}") for name, request in flat]
    for (name, request), response in zip(flat, exchange(sent, at_once), strict=True):
        answers[name][request.id] = response


def _finding(check: Check, served: Served, answers: dict[str, Response] | None, subject: str) -> Finding:
    name = f"contract.{check.id}"
    reason = _missing(check, served)
    if reason or answers is None:
        return Finding(name, subject, Verdict.SKIP, f"{check.title}: {reason}")
    try:
        judgement = check.judge(served, answers)
    except ValueError as error:
        judgement = Judgement(str(error))
    if judgement.skip:
        return Finding(name, subject, Verdict.SKIP, f"{check.title}: {judgement.skip}")
    seconds = round(sum(response.seconds for response in answers.values()), 3)
    if judgement.problem is None:
        return Finding(name, subject, Verdict.PASS, check.title, data={"seconds": seconds})
    why, mend = cause_of(check.id, judgement.problem, served, check.mend)
    return Finding(name, subject, Verdict.FAIL, f"{check.title}: {judgement.problem}", details=(f"likely  {why}",),
                   required=judgement.expected, found=judgement.problem, mend=mend,
                   data={"seconds": seconds, "cause": why})
