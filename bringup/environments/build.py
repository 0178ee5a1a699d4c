"""The fleet's environments: built on all hosts at once, found again, proven again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bringup.agent.modules._cuda import NAMED
from bringup.base.errors import BringupError, ExitStatus, InputError
from bringup.base.events import Findings, Note, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural
from bringup.base.verdicts import Finding, Verdict
from bringup.environments.bringing import become_of, bring_interpreters, hardware_of
from bringup.environments.definition import load_environment
from bringup.environments.indexes import package_settings
from bringup.environments.planned import HostFacts, Planned, Prepared, all_pythons, plan_for, prepare
from bringup.environments.supplies import Supplies, supplies_of
from bringup.environments.uv import uv_blob, uv_version
from bringup.environments.wheels import fetch_wheels
from bringup.run.actions import Blob, Call, Fleet

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"names": {"type": "list", "aliases": ["name", "environments"]}}
"""`names`: folders under envs/; left out, those that the deployment names (`environments`, else `environment`)."""

_BUILD_SECONDS = 7200.0


@dataclass(frozen=True)
class FoundEnvironment:
    """An environment on a host: `path` is its folder there, `digest` its whole name, `packages` name -> version.

    `sound` is False when it is missing or cannot be used as it is; `reason` then says why in a few words. `cuda_home`
    is the CUDA toolkit that fits it, None where the host has none or it needs none.
    """

    host: str
    name: str
    digest: str
    path: str
    python: str
    sound: bool
    reason: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    cuda_home: str | None = None


def build_environments(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `build_environments`: build what is not there, side by side on all hosts, each proven.

    Where a host reaches no package index (or `bringup_packages_from: controller` says so) the wheels are fetched here.
    A host's result has `environments`: name -> {digest, path, python, packages, changed, seconds, proven}.
    """
    work = _Work(fleet, args)
    if not work.names:
        fleet.emit(StageSummary("environments", "none to build: the deployment runs an image"))
        return {host: Result(host, "build_environments", Status.SKIPPED) for host in fleet.hosts}
    results, plans = work.plan("build_environments")
    last = dict.fromkeys(work.names, f"looking on {plural(len(plans), 'host')}")
    for name in work.names:
        fleet.emit(Progress(name, last[name]))
    results.update(_there(work, plans))
    plans = {host: planned for host, planned in plans.items() if host not in results}
    apart = {host: planned for host, planned in plans.items()
             if (host in work.supplies or str(fleet.variables(host).get("bringup_packages_from")) == "controller")
             and not fleet.check}
    ready = {host: planned for host, planned in plans.items() if host not in apart}

    def told(host: str, text: str) -> None:
        subject, colon, rest = text.partition(": ")
        if colon and subject in last:
            last[subject] = rest
            fleet.emit(Progress(subject, rest, host=host))

    done = fleet.call({host: work.call(host, "build", planned, timeout=_BUILD_SECONDS)
                       for host, planned in ready.items()}, on_line=told)
    apart.update((host, plans[host]) for host, result in done.items()
                 if result.bad and result.data.get("index_unreachable"))
    if apart:
        done.update(_from_here(work, apart, told))
    for host, result in done.items():
        results[host] = _described(result, plans[host], "build_environments", checked=fleet.check)
    for text, hosts in _untried(done, built=True).items():
        fleet.emit(Note(f"not tried on {fold_hosts(hosts)}: {text}"))
    for name in work.names:
        fleet.emit(Progress(name, last[name], done=True))
        said = _summary(name, results, checked=fleet.check)
        if said.startswith("built") and work.supplies:
            said += f"; from the bundle {next(iter(work.supplies.values())).name}"
        fleet.emit(StageSummary(name, said))
    return results


def _there(work: _Work, plans: Mapping[str, Sequence[Planned]]) -> dict[str, Result]:
    """The results of hosts where all is there and sound: nothing is locked for those. None in check mode, which looks
    and tells by itself."""
    if work.fleet.check:
        return {}
    out = {}
    looked = work.fleet.call({host: work.call(host, "find", planned, timeout=120.0, changes=False)
                              for host, planned in plans.items() if planned})
    for host, result in looked.items():
        told = dict(result.data.get("environments") or {})
        if not result.bad and all(told.get(one.name, {}).get("sound") for one in plans[host]):
            out[host] = replace(result, task="build_environments", status=Status.OK, data={
                **result.data, "environments": {name: {**item, "changed": False} for name, item in told.items()}})
    return out


def _from_here(work: _Work, plans: Mapping[str, Sequence[Planned]], told: Callable[[str, str], None]
               ) -> dict[str, Result]:
    """Build on hosts that reach no package index: the wheels are fetched here and sent, those a host has are not."""
    fleet = work.fleet
    cache = fleet.project.state / "cache"
    calls: dict[str, Call] = {}
    failed: dict[str, Result] = {}
    for host, planned in plans.items():
        blobs: list[Blob] = []
        items = []
        try:
            for one in planned:
                lock = work.prepared[one.name].locks[one.platform.name]
                wheels: Mapping[str, Blob]
                if host in work.supplies:
                    fleet.emit(Progress(one.name, f"wheels from the bundle {work.supplies[host].name}", host=host))
                    wheels = work.supplies[host].wheels_for(lock, one.python)
                else:
                    fleet.emit(Progress(one.name, "no index from there: the wheels come from here", host=host))
                    wheels = fetch_wheels(lock, one.python, one.platform, cache, package_settings())
                blobs += wheels.values()
                items.append(replace(one, item={**one.item, "wheels": {n: b.digest for n, b in wheels.items()}}))
        except BringupError as error:
            failed[host] = Result(host, "build_environments", Status.FAILED, message=error.what, found=error.found,
                                  output=error.details, next=error.next, module="build_environments")
            continue
        call = work.call(host, "build", items, timeout=_BUILD_SECONDS)
        calls[host] = replace(call, blobs=(*call.blobs, *blobs))
    return {**failed, **fleet.call(calls, on_line=told)}


def verify_environments(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `verify_environments`: prove again what is there, every recorded hash included; changes nothing.

    What is found is emitted as Findings; a host with findings, or where nothing can be proven, has a failed result
    that ends the run with 4.
    """
    work = _Work(fleet, args)
    if not work.names:
        return {host: Result(host, "verify_environments", Status.SKIPPED) for host in fleet.hosts}
    results, plans = work.plan("verify_environments")
    done = fleet.call({host: work.call(host, "verify", planned, timeout=1800.0, changes=False)
                       for host, planned in plans.items() if planned})
    findings: list[Finding] = []
    for host, result in done.items():
        results[host] = replace(result, task="verify_environments")
        if result.bad:
            continue
        mine = [
            _finding(host, name, item)
            for name, told in sorted((result.data.get("environments") or {}).items())
            for item in told.get("findings") or []
        ]
        findings += mine
        if mine:
            # each is told by its finding; the result says what follows
            results[host] = replace(results[host], status=Status.FAILED, next="invoke env.build",
                                    message=f"{plural(len(mine), 'finding')} in its environments")
        else:
            findings += [
                Finding(f"environment.{name}", host, Verdict.PASS, "; ".join(told.get("proven") or []))
                for name, told in sorted((result.data.get("environments") or {}).items())
            ]
    untried = _untried(done)
    findings += [Finding("environment.untried", host, Verdict.SKIP, text)
                 for text, hosts in untried.items() for host in hosts]
    rows = [(fold_hosts(hosts), text) for text, hosts in untried.items()]
    fleet.emit(Findings("environments", tuple(findings), tables={"untried": rows} if rows else {}))
    return {host: replace(result, data={**result.data, "exit_status": int(ExitStatus.FINDING)})
            if result.status is Status.FAILED else result for host, result in results.items()}


def find_environments(fleet: Fleet, names: Sequence[str] = ()) -> dict[str, dict[str, FoundEnvironment]]:
    """Where each host has its environments, by host and name, sound or not; builds nothing. For releases.

    Hosts that do not answer or for which nothing fits are left out.
    """
    work = _Work(fleet, {"names": list(names)})
    _, plans = work.plan("find_environments")
    done = fleet.call({host: work.call(host, "find", planned, timeout=120.0, changes=False)
                       for host, planned in plans.items() if planned})
    out: dict[str, dict[str, FoundEnvironment]] = {}
    for host, result in done.items():
        if result.bad:
            continue
        told = result.data.get("environments") or {}
        out[host] = {
            item.name: FoundEnvironment(
                host, item.name, item.digest, str(told[item.name]["path"]), item.python,
                bool(told[item.name].get("sound")), told[item.name].get("reason"),
                dict(told[item.name].get("packages") or {}), item.item.get("cuda_home"))
            for item in plans[host] if item.name in told
        }
    return out


def wanted_names(variables: Mapping[str, Any], named: Sequence[str] = ()) -> list[str]:
    """Names of the environments of a host: those given, else what its deployment says. Raises InputError."""
    if named:
        return list(dict.fromkeys(str(name) for name in named))
    deployment = variables.get("deployment")
    if isinstance(deployment, Mapping):
        several = deployment.get("environments")
        if isinstance(several, Sequence) and not isinstance(several, str) and several:
            return list(dict.fromkeys(str(name) for name in several))
        if deployment.get("environment"):
            return [str(deployment["environment"])]
        if deployment.get("image"):
            return []  # the image is the environment
    raise InputError("no environment is named", expected="`environment` in the deployment, or names",
                     next="invoke env.list")


class _Work:
    """One pass over the fleet: definitions read once, hosts probed once."""

    def __init__(self, fleet: Fleet, args: Mapping[str, Any]) -> None:
        self.fleet = fleet
        named = args.get("names") or ()
        self.of_host = {host: wanted_names(fleet.variables(host), named) for host in fleet.hosts}
        self.names = list(dict.fromkeys(name for names in self.of_host.values() for name in names))
        envs = fleet.project.root / "envs"
        self.prepared: dict[str, Prepared] = {
            name: prepare(load_environment(envs, name), fleet.project.root) for name in self.names
        }
        self.facts: dict[str, HostFacts] = {}
        carried = {host: supplies_of(fleet.variables(host)) for host in fleet.hosts}
        self.supplies: dict[str, Supplies] = {host: one for host, one in carried.items() if one is not None}

    def plan(self, task: str) -> tuple[dict[str, Result], dict[str, list[Planned]]]:
        """Probe all hosts and plan for each. Results are those of hosts for which it went wrong."""
        calls = {}
        for host in self.fleet.hosts:
            variables = self.fleet.variables(host)
            pythons = all_pythons([self.prepared[name] for name in self.of_host[host]])
            args: dict[str, Any] = {"action": "probe", "pythons": pythons}
            if variables.get("bringup_environment_python"):
                args["python"] = str(variables["bringup_environment_python"])
            if any(platform.family == "cuda" for name in self.of_host[host]
                   for platform in self.prepared[name].environment.platforms):
                args.update(cuda=True, cuda_home=str(variables.get(NAMED) or "") or None)
            if variables.get("bringup_uv"):
                args["uv"] = str(variables["bringup_uv"])
            calls[host] = Call("python_env", args, become=become_of(variables), timeout=120.0, changes=False)
        results: dict[str, Result] = {}
        plans: dict[str, list[Planned]] = {}
        for host, result in self.fleet.call(calls).items():
            if result.bad:
                results[host] = replace(result, task=task)
            else:
                self.facts[host] = HostFacts.of(result.data)
        if task == "build_environments":
            results.update(bring_interpreters(self, task))
        for host in [host for host in self.facts if host not in results]:
            facts, supplies = self.facts[host], self.supplies.get(host)
            try:
                plans[host] = [plan_for(self.prepared[name], facts, hardware_of(self.fleet.variables(host)), supplies)
                               for name in self.of_host[host]]
            except InputError:
                raise
            except BringupError as error:
                results[host] = Result(host, task, Status.FAILED, message=error.what, expected=error.expected,
                                       found=error.found, next=error.next, module=task)
        return results, plans

    def call(self, host: str, action: str, planned: Sequence[Planned], *, timeout: float,
             changes: bool = True) -> Call:
        """The call of the host module for what was planned; uv goes along where the host has none new enough."""
        variables = self.fleet.variables(host)
        facts = self.facts[host]
        args: dict[str, Any] = {"action": action, "environments": [dict(item.item) for item in planned],
                                "index": package_settings(variables.get("bringup_packages"))}
        if variables.get("bringup_uv_cache"):
            args["cache"] = str(variables["bringup_uv_cache"])
        blobs: list[Blob] = [blob for item in planned for blob in item.blobs] if action == "build" else []
        if facts.uv and (variables.get("bringup_uv") or _as_new(facts.uv_version)):
            args["uv"] = facts.uv
        elif action == "build":
            carried = self.supplies[host].uv.get(facts.machine) if host in self.supplies else None
            version, blob = carried or (uv_version(), uv_blob(facts.machine, self.fleet.project.state / "cache"))
            args.update(uv_digest=blob.digest, uv_version=version)
            blobs.append(blob)
        return Call("python_env", args, become=become_of(variables), timeout=timeout, changes=changes,
                    blobs=tuple({blob.digest: blob for blob in blobs}.values()))


def _as_new(version: str | None) -> bool:
    """Whether a host's uv is as new as ours: an older one may not know the flags."""
    def numbers(text: str) -> list[int]:
        return [int("".join(c for c in part if c.isdigit()) or 0) for part in text.split(".")[:3]]

    return version is not None and numbers(version) >= numbers(uv_version())


def _described(result: Result, planned: Sequence[Planned], task: str, *, checked: bool) -> Result:
    if result.bad:
        return replace(result, task=task)
    data = dict(result.data)
    if checked:
        missing = list(data.get("missing") or [])
        data["environments"] = {item.name: {"digest": item.digest, "changed": item.name in missing} for item in planned}
        message = "would build " + ", ".join(missing) if missing else ""
        return replace(result, task=task, data=data, message=message,
                       status=Status.CHANGED if missing else Status.OK)
    return replace(result, task=task, data=data)


def _summary(name: str, results: Mapping[str, Result], *, checked: bool) -> str:
    built: list[str] = []
    kept: list[str] = []
    failed: list[str] = []
    seconds = looked = 0.0
    for host, result in results.items():
        told = (result.data.get("environments") or {}).get(name)
        if told is None:
            if result.bad:
                failed.append(host)
            continue
        (built if told.get("changed") else kept).append(host)
        took = float(told.get("seconds") or 0.0)
        if told.get("changed"):
            seconds = max(seconds, took)
        else:
            looked = max(looked, took)
    parts = []
    if built and checked:
        parts.append(f"would be built on {fold_hosts(built)}")
    elif built:
        parts.append(f"built on {fold_hosts(built)} in {duration(seconds)}, proven")
    if kept:
        parts.append(f"there already on {fold_hosts(kept)}" + (f", looked at in {looked:.2f} s" if looked else ""))
    if failed:
        parts.append(f"FAILED on {fold_hosts(failed)}")
    return "; ".join(parts) or "nothing to do"


def _untried(results: Mapping[str, Result], *, built: bool = False) -> dict[str, list[str]]:
    """What could not be tried, with the environment and the reason -> the hosts of which that is so; `built`: of
    environments that were built just now."""
    out: dict[str, list[str]] = {}
    for host, result in results.items():
        for name, told in sorted((result.data.get("environments") or {}).items()):
            for reason in told.get("untried") or [] if told.get("changed") or not built else []:
                out.setdefault(f"{name}: {reason}", []).append(host)
    return out


def _finding(host: str, name: str, item: Mapping[str, Any]) -> Finding:
    return Finding(f"environment.{name}.{item.get('check')}", host, Verdict.FAIL, str(item.get("summary")),
                   required=item.get("expected"), found=item.get("found"), mend=item.get("mend") or "invoke env.build")
