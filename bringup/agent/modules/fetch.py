"""Host half of fetch: the file's content and digests; the controller writes it under its own folder."""

import base64
import os
import stat

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "src": {"type": "path", "required": True},
    "dest": {"type": "str", "required": True},
    "flat": {"type": "bool", "default": False},
    "fail_on_missing": {"type": "bool", "default": True},
    "validate_checksum": {"type": "bool", "default": True},
}
LARGEST = 64 << 20
"""Bytes: what fits a frame without harm. Weights and logs of days go by rsync or a shared folder."""


def run(task):
    if task.check:
        return {"changed": False, "skipped": True, "msg": "fetch brings nothing in check mode"}
    path = _files.expand(task.args["src"])
    try:
        found = os.stat(path)
    except OSError as error:
        return _missing(task, "the remote file does not exist, not transferring, ignored" if error.errno == 2 else
                        "%s cannot be looked at: %s" % (path, error.strerror), path)
    if stat.S_ISDIR(found.st_mode):
        return _missing(task, "remote file is a directory, fetch cannot work on directories", path)
    if found.st_size > LARGEST:
        raise Failure("%s is too large to fetch" % path, path=path, found="%d bytes" % found.st_size,
                      expected="at most %d bytes" % LARGEST)
    data = _files.read(path)
    return {"changed": False, "file": path, "content": base64.b64encode(data).decode("ascii"), "encoding": "base64",
            "size": len(data), "remote_checksum": _files.digest(path), "sha256": _files.digest(path, "sha256")}


def _missing(task, text, path):
    if task.args.get("fail_on_missing", True):
        raise Failure(text.replace(", not transferring, ignored", ""), file=path)
    return {"changed": False, "msg": text, "file": path}
