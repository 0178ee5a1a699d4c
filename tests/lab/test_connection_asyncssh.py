"""Sessions over servers of another kind (asyncssh): passwords, keyboard-interactive, odd servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from driven_session import Driven
from ssh_server import make_key

from bringup.base.secrets import Secret
from bringup.connection.messages import Connected, Finished, Target, Unreachable

PASSWORD = "a-password-4711"


class Accounts(asyncssh.SSHServer):
    """Lets `ops` in by password, and `typed` by keyboard-interactive only."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.user = ""

    def begin_auth(self, username: str) -> bool:
        self.user = username
        return True

    def password_auth_supported(self) -> bool:
        return self.user != "typed"

    def validate_password(self, username: str, password: str) -> bool:
        return username == "ops" and password == PASSWORD

    def kbdint_auth_supported(self) -> bool:
        return self.user == "typed"

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        return "", "", "", [("Password: ", False)]

    def validate_kbdint_response(self, username: str, responses: Any) -> bool:
        return list(responses) == [PASSWORD]


async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run the command that was asked for, as a shell of this account."""
    child = await asyncio.create_subprocess_shell(
        process.command or "exit 1", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())


class Server:
    """An asyncssh server in a thread with a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.key = make_key(folder / "host")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Server:
        self.thread.start()
        self.acceptor = asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(10)
        self.port = self.acceptor.get_port()
        return self

    async def listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen("127.0.0.1", 0, server_factory=Accounts, server_host_keys=[str(self.key)],
                                     process_factory=serve, encoding=None)

    async def end(self) -> None:
        self.acceptor.close()
        await self.acceptor.wait_closed()
        while len(others := asyncio.all_tasks() - {asyncio.current_task()}):
            await asyncio.wait(others, timeout=5)

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self.end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)

    def target(self, **more: Any) -> Target:
        fields: dict[str, Any] = {"host": "node1", "address": "127.0.0.1", "port": self.port, "user": "ops",
                                  "host_key": self.key.with_suffix(".pub").read_text(), "ssh_config": None,
                                  "root": "/nonexistent/bringup"}
        fields.update(more)
        return Target(**fields)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as running:
        yield running


@pytest.mark.parametrize("user", ["ops", "typed"])
def test_a_password_opens_the_session(server: Server, user: str) -> None:
    with Driven(server.target(user=user, password=Secret(PASSWORD))) as driven:
        assert isinstance(driven.connected(), Connected)
        answers = driven.answers(*[driven.request("command", {"cmd": f"echo {n}"}) for n in range(30)])
        assert [item.result["stdout"] for item in answers if isinstance(item, Finished)] == [str(n) for n in range(30)]


def test_a_wrong_password_is_told_and_not_shown(server: Server) -> None:
    driven = Driven(server.target(password=Secret("not-the-password")))
    driven.session.start()
    ended = driven.end()
    assert isinstance(ended, Unreachable)
    text = str(ended.error)
    assert "phase: authentication" in text and "password: refused" in text and "not-the-password" not in text


def test_nothing_to_try_is_told(server: Server) -> None:
    driven = Driven(server.target())
    driven.session.start()
    ended = driven.end()
    assert isinstance(ended, Unreachable) and "no key and no password" in str(ended.error)


def test_a_large_file_over_it(server: Server, tmp_path: Path) -> None:
    import hashlib

    from bringup.run.actions import Blob

    data = bytes(range(256)) * 40_000
    digest = hashlib.sha256(data).hexdigest()
    args = {"dest": str(tmp_path / "f"), "_source": "x", "mode": "0644",
            "_file": {"name": "x", "digest": digest, "sha1": None, "md5": None, "size": len(data), "mode": "0644"}}
    with Driven(server.target(password=Secret(PASSWORD))) as driven:
        told = driven.call("copy", args, blobs=[Blob(digest, len(data), data)], timeout=60)
        assert told.get("changed"), told
    assert (tmp_path / "f").read_bytes() == data
