"""The lab's SSH servers: a session runs a real process with pipes, as sshd does without a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from typing import Any

import asyncssh

from bringup.lab.addresses import NETWORK
from bringup.lab.machines import Machine
from bringup.lab.processes import TOKEN_VARIABLE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HIGH_WATER = 1 << 20
"""Bytes that may wait for a process before its client is asked to stop sending."""


@dataclass(frozen=True)
class Setting:
    """What every session of one machine shares. `keys` are asyncssh's authorized keys; `extra_path` follows PATH."""

    machine: Machine
    user: str
    token: str
    keys: Any
    extra_path: str = ""
    sessions: set[Session] = field(default_factory=set, hash=False, compare=False)

    def environment(self, peer: tuple[Any, ...] | None, own: tuple[Any, ...] | None) -> dict[str, str]:
        """The environment of a session: nothing of the environment that the lab was started in."""
        env = {
            "PATH": ":".join(part for part in (PATH, self.extra_path) if part),
            "HOME": str(self.machine.home), "USER": self.user, "LOGNAME": self.user, "SHELL": "/bin/sh",
            "LANG": "C.UTF-8", TOKEN_VARIABLE: self.token, "BRINGUP_LAB_MACHINE": self.machine.name,
        }
        if peer and own:
            env["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {own[1]}"
            env["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {own[0]} {own[1]}"
        return env


class Server(asyncssh.SSHServer):  # type: ignore[misc]
    """One connection: one account with one key; forwards only to other machines of labs (a bastion)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.connection: Any = None

    def connection_made(self, conn: Any) -> None:
        self.connection = conn

    def session_requested(self) -> Session:
        return Session(self.setting)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host.startswith(NETWORK + ".")

    def begin_auth(self, username: str) -> bool:
        if username == self.setting.user:
            self.connection.set_authorized_keys(self.setting.keys)
        return True

    def password_auth_supported(self) -> bool:
        return False


class Session(asyncssh.SSHServerSession):  # type: ignore[misc]
    """A channel with a process group of its own. The channel ends when the process ended and its pipes are closed;
    when the client goes first, the group gets SIGHUP."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.channel: Any = None
        self.command: str | None = None
        self.transport: asyncio.SubprocessTransport | None = None
        self.early: list[bytes] = []
        self.ready = False  # the process runs and has been given what came early
        self.eof = False
        self.status: int | None = None
        self.open_pipes = 0
        self.input_open = False
        self.gone = False

    def connection_made(self, chan: Any) -> None:
        self.channel = chan
        self.setting.sessions.add(self)

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:
        return False

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self.command = command
        return True

    def session_started(self) -> None:
        asyncio.get_running_loop().create_task(self.start())

    async def start(self) -> None:
        """Start the process; what the client sent meanwhile follows."""
        argv = ["/bin/sh"] if self.command is None else ["/bin/sh", "-c", self.command]
        env = self.setting.environment(self.channel.get_extra_info("peername"),
                                       self.channel.get_extra_info("sockname"))
        try:
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Process(self), *argv, cwd=self.setting.machine.root, env=env, start_new_session=True,
                umask=0o022)
        except OSError as error:
            self.channel.write_stderr(f"bringup lab: cannot start /bin/sh: {error}\n".encode())
            self.channel.exit(255)
            return
        if self.gone:
            self.hang_up()
        stdin: Any = transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.set_write_buffer_limits(high=HIGH_WATER)
        for data in self.early:
            self.feed(data)
        self.early.clear()
        self.ready = True
        if self.eof:
            self.end_input()

    def data_received(self, data: bytes, datatype: Any) -> None:
        if self.ready:
            self.feed(data)
        else:
            self.early.append(data)

    def feed(self, data: bytes) -> None:
        stdin: Any = self.transport.get_pipe_transport(0) if self.transport else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(data)

    def eof_received(self) -> bool:
        self.eof = True
        if self.ready:
            self.end_input()
        return True

    def end_input(self) -> None:
        stdin: Any = self.transport.get_pipe_transport(0) if self.transport else None
        if stdin is not None and not stdin.is_closing():
            if stdin.can_write_eof():
                stdin.write_eof()
            else:
                stdin.close()

    def signal_received(self, name: str) -> None:
        self.signal_group(getattr(signal.Signals, f"SIG{name}", None))

    def pause_writing(self) -> None:
        self.each_output("pause_reading")

    def resume_writing(self) -> None:
        self.each_output("resume_reading")

    def resume_input(self) -> None:
        """Let the client send again."""
        if not self.gone:
            self.channel.resume_reading()

    def each_output(self, method: str) -> None:
        for number in (1, 2):
            pipe: Any = self.transport.get_pipe_transport(number) if self.transport else None
            if pipe is not None and not pipe.is_closing():
                getattr(pipe, method)()

    def finish(self) -> None:
        """End the channel once the process has ended and nothing more can come from its pipes."""
        if self.status is None or self.open_pipes or self.gone:
            return
        if self.status >= 0:
            self.channel.exit(self.status)
        else:
            try:
                name = signal.Signals(-self.status).name[3:]
            except ValueError:
                name = "KILL"
            self.channel.exit_with_signal(name)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.setting.sessions.discard(self)
        self.hang_up()

    def hang_up(self) -> None:
        """The client is gone: SIGHUP to the session's process group, and its pipes are closed."""
        if self.transport is None:
            return
        if self.status is None:
            self.signal_group(signal.SIGHUP)
        for number in (1, 2):
            output: Any = self.transport.get_pipe_transport(number)
            if output is not None and not output.is_closing():
                output.close()
        # asyncio's abort() of a pipe that is closed already takes another one's descriptor out of the loop
        if self.input_open:
            stdin: Any = self.transport.get_pipe_transport(0)
            stdin.abort()

    def signal_group(self, number: signal.Signals | None) -> None:
        if number is None or self.transport is None or self.status is not None:
            return
        try:
            os.killpg(self.transport.get_pid(), number)
        except OSError:
            return


class _Process(asyncio.SubprocessProtocol):
    """Carries what a process writes to its channel, and its end."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.session.transport = transport
        self.session.open_pipes = 2
        self.session.input_open = True

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.session.gone:
            return
        if fd == 1:
            self.session.channel.write(data)
        else:
            self.session.channel.write_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.session.input_open = False
            return
        self.session.open_pipes -= 1
        self.session.finish()

    def process_exited(self) -> None:
        assert self.session.transport is not None
        self.session.status = self.session.transport.get_returncode()
        self.session.finish()

    def pause_writing(self) -> None:
        if not self.session.gone:
            self.session.channel.pause_reading()

    def resume_writing(self) -> None:
        # not at once: asyncio's pipe would close itself over data that is handed to it from within this call
        asyncio.get_running_loop().call_soon(self.session.resume_input)


def authorized(public_key: str) -> Any:
    """asyncssh's authorized keys of one public key as OpenSSH writes it."""
    return asyncssh.import_authorized_keys(public_key + "\n")


async def serve(setting: Setting, listener: Any, host_key: str) -> Any:
    """Serve one machine on a listening socket. `host_key` is a key file."""
    return await asyncssh.listen(
        sock=listener, server_factory=lambda: Server(setting), server_host_keys=[host_key],
        encoding=None, server_version="bringup-lab", compression_algs=["none"], login_timeout=60, allow_scp=False,
        x11_forwarding=False, agent_forwarding=False, line_editor=False, public_key_auth=True, gss_host=None,
        encryption_algs=["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com",
                         "aes128-ctr", "aes256-ctr"],
    )
