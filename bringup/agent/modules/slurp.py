"""The content of a file of the host, base64."""

import base64
import os

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {"src": {"type": "path", "required": True, "aliases": ["path"]}}


def run(task):
    path = _files.expand(task.args["src"])
    if not os.path.exists(path):
        raise Failure("file not found: %s" % path, path=path)
    if os.path.isdir(path):
        raise Failure("source is a directory and must be a file: %s" % path, path=path)
    data = _files.read(path)
    return {"changed": False, "content": base64.b64encode(data).decode("ascii"), "source": path, "encoding": "base64"}
