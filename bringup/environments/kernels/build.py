"""The fleet's kernels: found, built once per kind of host as a job, proven, spread to the likes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bringup.base.errors import ExitStatus, FindingError, InputError, StepError
from bringup.base.events import Note, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural
from bringup.environments.kernels.choosing import lacks_compiler
from bringup.environments.kernels.planning import Need, Planner, become, failed, order_of, renamed, runner
from bringup.environments.kernels.recipe import Recipe
from bringup.environments.kernels.signs import cause_of
from bringup.environments.kernels.spread import spread
from bringup.run.actions import Blob, Call, Fleet

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "names": {"type": "list", "aliases": ["name", "kernels"]},
    "needed": {"type": "bool", "default": False},
}
"""`names`: recipes under kernels/; left out, those of the deployment. `needed`: none at all is an error."""

_CALL = 120.0
_FOLLOW = 8.0
"""Seconds that one look at a running job waits for news."""
_DAY = 86400.0
_FINDINGS = ("instruction", "compiler-too-new", "compiler-too-old", "assembler-too-old")
"""Causes that lie in what the host is, not in the build: status 4."""


def build_kernels(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `build_kernels`. A host's result has `kernels`: name -> {digest, path, changed, how, proof, ...}.

    A build that runs already (its controller was lost) is followed to its end. Raises InputError and, where only a
    host that serves could build and nobody may be asked, FindingError.
    """
    planner = Planner(fleet, args.get("names") or ())
    if not planner.names:
        if args.get("needed"):
            raise InputError("no kernel is named", expected="`kernels` in the deployment, or --kernel",
                             next="invoke kernel.list")
        fleet.emit(StageSummary("none", "the deployment names no kernels"))
        return {}
    planner.probe()
    told: dict[str, dict[str, Any]] = {host: {} for host in fleet.hosts}
    for name in planner.names:
        _Kernel(planner, name, told).run()
    out = {}
    for host in fleet.hosts:
        if host in planner.results:
            out[host] = replace(renamed(planner.results[host], "build_kernels"),
                                data={**planner.results[host].data, "kernels": told[host]})
            continue
        changed = any(item.get("changed") for item in told[host].values())
        out[host] = Result(host, "build_kernels", Status.CHANGED if changed else Status.OK,
                           data={"kernels": told[host]}, module="build_kernels")
    return out


class _Kernel:
    """One recipe over the fleet."""

    def __init__(self, planner: Planner, name: str, told: dict[str, dict[str, Any]]) -> None:
        self.planner = planner
        self.fleet = planner.fleet
        self.name = name
        self.told = told
        self.last = ""

    def progress(self, text: str, host: str | None = None, *, done: bool = False) -> None:
        if text != self.last or done:
            self.last = text
            self.fleet.emit(Progress(self.name, text, host=host, done=done))

    def run(self) -> None:
        self.progress("looking")
        before = set(self.planner.results)
        self.compilers()
        needs = self.planner.needs(self.name)
        groups: dict[str, list[str]] = {}
        for host, need in needs.items():
            groups.setdefault(need.digest, []).append(host)
        there = self.find(needs)
        builders: dict[str, Need] = {}
        for hosts in groups.values():
            holding = [host for host in hosts if there.get(host, {}).get("sound")]
            for host in holding:
                self.keep(needs[host], there[host], how="there already", changed=False)
            if not holding and not self.fleet.check:
                builder = self.builder(hosts, needs, there)
                if builder is not None:
                    builders[builder.host] = builder
            elif self.fleet.check:
                ready = order_of([host for host in hosts if host not in holding and host not in self.planner.results],
                                 self.planner.kits, needs)
                if ready and not holding:
                    self.choices(needs[ready[0]])
                for host in hosts:
                    if host not in holding:
                        self.told[host][self.name] = {"digest": needs[host].digest, "changed": True, "how": "would be"}
        self.build(builders)
        for hosts in groups.values():
            self.spread([needs[host] for host in hosts if host not in self.planner.results])
        failing = [host for host in self.planner.results if host not in before]
        self.progress(self.last, done=True)
        self.fleet.emit(StageSummary(self.name, self.summary(failing)))

    def find(self, needs: Mapping[str, Need]) -> dict[str, dict[str, Any]]:
        calls = {host: Call("kernel_build", {"action": "find", "builds": [need.item(full=False)]},
                            become=become(self.fleet.variables(host)), timeout=_CALL, changes=False)
                 for host, need in needs.items()}
        out = {}
        for host, result in self.fleet.call(calls).items():
            if result.bad:
                self.planner.results[host] = result
            else:
                out[host] = dict(result.data["builds"][self.name])
        return out

    def keep(self, need: Need, found: Mapping[str, Any], *, how: str, changed: bool) -> None:
        proof = found.get("proof") or {}
        self.told[need.host][self.name] = {
            "digest": need.digest, "path": found.get("path"), "changed": changed, "how": how, "proof": proof,
            "seconds": found.get("seconds"), "jobs": found.get("jobs"), "size": found.get("size"),
            "facts": found.get("facts"), "revision": need.recipe.revision}

    def builder(self, hosts: Sequence[str], needs: Mapping[str, Need], there: Mapping[str, Mapping[str, Any]]
                ) -> Need | None:
        """The host of a group that builds, with its system packages in place; None when none of them can. One that
        builds already (its controller was lost) is the one."""
        ready = [host for host in order_of(hosts, self.planner.kits, needs) if host not in self.planner.results]
        for host in ready:
            if there.get(host, {}).get("running"):
                return needs[host]
        for host in ready:
            if self.planner.kits[host].get("serving") and not self.may_load(host):
                return None
            try:
                self.packages(host, needs[host].recipe)
            except StepError as error:
                self.planner.results[host] = failed(host, error)
                continue
            self.choices(needs[host])
            return needs[host]
        return None

    def choices(self, need: Need) -> None:
        """What is taken on the host that builds, and why."""
        for text in need.toolchain.notes:
            self.fleet.emit(Note(f"{self.name}: {text}", host=need.host))

    def may_load(self, host: str) -> bool:
        """Ask before a host that serves is loaded. Raises FindingError where nobody can be asked."""
        question = f"{host} serves, and no host of its kind is free: build {self.name} there all the same?"
        answer = self.fleet.ask(question)
        if answer is None:
            raise FindingError(f"{host} serves, and {self.name} would be built there", host=host,
                               expected="a host of the same kind that serves nothing",
                               next="say --yes, or stop the replica first (invoke stop)")
        if not answer:
            self.planner.results[host] = failed(host, StepError(f"{self.name} was not built: {host} serves"))
        return answer

    def compilers(self) -> None:
        """Install a compiler where it is all that is missing: it is part of what a build is named by."""
        lacking = [(host, recipe) for host, rows in self.planner.asked.items() for asked, recipe in rows
                   if recipe.name == self.name and host not in self.planner.results and host in self.planner.kits
                   and lacks_compiler(recipe, asked, self.planner.kits[host])]
        for host, recipe in lacking:
            try:
                if not self.fleet.check:
                    self.packages(host, recipe)
                    continue
            except StepError as error:
                self.planner.results[host] = failed(host, error)
                continue
            self.fleet.emit(Note(f"{self.name}: no compiler is there; one would be installed first", host=host))
            self.told[host][self.name] = {"digest": "", "changed": True, "how": "would be"}
            self.planner.kits.pop(host)
        again = [host for host, _ in lacking if host not in self.planner.results]
        if again and not self.fleet.check:
            self.planner.probe(again)

    def packages(self, host: str, recipe: Recipe) -> None:
        """Install what the recipe's `system` names where something of it is missing. Raises StepError."""
        kit = self.planner.kits[host]
        wanted = {key: [item for item in kit["missing"].get(key, []) if item in recipe.needs.get(key, ())]
                  for key in ("pkg_config", "headers", "programs")}
        if not any(wanted.values()):
            return
        manager = {"yum": "dnf"}.get(str(kit["package_manager"]), str(kit["package_manager"]))
        packages = list(recipe.system.get(manager, ()))
        lacking = ", ".join(item for items in wanted.values() for item in items)
        if not packages or not self.installs(self.fleet.variables(host)):
            raise StepError(f"{recipe.name} needs what this host does not have: {lacking}",
                            expected=f"the packages {' '.join(packages)}" if packages else None,
                            next=f"sudo {'apt-get' if manager == 'apt' else 'dnf'} install {' '.join(packages)}"
                            if packages else None)
        self.progress(f"installing {' '.join(packages)}", host)
        done = self.fleet.call({host: Call("package", {"name": packages, "state": "present", "lock_timeout": 300,
                                                       "cache_valid_time": 86400, "update_cache": False},
                                           become="root", timeout=1800.0)})[host]
        if done.bad:
            raise StepError(f"the packages of {recipe.name} cannot be installed", found=done.message or done.found,
                            details=done.output[-5:], expected=" ".join(packages), next=done.next)

    def runtime(self, needs: Sequence[Need]) -> None:
        """Install what a received build loads (`run_system`); what stays missing is told by its proof."""
        calls = {}
        for need in needs:
            variables = self.fleet.variables(need.host)
            manager = {"yum": "dnf"}.get(str(self.planner.kits[need.host]["package_manager"]),
                                         str(self.planner.kits[need.host]["package_manager"]))
            packages = list(need.recipe.run_system.get(manager, ()))
            if packages and self.installs(variables):
                calls[need.host] = Call("package", {"name": packages, "state": "present"}, become="root",
                                        timeout=1800.0)
        for host, result in self.fleet.call(calls).items() if calls else ():
            if result.bad:
                self.fleet.emit(Note(f"{self.name}: its system packages were not installed: {result.message}",
                                     host=host, level="warn"))

    @staticmethod
    def installs(variables: Mapping[str, Any]) -> bool:
        """Whether builds may install system packages on a host."""
        allowed = str(variables.get("bringup_kernel_packages", True)).lower() not in ("false", "no", "off", "0")
        return allowed and become(variables) is not None

    def build(self, builders: Mapping[str, Need]) -> None:
        """Start the jobs and follow them to their end."""
        running: dict[str, str] = {}
        calls = {}
        for host, need in builders.items():
            blobs: list[Blob] = [need.source, runner(), *need.files().values()]
            calls[host] = Call("kernel_build", {"action": "start", "build": need.item(full=True)},
                               become=become(self.fleet.variables(host)), timeout=600.0,
                               blobs=tuple({item.digest: item for item in blobs}.values()))
        for host, result in self.fleet.call(calls).items():
            if result.bad:
                self.planner.results[host] = result
                continue
            attached = result.data.get("attached") and result.data.get("state") == "running"
            self.progress(f"followed: it was being built already (job {result.data['id']})" if attached else
                          f"building, job {result.data['id']}", host)
            running[host] = str(result.data["id"])
        self.follow(running)
        for host, result in self.fleet.call({
                host: Call("kernel_build", {"action": "outcome", "digest": builders[host].digest},
                           become=become(self.fleet.variables(host)), timeout=_CALL, changes=False)
                for host in running if host not in self.planner.results}).items():
            if result.bad:
                self.planner.results[host] = result
            elif result.data.get("ok"):
                self.keep(builders[host], result.data["build"], how="built", changed=True)
            else:
                self.planner.results[host] = broken(builders[host], result.data)

    def follow(self, running: Mapping[str, str]) -> None:
        offsets = dict.fromkeys(running, 0)
        live = dict(running)
        while live:
            calls = {host: Call("job", {"action": "follow", "id": name, "offset": offsets[host], "wait": _FOLLOW},
                                become=become(self.fleet.variables(host)), timeout=_DAY, changes=False)
                     for host, name in live.items()}
            for host, result in self.fleet.call(calls).items():
                if result.bad:
                    self.planner.results[host] = result
                    live.pop(host)
                    continue
                offsets[host] = int(result.data.get("offset") or 0)
                shown = shown_line(str(result.data.get("text") or ""))
                if shown:
                    self.progress(shown, host)
                if result.data.get("state") not in ("running", "starting"):
                    live.pop(host)
                    if result.data.get("state") == "lost":
                        self.fleet.emit(Note(f"{self.name}: the job was lost: {result.data.get('msg')}", host=host))

    def spread(self, needs: Sequence[Need]) -> None:
        """From those that hold the build to those that do not."""
        holding = [need for need in needs if self.name in self.told[need.host]
                   and self.told[need.host][self.name].get("how") != "would be"]
        missing = [need for need in needs if self.name not in self.told[need.host]]
        if not missing or self.fleet.check:
            return
        if not holding:
            for need in missing:
                self.planner.results[need.host] = failed(need.host, StepError(
                    f"{self.name} is not there: its build failed on another host of the same kind"))
            return
        self.runtime(missing)
        for host, result in spread(self.fleet, holding, missing, lambda text: self.progress(text)).items():
            need = next(item for item in missing if item.host == host)
            if result.bad:
                self.planner.results[host] = broken(need, result.data, result) if result.data.get("step") else result
            else:
                self.keep(need, result.data["build"], how=f"received from {result.data['from']}", changed=True)

    def summary(self, failing: Sequence[str]) -> str:
        ways: dict[str, list[str]] = {}
        for host, rows in self.told.items():
            if self.name in rows:
                ways.setdefault(str(rows[self.name]["how"]), []).append(host)
        parts = []
        for host in ways.pop("built", []):
            row = self.told[host][self.name]
            parts.append(f"built on {host} in {duration(float(row['seconds'] or 0))}, {row['jobs']} at a time")
        kept = ways.pop("there already", [])
        would = ways.pop("would be", [])
        received = [host for hosts in ways.values() for host in hosts]
        if received:
            parts.append(f"spread to {fold_hosts(received)}")
        if kept:
            parts.append(f"there already on {fold_hosts(kept)}")
        if would:
            kinds = len({self.told[host][self.name]["digest"] for host in would})
            parts.append(f"would be built for {fold_hosts(would)} ({plural(kinds, 'kind')} of host)")
        if failing:
            parts.append(f"FAILED on {fold_hosts(failing)}")
        proofs = {str((rows[self.name].get("proof") or {}).get("proof")) for rows in self.told.values()
                  if self.name in rows and rows[self.name].get("proof")}
        if proofs and not would:
            parts.append("proven: " + sorted(proofs)[0])
        return "; ".join(parts) or "nothing to do"


def shown_line(text: str) -> str:
    """What of a build's new output is worth a line: its step, or how far a compiler is."""
    best = ""
    for line in text.splitlines():
        if line.startswith("== "):
            best = line[3:]
        elif found := re.search(r"^\[\s*(\d+%|\d+/\d+)\]\s*(.*)", line):
            best = f"{found[1]} {found[2][:60]}"
    return best


def broken(need: Need, told: Mapping[str, Any], result: Result | None = None) -> Result:
    """The failed result of a build: its cause first, then what was said."""
    tail = [str(line) for line in told.get("tail") or []]
    cause = cause_of(tail, told)
    step, rc = str(told.get("step") or "build"), told.get("rc")
    # the runner's own words, unless the cause says it better
    message = f"{need.name}: {cause.cause}" if cause else (
        f"{need.name} failed in `{step}`" + (f" with status {rc}" if rc is not None else "")
        + (f": {told['message']}" if told.get("message") else ""))
    finding = {"exit_status": int(ExitStatus.FINDING)} if cause and cause.id in _FINDINGS else {}
    taken = f"taken: {'; '.join(need.toolchain.notes)}"
    kept = f"the whole log: {told['folder']} (job kernel-{need.digest[:12]})" if told.get("folder") else None
    return Result(
        need.host, "build_kernels", Status.FAILED, message=message, module="build_kernels",
        found=cause.line if cause and cause.line else (result.found if result else None),
        output=(taken, *tail[-12:]), next=(cause.next if cause and cause.next else kept),
        data={**{key: value for key, value in told.items() if key != "tail"}, **finding,
              "cause": cause.id if cause else None})
