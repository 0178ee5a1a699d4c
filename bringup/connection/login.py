"""From a socket to an authenticated connection: greeting, key exchange, the server's key, login. Loads paramiko."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from typing import Any

import fabric
import paramiko
from paramiko.auth_handler import AuthOnlyHandler

from bringup.base.errors import BringupError, UnreachableError
from bringup.connection import hostkeys
from bringup.connection.auth import Credentials
from bringup.connection.dial import Refused, hang_up
from bringup.connection.gate import Gate
from bringup.connection.way import Server, way_lines

GREETING = 20.0
"""Seconds for the server's greeting and the key exchange, unless ConnectTimeout says otherwise."""

LOGIN = 30.0
"""Seconds for the authentication; ConnectTimeout may say more."""

_LOG = "bringup.paramiko"
# nobody listens: what goes wrong is raised and told where it belongs
logging.getLogger(_LOG).setLevel(logging.CRITICAL + 1)


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
    a second time) and waits for the answer, not for a tenth of a second. `shown` is the server's key as it came,
    `greeted` how many seconds its greeting took, `patience` the seconds for the login service."""

    _preferred_ciphers = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
    _preferred_keys: tuple[str, ...] = paramiko.Transport._preferred_keys  # type: ignore[attr-defined]
    shown: bytes = b""
    greeted: float = 0.0
    patience: float = LOGIN
    active: bool
    auth_handler: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service_answered = threading.Event()

    def _check_banner(self) -> None:
        began = time.monotonic()
        super()._check_banner()
        self.greeted = time.monotonic() - began

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
        until = time.monotonic() + self.patience
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


def log_in(server: Server, gate: Gate, sock: Any) -> tuple[fabric.Connection, float]:
    """Greeting, key exchange, the server's key and the login over a socket (or a channel); the connection, and the
    seconds until the greeting. Raises Refused when it is worth another try, UnreachableError that names the phase
    otherwise."""
    greeting, login = server.limit or GREETING, max(server.limit or 0.0, LOGIN)
    check = _Check(server)
    credentials = Credentials(server.user, server.named, server.password, server.use_agent, server.agent_socket,
                              server.only_named, server.usual, gate)
    transports: list[_Transport] = []

    def transport(sock: Any, **options: Any) -> paramiko.Transport:
        made = _Transport(sock, **options)
        made.set_log_channel(_LOG)
        made.patience = login
        made._preferred_keys = _key_types(server.policy, made._preferred_keys)
        transports.append(made)
        return made

    connection = fabric.Connection(
        server.address, user=server.user, port=server.port, gateway=False, forward_agent=False,
        config=_settings(),
        connect_kwargs={"sock": sock, "transport_factory": transport, "auth_strategy": credentials,
                        "timeout": greeting, "banner_timeout": greeting, "auth_timeout": login,
                        "channel_timeout": login},
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
    return connection, transports[0].greeted


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


def _drop(sock: Any, transports: list[_Transport]) -> None:
    hang_up(sock)
    with contextlib.suppress(OSError, EOFError):
        sock.close()
    for transport in transports:
        transport.active = False
        transport.packetizer.close()


def _told(error: Exception, server: Server, transport: _Transport | None, credentials: Credentials) -> Exception:
    """The error as a person reads it, its phase named; Refused when it is worth another try."""
    way = way_lines(server)
    greeting, login = server.limit or GREETING, max(server.limit or 0.0, LOGIN)
    if transport is None or not transport.remote_version:
        text = str(error)
        if "timed out" in text or "Timeout" in text or text == _NOT_YET:
            return UnreachableError(f"connected, no greeting after {greeting:g} s (phase: banner)", host=server.label,
                                    details=way, next="see the load there, and whether sshd waits for reverse DNS "
                                    "(UseDNS no); a longer wait: ansible_ssh_timeout, or ConnectTimeout")
        if isinstance(error, paramiko.ProxyCommandFailure):
            return UnreachableError("ProxyCommand failed", host=server.label, found=text)
        if "Indecipherable protocol version" in text and not any(
                word in text for word in ("Exceeded MaxStartups", "Not allowed at this time")) and '""' not in text:
            return UnreachableError("what answers there is no SSH server (phase: banner)", host=server.label,
                                    details=way, found=text.partition('version "')[2].rstrip('"')[:80],
                                    next="check ansible_port")
        return Refused("it closed the connection before its greeting")
    if isinstance(error, paramiko.AuthenticationException) or transport.initial_kex_done:
        if "timeout" in str(error).lower():
            return UnreachableError(f"the login took more than {login:g} s (phase: authentication)", host=server.label,
                                    details=way, next="see sshd and PAM there (pam_systemd, LDAP, DNS)")
        tried = credentials.tried or ["nothing: no key and no password to try"]
        return UnreachableError(
            f"{server.user}@{server.address} was not let in (phase: authentication)", host=server.label,
            details=[*way, *(f"tried     {line}" for line in tried)],
            next=f"try: ssh -p {server.port} {server.user}@{server.address}; or --ask-pass")
    text = str(error) or "it hung up"
    if text == _NOT_YET:
        return UnreachableError(f"the key exchange took more than {greeting:g} s (phase: key exchange)",
                                host=server.label, details=way, next="see the load there, and the path's MTU")
    if "no acceptable" in text or isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return UnreachableError("no common way of encryption (phase: key exchange)", host=server.label, found=text,
                                details=way)
    if isinstance(error, (EOFError, ConnectionResetError)) or "EOF" in text or not str(error):
        return Refused("it hung up during the key exchange")
    return UnreachableError("the key exchange failed (phase: key exchange)", host=server.label, found=text, details=way)
