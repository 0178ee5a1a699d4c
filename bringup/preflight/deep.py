"""The second call of the deep tier: what loads a host, one thing after the other, where nobody uses the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bringup.preflight.answers import Answer, Answers
from bringup.preflight.checks.process import Owners
from bringup.preflight.facts import Facts
from bringup.preflight.needs import questions
from bringup.preflight.probes import Probe, loading
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need
from bringup.preflight.unread import Unread
from bringup.run.actions import Call, Fleet


def load(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers]) -> dict[str, Answers]:
    """The hosts with the answers of the loading probes; where a host must not be loaded, with the reason."""
    calls, asked, out = {}, {}, dict(answers)
    for host, found in answers.items():
        view = View(Facts(found), needs[host])
        probes = loading(view.platform)
        reason = why_not(view)
        if reason:
            out[host] = _with(found, [Answer(probe.id, rc=None, skipped=reason) for probe in probes])
        elif probes:
            asked[host] = probes
            calls[host] = _call(probes, host, needs[host], root=needs[host].privileged and not found.notes)
    for host, result in (fleet.call(calls) if calls else {}).items():
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
