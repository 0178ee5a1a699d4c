"""What each host must be, out of the inventory: the deployment's plan, its locks, addresses, overrides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.paths import DEFAULT_ROOT, Project
from bringup.base.text import nearest
from bringup.inventory.model import Inventory
from bringup.preflight import baseline
from bringup.preflight.checks.network import is_address, is_loopback
from bringup.preflight.probes import Questions
from bringup.preflight.requirement import Need, limits, profiles
from bringup.serving.plan import LaunchPlan, ProcessPlan, ReplicaPlan
from bringup.weights.wanted import read_weights

Variables = Callable[[str], Mapping[str, Any]]
MANY_HOSTS = 64
"""Above this many hosts each asks only its replica's mates, not every host: pairs grow with the square."""
_FRACTIONS = ("--gpu-memory-utilization", "--mem-fraction-static")
_TRANSPORTS = ("rdma", "tcp")
_PINNED = re.compile(r"^(torch|torch-npu|numpy|nvidia-cuda-runtime(?:-cu1\d)?)==([^\s;\\]+)", re.MULTILINE)


def needs_of(inventory: Inventory, project: Project, variables: Variables, hosts: Sequence[str]) -> dict[str, Need]:
    """The need of each host. Raises InputError where the deployment or an override of ours is wrong."""
    needs = _needs(inventory, project, variables, hosts)
    recorded = baseline.read(baseline.path_of(project, inventory))
    return {host: replace(need, baseline=recorded.get(host)) for host, need in needs.items()} if recorded else needs


def _needs(inventory: Inventory, project: Project, variables: Variables, hosts: Sequence[str]) -> dict[str, Need]:
    addresses = {host: address_of(host, variables(host)) for host in hosts}
    if not any(variables(host).get("deployment") for host in hosts):
        return {host: _bare(variables(host), addresses) for host in hosts}
    from bringup.serving.planner import make_plan

    lab = any(_flag(variables(host), "bringup_lab", False) for host in hosts)
    plan = make_plan(inventory, project, variables, lab=lab)
    wheels = _wheels(project, plan.environment)
    return {host: _planned(plan, host, variables(host), addresses, wheels) for host in hosts}


def headline(plan_needs: Mapping[str, Need]) -> str:
    """`16 hosts, 8 replicas of 2 · zai-org/GLM-5.1 default on vllm`, for the report's first line."""
    from bringup.base.text import plural

    parts = [plural(len(plan_needs), "host")]
    first = next((need for need in plan_needs.values() if need.deployed), None)
    replicas = {tuple(need.nodes) for need in plan_needs.values() if need.nodes}
    if replicas:
        sizes = sorted({len(nodes) for nodes in replicas})
        parts[0] += f", {plural(len(replicas), 'replica')} of {sizes[0]}"
    if first is not None:
        parts.append(f"{first.recipe} {first.variant} on {first.engine}, {first.hardware}")
    if any(need.recorded for need in plan_needs.values()):
        parts.append("accelerators replayed from a recording")
    return " · ".join(parts)


FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "RANK_TABLE_FILE", "RANKTABLEFILE")
"""Variables of a plan that name a file on the host."""


def address_of(host: str, variables: Mapping[str, Any]) -> str:
    """What the others reach a host by: `cluster_address`, else where it is connected to, else its name."""
    for name in ("cluster_address", "ansible_host"):
        value = variables.get(name)
        if value not in (None, ""):
            return str(value)
    return host


def questions(host: str, need: Need, needs: Mapping[str, Need] | None = None) -> Questions:
    """What the probes of a host ask about. `needs` are those of all hosts, for the ports that its mates will bind."""
    mates = need.addresses if len(need.addresses) <= MANY_HOSTS else {
        name: address for name, address in need.addresses.items() if name in need.nodes}
    peers = {name: address for name, address in mates.items() if name != host and not is_loopback(address)}
    names = [] if is_loopback(need.addresses.get(host, "")) else [host, *(n for n in mates if not is_address(n))]
    paths = list(dict.fromkeys(path for path in ("/", need.root, need.model_path, "/tmp", "/dev/shm",
                                                  f"~{need.login}") if path))
    chosen = {name: value for name, value in need.env.items() if name.startswith("NCCL_") and "$" not in value}
    files = sorted({need.env[name] for name in FILES if need.env.get(name, "").startswith("/")})
    return Questions(files=files, urls=list(need.urls), nccl_tests=need.nccl_tests, torch_python=need.torch_python,
                     environment=chosen, names=names, peers=peers, paths=paths,
                     run_paths=list(dict.fromkeys((need.root, "/tmp"))),
                     model_path=need.model_path, user=need.account, root=need.root,
                     listen=[] if is_loopback(need.addresses.get(host, "")) else sorted(need.ports),
                     dial={mate: sorted(needs[mate].ports) for mate in need.nodes
                           if needs and mate in needs and mate != host})


def _bare(variables: Mapping[str, Any], addresses: Mapping[str, str]) -> Need:
    return Need(addresses=addresses, **_site(variables))


def _site(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What host variables of ours say, whatever the plan is."""
    transport = str(variables.get("transport") or "")
    if transport not in ("", *_TRANSPORTS):
        near = nearest(transport, _TRANSPORTS)
        raise InputError(f"`transport` is rdma or tcp, not `{transport}`", next=f"transport: {near}" if near else None)
    ports = variables.get("rdma_ports") or ()
    urls = variables.get("bringup_urls") or ()
    urls = tuple(str(url) for url in ([urls] if isinstance(urls, str) else urls))
    wrong = next((url for url in urls if not re.match(r"https?://[^/\s@]+(/\S*)?$", url)), None)
    if wrong is not None:
        raise InputError("`bringup_urls` takes addresses of http or https, without an account", found=wrong)
    accelerators = variables.get("accelerators")
    if accelerators is not None and not str(accelerators).isdecimal():
        raise InputError("`accelerators` takes a whole number", found=str(accelerators))
    return {
        "root": str(variables.get("bringup_root") or DEFAULT_ROOT),
        "privileged": _flag(variables, "bringup_privileged", True),
        "recorded": bool(variables.get("bringup_replay")),
        "transport": transport,
        "rdma_ports": tuple(str(port) for port in ([ports] if isinstance(ports, str) else ports)),
        "accelerators": int(accelerators) if accelerators is not None else None,
        "account": str(variables.get("bringup_account") or ""),
        "login": str(variables.get("ansible_user") or ""),
        "cpu_variant": str(variables.get("kt_cpu_variant") or ""),
        "tolerance": _percent(variables.get("bringup_baseline_tolerance")),
        "urls": urls,
        "nccl_tests": str(variables.get("bringup_nccl_tests") or ""),
        "torch_python": str(variables.get("bringup_torch_python") or ""),
    }


def _percent(value: Any) -> float:
    if value in (None, ""):
        return limits()["baseline_tolerance"].number
    try:
        found = float(str(value).rstrip("% "))
    except ValueError:
        found = -1.0
    if not 0 <= found < 100:
        raise InputError("`bringup_baseline_tolerance` is a percent from 0 to below 100", found=str(value))
    return found


def _flag(variables: Mapping[str, Any], name: str, default: bool) -> bool:
    value = variables.get(name, default)
    return value if isinstance(value, bool) else str(value).lower() in ("true", "yes", "on", "1")


def _planned(plan: LaunchPlan, host: str, variables: Mapping[str, Any], addresses: Mapping[str, str],
             wheels: Mapping[str, str]) -> Need:
    replica = next((one for one in plan.replicas if host in one.hosts), None)
    # a node may hold several engines: two pools, a router before them
    here = [one for other in plan.replicas for one in other.processes if one.host == host]
    process = next((one for one in here if one.ranks), here[0] if here else None)
    numbers = plan.facts
    weights = numbers.get("weights_gb") or float(numbers["needed_gb"]) / 1.2
    per_device = numbers.get("weights_per_device_gb")
    known = {**addresses, **{name: str(value) for name, value in dict(numbers.get("addresses") or {}).items()
                             if is_address(str(value))}}
    hardware = plan.hardware
    site = _site(variables)
    ranks = sum(len(one.ranks) for one in here)
    if site["accelerators"] is None and ranks:
        site["accelerators"] = None if ranks == numbers.get("devices_per_node") else ranks
    model_path = str((variables.get("deployment") or {}).get("model_path") or plan.model_path)
    wanted = read_weights(variables)
    return Need(
        deployed=True, hardware=hardware, profile=profiles().get(hardware), engine=plan.engine,
        variant=str(numbers.get("precision") or plan.variant), recipe=plan.recipe, manager=plan.manager,
        environment=plan.environment, model_path=model_path, weights_bytes=int(float(weights) * 1e9),
        weights_fetched=wanted is not None and wanted.fetched,
        weights_per_device=int(float(per_device) * 1e9) if per_device else None,
        memory_fraction=_fraction(process, plan.engine), memory_minimum=int(float(numbers["needed_gb"]) * 1e9),
        memory_source=f"recipe {plan.recipe}: vram_minimum_gb",
        ports={port: what for one in here for port, what in _ports(one).items()},
        nodes=_nodes(plan, replica), addresses=known, env=process.environment if process else {},
        spare=replica is None, cuda_of_wheel=wheels.get("cuda", ""), wheel=wheels.get("wheel", ""),
        torch=wheels.get("torch", ""), torch_npu=wheels.get("torch-npu", ""), numpy=wheels.get("numpy", ""), **site)


def _nodes(plan: LaunchPlan, replica: ReplicaPlan | None) -> tuple[str, ...]:
    """The hosts of a replica, of one with pools those of all its parts."""
    parts = plan.wholes[replica.whole] if replica is not None else ()
    return tuple(dict.fromkeys(host for part in parts for host in part.hosts))


def _ports(process: ProcessPlan | None) -> dict[int, str]:
    if process is None:
        return {}
    out = dict.fromkeys(process.ports, "engine")
    if process.rendezvous and process.rendezvous[1] in out:
        out[process.rendezvous[1]] = "rendezvous"
    if process.http_port is not None:
        out[process.http_port] = "HTTP"
    return out


def _fraction(process: ProcessPlan | None, engine: str) -> float | None:
    if process is None:
        return None
    argv = process.argv
    for flag in _FRACTIONS:
        if flag in argv[:-1]:
            try:
                return float(argv[argv.index(flag) + 1])
            except ValueError:
                return None
    # vLLM takes 0.9 when nothing is said; SGLang works its fraction out by itself
    return 0.9 if engine == "vllm" else None


def _wheels(project: Project, environment: str) -> dict[str, str]:
    """CUDA, torch, torch_npu and numpy of an environment's lock; empty where there is none or it brings no CUDA."""
    folder = project.root / "envs" / environment / "locks"
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        found = read_wheels(path)
        if found:
            return found
    return {}


def read_wheels(path: Path) -> dict[str, str]:
    """The versions in a lock that a driver must go with."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    found = dict(_PINNED.findall(text))
    out = {name: found[name] for name in ("torch", "torch-npu", "numpy") if name in found}
    local = re.search(r"\+cu(\d{2})(\d)$", out.get("torch", ""))
    runtime = next((value for name, value in found.items() if name.startswith("nvidia-cuda-runtime")), "")
    if local:
        out["cuda"] = f"{local.group(1)}.{local.group(2)}"
    elif runtime:
        out["cuda"] = ".".join(runtime.split(".")[:2])
    if "cuda" in out and "torch" in out:
        tag = f"cu{out['cuda'].replace('.', '')}"
        out["wheel"] = f"torch {out['torch']}" + ("" if local else f" ({tag})")
    return out if "cuda" in out or "torch-npu" in out else {}
