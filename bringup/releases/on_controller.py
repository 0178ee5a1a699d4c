"""The controller's own copy of a release, beside those of the nodes: a file that is never changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bringup.releases.document import Release


def path_of(root: Path, digest: str) -> Path:
    """`.bringup/releases/DIGEST/release.json`, as on a node."""
    return root / ".bringup" / "releases" / digest / "release.json"


def load(root: Path, digest: str) -> Release | None:
    """The copy, None when there is none or it no longer has its digest."""
    try:
        release = Release.read(json.loads(path_of(root, digest).read_text(encoding="utf-8")))
        return release if release.digest == digest else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(root: Path, release: Release) -> str | None:
    """Keep a copy where there is no whole one. Returns why it could not be kept: the nodes have theirs, so that stops
    nothing."""
    if load(root, release.digest) is not None:
        return None
    path = path_of(root, release.digest)
    staged = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps(release.document(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        staged.chmod(0o444)
        os.replace(staged, path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None
