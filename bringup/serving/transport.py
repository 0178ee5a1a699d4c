"""Sockets where RDMA was planned: a replica that serves so is a failed start, it would be many times too slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.base.text import plural
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.causes import Cause

FILE = "NCCL_DEBUG_FILE"


def slow_transport(fleet: Fleet, launches: Mapping[str, Mapping[str, Any]]) -> Cause | None:
    """A cause when a process of these took sockets though its launch names RDMA ports; None where nothing was planned,
    nothing was written, or a host does not answer (what follows finds that out)."""
    asked = {host: document for host, document in launches.items()
             if document["env"].get("NCCL_IB_HCA") and document["env"].get(FILE)}
    if not asked:
        return None
    results = calls.call_all(fleet, "nccl_transport", {
        host: {"name": document["name"], "file": document["env"][FILE]} for host, document in asked.items()},
        changes=False)
    for host in calls.in_rank_order(asked):
        result = results[host]
        if result.bad:
            continue
        sockets = sum(count for name, count in result.data["networks"].items() if name.lower().startswith("socket"))
        if sockets:
            ports = str(asked[host]["env"]["NCCL_IB_HCA"]).lstrip("=")
            evidence = "\n".join(text for text in (result.data["device"], result.data["line"]) if text)
            return Cause("transport", host, f"{plural(sockets, 'process', 'processes')} took sockets, RDMA was planned "
                         f"over {ports}", "the collective library found no usable RDMA port and went on without a word",
                         "invoke preflight (rdma); rdma_ports: [] plans sockets", evidence, lies_in="host")
    return None
