"""`check_contract`: what each replica's head answers, asked from the head itself, judged by `serving.contract`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import FindingError, InputError, StepError, UnreachableError
from bringup.base.events import Findings, Note, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.base.verdicts import Finding, Verdict
from bringup.releases import chosen as chosen_release
from bringup.releases import storing
from bringup.releases.history import CONTRACT_FAILED
from bringup.releases.planned import key_of, plan_now
from bringup.releases.survey import Survey, look
from bringup.run.actions import Fleet, ModuleSpec
from bringup.serving import engine_calls as calls
from bringup.serving.contract.checks import Served
from bringup.serving.contract.messages import Request, Response
from bringup.serving.contract.run import check_contract as check
from bringup.serving.plan import LaunchPlan
from bringup.serving.probing import where

SIDE_BY_SIDE = 4
"""Requests in flight: few enough for an engine of four sequences, enough to be done in seconds."""
HYBRID = "--data-parallel-hybrid-lb"
"""With it every node of a replica serves."""
WORDS = ("kestrel", "marble", "juniper", "lantern", "saffron", "walrus")


def specs() -> list[ModuleSpec]:
    """The module, for the table of modules."""
    return [ModuleSpec("check_contract", {
        "repeat": {"type": "int", "default": 3}, "timeout": {"type": "int", "default": 120}},
        fleet_action=check_contract, reads_only=True,
        help="ask every endpoint for what clients rely on: tools, reasoning, thinking switches, streams")]


def check_contract(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Check every replica of the run. `args`: repeat (times the same tool call is asked, 3), timeout (seconds, 120).

    Changes nothing that runs; a release that fails is marked bad in its hosts' stores, one that was bad and passes
    is good again. Raises FindingError (exit 4) when a check fails or a replica does not run; with --check what does
    not run yet is unknown, for it cannot be asked, and nothing is marked.
    """
    repeat, timeout = _number(args, "repeat", 3), _number(args, "timeout", 120)
    planned = plan_now(fleet, facts=False)
    key = key_of(fleet, planned.plan.api_key_variable)
    survey = look(fleet, planned.members, planned.plan.manager, ask=False)
    chosen = chosen_release.load(fleet)
    found: list[Finding] = []
    results: dict[str, Result] = {}
    for name, hosts in planned.members.items():
        head = hosts[0]
        document = _document(survey, name, head)
        if fleet.check and chosen and document and survey.replicas[name].nodes[head].release != chosen.digest:
            fleet.emit(StageSummary(name, f"unknown: {chosen.label} does not run there yet"))
            continue
        if document is None:
            if fleet.check:
                fleet.emit(StageSummary(name, "unknown: nothing runs there yet"))
                continue
            found.append(_not_running(survey, name, head))
            continue
        for host, asked_document in _serving(survey, name, hosts, document):
            subject = name if host == head else f"{name} {host}"
            fleet.emit(Progress(subject, "asking", host))
            mine = _one(fleet, subject, host, asked_document, planned.plan, key[1] if key else None, repeat, timeout)
            found += mine
            passed = sum(finding.verdict is Verdict.PASS for finding in mine)
            count = sum(finding.verdict is not Verdict.SKIP for finding in mine)
            fleet.emit(Progress(subject, f"{passed} of {count}", host, done=True))
            results[host] = Result(host, "check_contract", Status.OK, message=f"{passed} of {count}",
                                   seconds=sum(float(finding.data.get("seconds") or 0) for finding in mine),
                                   data={"passed": passed, "asked": count})
    if found:
        fleet.emit(Findings("contract", tuple(found)))
    bad = [finding for finding in found if finding.blocks]
    _record(fleet, planned.members, survey, bad, results)
    asked = [finding for finding in found if finding.verdict is not Verdict.SKIP]
    if asked:
        names = list(planned.members)
        subject = names[0] if len(names) == 1 else plural(len(names), "replica")
        fleet.emit(StageSummary(subject, f"{len(asked) - len(bad)} of {len(asked)} ({_what(planned.plan)})"))
    if bad:
        # the findings are told already, each with its mend
        raise FindingError(f"{plural(len(bad), 'check')} of the contract {'fails' if len(bad) == 1 else 'fail'}",
                           found=", ".join(f"{finding.check} on {finding.subject}" for finding in bad[:4]),
                           next="invoke start" if bad[0].check == "contract.running" else
                           "invoke rollback goes back to the last good release; invoke logs shows the engine's side")
    return results


def _record(fleet: Fleet, members: Mapping[str, Sequence[str]], survey: Survey, bad: Sequence[Finding],
            asked: Mapping[str, Result]) -> None:
    """Write down, on every host that runs it, that a release failed its contract, or that one known bad passes now."""
    failed = {finding.subject.split()[0] for finding in bad}
    told = ", ".join(f"{finding.check} on {finding.subject}" for finding in bad
                     if finding.check != "contract.running")
    hosts: dict[str, dict[str, list[str]]] = {}
    for name, nodes in members.items():
        digest = survey.replicas[name].nodes[nodes[0]].release
        if digest and nodes[0] in asked:
            hosts.setdefault(digest, {})[name] = list(nodes)
    for digest, replicas in hosts.items():
        every = [host for nodes in replicas.values() for host in nodes]
        wrong = [host for name, nodes in replicas.items() if name in failed for host in nodes]
        entry = survey.history.get(digest)
        if wrong:
            storing.mark(fleet, digest, wrong, "bad", reason=f"{CONTRACT_FAILED}: {told}")
        elif entry is not None and entry.state == "bad" and set(entry.bad_on) <= set(every):
            storing.mark(fleet, digest, every, "good")
            if not fleet.check:
                fleet.emit(Note(f"{entry.label} was bad ({entry.reason}) and is good again", fold_hosts(every)))


def _what(plan: LaunchPlan) -> str:
    parts = ["tools"] if "tool_calling" in plan.features else []
    parts += ["reasoning", "thinking on/off/preserved"] if "reasoning" in plan.features else []
    return ", ".join([*parts, "streaming"])


def _number(args: Mapping[str, Any], name: str, default: int) -> int:
    value = args.get(name)
    if value in (None, ""):
        return default
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise InputError(f"check_contract: `{name}` takes a whole number from 1 on", found=str(value))
    return number


def _document(survey: Survey, name: str, head: str) -> Mapping[str, Any] | None:
    """The launch document of what runs on the head, None when nothing does."""
    node = survey.replicas[name].nodes[head]
    if head in survey.unreachable:
        raise UnreachableError("the endpoint cannot be asked", host=head, found=survey.unreachable[head])
    if node.state != "running" or head not in survey.stores:
        return None
    document = survey.stores[head].launches.get(node.release or "", {}).get(f"{name}-{head}")
    return document if isinstance(document, Mapping) else None


def _serving(survey: Survey, name: str, hosts: Sequence[str], head: Mapping[str, Any]
             ) -> list[tuple[str, Mapping[str, Any]]]:
    """The hosts that clients may ask, with what runs there: the head, and every node with hybrid load balancing."""
    out = [(hosts[0], head)]
    if HYBRID in (head.get("argv") or ()):
        out += [(host, document) for host in hosts[1:] if (document := _document(survey, name, host)) is not None]
    return out


def _not_running(survey: Survey, name: str, head: str) -> Finding:
    state = survey.replicas[name].nodes[head].state
    return Finding("contract.running", name, Verdict.FAIL, f"the head {head} is {state}: there is nothing to ask",
                   required="a running replica", found=state, mend="invoke start")


def served_of(document: Mapping[str, Any], plan: LaunchPlan, *, has_key: bool, repeat: int) -> Served:
    """What is promised: the running process's served name; tools and reasoning when the plan or its flags say so."""
    argv = [str(word) for word in document.get("argv") or ()]
    nonce = f"{random.SystemRandom().choice(WORDS)}{random.SystemRandom().randrange(1000, 9999)}"
    return Served(
        model=str(document.get("served_name") or plan.served_name),
        tools="tool_calling" in plan.features or "--tool-call-parser" in argv,
        reasoning="reasoning" in plan.features or "--reasoning-parser" in argv,
        nonce=nonce, repeat=repeat, has_key=has_key,
    )


def _one(fleet: Fleet, subject: str, host: str, document: Mapping[str, Any], plan: LaunchPlan, key: str | None,
         repeat: int, timeout: int) -> list[Finding]:
    address, port = where(document)

    def exchange(requests: Sequence[Request]) -> Sequence[Response]:
        return ask(fleet, host, address, port, requests, key=key, timeout=timeout)

    served = served_of(document, plan, has_key=key is not None, repeat=repeat)
    return check(served, exchange, subject=subject)


def ask(fleet: Fleet, host: str, address: str, port: int, requests: Sequence[Request], *, key: str | None,
        timeout: float) -> list[Response]:
    """Do requests on a host, in order. Raises StepError when the host could not do them at all."""
    args = {"host": address, "port": port, "requests": [request.wire() for request in requests], "api_key": key,
            "side_by_side": SIDE_BY_SIDE, "timeout": timeout}
    limit = 30 + timeout * (1 + len(requests) / SIDE_BY_SIDE)
    result = calls.call_all(fleet, "http_exchange", {host: args}, changes=False, timeout=limit)[host]
    if result.status in (Status.UNREACHABLE, Status.LOST):
        raise UnreachableError("the endpoint cannot be asked", host=host, found=calls.first_line(result))
    if result.bad:
        raise StepError("the endpoint cannot be asked", host=host, found=calls.first_line(result))
    return [Response.from_wire(response) for response in result.data["responses"]]
