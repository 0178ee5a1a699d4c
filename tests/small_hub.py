"""A hub of models for tests, in the layout of huggingface.co, over real HTTP; and small models of real safetensors."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 5368709120\n" % (b"ab" * 32)


def safetensors(tensors: Mapping[str, bytes]) -> bytes:
    """A file of one-dimensional U8 tensors."""
    header: dict[str, Any] = {}
    end = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [end, end + len(data)]}
        end += len(data)
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(tensors.values())


def small_model(shards: int = 3, size: int = 1 << 20, template: str = "{{ messages }}") -> dict[str, bytes]:
    """Files of a model: so many shards of so many bytes, an index, configuration, template."""
    files: dict[str, bytes] = {}
    places = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        files[name] = safetensors({f"layer.{number}.weight": os.urandom(size)})
        places[f"layer.{number}.weight"] = name
    files["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": shards * size},
                                                        "weight_map": places}).encode()
    files["config.json"] = b'{"model_type": "glm_moe_dsa", "num_attention_heads": 64}'
    files["chat_template.jinja"] = template.encode()
    files["README.md"] = b"a small model"
    return files


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@dataclass
class Hub:
    """Serves `repos`: repo -> commit -> files, on an address of this machine. A context manager.

    `cut` ends the next that many answers with weights after half; `token` is asked for where it is set; `slow` is
    seconds of pause for each piece of 64 KiB; `lie` is a file that is given as zeros; `store` is the address that
    weights are redirected to; `asked` are the files that were asked for, with the byte where to begin.
    """

    repos: dict[str, dict[str, dict[str, bytes]]]
    address: str = "127.0.0.1"
    cut: int = 0
    token: str | None = None
    slow: float = 0.0
    lie: str | None = None
    store: str | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    seen_tokens: set[str | None] = field(default_factory=set)

    def __enter__(self) -> Hub:
        self.server = ThreadingHTTPServer((self.address, 0), self.handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.server.server_port}"

    def handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                return

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                authorization = self.headers.get("Authorization")
                hub.seen_tokens.add(authorization)
                if hub.token and authorization != f"Bearer {hub.token}":
                    self.send_error(401)
                    return
                if path.startswith("/api/models/"):
                    self.listing(*path[len("/api/models/"):].split("/revision/"))
                    return
                repo, _, rest = path[1:].partition("/resolve/")
                commit, _, name = rest.partition("/")
                files = hub.repos.get(repo, {}).get(commit, {})
                if name not in files:
                    self.send_error(404)
                    return
                if hub.store and name.endswith(".safetensors"):
                    self.send_response(302)
                    self.send_header("Location", hub.store + self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.content(name, files[name])

            def listing(self, repo: str, revision: str) -> None:
                commits = hub.repos.get(repo, {})
                commit = next(iter(commits)) if revision == "main" and commits else revision
                if commit not in commits:
                    self.send_error(404)
                    return
                siblings = []
                for name, data in commits[commit].items():
                    one: dict[str, Any] = {"rfilename": name, "size": len(data)}
                    if name.endswith(".safetensors"):
                        one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
                    else:
                        one["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                    siblings.append(one)
                self.answer(json.dumps({"sha": commit, "siblings": siblings}).encode())

            def answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def content(self, name: str, data: bytes) -> None:
                begin = 0
                wanted = self.headers.get("Range")
                if wanted:
                    begin = int(wanted[len("bytes="):].rstrip("-"))
                hub.asked.append((name, begin))
                if name == hub.lie:
                    data = bytes(len(data))
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(data) - begin))
                self.end_headers()
                end = len(data)
                if hub.cut > 0 and name.endswith(".safetensors"):
                    hub.cut -= 1
                    end = begin + (len(data) - begin) // 2
                for at in range(begin, end, 65536):
                    self.wfile.write(data[at:min(at + 65536, end)])
                    if hub.slow:
                        time.sleep(hub.slow)
                if end < len(data):
                    self.close_connection = True

        return Handler
