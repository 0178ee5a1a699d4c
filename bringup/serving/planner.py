"""Work out a launch plan from the inventory: a pure function, no host is contacted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.paths import Project
from bringup.base.secrets import SCRUBBER, Secret
from bringup.base.text import nearest
from bringup.inventory.model import Inventory
from bringup.serving.engines.facts import Engine, engine_named
from bringup.serving.plan import ROUTER_ROLE, LaunchPlan, ProcessPlan, ReplicaPlan
from bringup.serving.planning.deployment import Deployment, read_deployment
from bringup.serving.planning.fit import Choice, Misfit, arithmetic
from bringup.serving.planning.near import settle_or_tell, with_nearest
from bringup.serving.planning.pools import POOLS, pool_numbers, pool_replica
from bringup.serving.planning.ranks import world_size
from bringup.serving.planning.replicas import cut_replicas, host_groups, with_spares
from bringup.serving.planning.router import PROGRAM as ROUTER
from bringup.serving.planning.router import missing as router_missing
from bringup.serving.planning.site import (
    HostFacts,
    Node,
    Site,
    arguments_of,
    environment_of,
    rdma_of,
    serves_http,
)
from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.render import INTERFACE, Rendering, Request
from bringup.serving.recipes.schema import Library
from bringup.serving.recipes.servers import render_for
from bringup.serving.traffic import hooks_of
from bringup.serving.versions import at_least, check_flag_table, check_parsers, flag_value

Variables = Callable[[str], Mapping[str, Any]]
LAB_DEADLINE = 60.0


def make_plan(inventory: Inventory, project: Project, variables: Variables, *, lab: bool,
              facts: Mapping[str, HostFacts] | None = None, pools: bool = False) -> LaunchPlan:
    """The plan of the inventory's deployment.

    `variables(host)` are a host's rendered variables. `facts` are what was found on hosts (address and interface on
    the cluster network, cores); what is unknown stays in the plan as its name ($IFACE_NAME). With `pools` a plan is
    made also where the router before two pools is missing: to be shown, not run. Raises InputError with file and line,
    and the nearest combination that fits.
    """
    base = _base(inventory, project, variables)
    deployment, engine, choice = base.deployment, base.engine, base.choice
    try:
        replicas, spare = cut_replicas(inventory, deployment, base.nodes)
    except Misfit as error:
        raise with_nearest(error, base.library, choice.recipe, deployment, _host_count(inventory)) from None
    replicas, spare = with_spares(replicas, spare, variables(next(iter(inventory.hosts))).get("bringup_replace"))
    paths = {host: str((variables(host).get("deployment") or {}).get("model_path") or deployment.model_path)
             for hosts in replicas.values() for host in hosts}
    renderings = {path: _rendered(base, path) for path in dict.fromkeys(paths.values())}
    numbers = _numbers(base, lab, next(iter(renderings.values())))
    deadline = max(float(numbers["load_deadline_seconds"]), _wished_load(variables(next(iter(inventory.hosts)))))
    first = next(iter(renderings.values()))
    sites = {name: _site(base, first, [_node(host, variables(host), (facts or {}).get(host, HostFacts()), lab)
                                       for host in hosts], lab, deadline) for name, hosts in replicas.items()}
    lacking = _router_of(base, project, lab)
    if lacking is not None and not pools:
        raise lacking
    planned = tuple(part for name, site in sites.items() for part in _parts(
        choice, name, site, {host: renderings[paths[host]] for host in replicas[name]}, lab))
    for replica in planned:
        if replica.head.role == ROUTER_ROLE:
            continue
        check_parsers(engine.name, base.version, replica.head.argv)
        check_flag_table(engine.name, base.version, replica.head.argv)
    nodes = [node for site in sites.values() for node in site.nodes]
    hooks = hooks_of(inventory, variables)
    numbers["traffic"] = None if hooks is None else {
        "out": hooks.out.shown, "in": hooks.back.shown, "deadline": hooks.deadline}
    numbers.update({
        "addresses": {node.host: node.address for node in nodes},
        "address_reasons": {node.host: node.address_reason for node in nodes},
        "interface_reasons": {node.host: node.interface_reason for node in nodes},
        "rdma_reasons": {host: reason for site in sites.values() if (rdma := rdma_of(site.nodes)) is not None
                         for host, reason in rdma.reasons.items()},
    })
    served = flag_value(planned[0].head.argv, engine.served_name_flag) or deployment.model_path
    return LaunchPlan(
        recipe=choice.recipe.name, engine=engine.name, engine_version=base.version, hardware=choice.hardware.name,
        strategy=choice.strategy.name, variant=choice.variant.key, features=choice.features,
        environment=deployment.environment, manager=deployment.manager, model_path=deployment.model_path,
        served_name=served, replicas=planned, spare=spare,
        api_key_variable=engine.api_key_env if deployment.has_api_key else None, facts=numbers,
        image=deployment.image, container=_container(base) if deployment.image else None,
        warnings=(*_warnings(deployment, engine, lab, numbers), *_told(lacking)),
    )


def _parts(choice: Choice, name: str, site: Site, renderings: Mapping[str, Rendering], lab: bool
           ) -> tuple[ReplicaPlan, ...]:
    """A replica's parts: itself, or its two pools and the router before them."""
    if choice.strategy.deploy_type == POOLS:
        return pool_replica(name, site, renderings, choice, lab)
    return (_replica(name, site, renderings, lab),)


def _router_of(base: _Base, project: Project, lab: bool) -> InputError | None:
    """Why the router before two pools cannot run; None where there are no pools or nothing speaks against it."""
    deployment = base.deployment
    if base.choice.strategy.deploy_type != POOLS:
        return None
    folder = project.root / "envs" / deployment.environment
    locked = locked_version(folder, ROUTER) if deployment.environment else None
    why = router_missing(deployment.router, deployment.environment, deployment.image, locked, lab)
    if why is None:
        return None
    return InputError(why, where=deployment.where("strategy"), expected=f"{ROUTER} in its lock, or `router: program`",
                      next=f"add {ROUTER} to envs/{deployment.environment}/requirements.in, then: invoke env.lock "
                           f"--env {deployment.environment}")


def _told(error: InputError | None) -> tuple[str, ...]:
    return (f"provision refuses this: {error.what}; {error.next}",) if error is not None else ()


@dataclass(frozen=True)
class _Base:
    """What holds for every replica."""

    deployment: Deployment
    engine: Engine
    library: Library
    choice: Choice
    version: str
    version_reason: str
    nodes: int
    nodes_reason: str


def _base(inventory: Inventory, project: Project, variables: Variables) -> _Base:
    deployment = deployment_of(inventory, variables)
    engine = engine_named(deployment.engine, deployment.where("engine"))
    library = load_library(project.root / deployment.recipes if deployment.recipes else None)
    name = deployment.recipe
    if name.endswith((".yml", ".yaml")):
        name = str(project.root / name)
    settled = settle_or_tell(library, find_recipe(library, name, deployment.where("recipe")), deployment,
                             _host_count(inventory))
    choice = settled.choice
    version, version_reason = _version(project, deployment, engine)
    _check_version(choice, engine, version, deployment)
    return _Base(deployment, engine, library, choice, version, version_reason, settled.nodes, settled.reason)


def _host_count(inventory: Inventory) -> int:
    return sum(len(hosts) for hosts in host_groups(inventory))


def _container(base: _Base) -> dict[str, Any]:
    """What the containers of a plan have in common; devices and image are a host's own."""
    wishes = base.deployment.container
    return {"client_kind": base.deployment.manager, "client": wishes.client, "brand": base.choice.hardware.brand,
            # two pools hand the KV cache to each other: what several nodes need, they need on one
            "nodes": max(2, base.nodes) if base.choice.strategy.deploy_type == POOLS else base.nodes,
            "user": wishes.user, "shm_gb": wishes.shm_gb, "mounts": list(wishes.mounts),
            "options": list(wishes.options), "devices_per_node": base.choice.hardware.gpu_count}


def _request(choice: Choice, nodes: int) -> Request:
    return Request(choice.variant.key, choice.strategy.name, choice.hardware.name, choice.features, nodes)


def _rendered(base: _Base, model_path: str) -> Rendering:
    choice = base.choice
    request = _request(choice, base.nodes)
    return render_for(base.library, choice.recipe, request, base.engine.name, base.version, model_path=model_path)


def _numbers(base: _Base, lab: bool, rendering: Rendering) -> dict[str, Any]:
    """The arithmetic and what the page tells beside it."""
    deployment, choice = base.deployment, base.choice
    words = [*_words_of(rendering), *deployment.arguments]
    own = flag_value(words, "--max-model-len") or flag_value(words, "--context-length") or ""
    context = deployment.context_length or (int(own) if own.isdigit() else choice.recipe.context_length)
    numbers = dict(arithmetic(choice, base.nodes, context))
    if choice.strategy.deploy_type == POOLS:
        numbers.update(pool_numbers(choice, deployment, rendering, base.nodes))
    if deployment.load_deadline or lab:
        numbers["load_deadline_seconds"] = float(deployment.load_deadline or LAB_DEADLINE)
    numbers.update({
        "nodes": base.nodes, "nodes_reason": base.nodes_reason, "version_reason": base.version_reason,
        "model_id": choice.variant.model_id or choice.recipe.model_id, "precision": choice.variant.precision,
        "requires": dict(choice.recipe.requires) if choice.engine is None else {},
        "hardware_name": choice.hardware.display_name, "strategy_name": choice.strategy.display_name,
        "reasoning_field": base.engine.reasoning_field, "lab": lab,
        "environments": list(deployment.environments or ((deployment.environment,) if deployment.environment else ())),
        "set_env": list(deployment.set_env if deployment.set_env is not None else () if lab else base.engine.set_env),
        "check_flags": deployment.check_flags, "devices_per_node": choice.hardware.gpu_count,
        "notes": list(choice.recipe.notes) + list(choice.engine.notes if choice.engine else ()),
    })
    return numbers


def _wished_load(variables: Mapping[str, Any]) -> float:
    """`start_deadlines: load` of the inventory, 0 without it: the engine's own limits are above this one too. A value
    that is no number is told where the deadlines are read."""
    given = variables.get("start_deadlines")
    text = str(given.get("load", "")) if isinstance(given, Mapping) else ""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def deployment_of(inventory: Inventory, variables: Variables) -> Deployment:
    """The one deployment of the inventory. Raises InputError when it has none or hosts disagree."""
    heads, workers = host_groups(inventory)
    hosts = [*heads, *workers]
    shown = Origin(inventory.shown_as or ", ".join(str(source) for source in inventory.sources) or "inventory")
    if not hosts:
        raise InputError("the inventory has no hosts", where=shown)
    first, *others = (read_deployment(variables(host).get("deployment"), shown,
                                      inventory.variables(host).get("deployment")) for host in hosts)
    for host, other in zip(hosts[1:], others, strict=True):
        # the model folder may lie elsewhere on each host, nothing else may differ
        if replace(other, model_path=first.model_path) != first:
            raise InputError(f"{hosts[0]} and {host} have different `deployment:` values", where=other.origin,
                             expected="one deployment an inventory: set it for a group that holds all its hosts")
    return first


def api_key_of(inventory: Inventory, variables: Variables) -> Secret | None:
    """The endpoint's key from `deployment.api_key`, known to the scrubber from now on; None when there is none."""
    heads, workers = host_groups(inventory)
    for host in [*heads, *workers][:1]:
        value = (variables(host).get("deployment") or {}).get("api_key")
        if value not in (None, ""):
            SCRUBBER.add(str(value))
            return Secret(str(value))
    return None


def _site(base: _Base, rendering: Rendering, nodes: Sequence[Node], lab: bool, deadline: float) -> Site:
    deployment, engine, choice = base.deployment, base.engine, base.choice
    words = _words_of(rendering)
    own_port = None if rendering.prefill else flag_value(words, "--port")
    data_parallel = "--data-parallel-address" in words
    meeting = deployment.data_parallel_rpc_port if data_parallel else deployment.master_port
    own_rpc = flag_value(words, "--data-parallel-rpc-port") or ""
    rpc_port = int(own_rpc) if own_rpc.isdigit() else 13345
    if deployment.port:
        port, port_reason = deployment.port, "port in the inventory"
    else:
        port, port_reason = int(own_port or engine.port), f"default port of {engine.name}"
    if deployment.host:
        bind, bind_reason = deployment.host, "host in the inventory"
    elif lab:
        bind, bind_reason = nodes[0].address, "the lab's machines share this one: each serves on its own address"
    else:
        bind, bind_reason = "0.0.0.0", "served on every address of the head"
    return Site(
        deployment=deployment, engine=engine, nodes=tuple(nodes),
        served_name=deployment.served_name or choice.variant.model_id or choice.recipe.model_id, port=port,
        port_reason=port_reason, meeting_port=meeting or (rpc_port if data_parallel else engine.meeting_port),
        meeting_reason="port in the inventory" if meeting else f"port where head and workers of {engine.name} meet",
        bind=bind, bind_reason=bind_reason, load_deadline=deadline,
    )


def _words_of(rendering: Rendering) -> list[str]:
    """The words of the head, or of the prefill pool."""
    arguments = rendering.prefill.arguments if rendering.prefill else rendering.nodes[0]
    return [word for argument in arguments for word in argument.words]


def _node(host: str, variables: Mapping[str, Any], found: HostFacts, lab: bool) -> Node:
    if variables.get("cluster_address"):
        address, reason = str(variables["cluster_address"]), "cluster_address"
    elif found.address:
        address, reason = found.address, "address on the route between the nodes"
    elif variables.get("ansible_host"):
        address, reason = str(variables["ansible_host"]), "ansible_host (cluster_address is not set)"
    else:
        address, reason = host, "the name in the inventory (cluster_address is not set)"
    if variables.get("cluster_interface"):
        interface, why = str(variables["cluster_interface"]), "cluster_interface"
    elif found.interface:
        interface, why = found.interface, "interface of the route between the nodes"
    elif lab:
        interface, why = "lo", "the lab's machines are loopback addresses"
    else:
        interface, why = INTERFACE, "found on the host by its route to the others when the release is made"
    cores, numa = variables.get("physical_cores"), variables.get("numa_nodes")
    index = variables.get("gid_index")
    facts = HostFacts(address, interface, _count(host, "physical_cores", cores) or found.physical_cores,
                      _count(host, "numa_nodes", numa) or found.numa_nodes, found.rdma_ports, found.rdma_left_out,
                      _count(host, "gid_index", index) if index not in (None, "") else found.gid_index)
    return Node(host, address, reason, interface, why, facts)


def _count(host: str, name: str, value: Any) -> int | None:
    if value in (None, ""):
        return None
    text = str(value).strip()
    if not text.isdigit():
        raise InputError(f"`{name}` of {host} takes a whole number", found=text)
    return int(text)


def _replica(name: str, site: Site, renderings: Mapping[str, Rendering], lab: bool) -> ReplicaPlan:
    words = [word for argument in arguments_of(site, renderings[site.head.host], 0) for word in argument.words]
    world, nodes = world_size(site.engine, words), len(site.nodes)
    if world % nodes:
        raise InputError(f"{world} ranks cannot be spread evenly over {nodes} nodes",
                         where=site.deployment.where("arguments"))
    local = world // nodes
    processes = tuple(_process(site, renderings[node.host], rank, local, lab) for rank, node in enumerate(site.nodes))
    return ReplicaPlan(name, processes, world, f"http://{site.head.address}:{site.port}/v1")


def _process(site: Site, rendering: Rendering, rank: int, local: int, lab: bool) -> ProcessPlan:
    http = serves_http(site, rendering, rank)
    ports = [site.port] if http else []
    several = len(site.nodes) > 1
    if rank == 0 and several:
        ports += [site.meeting_port, *(site.meeting_port + offset for offset in site.engine.more_ports)]
    bound = site if rank == 0 or not lab or site.deployment.host else _bound_to(site, rank)
    return ProcessPlan(
        host=site.nodes[rank].host, role="head" if rank == 0 else "worker", node_rank=rank,
        ranks=tuple(range(rank * local, (rank + 1) * local)), command=rendering.command,
        arguments=arguments_of(bound, rendering, rank), env=environment_of(site, rendering, rank),
        http_port=site.port if http else None, ports=tuple(ports),
        rendezvous=(site.head.address, site.meeting_port) if several else None,
    )


def _bound_to(site: Site, rank: int) -> Site:
    return Site(**{**site.__dict__, "bind": site.nodes[rank].address})


def _version(project: Project, deployment: Deployment, engine: Engine) -> tuple[str, str]:
    if deployment.engine_version:
        return deployment.engine_version, "engine_version in the inventory"
    if deployment.image:
        tag = re.search(r":v?(\d+\.\d+[\w.]*)[^:/@]*(?:@|$)", deployment.image)
        if tag:
            return tag.group(1), "the image's tag"
        return engine.known_version, "the image's name tells none; the version of our defaults"
    shelf = project.root / "envs"
    folder = shelf / deployment.environment
    known = sorted(path.name for path in shelf.iterdir() if path.is_dir()) if shelf.is_dir() else []
    for name in (deployment.environment, *deployment.environments):
        if known and name not in known:
            near = nearest(name, known)
            raise InputError(f"no environment is called `{name}`", where=deployment.where("environment"),
                             expected=", ".join(known), next=f"environment: {near}" if near else None)
    found = locked_version(folder, engine.package)
    if found:
        return found, f"lock of {deployment.environment}"
    return engine.known_version, f"{deployment.environment} locks no {engine.package}; the version of our defaults"


def locked_version(folder: Path, package: str) -> str | None:
    """The version that an environment's lock (or its requirements) pins a package to, or None."""
    pattern = re.compile(rf"^\s*{re.escape(package)}(?:\[[^]]*\])?\s*==\s*([\w.+-]+)", re.M | re.I)
    for path in [*sorted(folder.glob("locks/*.txt")), *sorted(folder.glob("*.in"))]:
        match = pattern.search(path.read_text(encoding="utf-8", errors="replace"))
        if match:
            return match.group(1)
    return None


def _check_version(choice: Choice, engine: Engine, version: str, deployment: Deployment) -> None:
    floor = choice.engine.min_version if choice.engine else (
        choice.variant.min_vllm_version or choice.recipe.min_vllm_version)
    if floor and not at_least(version, floor):
        raise InputError(f"{choice.recipe.name} needs {engine.name} {floor} or newer",
                         where=deployment.where("engine_version"), found=version,
                         next=f"an environment with {engine.package}>={floor}")


def _warnings(deployment: Deployment, engine: Engine, lab: bool, numbers: Mapping[str, Any]) -> tuple[str, ...]:
    out = []
    if lab:
        out.append("the lab: GPUs are replayed from a recorded host, the engine is the lab's own")
    if deployment.has_api_key and engine.api_key_env is None:
        out.append(f"{engine.name} takes the API key as an argument only: every user of the head can read it with ps")
    if not deployment.has_api_key and not lab:
        out.append("no api_key: whoever reaches the port can use the endpoint")
    if numbers.get("host_memory_gb"):
        out.append(f"the offloaded experts need about {numbers['host_memory_gb']:,.0f} GB of host memory")
    if deployment.distributed_timeout and deployment.distributed_timeout < numbers["load_deadline_seconds"] and not lab:
        out.append(f"distributed_timeout {deployment.distributed_timeout} s is under the start's own deadline of "
                   f"{numbers['load_deadline_seconds']:.0f} s: a rank that still compiles is taken for one that hangs")
    tokens = numbers.get("kv_tokens_of_rank")
    if tokens is not None and tokens < numbers["context_length"] and not lab:
        each = " of a data parallel rank" if numbers["data_parallel"] > 1 else ""
        out.append(f"the KV cache{each} holds about {tokens:,} tokens, the context is {numbers['context_length']:,}: "
                   "set context_length")
    return tuple(out)
