"""A temporary file or folder of the host, with a name that nobody can guess."""

import os
import tempfile

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "state": {"type": "str", "default": "file", "choices": ["file", "directory"]},
    "path": {"type": "path"},
    "prefix": {"type": "str", "default": "ansible."},
    "suffix": {"type": "str", "default": ""},
}


def run(task):
    args = task.args
    prefix, suffix = args.get("prefix") or "", args.get("suffix") or ""
    for name, value in (("prefix", prefix), ("suffix", suffix)):
        if value != os.path.basename(value):
            raise Failure("%s must be a part of a file name, without a slash: %s" % (name, value))
    if task.check:
        return {"changed": False, "skipped": True, "msg": "tempfile makes nothing in check mode"}
    folder = _files.expand(args.get("path"))
    try:
        if args.get("state", "file") == "directory":
            path = tempfile.mkdtemp(suffix=suffix, prefix=prefix, dir=folder)
        else:
            descriptor, path = tempfile.mkstemp(suffix=suffix, prefix=prefix, dir=folder)
            os.close(descriptor)
    except OSError as error:
        raise _files.failure(error, "cannot make a temporary %s" % args.get("state", "file"), folder or "")
    out = {"changed": True, "path": path}
    out.update(_files.describe(path))
    return out
