"""Ask hosts: one call a host, all side by side; recorded hosts answer from their recording what is not live."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bringup.base.events import Progress
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.preflight import recording
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.between import measure
from bringup.preflight.deep import load
from bringup.preflight.needs import questions
from bringup.preflight.probes import Probe, Questions, chosen
from bringup.preflight.replicas import PROBE as REPLICA
from bringup.preflight.replicas import over_replicas
from bringup.preflight.requirement import Need
from bringup.preflight.second import look_again
from bringup.run.actions import Call, Fleet

CLOCK_DOUBT = 0.1
"""Seconds of a clock comparison that the way of one message and our own queue may hide."""
CALL_DEADLINE = 150.0
"""Seconds for all probes of a host together; each has its own, shorter one."""
RECORDINGS = Path(__file__).parent.parent / "lab" / "recordings"


@dataclass(frozen=True)
class Gathered:
    """Answers of the hosts that gave some; results of those that did not."""

    answers: Mapping[str, Answers]
    lost: Mapping[str, Result]


def gather(fleet: Fleet, needs: Mapping[str, Need], *, tier: str = "fast", wanted: Collection[str] | None = None,
           build: bool = False) -> Gathered:
    """Ask every host of the fleet. One round trip; a second one for hosts where root was refused.

    `wanted` are the ids of the probes that the deep tier measures by (all); `build` says that it may have tools built.
    Raises InputError when a recording that a host names is not there.
    """
    recorded = {host: recording.read(_recording(fleet, host), host) for host in fleet.hosts
                if fleet.variables(host).get("bringup_replay")}
    probes = {host: chosen(platform=needs[host].platform or None, tier=tier, root=needs[host].root,
                           only_live=host in recorded) for host in fleet.hosts}
    asked = {host: questions(host, needs[host], needs) for host in fleet.hosts}
    clocks: dict[str, list[float]] = {}
    answers: dict[str, Answers] = {}
    lost: dict[str, Result] = {}
    as_root = {host: needs[host].privileged for host in fleet.hosts}
    results = _ask(fleet, {host: _call(probes[host], asked[host], as_root[host]) for host in fleet.hosts}, clocks)
    refused = {host: result for host, result in results.items() if result.status is Status.FAILED and as_root[host]}
    if refused:
        clocks.update({host: [] for host in refused})
        plain = {host: [p for p in probes[host] if not p.needs_root] for host in refused}
        results.update(_ask(fleet, {host: _call(plain[host], asked[host], False) for host in refused}, clocks))
    for host, result in results.items():
        if result.bad or "answers" not in result.data:
            lost[host] = result
            continue
        why = refused[host].message.removeprefix("cannot become root: ") if host in refused else ""
        notes = (f"cannot become root: {why}",) if host in refused else ()
        answers[host] = _answers(host, result.data, probes[host], notes, not as_root[host] or host in refused)
        answers[host] = replace(answers[host], site={"root": needs[host].root, "login": needs[host].login})
    for host, took in _connecting(fleet, list(answers)).items():
        answers[host] = replace(answers[host], connect=took)
    for host, pair in _compared(clocks).items():
        if host in answers:
            answers[host] = replace(answers[host], clock=pair)
    merged = {host: recording.merged(recorded[host], answers[host], probes[host]) if host in recorded else answers[host]
              for host in answers}
    if tier != "deep":
        return Gathered(merged, lost)
    merged = load(fleet, needs, merged, wanted, build=build)
    merged = measure(fleet, needs, merged, wanted)
    merged = over_replicas(fleet, needs, merged) if wanted is None or REPLICA in wanted else merged
    return Gathered(look_again(fleet, needs, merged, wanted), lost)


def _recording(fleet: Fleet, host: str) -> Path:
    return recording.locate(str(fleet.variables(host)["bringup_replay"]), (fleet.project.root, RECORDINGS))


def _call(probes: Sequence[Probe], asked: Questions, root: bool) -> Call:
    return Call("probe", {"probes": [probe.request(asked.given(probe.ask)) for probe in probes]},
                become="root" if root else None, timeout=CALL_DEADLINE, check=False, changes=False)


def _ask(fleet: Fleet, calls: Mapping[str, Call], clocks: dict[str, list[float]]) -> dict[str, Result]:
    waiting = dict.fromkeys(calls, 2)  # a line of the clock at the beginning, one at the end

    def on_line(host: str, text: str) -> None:
        word, _, stamp = text.partition(" ")
        if word == "clock":
            clocks.setdefault(host, []).append(float(stamp) - time.time())
            waiting[host] -= 1
            if waiting[host] == 0:
                fleet.emit(_answered(waiting))

    return dict(fleet.call(calls, on_line=on_line))


def _answered(waiting: Mapping[str, int]) -> Progress:
    left = [host for host, lines in waiting.items() if lines > 0]
    text = f"{len(waiting) - len(left)} of {plural(len(waiting), 'host')} answered"
    return Progress("asked", text + (f", waiting for {fold_hosts(left)}" if left else ""), done=not left, brief=True)


def _answers(host: str, data: Mapping[str, Any], probes: Sequence[Probe], notes: tuple[str, ...], plain: bool
             ) -> Answers:
    known = {probe.id: probe for probe in probes}
    out = {answer.probe: answer for answer in map(Answer.from_host, data["answers"]) if answer.probe in known}
    if plain and data.get("uid") != 0:
        for probe in probes:
            if probe.needs_root:
                out[probe.id] = Answer(probe.id, rc=None, skipped="needs root")
    return Answers(host, out, "", None, notes)


def _connecting(fleet: Fleet, hosts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """How many seconds connecting took, and of these until the server greeted; hosts that SSH was not used for are
    left out. They are connected: nothing is asked of them."""
    out = {}
    for host, result in fleet.connect(hosts).items():
        took = result.data.get("connect_seconds"), result.data.get("greeting_seconds")
        if took[0] is not None and took[1] is not None:
            out[host] = (float(took[0]), float(took[1]))
    return out


def _compared(clocks: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """Each host's clock against the middle of all, and the doubt. The least delayed line of a host counts."""
    best = {host: max(values) for host, values in clocks.items() if values}
    if len(best) < 2:
        return {}
    middle = statistics.median(best.values())
    return {host: (value - middle, CLOCK_DOUBT + (max(clocks[host]) - min(clocks[host])))
            for host, value in best.items()}
