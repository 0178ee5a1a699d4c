"""A plan as a person reads it, and as JSON."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from bringup.base.text import duration, fold_hosts, plural
from bringup.serving.plan import Argument, LaunchPlan, ProcessPlan, ReplicaPlan
from bringup.serving.planning.site import ENV_REASONS

NARROW, WIDE = 80, 160


def width_of_screen() -> int:
    """Columns of the terminal, 80 to 160; 160 where there is none (a pipe wraps nothing away)."""
    return max(NARROW, min(WIDE, shutil.get_terminal_size((WIDE, 24)).columns))


def as_document(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "recipe": plan.recipe, "engine": plan.engine, "engine_version": plan.engine_version,
        "hardware": plan.hardware, "strategy": plan.strategy, "variant": plan.variant,
        "features": list(plan.features), "environment": plan.environment, "manager": plan.manager,
        "model_path": plan.model_path, "served_name": plan.served_name, "spare": list(plan.spare),
        "api_key_variable": plan.api_key_variable, "facts": dict(plan.facts), "warnings": list(plan.warnings),
        "replicas": [{"name": replica.name, "group": replica.group or None, "world_size": replica.world_size,
                      "endpoint": replica.endpoint,
                      "processes": [_process(plan, process) for process in replica.processes]}
                     for replica in plan.replicas],
    }


def _process(plan: LaunchPlan, process: ProcessPlan) -> dict[str, Any]:
    return {
        "host": process.host, "role": process.role, "node_rank": process.node_rank, "ranks": list(process.ranks),
        "http_port": process.http_port, "ports": list(process.ports),
        "rendezvous": list(process.rendezvous) if process.rendezvous else None, "argv": process.argv,
        "command": list(process.command),
        "arguments": [{"words": list(argument.words), "layer": argument.layer, "reason": argument.reason}
                      for argument in process.arguments],
        "env": {name: {"value": value, "layer": layer, "reason": _env_reason(plan, process.host, name)}
                for name, (value, layer) in process.env.items()},
    }


def as_lines(plan: LaunchPlan, width: int) -> Iterator[str]:
    """The page: what fits, who runs what, every command with where each part comes from. No line exceeds `width`."""
    facts = plan.facts
    nodes = int(facts["nodes"])
    yield from _wrapped(
        f"{plan.recipe} {facts['precision']} on {plan.engine} {plan.engine_version}, {plan.strategy}: "
        f"{plural(len(plan.wholes), 'replica')} of {plural(nodes, 'node')}", width)
    yield ""
    for name, text in _overview(plan):
        yield from _field(name, text, width)
    for warning in plan.warnings:
        yield from _field("WARN", warning, width)
    for note in facts.get("notes", ()):
        yield from _field("note", note, width)
    for number, parts in enumerate(plan.wholes.values()):
        for replica in parts:
            yield ""
            yield from _replica(plan, replica, width, whole=number == 0)
    first, *others = plan.wholes
    if others:
        yield ""
        yield from _wrapped(f"The commands of the other {plural(len(others), 'replica')} are those of "
                            f"{first} with their own hosts and addresses.", width)


def _overview(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    facts = plan.facts
    yield "nodes", f"{facts['nodes']} a replica: {facts['nodes_reason']}; {facts['hardware_name']}"
    if plan.spare:
        yield "spare", fold_hosts(plan.spare)
    yield "sizes", (f"tensor parallel {facts['tensor_parallel']} x pipeline {facts['pipeline_parallel']} x data "
                    f"parallel {facts['data_parallel']}, {facts['devices_per_node']} devices a node")
    yield "memory", _memory(plan)
    if facts.get("host_memory_gb"):
        yield "host memory", f"about {facts['host_memory_gb']:,.0f} GB for the experts that stay there"
    yield "version", f"{plan.engine_version} ({facts['version_reason']})"
    if facts.get("requires"):
        yield "needs", ", ".join(f"{name}{floor}" for name, floor in facts["requires"].items())
    yield "model", f"{plan.model_path}, served as {plan.served_name}"
    yield from _kept_by(plan)
    if facts.get("start_order"):
        yield "order", f"{facts['start_order']} (policy {facts['router_policy']})"
    yield "start", f"given up after {duration(float(facts['load_deadline_seconds']))} without an answer"
    yield "traffic", _traffic(plan)
    if plan.api_key_variable:
        yield "key", f"in {plan.api_key_variable}, from api_key of the inventory"


def _traffic(plan: LaunchPlan) -> str:
    """What clients notice when a replica stops."""
    hooks = plan.facts.get("traffic")
    if not hooks:
        return "no traffic_out and traffic_in: clients will see each restart of a replica"
    return (f"before a stop {hooks['out']}; requests in flight get {duration(float(hooks['deadline']))}; after the "
            f"contract {hooks['in']}")


def _kept_by(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    """What the processes run in, who keeps them, and what is sourced for them."""
    box = plan.container
    if box is None:
        yield "environment", f"{plan.environment}, run by {plan.manager}"
    else:
        yield "image", f"{plan.image}, run by {plan.manager}"
        several = box["nodes"] > 1
        network = "the host's network and /dev/shm, RDMA devices" if several else f"/dev/shm of {box['shm_gb']} GB"
        user = "the image's own user" if box["user"] == "image" else "the engines' account"
        yield "container", f"{network}; {user}; model read-only; no restart policy"
    if plan.facts.get("set_env"):
        yield "sourced", (f"{', '.join(plan.facts['set_env'])}: once, in a clean shell, when the release is made; what "
                          "they set goes into it")


def _memory(plan: LaunchPlan) -> str:
    facts = plan.facts
    text = f"{facts['needed_gb']:,.0f} GB needed, {facts['there_gb']:,.0f} GB there"
    if facts.get("weights_per_device_gb") is not None:
        kept = f" and {facts['working_gb']:g} GB that the engine works in" if facts.get("working_gb") else ""
        text += (f"; {facts['weights_per_device_gb']} GB of weights{kept} on each device of {facts['device_gb']} GB, "
                 f"{facts['left_per_device_gb']} GB left at {facts['utilization']:.0%}")
    if facts.get("kv_tokens") is not None:
        text += f", about {facts['kv_tokens']:,} tokens of KV cache (context {facts['context_length']:,})"
    return text


def _replica(plan: LaunchPlan, replica: ReplicaPlan, width: int, *, whole: bool) -> Iterator[str]:
    hosts = fold_hosts(list(dict.fromkeys(replica.hosts)))
    ranks = plural(replica.world_size, "rank") if replica.world_size else "no ranks"
    asked = "" if replica.public else " (asked by the router alone)"
    yield from _wrapped(f"{replica.name}  {ranks} on {hosts}, {replica.endpoint}{asked}", width)
    addresses = plan.facts.get("addresses", {})
    reasons = plan.facts.get("address_reasons", {})
    for process in replica.processes:
        ports = ", ".join(str(port) for port in process.ports) or "none"
        yield from _wrapped(
            f"  {process.host:<12} {process.role:<7} {_ranks(process)}, ports {ports}; "
            f"{addresses.get(process.host, process.host)}: {reasons.get(process.host, '')}", width, " " * 15)
    if not whole:
        return
    shown: ProcessPlan | None = None
    for process in replica.processes:
        if shown is not None and process.node_rank > 1:
            continue
        yield ""
        yield from _command(plan, process, width)
        shown = process
    others = [process.host for process in replica.processes if process.node_rank > 1]
    if others:
        yield ""
        yield from _wrapped(f"{fold_hosts(others)}: as {replica.processes[1].host}, with "
                            "the own node rank, address and interface (--format json shows all)", width)


def _ranks(process: ProcessPlan) -> str:
    if not process.ranks:
        return f"node {process.node_rank}, no ranks, no devices"
    first, last = process.ranks[0], process.ranks[-1]
    devices = process.environment.get("CUDA_VISIBLE_DEVICES") or f"0-{last - first}"
    return f"node {process.node_rank}, ranks {first}-{last}, devices {devices}"


def _command(plan: LaunchPlan, process: ProcessPlan, width: int) -> Iterator[str]:
    yield f"{process.host}, {process.role}"
    pad = 64 if width >= 120 else 0
    for name, (value, layer) in process.env.items():
        shown = value if value.startswith("$") else shlex.quote(value)
        yield from _part(f"{name}={shown}", layer, _env_reason(plan, process.host, name), pad, width)
    yield from _part(shlex.join(process.command), "recipe", "", pad, width)
    for argument in process.arguments:
        yield from _part("  " + shlex.join(argument.words), argument.layer, _reason(argument), pad, width)


def _env_reason(plan: LaunchPlan, host: str, name: str) -> str:
    if name.endswith("_SOCKET_IFNAME"):
        return str(plan.facts.get("interface_reasons", {}).get(host, ""))
    if name == "NCCL_IB_HCA":
        return str(plan.facts.get("rdma_reasons", {}).get(host, ""))
    return ENV_REASONS.get(name, "")


def _reason(argument: Argument) -> str:
    return "" if argument.reason == "recipe" else argument.reason


def _part(text: str, layer: str, reason: str, pad: int, width: int) -> Iterator[str]:
    """A word of the command, its layer and reason: beside it where the screen is wide, under it where not."""
    told = f"{layer}: {reason}" if reason else layer
    line = "  " + text
    if pad and len(line) < pad and pad + len(told) <= width:
        yield line.ljust(pad) + told
        return
    if len(line) + 2 + len(told) <= width:
        yield f"{line}  {told}"
        return
    yield from _wrapped(line, width, "        ")
    yield from _wrapped("        " + told, width, "        ")


def _field(name: str, text: str, width: int) -> Iterator[str]:
    yield from _wrapped(f"{name:<12} {text}", width, " " * 13)


def _wrapped(text: str, width: int, indent: str = "  ") -> Sequence[str]:
    bare = text.lstrip()
    return textwrap.wrap(bare, width, initial_indent=text[:len(text) - len(bare)], subsequent_indent=indent,
                         break_on_hyphens=False) or [""]
