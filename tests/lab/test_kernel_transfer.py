"""The way of a build from host to host, over loopback: a key for each transfer, what came against what was told."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from pathlib import Path

import pytest

from bringup.agent.modules import kernel_share
from bringup.agent.task import Failure


def offered(tmp_path: Path, keys: list[bytes], content: bytes) -> tuple[int, str]:
    packed = tmp_path / "packed"
    packed.write_bytes(content)
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=kernel_share.serve, args=(server, str(packed), len(content), list(keys), 60.0),
                     daemon=True).start()
    return server.getsockname()[1], hashlib.sha256(content).hexdigest()


def test_a_key_opens_one_transfer_and_no_second(tmp_path: Path) -> None:
    key, other = os.urandom(32), os.urandom(32)
    content = os.urandom(3 << 20)
    port, digest = offered(tmp_path, [key, other], content)
    target = tmp_path / "came"
    kernel_share.receive("127.0.0.1", port, key, str(target), len(content), digest)
    assert target.read_bytes() == content
    with pytest.raises(Failure):
        kernel_share.receive("127.0.0.1", port, key, str(target), len(content), digest)
    with pytest.raises(Failure):
        kernel_share.receive("127.0.0.1", port, os.urandom(32), str(target), len(content), digest)
    kernel_share.receive("127.0.0.1", port, other, str(target), len(content), digest)


def test_what_came_is_compared_with_what_was_told(tmp_path: Path) -> None:
    key = os.urandom(32)
    port, _ = offered(tmp_path, [key], b"x" * 100)
    with pytest.raises(Failure, match="not what was offered"):
        kernel_share.receive("127.0.0.1", port, key, str(tmp_path / "came"), 100, "0" * 64)


def test_a_stranger_that_listens_there_is_found_out(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        sock, _ = server.accept()
        sock.sendall(kernel_share.MAGIC + os.urandom(32))
        sock.recv(64)
        sock.sendall(os.urandom(32) + b"%020d" % 5 + b"wrong")
        sock.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(Failure, match="does not have the key"):
        kernel_share.receive("127.0.0.1", server.getsockname()[1], os.urandom(32), str(tmp_path / "came"), 5, "0" * 64)
