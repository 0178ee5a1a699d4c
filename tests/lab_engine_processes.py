"""Start nodes of the lab engine as processes, and ask them over HTTP through the host's own module."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bringup.agent.modules.http_exchange import exchange
from bringup.lab.engine import OVERLAY
from bringup.serving.contract.messages import Request, Response

HEAD = "127.0.0.1"
FLAGS = ["--trust-remote-code", "--chat-template-content-format=string", "--tool-call-parser", "glm47",
         "--enable-auto-tool-choice", "--reasoning-parser", "glm47", "--served-model-name", "glm-5.1"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HEAD, 0))
        return int(sock.getsockname()[1])


def model_folder(folder: Path, fault: object = None) -> Path:
    """A model folder that the engine takes, with a fault laid in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "glm_moe_dsa", "num_attention_heads": 64}))
    tell(folder, fault)
    return folder


def tell(folder: Path, fault: object) -> None:
    """Tell the engines over this model folder to fail that way; None: no more."""
    path = folder / "lab_engine_fault.json"
    if fault is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(json.dumps({"name": fault} if isinstance(fault, str) else fault))


class EngineNode:
    """One node's process; its log lies in `log`."""

    def __init__(self, log: Path, module: str, words: list[str], port: int | None, **env: str) -> None:
        self.log = log
        self.port = port
        environment = {**os.environ, "PYTHONPATH": str(OVERLAY / "site-packages"), "LAB_ENGINE_LOAD_SECONDS": "0.2",
                       "PYTHONDONTWRITEBYTECODE": "1", **env}
        with log.open("wb") as stream:
            self.process = subprocess.Popen([sys.executable, "-m", module, *words], env=environment, stdout=stream,
                                            stderr=stream, start_new_session=True)

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < end, f"{text!r} did not come:\n{self.text()[-2000:]}"
            time.sleep(0.02)

    def wait_ended(self, seconds: float = 10) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end:\n{self.text()[-2000:]}") from None

    def get(self, path: str, **more: object) -> dict:
        return exchange(HEAD, self.port, {"id": "x", "path": path, **more}, None, 5.0)

    def chat(self, text: str = "Reply with the word kestrel.", **more: object) -> dict:
        body = {"model": "glm-5.1", "messages": [{"role": "user", "content": text}], **more}
        return exchange(HEAD, self.port, {"id": "x", "path": "/v1/chat/completions", "body": body,
                                          "stream": bool(more.get("stream"))}, None, 10.0)

    def wait_ready(self, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while self.get("/health")["status"] != 200:
            assert self.process.poll() is None, f"ended:\n{self.text()[-2000:]}"
            assert time.monotonic() < end, f"not ready:\n{self.text()[-2000:]}"
            time.sleep(0.05)

    def ask(self, requests: Sequence[Request], at_once: int = 4) -> list[Response]:
        """The exchange that the contract takes."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda request: Response.from_wire(
                exchange(HEAD, self.port, request.wire(), None, 20.0)), requests))

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def end(self) -> None:
        """End the whole process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def vllm_node(folder: Path, model: Path, name: str, words: list[str], port: int | None, **env: str) -> EngineNode:
    serve = ["serve", str(model), *words]
    if port is not None:
        serve += ["--host", HEAD, "--port", str(port)]
    return EngineNode(folder / f"{name}.log", "bringup_lab_engine.vllm", serve, port, **env)


def vllm_alone(folder: Path, model: Path, *, flags: list[str] | None = None, **env: str) -> EngineNode:
    """One node that serves."""
    return vllm_node(folder, model, "alone", FLAGS if flags is None else flags, free_port(), **env)


class Replica:
    """A head and workers, tensor parallel 8 x pipeline over the nodes."""

    def __init__(self, folder: Path, model: Path, nodes: int = 3, timeout: int = 20,
                 start: tuple[int, ...] | None = None, **env: str) -> None:
        self.meeting = free_port()
        self.folder, self.model, self.count, self.timeout, self.env = folder, model, nodes, timeout, env
        self.nodes: dict[int, EngineNode] = {}
        for rank in start if start is not None else range(nodes):
            self.start(rank)

    def start(self, rank: int, *, as_rank: int | None = None, extra: tuple[str, ...] = (), **env: str) -> EngineNode:
        number = rank if as_rank is None else as_rank
        words = [*FLAGS, "--tensor-parallel-size", "8", "--pipeline-parallel-size", str(self.count), "--nnodes",
                 str(self.count), "--node-rank", str(number), "--master-addr", HEAD, "--master-port",
                 str(self.meeting), "--distributed-timeout-seconds", str(self.timeout), *extra]
        if number:
            words.append("--headless")
        node = vllm_node(self.folder, self.model, f"node{rank}", words, None if number else free_port(),
                         **{"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": HEAD, **self.env, **env})
        self.nodes[rank] = node
        return node

    @property
    def head(self) -> EngineNode:
        return self.nodes[0]

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()
