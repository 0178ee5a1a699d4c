"""Where the tests of bundles make them: a project of small wheels, an index on loopback, no other."""


from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_project import ENV_YML, MACHINE, PLATFORM, Site
from small_index import SmallIndex
from small_wheels import wheel

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = "aarch64" if MACHINE == "x86_64" else "x86_64"
BIG = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=4_000_000))


class Office(Site):
    """Where bundles are made: a project of small wheels, an index on loopback, no other."""

    def __init__(self, folder: Path, index: SmallIndex) -> None:
        self.index = index
        super().__init__(folder)
        (folder / "envs/tiny/env.yml").write_text(ENV_YML.replace('["3.13", "3.12", "3.11", "3.10"]', f'["{PYTHON}"]'))
        self.lock("alpha", "beta")
        self.write()

    def lock(self, *names: str) -> None:
        lines = [f"# bringup lock\n# platform: {PLATFORM}\n# python: {PYTHON}\n"]
        for name in names:
            file = next(self.index.folder.glob(f"{name}-*"))
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            lines.append(f"{name}=={file.name.split('-')[1].removesuffix('.tar.gz')} \\\n    --hash=sha256:{digest}")
        (self.folder / f"envs/tiny/locks/{PLATFORM}.txt").write_text("\n".join(lines) + "\n")

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in super().environment().items()
                 if not name.startswith(("UV_", "PIP_")) and not name.lower().endswith("_proxy")}
        url = self.index.url if not self.index.password else \
            self.index.url.replace("//", f"//ops:{self.index.password}@")
        return {**clean, "UV_DEFAULT_INDEX": url, "UV_CACHE_DIR": str(self.folder / "uv"), "COLUMNS": "80",
                "PIP_CONFIG_FILE": os.devnull}

    def write(self, *, bundle: dict[str, Any] | None = None, variables: dict[str, Any] | None = None,
              **deployment: Any) -> None:
        super().write(variables={"bundle": {"interpreters": "hosts", "controller": False, **(bundle or {})},
                                 **(variables or {})}, **deployment)

    def bundle(self, name: str = "b.tar.zst", *more: str) -> str:
        return self.good("bundle", "--inventory", "lab", "--output", name, *more)

    def manifest(self, name: str = "b.tar.zst") -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return document


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SmallIndex]:
    wheel(tmp_path / "wheels", "alpha", "1.0", {"alpha/__init__.py": f"DATA = '{BIG}'\n"})
    wheel(tmp_path / "wheels", "beta", "1.5", {"beta.py": "VALUE = 5\n"})
    with SmallIndex(tmp_path / "wheels") as index:
        yield index


@pytest.fixture
def office(tmp_path: Path, index: SmallIndex) -> Iterator[Office]:
    place = Office(tmp_path / "office", index)
    yield place
    place.down()


def names_of(bundle: Path) -> list[str]:
    import zstandard

    with bundle.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream, \
            tarfile.open(fileobj=stream, mode="r|") as archive:
        return [member.name for member in archive]
