"""Reaching a server: name, TCP, banner, key exchange, authentication, each with its deadline; through bastions too."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import fabric
import paramiko
from paramiko.auth_handler import AuthOnlyHandler

from bringup.base.errors import BringupError, UnreachableError
from bringup.base.secrets import Secret
from bringup.connection import hostkeys, sshargs, sshconfig
from bringup.connection.auth import Credentials, default_user
from bringup.connection.gate import Gate
from bringup.connection.messages import Target

TCP = 10.0
"""Seconds for a TCP connection, unless ConnectTimeout says otherwise; for each address of the name."""

GREETING = 20.0
"""Seconds for the server's greeting and the key exchange."""

LOGIN = 30.0
"""Seconds for the authentication."""

REFUSED_FOR = 30.0
"""Seconds during which a server that refuses more connections is tried again."""

JUMPS = 8
"""Bastions in a row; more is a loop."""

_LOG = "bringup.paramiko"
# nobody listens: what goes wrong is raised and told where it belongs
logging.getLogger(_LOG).setLevel(logging.CRITICAL + 1)


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


_NOT_YET = "No existing session"
"""What paramiko says after its start ran out of time."""


class _Login(AuthOnlyHandler):
    """paramiko's requests to log in. It makes the event that an answer sets only after it sent the request: an answer
    that is faster than that is lost, and the login waits for LOGIN seconds. Here the event is there before."""

    answered: threading.Event | None = None

    @property
    def auth_event(self) -> threading.Event | None:
        """What an answer sets, and who waits for it waits on."""
        return self.answered

    @auth_event.setter
    def auth_event(self, event: threading.Event | None) -> None:
        if self.answered is None or event is None:
            self.answered = event

    def send_auth_request(self, *args: Any, **options: Any) -> Any:
        """Send a request and wait for its answer."""
        self.answered = threading.Event()
        return super().send_auth_request(*args, **options)


class _Transport(paramiko.ServiceRequestingTransport):  # type: ignore[name-defined, misc]
    """paramiko's transport with the fast cipher first, which asks for the login service once (some servers hang up at
    a second time) and waits for the answer, not for a tenth of a second. `shown` is the server's key as it came."""

    _preferred_ciphers = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
    _preferred_keys: tuple[str, ...] = paramiko.Transport._preferred_keys  # type: ignore[attr-defined]
    shown: bytes = b""
    active: bool
    auth_handler: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service_answered = threading.Event()

    def _parse_service_accept(self, m: paramiko.Message) -> None:
        super()._parse_service_accept(m)
        self._service_answered.set()

    def get_auth_handler(self) -> _Login:
        """What sends the requests to log in."""
        return _Login(self)

    def ensure_session(self) -> None:
        """Ask for the login service, once."""
        if self.auth_handler is not None:
            return
        if not self.active or not self.initial_kex_done:
            raise paramiko.SSHException(_NOT_YET)
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_SERVICE_REQUEST)
        message.add_string("ssh-userauth")
        self._send_message(message)
        until = time.monotonic() + LOGIN
        while not self._service_answered.wait(0.1):
            if not self.active:
                raise self.get_exception() or EOFError()
            if time.monotonic() > until:
                raise paramiko.AuthenticationException("Authentication timeout.")
        self.auth_handler = self.get_auth_handler()

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        self.shown = host_key
        super()._verify_key(host_key, sig)


class _Check(paramiko.MissingHostKeyPolicy):
    """Called with every server's key before anything is sent: paramiko itself is given no known hosts."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.accepted: hostkeys.UnknownKey | None = None

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        transport = client.get_transport()
        if transport.host_key_type.endswith("-cert-v01@openssh.com"):
            from bringup.connection.certificates import check

            check(self.server.policy, transport.shown)
            return
        self.accepted = self.server.policy.check(key.get_name(), key.asbytes())


@dataclass(frozen=True)
class Link:
    """An authenticated connection, and the seconds that a round trip takes on its way."""

    connection: fabric.Connection
    round_trip: float


def connect(server: Server, gate: Gate) -> Link:
    """An authenticated connection. Raises UnreachableError that names the phase."""
    until = time.monotonic() + REFUSED_FOR
    pause = 0.25
    while True:
        try:
            with _admitted(server, gate):
                return _attempt(server, gate)
        except _Refused as refused:
            if time.monotonic() + pause > until:
                raise UnreachableError(
                    "the server refuses more connections", host=server.label, details=_way(server),
                    found=refused.found, expected=f"a greeting within {REFUSED_FOR:g} s of trying",
                    next="raise MaxStartups in its sshd_config, or lower --forks") from None
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 1.7, 4.0)


@contextlib.contextmanager
def _admitted(server: Server, gate: Gate) -> Iterator[None]:
    if server.via is None:
        with gate.handshakes:
            yield
        return
    with gate.bastion(server.via.way).slots, gate.handshakes:
        yield


class _Refused(Exception):
    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


def _attempt(server: Server, gate: Gate) -> Link:
    sock, round_trip = _open(server, gate)
    check = _Check(server)
    credentials = Credentials(server.user, server.named, server.password, server.use_agent, server.agent_socket,
                              server.only_named, server.usual, gate)
    transports: list[_Transport] = []

    def transport(sock: Any, **options: Any) -> paramiko.Transport:
        made = _Transport(sock, **options)
        made.set_log_channel(_LOG)
        made._preferred_keys = _key_types(server.policy, made._preferred_keys)
        transports.append(made)
        return made

    connection = fabric.Connection(
        server.address, user=server.user, port=server.port, gateway=False, forward_agent=False,
        config=_settings(),
        connect_kwargs={"sock": sock, "transport_factory": transport, "auth_strategy": credentials,
                        "timeout": GREETING, "banner_timeout": GREETING, "auth_timeout": LOGIN,
                        "channel_timeout": LOGIN},
    )
    connection.client.set_missing_host_key_policy(check)
    try:
        connection.open()
    except (paramiko.SSHException, OSError, EOFError) as error:
        _drop(sock, transports)
        raise _told(error, server, transports[0] if transports else None, credentials) from None
    except BringupError:
        _drop(sock, transports)
        raise
    if check.accepted is not None:
        hostkeys.add([check.accepted])
    connection.transport.set_keepalive(15)
    return Link(connection, round_trip)


@functools.lru_cache(maxsize=1)
def _settings() -> fabric.Config:
    """Fabric's defaults and nothing else: what ssh_config says was read before, by `sshconfig`."""
    return fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)


def _key_types(policy: hostkeys.Policy, preferred: tuple[str, ...]) -> tuple[str, ...]:
    """Ask first for the kinds of key that are known for this server, so that the known one is shown."""
    first: list[str] = []
    if policy.authorities:
        first += [name + "-cert-v01@openssh.com" for name in preferred]
    for known in policy.known_types:
        first += ["rsa-sha2-512", "rsa-sha2-256"] if known == "ssh-rsa" else [known]
    wanted = [name for name in first if name.removesuffix("-cert-v01@openssh.com") in preferred]
    return tuple(dict.fromkeys([*wanted, *preferred]))


def hang_up(sock: Any) -> None:
    """End a connection for both threads that use it. A socket is shut and not yet closed: its number could be given to
    another while paramiko's thread still reads. A bastion's channel is closed and not shut: an end of file behind its
    close is a breach of the protocol, for which the bastion would drop every host behind it."""
    with contextlib.suppress(OSError, EOFError):
        if isinstance(sock, socket.socket):
            sock.shutdown(socket.SHUT_RDWR)
        else:
            sock.close()


def _drop(sock: Any, transports: list[_Transport]) -> None:
    hang_up(sock)
    with contextlib.suppress(OSError, EOFError):
        sock.close()
    for transport in transports:
        transport.active = False
        transport.packetizer.close()


def _open(server: Server, gate: Gate) -> tuple[Any, float]:
    """A socket, or what stands for one (a channel of a bastion, a command's pipes), and the seconds that it took."""
    if server.proxy_command is not None:
        try:
            return paramiko.ProxyCommand(server.proxy_command), math.inf  # not known: taken for a long way
        except OSError as error:
            raise UnreachableError(f"ProxyCommand cannot be started: {error.strerror}", host=server.label,
                                   found=server.proxy_command) from None
    if server.via is not None:
        began = time.monotonic()
        return _through(server, server.via, gate), time.monotonic() - began
    try:
        addresses = socket.getaddrinfo(server.address, server.port, server.family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        text = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise UnreachableError(f"the name {server.address} is not known: {text}", host=server.label,
                               details=_way(server), next="check ansible_host, DNS or /etc/hosts here") from None
    problems = []
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(server.tcp)
        began = time.monotonic()
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            reason = f"no answer within {server.tcp:g} s" if isinstance(error, TimeoutError) else error.strerror
            problems.append(f"{address[0]} port {server.port}: {reason}")
            continue
        round_trip = time.monotonic() - began
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return sock, round_trip
    raise UnreachableError("no TCP connection", host=server.label, details=[*_way(server), *problems[1:]],
                           found=problems[0] if problems else "no address",
                           next=f"is the host up and sshd listening there? ssh -p {server.port} {server.address}")


def _through(server: Server, via: Server, gate: Gate) -> Any:
    """A channel of the bastion's one connection, which the first one who needs it opens."""
    bastion = gate.bastion(via.way)
    with bastion.lock:
        if bastion.connection is None or not bastion.connection.is_connected:
            bastion.connection = connect(via, gate).connection
        transport = bastion.connection.transport
    try:
        return transport.open_channel("direct-tcpip", (server.address, server.port), ("", 0), timeout=server.tcp)
    except (paramiko.SSHException, EOFError, OSError) as error:
        reason = error.text if isinstance(error, paramiko.ChannelException) else str(error) or "it hung up"
        raise UnreachableError(f"the bastion {via.address} does not reach it", host=server.label, found=reason,
                               details=_way(server),
                               next=f"ssh {via.user}@{via.address} nc -vz {server.address} {server.port}") from None


def _way(server: Server) -> list[str]:
    return [f"by way of {server.via.way}"] if server.via is not None else []


def _told(error: Exception, server: Server, transport: _Transport | None, credentials: Credentials) -> Exception:
    """The error as a person reads it, its phase named; _Refused when it is worth another try."""
    way = _way(server)
    if transport is None or not transport.remote_version:
        text = str(error)
        if "timed out" in text or "Timeout" in text or text == _NOT_YET:
            return UnreachableError(f"connected, no greeting after {GREETING:g} s (phase: banner)", host=server.label,
                                    details=way, next="see the load there, and whether sshd waits for DNS (UseDNS no)")
        if isinstance(error, paramiko.ProxyCommandFailure):
            return UnreachableError("ProxyCommand failed", host=server.label, found=text)
        if "Indecipherable protocol version" in text and not any(
                word in text for word in ("Exceeded MaxStartups", "Not allowed at this time")) and '""' not in text:
            return UnreachableError("what answers there is no SSH server (phase: banner)", host=server.label,
                                    details=way, found=text.partition('version "')[2].rstrip('"')[:80],
                                    next="check ansible_port")
        return _Refused("it closed the connection before its greeting")
    if isinstance(error, paramiko.AuthenticationException) or transport.initial_kex_done:
        if "timeout" in str(error).lower():
            return UnreachableError(f"the login took more than {LOGIN:g} s (phase: authentication)", host=server.label,
                                    details=way, next="see sshd and PAM there (pam_systemd, LDAP, DNS)")
        tried = credentials.tried or ["nothing: no key and no password to try"]
        return UnreachableError(
            f"{server.user}@{server.address} was not let in (phase: authentication)", host=server.label,
            details=[*way, *(f"tried     {line}" for line in tried)],
            next=f"try: ssh -p {server.port} {server.user}@{server.address}; or --ask-pass")
    text = str(error) or "it hung up"
    if text == _NOT_YET:
        return UnreachableError(f"the key exchange took more than {GREETING:g} s (phase: key exchange)",
                                host=server.label, details=way, next="see the load there, and the path's MTU")
    if "no acceptable" in text or isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return UnreachableError("no common way of encryption (phase: key exchange)", host=server.label, found=text,
                                details=way)
    if isinstance(error, (EOFError, ConnectionResetError)) or "EOF" in text or not str(error):
        return _Refused("it hung up during the key exchange")
    return UnreachableError("the key exchange failed (phase: key exchange)", host=server.label, found=text, details=way)


def host_key(server: Server, gate: Gate) -> None:
    """Shake hands without logging in: raises what the policy says of the server's key (unknown, changed, ...)."""
    probe = replace(server, use_agent=False, named=(), usual=False, password=None)
    try:
        connect(probe, gate)
    except hostkeys.UnknownHostKey:
        raise
    except UnreachableError as error:
        if "phase: authentication" not in error.what:
            raise
