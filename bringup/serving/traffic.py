"""The two hooks of a site's load balancer, `traffic_out` and `traffic_in`: read from the inventory, filled in for a
replica. Pure: nothing is run here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.base.yaml import VaultedText, key_origin, origin_of, value_origin
from bringup.inventory.model import LOCALHOST, Inventory
from bringup.playbook.templating import Engine, Layer, Scope, TemplateFailure
from bringup.serving.plan import ReplicaPlan
from bringup.serving.planning.replicas import host_groups
from bringup.serving.planning.variables import as_input

OUT, IN, DEADLINE = "traffic_out", "traffic_in", "traffic_deadline"
"""Variables of the inventory."""
FINISH = 60.0
"""Seconds that requests in flight get at most before a stop, unless the site says otherwise."""
TIMEOUT = 60.0
"""Seconds that a hook may take, unless it says otherwise."""
_KEYS = ("command", "url", "method", "headers", "body", "status", "timeout", "environment", "delegate_to")
_ONLY_URL = ("method", "headers", "body", "status")
_URL = re.compile(r"https?://", re.I)

Variables = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class Wish:
    """A hook as it is written, templates and all: `values` by key, exactly one of `command` and `url` among them."""

    name: str
    values: Mapping[str, Any]
    where: Origin | None = field(default=None, compare=False)

    @property
    def shown(self) -> str:
        """What it does, as written: the templates are not filled in, so no secret shows; a URL without its user."""
        host = f" on {self.values['delegate_to']}" if self.values.get("delegate_to") else ""
        if "command" in self.values:
            return f"{_plain(self.values['command'])}{host}"
        return f"{self.values.get('method') or 'POST'} {_without_user(_plain(self.values['url']))}{host}"


@dataclass(frozen=True)
class Hooks:
    """Both hooks of a deployment; `deadline` is seconds for requests in flight."""

    out: Wish
    back: Wish
    deadline: float = FINISH


@dataclass(frozen=True)
class About:
    """What a hook may know of its replica, as `replica` in its templates and in its environment."""

    name: str
    endpoint: str
    head: str
    nodes: tuple[str, ...]
    release: str = ""

    @property
    def variables(self) -> dict[str, Any]:
        parts = urlsplit(self.endpoint)
        return {"name": self.name, "endpoint": self.endpoint, "address": parts.hostname or "",
                "port": parts.port or "", "head": self.head, "nodes": list(self.nodes), "release": self.release}

    def environment(self, hook: str) -> dict[str, str]:
        """BRINGUP_TRAFFIC is `out` or `in`; nodes stand with spaces between them, head first."""
        told = self.variables
        return {"BRINGUP_TRAFFIC": hook.rpartition("_")[2], "BRINGUP_REPLICA": self.name,
                "BRINGUP_ENDPOINT": self.endpoint, "BRINGUP_ADDRESS": str(told["address"]),
                "BRINGUP_PORT": str(told["port"]), "BRINGUP_HEAD": self.head, "BRINGUP_NODES": " ".join(self.nodes),
                "BRINGUP_RELEASE": self.release}


@dataclass(frozen=True)
class Hook:
    """A hook for one replica: what is run or asked where. `host` is `localhost` where bringup itself runs."""

    name: str
    host: str
    environment: Mapping[str, str]
    timeout: float
    command: str | None = None
    url: str | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    status: tuple[int, ...] = ()
    where: Origin | None = field(default=None, compare=False)


def hooks_of(inventory: Inventory, variables: Variables) -> Hooks | None:
    """The hooks that the inventory names, None where it names none. Raises InputError for one alone, an unknown key,
    or a value of another kind."""
    heads, workers = host_groups(inventory)
    hosts = [*heads, *workers]
    if not hosts:
        return None
    found = {name: wish for name in (OUT, IN) if (wish := _wish(inventory, hosts[0], name)) is not None}
    if not found:
        return None
    if len(found) == 1:
        [(name, wish)] = found.items()
        other = IN if name == OUT else OUT
        raise InputError(f"`{name}` stands without `{other}`", where=wish.where, expected="both hooks, or none",
                         found="traffic would not come back" if name == OUT else "traffic would never be led away",
                         next=f"add {other}")
    for host in hosts[1:]:
        for name, wish in found.items():
            if _wish(inventory, host, name) != wish:
                raise InputError(f"{hosts[0]} and {host} have different `{name}` values", where=wish.where,
                                 expected="one for the whole deployment: {{ replica.name }} and {{ replica.head }} "
                                          "tell replicas apart")
    return Hooks(found[OUT], found[IN], _seconds(variables(hosts[0]).get(DEADLINE), DEADLINE, FINISH, 0,
                                                 _origin(inventory, hosts[0], DEADLINE)))


def fill(wish: Wish, about: About, inventory: Inventory, variables: Mapping[str, Any]) -> Hook:
    """The hook with its templates filled in: `replica` and the variables of its head. Raises InputError or
    TemplateFailure with the place."""
    engine = Engine(inventory.vault)
    scope = Scope(engine, [Layer({"replica": about.variables}, trusted=False), Layer(_View(variables), trusted=False)])
    values = {key: engine.render(value, scope) for key, value in wish.values.items()}
    headers, environment = values.get("headers") or {}, values.get("environment") or {}
    for key, value in (("headers", headers), ("environment", environment)):
        if not isinstance(value, Mapping):
            raise InputError(f"`{wish.name}: {key}` takes a mapping", where=wish.where, found=type(value).__name__)
    url = str(values["url"]) if "url" in values else None
    if url is not None and not (_URL.match(url) and urlsplit(url).hostname):
        raise InputError(f"`{wish.name}: url` is no URL", where=wish.where, found=_without_user(url),
                         expected="http://HOST... or https://HOST...")
    command = str(values["command"]) if "command" in values else None
    if command is not None and not command.strip():
        raise InputError(f"`{wish.name}` is an empty command for {about.name}", where=wish.where)
    host = str(values.get("delegate_to") or LOCALHOST[0])
    if host not in LOCALHOST:
        inventory.host(host)
    return Hook(
        wish.name, host, {**about.environment(wish.name), **{str(k): str(v) for k, v in environment.items()}},
        _seconds(values.get("timeout"), f"{wish.name}: timeout", TIMEOUT, 1, wish.where), command, url,
        str(values.get("method") or "POST").upper(), {str(k): str(v) for k, v in headers.items()}, values.get("body"),
        _codes(values.get("status"), wish), wish.where)


def check_hooks(inventory: Inventory, replicas: Sequence[ReplicaPlan], variables: Variables) -> None:
    """Fill in both hooks for every replica, so that what is wrong in them is told before a host is contacted."""
    hooks = hooks_of(inventory, variables)
    for replica in replicas if hooks is not None else ():
        about = About(replica.name, replica.endpoint, replica.hosts[0], replica.hosts)
        for wish in (hooks.out, hooks.back) if hooks is not None else ():
            try:
                fill(wish, about, inventory, variables(about.head))
            except TemplateFailure as error:
                raise as_input(error) from None


class _View(Mapping[str, Any]):
    """Variables without the hooks themselves, which use `replica` and are filled in here alone."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        self._inner = inner

    def __getitem__(self, name: str) -> Any:
        if name in (OUT, IN):
            raise KeyError(name)
        return self._inner[name]

    def __iter__(self) -> Any:
        return (name for name in self._inner if name not in (OUT, IN))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _raw(inventory: Inventory, host: str, name: str) -> tuple[Any, Mapping[str, Any]]:
    """The value as written, and the mapping that it stands in."""
    if name in inventory.extra_vars:
        return inventory.extra_vars[name], inventory.extra_vars
    layers = inventory.variables(host)
    return layers.get(name), layers


def _origin(inventory: Inventory, host: str, name: str) -> Origin | None:
    value, layer = _raw(inventory, host, name)
    return value_origin(layer, name) or origin_of(value)


def _is_url(value: str) -> bool:
    bare = re.sub(r"\{\{.*?\}\}", "", value).strip()
    return bool(_URL.match(value)) and not isinstance(value, VaultedText) and " " not in bare


def _wish(inventory: Inventory, host: str, name: str) -> Wish | None:
    value, _ = _raw(inventory, host, name)
    where = _origin(inventory, host, name)
    if value in (None, "", False):
        return None
    if isinstance(value, str):
        return Wish(name, {"url" if _is_url(value) else "command": value}, where)
    if not isinstance(value, Mapping):
        raise InputError(f"`{name}` takes a command, a URL or a mapping", where=where, found=str(value),
                         expected=", ".join(_KEYS))
    for key in value:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise InputError(f"`{name}` knows no key `{key}`", where=key_origin(value, key) or where,
                             expected=", ".join(_KEYS), next=f"nearest: {near}" if near else None)
    if ("command" in value) == ("url" in value):
        raise InputError(f"`{name}` takes a command or a URL", where=where,
                         found="both" if "command" in value else "neither", expected="command: ... or url: ...")
    wrong = [key for key in _ONLY_URL if key in value] if "command" in value else \
        [key for key in ("environment",) if key in value]
    if wrong:
        raise InputError(f"`{name}: {wrong[0]}` does not go with a {'command' if 'command' in value else 'URL'}",
                         where=value_origin(value, wrong[0]) or where)
    return Wish(name, dict(value), where)


def _seconds(value: Any, name: str, usual: float, least: float, where: Origin | None) -> float:
    if value in (None, ""):
        return usual
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not least <= number <= 86400:
        raise InputError(f"`{name}` takes seconds, {least:g} to 86400", where=where, found=str(value))
    return number


def _codes(value: Any, wish: Wish) -> tuple[int, ...]:
    """Status codes that count as done: 200 to 299 unless the hook names its own."""
    if value in (None, ""):
        return tuple(range(200, 300))
    given: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    if not all(str(code).isdigit() and 100 <= int(code) < 600 for code in given):
        raise InputError(f"`{wish.name}: status` takes HTTP status codes", where=wish.where, found=str(value),
                         expected="status: 204, or status: [200, 204]")
    return tuple(int(code) for code in given)


def _plain(value: Any) -> str:
    if isinstance(value, VaultedText):
        return "(from the vault)"
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else text[:97] + "..."


def _without_user(url: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]*@", "", url)
