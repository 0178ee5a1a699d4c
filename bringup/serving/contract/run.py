"""Ask and judge: every check's requests in one go, then the second rounds, then the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bringup.base.verdicts import Finding, Verdict
from bringup.serving.contract.checks import CHECKS, Check, Judgement, Served
from bringup.serving.contract.messages import Request, Response

Exchange = Callable[[Sequence[Request]], Sequence[Response]]
"""Does requests where the endpoint can be reached; gives one response each, in order."""


def check_contract(served: Served, exchange: Exchange, *, subject: str, checks: Sequence[Check] = CHECKS
                   ) -> list[Finding]:
    """A finding for each check, in their order: pass, fail, or skip with the reason. Raises what `exchange` raises."""
    wanted = [check for check in checks if not _missing(check, served)]
    answers = _round(exchange, {check.id: check.build(served) for check in wanted})
    second: dict[str, list[Request]] = {}
    for check in wanted:
        if check.then is not None:
            try:
                second[check.id] = check.then(served, answers[check.id])
            except ValueError:
                # the first answer is no message: the judge says so
                second[check.id] = []
    for name, more in _round(exchange, second).items():
        answers[name].update(more)
    return [_finding(check, served, answers.get(check.id), subject) for check in checks]


def _missing(check: Check, served: Served) -> str | None:
    has = {"tools": served.tools, "reasoning": served.reasoning, "key": served.has_key}
    lacking = [need for need in check.needs if not has[need]]
    names = {"tools": "the deployment has no feature tool_calling", "reasoning": "the deployment has no feature "
             "reasoning", "key": "the deployment has no api_key"}
    return names[lacking[0]] if lacking else None


def _round(exchange: Exchange, wanted: dict[str, list[Request]]) -> dict[str, dict[str, Response]]:
    flat = [(name, request) for name, requests in wanted.items() for request in requests]
    out: dict[str, dict[str, Response]] = {name: {} for name in wanted}
    if not flat:
        return out
    responses = exchange([replace(request, id=f"{name}/{request.id}") for name, request in flat])
    for (name, request), response in zip(flat, responses, strict=True):
        out[name][request.id] = response
    return out


def _finding(check: Check, served: Served, answers: dict[str, Response] | None, subject: str) -> Finding:
    reason = _missing(check, served)
    if reason or answers is None:
        return Finding(f"contract.{check.id}", subject, Verdict.SKIP, f"{check.title}: {reason}")
    try:
        judgement = check.judge(served, answers)
    except ValueError as error:
        judgement = Judgement(str(error))
    seconds = round(sum(response.seconds for response in answers.values()), 3)
    if judgement.problem is None:
        return Finding(f"contract.{check.id}", subject, Verdict.PASS, check.title, data={"seconds": seconds})
    return Finding(f"contract.{check.id}", subject, Verdict.FAIL, f"{check.title}: {judgement.problem}",
                   required=judgement.expected, found=judgement.problem, mend=check.mend, data={"seconds": seconds})
