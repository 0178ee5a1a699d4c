"""A folder that holds a stand-in Docker client (tests/containers/stand_in.py), its images and what it recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "containers"
DIGEST = "sha256:" + "d" * 64


class StandIn:
    """`client` is the program; `image(...)` adds an image; `calls` are the words of every call so far."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.client = folder / "docker"
        shutil.copyfile(SOURCE / "stand_in.py", self.client)
        self.client.chmod(0o755)
        shutil.copyfile(SOURCE / "docker-run-help.txt", folder / "docker-run-help.txt")
        self.images: dict[str, dict[str, Any]] = {}

    def image(self, name: str, *, digest: str | None = DIGEST, path: str = "", archive: bool = False,
              remote: bool = False, layers: tuple[str, ...] = ("sha256:aa", "sha256:bb"),
              id_: str = "sha256:" + "1" * 64) -> None:
        """An image; with `archive` it is there only once an archive was loaded, with `remote` once it was pulled."""
        bare = name.rsplit(":", 1)[0]
        self.images[name] = {"Id": id_, "RepoDigests": [f"{bare}@{digest}"] if digest else [],
                             "RootFS": {"Layers": list(layers)}, "path": path, "archive": archive, "remote": remote}
        (self.folder / "images.json").write_text(json.dumps(self.images))

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def runs(self) -> list[list[str]]:
        """The words behind `docker run`, a list a call."""
        return [words[1:] for words in self.calls if words[0] == "run"]

    def registry(self, *, seconds: float = 0.0, error: str = "") -> None:
        """How the registry is from now on: seconds a layer (of six), an error that ends a pull in its midst."""
        (self.folder / "registry.json").write_text(json.dumps({"seconds": seconds, "error": error}))

    def break_engine(self) -> None:
        """From now on the engine does not answer."""
        (self.folder / "down").touch()
