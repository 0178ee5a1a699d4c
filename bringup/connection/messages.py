"""What goes between the run and a host's session: requests in, messages out through one queue for all hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.errors import BringupError
from bringup.base.secrets import Secret


@dataclass(frozen=True)
class Target:
    """How to reach a host and what to be there. Read from the `ansible_*` variables by `target_of`."""

    host: str
    connection: str = "ssh"  # ssh | local
    address: str = ""
    port: int | None = None
    user: str | None = None
    password: Secret | None = None
    key_file: str | None = None
    ssh_common_args: str = ""
    host_key: str | None = None  # pinned in the inventory
    host_key_checking: str = "strict"  # strict | accept-new | off
    known_hosts: str | None = None  # another file than the user's
    ssh_config: str | None = ""  # "" the user's, None no file at all (and no ssh-agent)
    python: str | None = None  # None: found on the host
    timeout: int | None = None  # seconds for each phase of connecting, as ConnectTimeout
    become_method: str = "sudo"
    become_password: Secret | None = None
    root: str = "/opt/bringup"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One task for the agent. Requests of one segment run in order; the first failed one that does not
    `ignore_errors` drops those behind it in its segment (answered by NotRun)."""

    id: int
    segment: int
    module: str
    args: Mapping[str, Any]
    become: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    check: bool = False
    diff: bool = False
    ignore_errors: bool = False
    no_log: bool = False
    digest: str = ""  # of the task, for the host's journal
    blobs: Sequence[Any] = ()  # run.actions.Blob: digest, size, source


@dataclass(frozen=True)
class Message:
    """Base of what a session says. `host` is the inventory name."""

    host: str


@dataclass(frozen=True)
class Connected(Message):
    """The agent runs. `info`: python, version, platform, user, uid, home, hostname, machine_id, boot_id, pid,
    noise (list: what login scripts printed), start_seconds (until Python spoke there); over SSH connect_seconds (from
    the first packet to the login's end) and greeting_seconds (of these, until the server greeted)."""

    info: Mapping[str, Any]


@dataclass(frozen=True)
class Unreachable(Message):
    """The host could not be reached, or the agent could not be started. The error names the phase."""

    error: BringupError


@dataclass(frozen=True)
class Started(Message):
    id: int


@dataclass(frozen=True)
class Output(Message):
    id: int
    stream: str
    text: str


@dataclass(frozen=True)
class Finished(Message):
    """A task ended. `result` is what the module returned: `failed` and `msg` in it on failure."""

    id: int
    result: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class NotRun(Message):
    """The task was dropped behind a failed one of its segment, or cancelled before it began."""

    id: int


@dataclass(frozen=True)
class Note(Message):
    """Something a person should know of this host that is no failure (the journal's disk is full, ...)."""

    text: str


@dataclass(frozen=True)
class Lost(Message):
    """The connection ended while the session was open: no heartbeat, or cut. `running` is the task then under way.

    A LockedError says that the run was taken over: it stopped at the end of its task, and nothing runs.
    """

    error: BringupError
    running: int | None


@dataclass(frozen=True)
class Closed(Message):
    """The session ended as asked."""
