"""The inventory's plan with what was found on its hosts, and the replicas that take part in this run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.errors import InputError, StepError
from bringup.base.text import fold_hosts
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan import LaunchPlan, ReplicaPlan
from bringup.serving.planner import api_key_of, make_plan
from bringup.serving.planning.site import HostFacts
from bringup.serving.start import Deadlines


@dataclass(frozen=True)
class Planned:
    """The plan, each host's model manifest, and replicas left out because a host of theirs is not in the run."""

    plan: LaunchPlan
    replicas: tuple[ReplicaPlan, ...]
    manifests: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """Replica -> hosts, head first."""
        return {replica.name: replica.hosts for replica in self.replicas}

    def whole_of(self, name: str) -> str:
        """The replica that this one is, or is a part of."""
        return next((replica.whole for replica in self.replicas if replica.name == name), name)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for replica in self.replicas for host in replica.hosts))


def is_lab(fleet: Fleet) -> bool:
    """True when the inventory is the embedded lab."""
    return any(str(fleet.variables(host).get("bringup_lab", "")).lower() in ("true", "yes", "1")
               for host in fleet.hosts)


def plan_now(fleet: Fleet, *, facts: bool = True) -> Planned:
    """The plan of the inventory. With `facts`, interface, cores and model files are asked on the hosts first."""
    lab = is_lab(fleet)
    rough = make_plan(fleet.inventory, fleet.project, fleet.variables, lab=lab)
    taking, left = taking_part(rough.replicas, fleet.hosts)
    if not taking:
        raise StepError("no replica has all of its hosts in this run", found=fold_hosts(list(fleet.hosts)) or "no host",
                        next="invoke plan shows which hosts make a replica")
    if not facts:
        return Planned(rough, taking, {}, left)
    found, manifests = _ask(fleet, rough, taking)
    plan = make_plan(fleet.inventory, fleet.project, fleet.variables, lab=lab, facts={} if lab else found)
    names = {replica.name for replica in taking}
    return Planned(plan, tuple(r for r in plan.replicas if r.name in names), manifests, left)


def taking_part(replicas: Sequence[ReplicaPlan], hosts: Sequence[str]
                ) -> tuple[tuple[ReplicaPlan, ...], dict[str, str]]:
    """Whole replicas among these hosts, and the others with the reason why they are left out."""
    taking, left = [], {}
    for replica in replicas:
        missing = [host for host in _hosts_of(replica, replicas) if host not in hosts]
        if not missing:
            taking.append(replica)
        else:
            left[replica.name] = f"{fold_hosts(missing)} {'is' if len(missing) == 1 else 'are'} not in this run"
    return tuple(taking), left


def _hosts_of(replica: ReplicaPlan, replicas: Sequence[ReplicaPlan]) -> tuple[str, ...]:
    """The hosts of the whole that this is a part of: without pools its own."""
    return tuple(dict.fromkeys(host for other in replicas if other.whole == replica.whole for host in other.hosts))


def looked_at(fleet: Fleet) -> tuple[LaunchPlan, dict[str, tuple[str, ...]]]:
    """The plan and each replica's hosts of this run, for what only reads: a part of a replica may be looked at."""
    plan = make_plan(fleet.inventory, fleet.project, fleet.variables, lab=is_lab(fleet))
    members = {replica.name: tuple(host for host in replica.hosts if host in fleet.hosts) for replica in plan.replicas}
    found = {name: hosts for name, hosts in members.items() if hosts}
    if not found:
        raise StepError("none of these hosts belongs to a replica", found=fold_hosts(list(fleet.hosts)),
                        next="invoke plan shows which hosts make a replica")
    return plan, found


def refuse_cut(replicas: Sequence[ReplicaPlan], hosts: Sequence[str], verb: str) -> None:
    """Raise InputError when a `--limit` cuts a replica: these verbs act on whole replicas."""
    for replica in replicas:
        every = _hosts_of(replica, replicas)
        inside = [host for host in every if host in hosts]
        if inside and len(inside) < len(every):
            outside = [host for host in every if host not in hosts]
            raise InputError(f"--limit cuts the replica {replica.whole}: {verb} acts on whole replicas",
                             expected=fold_hosts(list(every)),
                             found=f"{fold_hosts(inside)} without {fold_hosts(outside)}",
                             next=f"--limit {':'.join(every)}")


def _ask(fleet: Fleet, plan: LaunchPlan, replicas: Sequence[ReplicaPlan]
         ) -> tuple[dict[str, HostFacts], dict[str, Mapping[str, Any] | None]]:
    addresses: Mapping[str, str] = plan.facts.get("addresses", {})
    args: dict[str, dict[str, Any]] = {}
    for replica in replicas:
        for process in replica.processes:
            host = process.host
            peers = [addresses.get(other, other) for other in _hosts_of(replica, replicas) if other != host]
            model = (fleet.variables(host).get("deployment") or {}).get("model_path") or plan.model_path
            own = fleet.variables(host).get("cluster_address")
            args[host] = {"peers": peers or [addresses.get(host, host)], "address": str(own) if own else None,
                          "model": str(model) if str(model).startswith("/") else None,
                          "rdma_ports": _ports_wanted(fleet.variables(host))}
    results = calls.call_all(fleet, "engine_facts", args, changes=False, timeout=300)
    for host, result in calls.broken(results).items():
        raise StepError(f"what a start needs to know was not found: {calls.first_line(result)}", host=host,
                        next="invoke preflight")
    found, manifests = {}, {}
    for host, result in results.items():
        data = result.data
        several = len(_hosts_of(next(r for r in replicas if host in r.hosts), replicas)) > 1
        if several and not data.get("interface") and not is_lab(fleet):
            raise StepError("no interface holds the address that the other nodes should reach", host=host,
                            found=str(data.get("address") or data.get("unresolved")),
                            next="set cluster_address (and cluster_interface) in the inventory")
        found[host] = HostFacts(data.get("address") if several else None, data.get("interface"),
                                data.get("physical_cores"), data.get("numa_nodes"),
                                tuple(str(port) for port in data.get("rdma_ports") or ()),
                                tuple(f"{port} ({why})" for port, why in data.get("rdma_left_out") or ()),
                                data.get("gid_index"))
        manifests[host] = data.get("model")
    return found, manifests


def _ports_wanted(variables: Mapping[str, Any]) -> list[str] | None:
    """`rdma_ports` of a host: names of devices or `device:port`; an empty list is none at all, None is worked out."""
    value = variables.get("rdma_ports")
    if value is None:
        return None
    return [value] if isinstance(value, str) and value else [str(port) for port in value or ()]


def key_of(fleet: Fleet, plan_variable: str | None) -> tuple[str, str] | None:
    """(variable, value) of the endpoint's key, None when the deployment has none."""
    secret = api_key_of(fleet.inventory, fleet.variables)
    return (plan_variable or "API_KEY", secret.reveal()) if secret is not None else None


def deadlines_of(fleet: Fleet, plan: LaunchPlan) -> Deadlines:
    """Deadlines from the plan's arithmetic and `start_deadlines` of the inventory. Raises InputError."""
    load = float(plan.facts.get("load_deadline_seconds") or Deadlines.load)
    lab = bool(plan.facts.get("lab"))
    values = {"rendezvous": min(Deadlines.rendezvous, load) if lab else Deadlines.rendezvous, "load": load,
              "token": min(Deadlines.token, load), "grace": 5.0 if lab else Deadlines.grace}
    given = fleet.variables(fleet.hosts[0]).get("start_deadlines") or {}
    for name, value in dict(given).items():
        if name not in values:
            raise InputError(f"`start_deadlines` knows no `{name}`", expected=", ".join(values))
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            raise InputError(f"`start_deadlines: {name}` takes seconds", found=str(value)) from None
    return Deadlines(**values)
