"""The router before a prefill and a decode pool: what a site asks of it, its command, whether its program is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.serving.plan import ROUTER_ROLE, Argument, ProcessPlan
from bringup.serving.recipes.render import split_flags

PROGRAM = "vllm-router"
"""Program and package of upstream's router; recipes name it by its package."""
METRICS_PORT = 29000
"""Where that router offers its own metrics, on 127.0.0.1."""
_KEYS = ("program", "arguments")
_OURS = ("--vllm-pd-disaggregation", "--prefill", "--decode", "--host", "--port")


@dataclass(frozen=True)
class RouterWishes:
    """`program` is the router's program: a name in the environment's bin, or a path on the host; `arguments` are
    further words of its command, a flag that is there is replaced in its place."""

    program: str = PROGRAM
    arguments: tuple[str, ...] = ()


def read_router(value: Any, where: Origin | None) -> RouterWishes:
    """The wishes in `deployment: router`. Raises InputError."""
    if value is None:
        return RouterWishes()
    if not isinstance(value, Mapping):
        raise InputError("`router` takes a mapping", where=where, found=str(value), expected=", ".join(_KEYS))
    for key in value:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError(f"`router` knows no key `{key}`", where=where, expected=", ".join(_KEYS),
                             next=f"nearest: {near}" if near else None)
    words = value.get("arguments") or ()
    if isinstance(words, (str, Mapping)):
        raise InputError("`router: arguments` takes a list", where=where, found=str(words))
    arguments = tuple(str(word) for word in words)
    for group in split_flags(arguments):
        name = group[0].split("=", 1)[0]
        if name in _OURS:
            raise InputError(f"`{name}` of the router is worked out", where=where, found=" ".join(group),
                             next="`port` and `host` of the deployment are the router's")
    return RouterWishes(str(value.get("program") or PROGRAM), arguments)


def missing(wishes: RouterWishes, environment: str, image: str | None, locked: str | None, lab: bool) -> str | None:
    """Why the router cannot run, None where nothing speaks against it. `locked` is its version in the lock of the
    environment; of an image nothing is known before it runs."""
    if lab or image or locked or "/" in wishes.program or wishes.program != PROGRAM:
        return None
    return f"the environment {environment} brings no {PROGRAM}, which goes before the pools"


def router_process(host: str, wishes: RouterWishes, policy: str | None, pools: Mapping[str, str], bind: tuple[str, str],
                   port: tuple[int, str], env: Mapping[str, str]) -> ProcessPlan:
    """The router's process. `pools` is role -> URL, `bind` and `port` come with their reasons."""
    arguments = [Argument(("--vllm-pd-disaggregation",), "site", "prefill first, decode with its KV cache"),
                 Argument(("--policy", policy or "round_robin"), "recipe", "router of the strategy")]
    arguments += [Argument((f"--{role}", url), "site", f"where {role} serves") for role, url in pools.items()]
    arguments += [Argument(("--host", bind[0]), "site", bind[1]), Argument(("--port", str(port[0])), "site", port[1])]
    for group in split_flags(wishes.arguments):
        name = group[0].split("=", 1)[0]
        own = Argument(group, "site", "router arguments in the inventory")
        at = next((i for i, argument in enumerate(arguments) if argument.words[0].split("=", 1)[0] == name), None)
        if at is None:
            arguments.append(own)
        else:
            arguments[at] = own
    ports = (port[0], METRICS_PORT) if wishes.program == PROGRAM else (port[0],)
    return ProcessPlan(host, ROUTER_ROLE, 0, (), (wishes.program,), tuple(arguments),
                       {name: (value, "site") for name, value in env.items()}, port[0], ports)
