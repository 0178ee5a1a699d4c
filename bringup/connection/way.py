"""The way to a host: what the target, its ssh arguments and ssh_config say. Nothing is contacted."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass

from bringup.base.errors import UnreachableError
from bringup.base.secrets import Secret
from bringup.connection import hostkeys, sshargs, sshconfig
from bringup.connection.messages import Target

TCP = 10.0
"""Seconds for a TCP connection, unless ConnectTimeout says otherwise; for each address of the name. ConnectTimeout also
sets the time for greeting and key exchange, and raises that for the login."""

JUMPS = 8
"""Bastions in a row; more is a loop."""


@dataclass(frozen=True)
class Server:
    """One SSH server on the way: the last one is the host, those before it are bastions."""

    label: str  # the inventory name of the host that all this is for
    address: str
    port: int
    user: str
    policy: hostkeys.Policy
    named: tuple[str, ...] = ()
    password: Secret | None = None
    use_agent: bool = True
    agent_socket: str | None = None
    only_named: bool = False
    usual: bool = True
    family: int = socket.AF_UNSPEC
    tcp: float = TCP
    limit: float | None = None  # ConnectTimeout, where one is given
    proxy_command: str | None = None
    via: Server | None = None

    @property
    def way(self) -> str:
        """`user@host:port`, with the bastions before it."""
        own = f"{self.user}@{self.address}:{self.port}"
        return f"{self.via.way} > {own}" if self.via is not None else own


def server_of(target: Target) -> Server:
    """Everything that the target, its ssh arguments and ssh_config say of the way to a host. Raises InputError."""
    args = sshargs.parse(target.ssh_common_args, f"{target.host}: ansible_ssh_common_args")
    given = dict(args.options)
    if target.port is not None:
        given["port"] = str(target.port)
    if target.user is not None:
        given["user"] = target.user
    if target.timeout is not None:
        given.setdefault("connecttimeout", str(target.timeout))
    named = ((target.key_file,) if target.key_file else ()) + args.identities
    return _server(target, target.address or target.host, given, named, ())


def _server(target: Target, name: str, given: dict[str, str], named: tuple[str, ...], seen: tuple[str, ...],
            hop: bool = False) -> Server:
    settings = sshconfig.resolve(name, target.ssh_config, given, named)
    address = settings.get("hostname") or name
    port = int(settings.get("port") or 22)
    user = settings.get("user") or default_user()
    key = f"{user}@{address}:{port}"
    if key in seen or len(seen) > JUMPS:
        raise UnreachableError("the bastions lead in a circle", host=target.host, found=" > ".join([*seen, key]),
                               next="correct ProxyJump; `ProxyJump none` ends a chain")
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    command = settings.get("proxycommand")
    return Server(
        label=target.host, address=address, port=port, user=user,
        policy=_policy(target, settings, address, port, hop),
        named=tuple(settings.many.get("identityfile", ())), password=None if hop else target.password,
        use_agent=target.ssh_config is not None, agent_socket=settings.get("identityagent"),
        only_named=settings.flag("identitiesonly", False), usual=target.ssh_config is not None,
        family=families.get(settings.get("addressfamily") or "", socket.AF_UNSPEC),
        tcp=float(settings.get("connecttimeout") or TCP),
        limit=float(settings.get("connecttimeout") or 0) or None,
        proxy_command=None if command is None or command.lower() == "none" else command,
        via=_jump(target, settings, (*seen, key)),
    )


def _jump(target: Target, settings: sshconfig.Settings, seen: tuple[str, ...]) -> Server | None:
    text = settings.get("proxyjump")
    if text is None or text.lower() == "none":
        return None
    return _chain(target, text.split(","), seen)


def _chain(target: Target, hops: list[str], seen: tuple[str, ...]) -> Server:
    """The last of the hops, reached through those before it; the first one may have a jump of its own in ssh_config."""
    hop = hops[-1].strip().removeprefix("ssh://").rstrip("/")
    user, _, rest = hop.rpartition("@")
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = rest.partition(":")
    given = {key: value for key, value in (("user", user), ("port", port)) if value}
    if len(hops) > 1:
        given["proxyjump"] = ",".join(hops[:-1])
    named = (target.key_file,) if target.key_file and target.ssh_config is None else ()
    return _server(target, name, given, named, seen, hop=True)


def _policy(target: Target, settings: sshconfig.Settings, address: str, port: int, hop: bool) -> hostkeys.Policy:
    alias = settings.get("hostkeyalias")
    name = alias.lower() if alias else hostkeys.known_name(address, port)
    if target.known_hosts:
        files = [target.known_hosts]
    else:
        files = (settings.get("userknownhostsfile") or hostkeys.USER_FILE).split()
    own = files[0]
    everywhere = files + ([] if target.known_hosts else
                          (settings.get("globalknownhostsfile") or " ".join(hostkeys.SYSTEM_FILES)).split())
    checking = target.host_key_checking
    if checking == "strict":
        checking = {"no": "off", "off": "off", "accept-new": "accept-new"}.get(
            (settings.get("stricthostkeychecking") or "").lower(), "strict")
    entries = tuple(item for item in hostkeys.load(everywhere) if item.covers(name))
    return hostkeys.Policy(target.host, name, entries, checking, None if hop else target.host_key,
                           os.path.expanduser(own), settings.flag("hashknownhosts", False))


def way_lines(server: Server) -> list[str]:
    """What an error says of the bastions on the way."""
    return [f"by way of {server.via.way}"] if server.via is not None else []


def default_user() -> str:
    """The account's own name, as ssh takes it."""
    return getpass.getuser()
