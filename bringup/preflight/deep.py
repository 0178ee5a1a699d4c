"""The second call of the deep tier: what loads a host, one thing after the other, where nobody uses the devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from bringup.agent.questions_load import NO_TOOL
from bringup.base.events import Note, Progress
from bringup.base.text import fold_hosts
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.checks.process import Owners
from bringup.preflight.facts import Facts
from bringup.preflight.needs import questions
from bringup.preflight.probes import Probe, loading
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need
from bringup.preflight.tools import build_nccl_tests, by_hand
from bringup.preflight.unread import Unread
from bringup.run.actions import Call, Fleet

ALL_REDUCE = "load.all_reduce"
MEASURES = {ALL_REDUCE: "an all-reduce", "load.hccl": "an all-reduce", "load.rccl": "an all-reduce",
            "load.copies": "copies", "load.dcgm": "by DCGM's diagnosis", "load.disk": "reading from the disk"}
"""What a loading probe is called while it runs."""


def load(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers], wanted: Collection[str] | None = None,
         *, build: bool = False) -> dict[str, Answers]:
    """The hosts with the answers of the loading probes; where a host must not be loaded, with the reason.

    `wanted` are the ids of the probes that are asked (all). With `build`, a host that has neither nccl-tests nor torch
    gets nccl-tests built where it can.
    """
    asked: dict[str, list[Probe]] = {}
    out = dict(answers)
    for host, found in answers.items():
        view = View(Facts(found), needs[host])
        probes = [probe for probe in loading(view.platform) if wanted is None or probe.id in wanted]
        reason = why_not(view)
        if reason:
            out[host] = _with(found, [Answer(probe.id, rc=None, skipped=reason) for probe in probes])
        elif probes:
            asked[host] = probes
    out = _asked(fleet, needs, out, asked)
    lacking = [host for host in asked if out[host].get(ALL_REDUCE).skipped == NO_TOOL]
    return _with_tools(fleet, needs, out, lacking, build=build) if lacking else out


def _with_tools(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers], lacking: list[str], *,
                build: bool) -> dict[str, Answers]:
    """The collectives of hosts that had nothing to measure them by: built for and asked again, or why not."""
    reasons = build_nccl_tests(fleet, lacking) if build else dict.fromkeys(lacking, by_hand(fleet, lacking))
    out = dict(answers)
    for host, reason in reasons.items():
        if reason:
            out[host] = _with(out[host], [Answer(ALL_REDUCE, rc=None, skipped=f"{NO_TOOL}; {reason}")])
    told: dict[str, list[str]] = {}
    for host, reason in reasons.items():
        if reason and build:
            told.setdefault(reason, []).append(host)
    for reason, hosts in told.items():
        fleet.emit(Note(f"the collectives are not measured: {reason}", host=fold_hosts(hosts), level="warn"))
    probes = [probe for probe in loading("nvidia") if probe.id == ALL_REDUCE]
    return _asked(fleet, needs, out, {host: probes for host, reason in reasons.items() if not reason})


def _asked(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers],
           asked: Mapping[str, list[Probe]]) -> dict[str, Answers]:
    """The hosts with what these probes came to."""
    out = dict(answers)
    calls = {host: _call(probes, host, needs[host], root=needs[host].privileged and not answers[host].notes)
             for host, probes in asked.items()}

    def on_line(host: str, text: str) -> None:
        word, _, probe = text.partition(" ")
        if word == "asks":
            fleet.emit(Progress(host, f"measures {MEASURES.get(probe, probe)}"))

    for host, result in (fleet.call(calls, on_line=on_line) if calls else {}).items():
        fleet.emit(Progress(host, "measured", done=True))
        if result.bad or "answers" not in result.data:
            why = f"the measuring call failed: {result.message or result.status.value}"
            out[host] = _with(out[host], [Answer(probe.id, rc=1, stderr=why) for probe in asked[host]])
        else:
            out[host] = _with(out[host], [Answer.from_host(raw) for raw in result.data["answers"]])
    return out


def why_not(view: View) -> str:
    """Why the devices of a host must not be loaded; "" where they may."""
    if view.need.recorded:
        return "the accelerators are a recording"
    if view.platform not in ("nvidia", "ascend"):
        return ""  # the host says at the moment of the test who has a device open
    try:
        owners = Owners(view)
        apps = view.facts.npu.processes if view.platform == "ascend" else view.facts.apps
        used = [(app.pid, owners.shown(app.pid, app.name), owners.of(app.pid)) for app in apps]
    except Unread as error:
        return f"who uses the devices cannot be read: {error.reason}"
    if not used:
        return ""
    running = sum(1 for _, _, kind in used if kind == "running")
    if running == len(used):
        return f"the running release is on the devices ({running} processes)"
    return f"the devices are in use: pid {used[0][1]}" + (f" and {len(used) - 1} more" if used[1:] else "")


def _call(probes: list[Probe], host: str, need: Need, *, root: bool) -> Call:
    asked = questions(host, need)
    return Call("probe", {"probes": [probe.request(asked.given(probe.ask)) for probe in probes], "parallel": 1},
                become="root" if root else None, timeout=sum(probe.deadline for probe in probes) + 30, check=False,
                changes=False)


def _with(answers: Answers, more: list[Answer]) -> Answers:
    return replace(answers, items={**answers.items, **{answer.probe: answer for answer in more}})
