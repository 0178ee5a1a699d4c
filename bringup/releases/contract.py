"""`check_contract`: what each replica's head answers, asked from the head itself, judged by `serving.contract`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import FindingError, InputError, StepError, UnreachableError
from bringup.base.events import Findings, Note, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, nearest, plural
from bringup.base.verdicts import Finding, Verdict
from bringup.releases import chosen as chosen_release
from bringup.releases import storing
from bringup.releases.approval import Approval, approval_of, approve, over_times, remember
from bringup.releases.history import CONTRACT_FAILED
from bringup.releases.planned import Planned, key_of, plan_now
from bringup.releases.survey import Survey, look
from bringup.run.actions import Fleet, ModuleSpec
from bringup.serving import engine_calls as calls
from bringup.serving.contract.check import LIMIT, Check, Served
from bringup.serving.contract.checks import CHECKS
from bringup.serving.contract.checks import chosen as chosen_checks
from bringup.serving.contract.request import Request, Response
from bringup.serving.plan import POOL_ROLES, LaunchPlan
from bringup.serving.probing import where
from bringup.serving.versions import flag_value

SIDE_BY_SIDE = 4
"""Requests in flight: few enough for an engine of four sequences, enough to be done in seconds."""
HYBRID = "--data-parallel-hybrid-lb"
"""With it every node of a replica serves."""
WORDS = ("kestrel", "marble", "juniper", "lantern", "saffron", "walrus")


@dataclass(frozen=True)
class Asking:
    """How the contract is asked: repetitions of one call, seconds of silence, rounds, which checks."""

    repeat: int
    timeout: int
    times: int
    checks: tuple[Check, ...]

    @property
    def whole(self) -> bool:
        """True when every check is asked."""
        return len(self.checks) == len(CHECKS)


def specs() -> list[ModuleSpec]:
    """The module, for the table of modules."""
    return [ModuleSpec("check_contract", {
        "repeat": {"type": "int", "default": 3}, "timeout": {"type": "int", "default": 120},
        "times": {"type": "int", "default": 1}, "only": {"type": "list", "default": []},
        "replicas": {"type": "list", "default": []}, "approve": {"type": "bool", "default": False}},
        fleet_action=check_contract, reads_only=True,
        help="ask every endpoint for what clients rely on: tools, reasoning, thinking switches, streams")]


_ASKED: dict[str, set[str]] = {}
"""Folder of a run -> replicas that were asked before their traffic came back."""


def ask_before_traffic(fleet: Fleet, replica: str) -> None:
    """Ask one replica for its whole contract before clients are led to it; the stage that asks all of them then leaves
    it out. Raises FindingError (4) when it does not hold."""
    check_contract(fleet, {"replicas": [replica]})
    _ASKED.setdefault(str(fleet.project.run_folder(fleet.run_id)), set()).add(replica)


def _not_asked_yet(fleet: Fleet, members: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The replicas without those that were asked before their traffic came back, told."""
    asked = _ASKED.pop(str(fleet.project.run_folder(fleet.run_id)), set())
    done = [name for name in members if name in asked]
    if done:
        fleet.emit(StageSummary(", ".join(done) if len(done) < 4 else plural(len(done), "replica"),
                                "asked before its traffic came back" if len(done) == 1 else
                                "asked, each before its traffic came back"))
    return {name: hosts for name, hosts in members.items() if name not in asked}


def check_contract(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Check every replica of the run. `args`: repeat (times the same tool call is asked, 3), timeout (seconds, 120),
    times (rounds of the whole contract, 1), only (ids or patterns of checks), replicas (names), approve (bool).

    Changes nothing that runs; a release that fails is marked bad in its hosts' stores, one that was bad and passes
    is good again. Raises FindingError (exit 4) when a check fails or a replica does not run; with --check what does
    not run yet is unknown, for it cannot be asked, and nothing is marked.
    """
    asking = Asking(_number(args, "repeat", 3), _number(args, "timeout", 120), _number(args, "times", 1),
                    chosen_checks([str(name) for name in args.get("only") or ()]))
    planned = plan_now(fleet, facts=False)
    members = _members(planned.members, [str(name) for name in args.get("replicas") or ()])
    if not args.get("replicas"):
        members = _not_asked_yet(fleet, members)
        if not members:
            return {}
    key = key_of(fleet, planned.plan.api_key_variable)
    survey = look(fleet, members, planned.plan.manager, ask=False)
    chosen = chosen_release.load(fleet)
    found: list[Finding] = []
    results: dict[str, Result] = {}
    for name, hosts in members.items():
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
        if document.get("role") in POOL_ROLES:
            continue  # clients reach it through the router, which is asked
        for host, asked_document in _serving(survey, name, hosts, document):
            subject = name if host == head else f"{name} {host}"
            fleet.emit(Progress(subject, "asking", host))
            approval = approval_of(survey.stores, survey.replicas[name].nodes[host].release)
            mine = _one(fleet, subject, host, asked_document, planned.plan, key[1] if key else None, asking, approval)
            found += mine
            passed = sum(finding.verdict is Verdict.PASS for finding in mine)
            count = sum(finding.verdict is not Verdict.SKIP for finding in mine)
            fleet.emit(Progress(subject, f"{passed} of {count}", host, done=True))
            results[host] = Result(host, "check_contract", Status.OK, message=f"{passed} of {count}",
                                   seconds=sum(float(finding.data.get("seconds") or 0) for finding in mine),
                                   data={"passed": passed, "asked": count})
    bad = [finding for finding in found if finding.blocks]
    _tell(fleet, planned, members, survey, found, results, whole=asking.whole)
    if args.get("approve"):
        _approve(fleet, members, survey, found, asking)
    if bad:
        # the findings are told already, each with its mend
        raise FindingError(f"{plural(len(bad), 'check')} of the contract {'fails' if len(bad) == 1 else 'fail'}",
                           found=", ".join(f"{finding.check} on {finding.subject}" for finding in bad[:4]),
                           next="invoke start" if bad[0].check == "contract.running" else
                           "invoke rollback goes back to the last good release; invoke logs shows the engine's side")
    return results


def _tell(fleet: Fleet, planned: Planned, members: Mapping[str, Sequence[str]], survey: Survey,
          found: Sequence[Finding], results: Mapping[str, Result], *, whole: bool) -> None:
    """Tell what was found, and have the hosts remember it."""
    if found:
        fleet.emit(Findings("contract", tuple(found)))
    bad = [finding for finding in found if finding.blocks]
    _record(fleet, members, survey, bad, results, whole=whole)
    remember(fleet, members, {name: survey.replicas[name].nodes[hosts[0]].release for name, hosts in members.items()},
             survey.stores, found)
    asked = [finding for finding in found if finding.verdict is not Verdict.SKIP]
    if asked:
        names = list(dict.fromkeys(planned.whole_of(name) for name in members))
        subject = names[0] if len(names) == 1 else plural(len(names), "replica")
        fleet.emit(StageSummary(subject, f"{len(asked) - len(bad)} of {len(asked)} ({_what(planned.plan)})"))


def _members(every: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> dict[str, Sequence[str]]:
    """The replicas that are to be asked. Raises InputError for one that is not there."""
    for name in wanted:
        if name not in every:
            near = nearest(name, list(every))
            raise InputError(f"no replica of this run is called `{name}`", expected=", ".join(every),
                             next=f"--replica {near}" if near else "invoke plan shows the replicas")
    return {name: hosts for name, hosts in every.items() if not wanted or name in wanted}


def _approve(fleet: Fleet, members: Mapping[str, Sequence[str]], survey: Survey, found: Sequence[Finding],
             asking: Asking) -> None:
    """Approve the contract of the release that runs. Raises FindingError when it cannot be."""
    bad = [finding for finding in found if finding.blocks]
    releases = {survey.replicas[name].nodes[hosts[0]].release for name, hosts in members.items()}
    if bad or not asking.whole or len(releases) != 1 or None in releases:
        raise FindingError("the contract was not approved",
                           found=f"{plural(len(bad), 'check')} failed" if bad else "not all of it was asked (--only)"
                           if not asking.whole else "the replicas do not run one release",
                           expected="every check of the contract passed on every replica, on one release")
    [digest] = releases
    checks = {finding.check for finding in found if finding.verdict is Verdict.PASS}
    hosts = [host for nodes in members.values() for host in nodes]
    if digest and not fleet.check:
        approve(fleet, digest, hosts, sorted(checks))
    entry = survey.history.get(digest)
    told = "would be approved" if fleet.check else "approved: it is part of the release now"
    fleet.emit(Note(f"contract of {entry.label if entry else digest}: {plural(len(checks), 'check')} {told}",
                    fold_hosts(hosts)))


def _record(fleet: Fleet, members: Mapping[str, Sequence[str]], survey: Survey, bad: Sequence[Finding],
            asked: Mapping[str, Result], *, whole: bool) -> None:
    """Write down, on every host that runs it, that a release failed its contract, or that one known bad passes the
    whole of it now."""
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
        elif whole and entry is not None and entry.state == "bad" and set(entry.bad_on) <= set(every):
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
    """What is promised: the running process's served name and limit; tools and reasoning when the plan or its flags
    say so."""
    argv = [str(word) for word in document.get("argv") or ()]
    nonce = f"{random.SystemRandom().choice(WORDS)}{random.SystemRandom().randrange(1000, 9999)}"
    return Served(
        model=str(document.get("served_name") or plan.served_name),
        tools="tool_calling" in plan.features or "--tool-call-parser" in argv,
        reasoning="reasoning" in plan.features or "--reasoning-parser" in argv,
        nonce=nonce, repeat=repeat, has_key=has_key, limit=_limit(argv), same_words=bool(plan.facts.get("lab")),
        engine=plan.engine, version=plan.engine_version, argv=tuple(argv),
    )


def _limit(argv: Sequence[str]) -> int:
    """Requests that the engine takes at once, as its command says; LIMIT where it does not."""
    value = flag_value(list(argv), "--max-num-seqs") or flag_value(list(argv), "--max-running-requests")
    return int(value) if value and value.isdigit() and int(value) else LIMIT


def _one(fleet: Fleet, subject: str, host: str, document: Mapping[str, Any], plan: LaunchPlan, key: str | None,
         asking: Asking, approval: Approval | None) -> list[Finding]:
    # OpenAI's client takes half a second to import: only where it is used
    from bringup.serving.contract.run import check_contract as check

    address, port = where(document)

    def exchange(requests: Sequence[Request], at_once: int = SIDE_BY_SIDE, /) -> Sequence[Response]:
        return ask(fleet, host, address, port, requests, key=key, timeout=asking.timeout, at_once=at_once)

    rounds = []
    for number in range(asking.times):
        if asking.times > 1:
            fleet.emit(Progress(subject, f"round {number + 1} of {asking.times}", host))
        served = served_of(document, plan, has_key=key is not None, repeat=asking.repeat)
        rounds.append(check(served, exchange, subject=subject, checks=asking.checks))
    return over_times(rounds, approval)


def ask(fleet: Fleet, host: str, address: str, port: int, requests: Sequence[Request], *, key: str | None,
        timeout: float, at_once: int = SIDE_BY_SIDE) -> list[Response]:
    """Do requests on a host, `at_once` in flight, the answers in order. Raises StepError when the host could not."""
    args = {"host": address, "port": port, "requests": [request.wire() for request in requests], "api_key": key,
            "side_by_side": at_once, "timeout": timeout}
    limit = 30 + timeout * (1 + len(requests) / at_once) + sum(request.wait for request in requests)
    result = calls.call_all(fleet, "http_exchange", {host: args}, changes=False, timeout=limit)[host]
    if result.status in (Status.UNREACHABLE, Status.LOST):
        raise UnreachableError("the endpoint cannot be asked", host=host, found=calls.first_line(result))
    if result.bad:
        raise StepError("the endpoint cannot be asked", host=host, found=calls.first_line(result))
    return [Response.from_wire(response) for response in result.data["responses"]]
