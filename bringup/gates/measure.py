"""Figures of answers: first token, time per token, whole; percentiles; what failed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bringup.serving.contract.messages import Message, read_message
from bringup.serving.contract.request import Response

PERCENTS = (50, 95, 99)
_WAITING = re.compile(r"^(?:vllm:num_requests_waiting|sglang:num_queue_reqs)(?:\{[^}]*\})?\s+([0-9.e+]+)", re.M)
_CACHE = re.compile(r"^(?:vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage)(?:\{[^}]*\})?\s+"
                    r"([0-9.e+-]+)", re.M)


@dataclass(frozen=True)
class Sample:
    """One answer: seconds to the first token, per further token, and in all; None where it cannot be told."""

    problem: str | None
    first: float | None
    token: float | None
    whole: float
    message: Message | None = None


def sample(response: Response) -> Sample:
    """The figures of an answer. Its first token is the second line of a stream: the first one only names the role."""
    try:
        message = read_message(response)
    except ValueError as error:
        return Sample(str(error), None, None, response.seconds)
    if not response.events:
        return Sample(None, None, None, response.seconds, message)
    times = [at for at, text in response.events if text != "[DONE]"]
    first = times[1] if len(times) > 1 else times[0]
    tokens = message.usage.get("completion_tokens") or message.chunks
    token = (times[-1] - first) / (tokens - 1) if tokens > 1 else None
    return Sample(None, first, token, response.seconds, message)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest rank; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def latencies(samples: Iterable[Sample]) -> dict[str, float | None]:
    """`first_token_p50` to `whole_p99`, in seconds."""
    good = [one for one in samples if one.problem is None]
    columns: dict[str, list[float | None]] = {
        "first_token": [s.first for s in good], "per_token": [s.token for s in good],
        "whole": [s.whole for s in good]}
    return {f"{name}_p{percent}": _rounded(percentile([v for v in values if v is not None], percent))
            for name, values in columns.items() for percent in PERCENTS}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def share(count: int, total: int) -> float | None:
    """Percent, one figure behind the point; None of nothing."""
    return round(100 * count / total, 1) if total else None


def pressure(pages: Iterable[str]) -> dict[str, float | None]:
    """From pages of /metrics taken during the load: most requests waiting, least room in the cache in percent."""
    waiting: list[float] = []
    used: list[float] = []
    for page in pages:
        seen = [float(value) for value in _WAITING.findall(page)]
        waiting += [sum(seen)] if seen else []
        used += [float(value) for value in _CACHE.findall(page)]
    return {"queue_most": max(waiting) if waiting else None,
            "cache_headroom": round(100 * (1 - max(used)), 1) if used else None}


def told(measures: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """Measures as lines for the screen: (subject, text), percentiles of one thing together, success first."""
    percent = ("task_success", "tool_success", "malformed", "cache_headroom", "memory_headroom")
    lines: dict[str, list[str]] = {}
    for name, value in measures.items():
        if value is None:
            continue
        head, _, tail = name.rpartition("_")
        if tail in {f"p{percent}" for percent in PERCENTS}:
            lines.setdefault(head.replace("_", " "), []).append(f"{tail} {value:.3g} s")
        elif name in percent:
            lines.setdefault("shares", []).append(f"{name.replace('_', ' ')} {value:g} %")
        elif name == "queue_most":
            lines.setdefault("queue", []).append(f"{value:g} waited at most")
    order = ["shares", "first token", "per token", "whole", "queue"]
    return [(subject, ", ".join(lines[subject])) for subject in order if subject in lines]


def better_high(measure: str) -> bool:
    """True for measures of which more is better."""
    return measure in ("task_success", "tool_success", "cache_headroom", "memory_headroom", "proved", "consistent",
                       "passing", "pairs", "steps")


NOISE: Mapping[str, float] = {"first_token": 0.05, "per_token": 0.005, "whole": 0.1, "recovery": 2.0, "noticed": 5.0,
                              "seconds": 5.0, "rollback": 5.0, "queue": 4.0, "pairs": 0.0, "steps": 0.0}
"""Differences that are no news, whatever the tolerance: seconds, requests; by the first words of a measure's name."""


def noise_of(measure: str, noise: Mapping[str, float]) -> float:
    """The difference of this measure that is no news."""
    return next((value for name, value in noise.items() if measure.startswith(name)), 0.05)


def worse(measures: Mapping[str, float | None], before: Mapping[str, float | None], tolerance: float,
          noise: Mapping[str, float] = NOISE) -> list[tuple[str, float, float]]:
    """(measure, now, then) of what is worse than before by more than `tolerance` percent and by more than noise."""
    out = []
    for measure, then in before.items():
        now = measures.get(measure)
        if then is None or now is None:
            continue
        change = (then - now) if better_high(measure) else (now - then)
        if change > max(abs(then) * tolerance / 100, noise_of(measure, noise)):
            out.append((measure, now, then))
    return out
