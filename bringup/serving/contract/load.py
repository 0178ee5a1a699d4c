"""Checks at the limit: as many requests at once as the engine takes, and clients that hang up."""

from __future__ import annotations

import re

from bringup.serving.contract.check import GOOD, Answers, Check, Judgement, Round, Served, said, user, word
from bringup.serving.contract.messages import read_message
from bringup.serving.contract.request import Request

_RUNNING = re.compile(r"^(?:vllm:num_requests_running|sglang:num_running_reqs)(?:\{[^}]*\})?\s+([0-9.e+]+)", re.M)
POLLS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the looks at what still runs after the clients have left: 7.5 s in all."""


def running(metrics: str) -> float | None:
    """Requests that the engine works on, over all of its series; None when the page does not say."""
    found = _RUNNING.findall(metrics)
    return sum(float(value) for value in found) if found else None


def _many(served: Served) -> int:
    return served.at_once + 2


def _limit_requests(served: Served, answers: Answers) -> list[Request]:
    return [served.chat(f"one {number}", word(served, f"{served.nonce}x{number}"), **served.quiet)
            for number in range(_many(served))]


def _limit(served: Served, answers: Answers) -> Judgement:
    for number in range(_many(served)):
        judgement = said(served, read_message(answers[f"one {number}"]), f"{served.nonce}x{number}")
        if judgement.problem:
            return Judgement(f"request {number + 1} of {_many(served)} at once: {judgement.problem}",
                             judgement.expected)
    return GOOD


def _left(served: Served, answers: Answers) -> list[Request]:
    text = [user("Count from 1 to 2000 in digits, with a blank between them.")]
    return [served.chat(f"left {number}", text, stream=True, close_after=4, **served.quiet)
            for number in range(served.at_once)]


def _after(served: Served, answers: Answers) -> list[Request]:
    return [served.chat("after", word(served), **served.quiet)]


def _look(number: int) -> Round:
    """A further look at what runs, where the looks before still saw requests of ours."""

    def build(served: Served, answers: Answers) -> list[Request]:
        before, seen = running(answers["before"].body), _seen(answers)
        if before is None or (seen and min(seen) <= before) or len(seen) < number:
            return []
        return [Request(f"metrics {number}", "/metrics", wait=POLLS[number])]

    return Round(build, lambda served: 1)


def _seen(answers: Answers) -> list[float]:
    return [count for number in range(len(POLLS)) if f"metrics {number}" in answers
            and (count := running(answers[f"metrics {number}"].body)) is not None]


def _cancel(served: Served, answers: Answers) -> Judgement:
    for number in range(served.at_once):
        response = answers[f"left {number}"]
        if response.problem():
            return Judgement(f"the stream that was to be left did not begin: {response.problem()}")
    before, seen = running(answers["before"].body), _seen(answers)
    if before is not None and seen and min(seen) > before:
        return Judgement(f"{seen[-1]:g} requests still run {sum(POLLS):g} s after their clients left, {before:g} ran "
                         "before", f"{before:g}")
    # an engine that shows no such series still has to answer
    judgement = said(served, read_message(answers["after"]))
    if judgement.problem:
        return Judgement(f"the request behind those that were left: {judgement.problem}", judgement.expected)
    return GOOD


LOAD: tuple[Check, ...] = (
    Check("load.limit", "as many at once as the engine takes", (Round(_limit_requests, _many),), _limit),
    Check("load.cancel", "a client that leaves frees its place", (
        Round(lambda served, answers: [Request("before", "/metrics")], lambda served: 1),
        Round(_left, lambda served: served.at_once),
        *(_look(number) for number in range(len(POLLS))), Round(_after, lambda served: 1)), _cancel),
)
