"""Processes of a plan with per-host values left as names, and the way back: names filled in for a host.

A name is written `@{name}`: `@{root}` the host's bringup_root, `@{env}` its environment folder, `@{--master-addr}` and
`@{NCCL_SOCKET_IFNAME}` the value of that flag or variable on that host. What is left is the same on every replica and
is what a release is named by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bringup.base.errors import StepError
from bringup.serving.plan import POOL_ROLES, ProcessPlan, ReplicaPlan

PER_HOST_FLAGS = frozenset({
    "--host", "--master-addr", "--dist-init-addr", "--data-parallel-address", "--kt-cpuinfer", "--kt-threadpool-count",
    "--disaggregation-ib-device", "--mooncake-ib-device", "--prefill", "--decode",
})
"""Flags whose value is worked out for a host or a replica."""

PER_HOST_VARIABLES = frozenset({
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "HCCL_IF_IP", "VLLM_HOST_IP",
    "HOST_IP", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "VLLM_NIXL_SIDE_CHANNEL_HOST", "UCX_NET_DEVICES", "OMP_NUM_THREADS",
})
"""Variables whose value is worked out for a host."""

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that name the devices of a process."""

CACHES: Mapping[str, str] = {
    "VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer", "DG_JIT_CACHE_DIR": "deep_gemm", "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "SGL_KERNEL_KT_CACHE_DIR": "sgl_kernel_kt", "CUDA_CACHE_PATH": "cuda",
}
"""Variable of what engines compile at run time -> folder below that of the environment and the kind of device."""

_EVERYWHERE = frozenset({"0.0.0.0", "::", "127.0.0.1", "localhost"})
_NAME = re.compile(r"@\{([^}]+)\}")


@dataclass(frozen=True)
class ProcessTemplate:
    """One process with names in place of per-host values; equal for all replicas of one shape."""

    role: str
    node_rank: int
    ranks: tuple[int, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    http_port: int | None
    ports: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"role": self.role, "node_rank": self.node_rank, "ranks": list(self.ranks), "argv": list(self.argv),
                "env": dict(self.env), "http_port": self.http_port, "ports": list(self.ports)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ProcessTemplate:
        """From JSON."""
        return cls(document["role"], document["node_rank"], tuple(document["ranks"]), tuple(document["argv"]),
                   dict(document["env"]), document["http_port"], tuple(document["ports"]))


def program_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with its program taken from the environment's folder: `vllm` becomes `@{env}/bin/vllm`."""
    first = command[0]
    return command if "/" in first else (f"@{{env}}/bin/{first}", *command[1:])


def split(process: ProcessPlan, root: str, env_path: str) -> tuple[ProcessTemplate, dict[str, str]]:
    """A process as template and the values of its host. `root` and `env_path` are absolute folders there; an empty
    `env_path` is that of a container, whose image has the program on its own path."""
    values = {"root": root, "env": env_path}
    argv = list(program_of(process.command) if env_path else process.command)
    argv = [_named(word, values) for word in argv]
    for argument in process.arguments:
        words = list(argument.words)
        flag = words[0]
        if len(words) == 1 and "=" in flag and flag.split("=", 1)[0] in PER_HOST_FLAGS:
            flag, value = flag.split("=", 1)
            argv.append(f"{flag}={_kept(flag, value, values)}")
        elif flag in PER_HOST_FLAGS and len(words) == 2:
            argv += [flag, _kept(flag, words[1], values)]
        else:
            argv += [_named(word, values) for word in words]
    env = {}
    for name, value in process.environment.items():
        env[name] = _kept(name, value, values) if name in PER_HOST_VARIABLES else _named(value, values)
    return ProcessTemplate(process.role, process.node_rank, process.ranks, tuple(argv), env, process.http_port,
                           process.ports), values


def _kept(name: str, value: str, values: dict[str, str]) -> str:
    if value in _EVERYWHERE:
        return value
    values[name] = value
    return f"@{{{name}}}"


def _named(text: str, values: Mapping[str, str]) -> str:
    for name in ("env", "root"):
        folder = values[name]
        if folder and folder != "/" and (text == folder or folder + "/" in text):
            text = text.replace(folder, f"@{{{name}}}") if text == folder else text.replace(folder + "/",
                                                                                          f"@{{{name}}}/")
    return text


def fill(template: ProcessTemplate, values: Mapping[str, str], host: str) -> tuple[list[str], dict[str, str]]:
    """Command line and environment with the host's values. Raises StepError for a name without a value."""

    def one(text: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match.group(1) not in values:
                raise StepError(f"the release wants {match.group(1)}, which is not known for this host", host=host,
                                next="set it in the inventory, then provision again")
            return values[match.group(1)]

        return _NAME.sub(value, text)

    return [one(word) for word in template.argv], {name: one(text) for name, text in template.env.items()}


def templates(replica: ReplicaPlan, roots: Mapping[str, str], environments: Mapping[str, str]
              ) -> tuple[tuple[ProcessTemplate, ...], dict[str, dict[str, str]]]:
    """All processes of a replica as templates, in start order, and the values of each host."""
    shapes, values = [], {}
    for process in replica.processes:
        shape, values[process.host] = split(process, roots[process.host], environments[process.host])
        shapes.append(shape)
    return tuple(shapes), values


def launches(replica: ReplicaPlan, shapes: Iterable[ProcessTemplate], values: Mapping[str, Mapping[str, str]],
             release: str, common: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The launch document of each host of a replica, as `agent.processes` reads it.

    `common` adds what all processes share: world_size, served_name, model_path (may hold names), secrets.
    """
    out: dict[str, dict[str, Any]] = {}
    for process, shape in zip(replica.processes, shapes, strict=True):
        host = process.host
        argv, env = fill(shape, values[host], host)
        own = host_variables(values[host], str(common.get("hardware") or ""), common.get("container"))
        env = {**own, **env}
        model = str(common.get("model_path") or "")
        for name in ("root", "env"):
            model = model.replace(f"@{{{name}}}", values[host][name])
        out[host] = {
            **common, "model_path": model, "name": f"{replica.name}-{host}", "replica": replica.name, "node": host,
            "node_rank": shape.node_rank, "role": shape.role, "ranks": list(shape.ranks), "release": release,
            "argv": argv, "env": env, "http_port": shape.http_port, "ports": list(shape.ports),
            "addresses": bound_addresses(argv, values[host]), "endpoint": _endpoint(replica, shape),
            "values": dict(values[host]),
        }
        if replica.group:
            out[host].update(group=replica.group, world_size=replica.world_size)
        if common.get("container"):
            folder = cache_folder(values[host], str(common.get("hardware") or "")) if own else ""
            out[host]["container"] = {**_container(common["container"], shape, values[host]), "caches": folder}
    return out


def host_variables(values: Mapping[str, str], hardware: str, container: Mapping[str, Any] | None) -> dict[str, str]:
    """Variables of a host's processes beside those of the release: where engines keep what they compile, and the CUDA
    toolkit that fits the environment. Not part of a release's name: a place decides nothing.

    None for a container that runs as the image's own user: what that one may write to is not known.
    """
    if container and container.get("user") == "image":
        return {}
    out = cache_variables(values, hardware) if cache_folder(values, hardware) else {}
    if values.get("cuda_home") and not container:
        out["CUDA_HOME"] = values["cuda_home"]
    return out


def cache_folder(values: Mapping[str, str], hardware: str) -> str:
    """The folder of what engines of one environment or image compile on one kind of device: no two of them share one,
    and what one start compiled the next one finds. Empty where neither is known."""
    name = values.get("environment", "")[:20]
    if values.get("image_digest"):
        name = "image-" + values["image_digest"].rpartition(":")[2][:20]
    return f"{values['root']}/cache/compiled/{name}{f'-{hardware}' if hardware else ''}" if name else ""


def cache_variables(values: Mapping[str, str], hardware: str) -> dict[str, str]:
    """The variables that name the folders below `cache_folder`."""
    return {name: f"{cache_folder(values, hardware)}/{folder}" for name, folder in CACHES.items()}


def _container(common: Mapping[str, Any], shape: ProcessTemplate, values: Mapping[str, str]) -> dict[str, Any]:
    """The container of one process: what all share, its devices (those that the variable of the vendor names, else
    as many as it has ranks), and the image by the name that this host knows it under."""
    if not shape.ranks:  # a router computes nothing: it gets no device
        return {**common, "image": values["image"], "client": values.get("client") or None, "brand": "",
                "devices": [], "whole": False}
    named = next((shape.env[name] for name in DEVICE_VARIABLES if shape.env.get(name)), None)
    if named and common["brand"] != "Huawei":
        # the variable chooses: a container that has only these would count them anew from 0
        return {**common, "image": values["image"], "client": values.get("client") or None,
                "devices": list(range(int(common["devices_per_node"]))), "whole": True}
    devices = [int(word) for word in named.split(",")] if named else list(range(len(shape.ranks)))
    whole = len(devices) == int(common["devices_per_node"])
    return {**common, "image": values["image"], "client": values.get("client") or None, "devices": devices,
            "whole": whole}


def _endpoint(replica: ReplicaPlan, shape: ProcessTemplate) -> str | None:
    """The head's address as the plan has it, with the release's own port."""
    if shape.node_rank != 0 or shape.http_port is None or shape.role in POOL_ROLES:
        return None  # of two pools clients know the router alone
    address = urlsplit(replica.endpoint).hostname or ""
    return f"http://{f'[{address}]' if ':' in address else address}:{shape.http_port}/v1"


def bound_addresses(argv: list[str], values: Mapping[str, str]) -> list[str]:
    """The addresses that the process binds; empty means every one. Only `--host` narrows it; a node of a pool that
    serves no HTTP binds its side channel alone."""
    if "--headless" in argv and values.get("VLLM_NIXL_SIDE_CHANNEL_HOST"):
        return [values["VLLM_NIXL_SIDE_CHANNEL_HOST"]]
    for at, word in enumerate(argv):
        if word == "--host" and at + 1 < len(argv) and argv[at + 1] not in ("0.0.0.0", "::"):
            own = values.get("VLLM_HOST_IP")
            return sorted({argv[at + 1], *([own] if own else [])})
    return []
