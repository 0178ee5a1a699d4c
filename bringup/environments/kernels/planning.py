"""From hosts to builds: what each host needs of each recipe, by name; hosts that need the same share a build."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bringup.agent.bootstrap import source as agent_source
from bringup.agent.modules._cuda import NAMED
from bringup.base.errors import BringupError, FindingError, InputError
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.environments.kernels.asking import asked_kernels, checked
from bringup.environments.kernels.choosing import Asked, Toolchain, build_digest, choose, common_variant
from bringup.environments.kernels.recipe import Recipe, load_recipe
from bringup.environments.kernels.source import source_blob
from bringup.run.actions import Blob, Call, Fleet


@dataclass(frozen=True)
class Need:
    """One recipe on one host: the chosen toolchain and the name of the build."""

    host: str
    recipe: Recipe
    toolchain: Toolchain
    digest: str
    source: Blob

    @property
    def name(self) -> str:
        return self.recipe.name

    def spec(self) -> dict[str, Any]:
        """What the runner on the host is told."""
        chain, recipe = self.toolchain, self.recipe
        return {
            "name": recipe.name, "commands": [["patch", PATCH], *map(list, recipe.commands)] if recipe.patches else
            [list(item) for item in recipe.commands], "environment": dict(chain.environment), "path": list(chain.path),
            "programs": dict(chain.programs), "jobs": chain.jobs, "memory": chain.memory, "yields": list(recipe.yields),
            "links": [list(item) for item in recipe.links], "facts": dict(chain.facts),
            "proof": {"argv": [chain.proof_python, "{files}/" + recipe.proof.script],
                      "seconds": recipe.proof.seconds},
        }

    def files(self) -> dict[str, Blob]:
        """The recipe's own files that the proof needs, by name."""
        data = (self.recipe.folder / self.recipe.proof.script).read_bytes()
        return {self.recipe.proof.script: blob(data)}

    def item(self, *, full: bool) -> dict[str, Any]:
        """What the host module takes; `full` adds what a build or a proof needs."""
        out: dict[str, Any] = {"name": self.name, "digest": self.digest}
        if full:
            out.update(spec=self.spec(), runner=runner().digest, source=self.source.digest,
                       files={name: item.digest for name, item in self.files().items()})
        return out


PATCH = 'for file in .bringup-patches/*; do patch -p1 --forward --batch < "$file"; done'


def blob(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data), data)


def runner() -> Blob:
    """The program that builds and proves on the host."""
    return blob(agent_source("kernel_runner").encode())


def become(variables: Mapping[str, Any]) -> str | None:
    """The account that builds: root, or the connecting one where the inventory says `bringup_privileged: false`."""
    value = variables.get("bringup_privileged", True)
    return None if str(value).strip().lower() in ("false", "no", "off", "0") else "root"


class Planner:
    """One pass over the fleet: recipes read once, sources packed once, hosts probed once."""

    def __init__(self, fleet: Fleet, names: Sequence[str]) -> None:
        self.fleet = fleet
        self.results: dict[str, Result] = {}
        self.kits: dict[str, Mapping[str, Any]] = {}
        self.asked: dict[str, list[tuple[Asked, Recipe]]] = {}
        folder = fleet.project.root / "kernels"
        recipes: dict[str, Recipe] = {}
        for host in fleet.hosts:
            rows = []
            for asked in asked_kernels(fleet.variables(host), names):
                if asked.name not in recipes:
                    recipes[asked.name] = load_recipe(folder, asked.name)
                rows.append((asked, checked(asked, recipes[asked.name])))
            self.asked[host] = rows
        self.names = list(dict.fromkeys(recipe.name for rows in self.asked.values() for _, recipe in rows))
        self._sources: dict[tuple[str, str], Blob] = {}

    def probe(self, hosts: Sequence[str] | None = None) -> None:
        """Ask the hosts what they have; those that do not answer get their result."""
        pythons = self._pythons()
        calls = {}
        for host in hosts or self.fleet.hosts:
            rows = [recipe for _, recipe in self.asked[host]]
            if not rows or host in self.results:
                continue
            args: dict[str, Any] = {"action": "probe", "tools": sorted({tool for row in rows for tool in row.tools}),
                                    "packages": sorted({name for row in rows for name in row.versions.values()})}
            for key in ("pkg_config", "headers", "programs"):
                args[key] = sorted({item for row in rows for item in row.needs.get(key, ())})
            if self.fleet.variables(host).get(NAMED):
                args["cuda_home"] = str(self.fleet.variables(host)[NAMED])
            if host in pythons:
                args["python"] = pythons[host]
            calls[host] = Call("kernel_build", args, become=become(self.fleet.variables(host)), timeout=180.0,
                               changes=False)
        for host, result in self.fleet.call(calls).items():
            if result.bad:
                self.results[host] = result
            else:
                self.kits[host] = result.data

    def _pythons(self) -> dict[str, str]:
        """The Python that kernels are built for, by host: the one named, else that of the deployment's environment."""
        out: dict[str, str] = {}
        wanting = []
        for host in self.fleet.hosts:
            variables = self.fleet.variables(host)
            if variables.get("bringup_kernel_python"):
                out[host] = str(variables["bringup_kernel_python"])
            elif any({"python", "torch", "nccl"} & set(recipe.uses) or recipe.proof.python == "environment"
                     for _, recipe in self.asked[host]):
                wanting.append(host)
        if wanting:
            from bringup.environments.build import find_environments

            try:
                found = find_environments(self.fleet)
            except InputError:
                found = {}
            for host in wanting:
                sound = [item for item in found.get(host, {}).values() if item.sound]
                best = next((item for item in sound if "torch" in item.packages), sound[0] if sound else None)
                if best is not None:
                    out[host] = f"{best.path}/bin/python"
        return out

    def needs(self, name: str) -> dict[str, Need]:
        """What each host needs of one recipe. A host that cannot have it gets its result. Raises FindingError where
        the CPU variant asked for is one that some hosts cannot run."""
        out: dict[str, Need] = {}
        self._demand_variant(name)
        for host, rows in self.asked.items():
            if host in self.results or host not in self.kits:
                continue
            for asked, recipe in rows:
                if recipe.name != name:
                    continue
                try:
                    chain = _with_site(choose(recipe, asked, self.kits[host]), self.fleet.variables(host))
                    source = self.source(recipe)
                    out[host] = Need(host, recipe, chain, build_digest(recipe, source.digest, chain), source)
                except InputError:
                    raise
                except BringupError as error:
                    self.results[host] = failed(host, error)
        return out

    def _demand_variant(self, name: str) -> None:
        """Refuse an asked variant before anything is built, naming every host that lacks it and what all can run."""
        rows = [(host, asked, recipe) for host, wanted in self.asked.items() if host in self.kits
                for asked, recipe in wanted if recipe.name == name and asked.cpu]
        lacking: dict[str, list[str]] = {}
        for host, asked, recipe in rows:
            variant = recipe.variant(asked.cpu or "")
            missing = sorted(set(variant.flags if variant else ()) - set(self.kits[host]["cpu"]["flags"]))
            if missing:
                lacking[host] = missing
        if not lacking:
            return
        _, asked, recipe = next(row for row in rows if row[0] in lacking)
        common = common_variant(recipe, [self.kits[host] for host, _, _ in rows])
        raise FindingError(
            f"{name} is asked for as {asked.cpu}, which not every CPU here can run", host=fold_hosts(list(lacking)),
            expected=f"{', '.join(next(iter(lacking.values())))} in /proc/cpuinfo",
            found="; ".join(f"{host}: {self.kits[host]['cpu']['model']}" for host in lacking),
            next=f"ask for cpu: {common}, which all of them run, or leave it out: each kind of host gets its own"
            if common else "leave `cpu` out: each kind of host gets its own")

    def source(self, recipe: Recipe) -> Blob:
        """The recipe's source, packed once. Raises StepError."""
        key = (recipe.name, recipe.revision)
        if key not in self._sources:
            mirrors = self.fleet.variables(self.fleet.hosts[0]).get("bringup_kernel_mirrors") or {}
            self._sources[key] = source_blob(recipe, self.fleet.project.state / "cache",
                                             {str(start): str(place) for start, place in dict(mirrors).items()})
        return self._sources[key]


def _with_site(chain: Toolchain, variables: Mapping[str, Any]) -> Toolchain:
    """`bringup_kernel_environment` of the inventory: variables of every build and proof; they do not name a build."""
    given = variables.get("bringup_kernel_environment") or {}
    return replace(chain, environment={**chain.environment, **{str(name): str(value) for name, value in
                                                               dict(given).items()}}) if given else chain


def failed(host: str, error: BringupError) -> Result:
    """A host's failed result from an error."""
    finding = {"exit_status": int(error.status)} if isinstance(error, FindingError) else {}
    return Result(host, "build_kernels", Status.FAILED, message=error.what, expected=error.expected, found=error.found,
                  output=tuple(error.details), next=error.next, module="build_kernels", data=finding)


def order_of(hosts: Sequence[str], kits: Mapping[str, Mapping[str, Any]], needs: Mapping[str, Need]) -> list[str]:
    """Hosts from the one that builds best: nothing serves there, then most at a time, then most memory and space."""
    return sorted(hosts, key=lambda host: (bool(kits[host].get("serving")), -needs[host].toolchain.jobs,
                                           -int(kits[host]["memory"]), -int(kits[host].get("free") or 0)))


def renamed(result: Result, task: str) -> Result:
    return replace(result, task=task)
