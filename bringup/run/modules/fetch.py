"""Controller half of fetch: where the file goes here, and writing it when the host has answered."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.base.errors import StepError
from bringup.run.actions import Call, HostContext


def fetch_action(args: Mapping[str, Any], context: HostContext, /) -> Call:
    """The call of `fetch` on the host. `dest` is relative to the playbook's folder; without `flat` the file goes to
    DEST/HOST/PATH. Raises StepError."""
    dest = Path(os.path.expanduser(str(args["dest"])))
    if not dest.is_absolute():
        dest = Path(str(context.variables.get("playbook_dir", "."))) / dest
    folder = bool(args.get("flat")) and (str(args["dest"]).endswith("/") or dest.is_dir())
    if args.get("flat") and dest.is_dir() and not str(args["dest"]).endswith("/"):
        raise StepError("dest is a folder: end it with a slash to put the file into it", host=context.host,
                        found=str(dest))
    sent = {**args, "_local": str(dest), "_host": context.host, "_folder": folder}
    return Call("fetch", sent, changes=False)


def fetch_result(raw: Mapping[str, Any], args: Mapping[str, Any], /) -> Mapping[str, Any]:
    """Write what came, unless the file here has it already. Raises StepError: not writable, or damaged on its way."""
    if "content" not in raw:
        return raw
    data = base64.b64decode(str(raw["content"]))
    if hashlib.sha256(data).hexdigest() != raw["sha256"]:
        raise StepError("the fetched file is damaged: its digest differs from the host's", found=str(raw.get("file")))
    target = _target(args, str(raw["file"]))
    try:
        before = target.read_bytes() if target.is_file() else None
        if before != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, data)
    except OSError as error:
        raise StepError(f"cannot write {target}: {error.strerror or error}") from None
    kept = {key: value for key, value in raw.items() if key not in ("content", "encoding", "sha256")}
    return {**kept, "changed": before != data, "dest": str(target), "checksum": hashlib.sha1(data).hexdigest()}


def _target(args: Mapping[str, Any], path: str) -> Path:
    local = Path(str(args["_local"]))
    if args.get("flat"):
        return local / Path(path).name if args.get("_folder") else local
    # what the host calls the file must not lead out of the folder
    parts = [part for part in Path(os.path.normpath(path)).parts if part not in ("/", "..")]
    return local.joinpath(str(args["_host"]), *parts)


def _write(target: Path, data: bytes) -> None:
    staged = target.with_name(f".bringup-{os.urandom(8).hex()}")
    try:
        staged.write_bytes(data)
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)
