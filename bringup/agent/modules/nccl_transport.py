"""Which network NCCL (or RCCL) took at this start, read from the files that it was told to write. Python 3.6."""

import glob
import os
import re

from bringup.agent.processes import launch

ARGUMENTS = {"name": {"type": "str", "required": True}, "file": {"type": "str", "required": True}}
_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$")
_DEVICE = re.compile(r"NCCL INFO NET/(?:IB|Socket) ?: (?:Using|No device found)(.*)$")
_LIMIT = 4 * 1024 * 1024


def run(task):
    """`networks`: name -> how many processes took it; `line` is the first that took sockets, `device` what was said of
    devices beside it. Files of earlier starts are passed over."""
    place = launch.Place(task.root, task.args["name"])
    started = float(place.read().get("started") or 0)
    pattern = re.sub(r"%[hp]", "*", os.path.join(glob.escape(place.work), task.args["file"]))
    networks, line, device = {}, "", ""
    files = 0
    for path in sorted(glob.glob(pattern)):
        if os.path.getmtime(path) < started - 1:
            continue
        files += 1
        with open(path, "rb") as handle:
            text = handle.read(_LIMIT).decode("utf-8", "replace")
        taken, said = None, ""
        for found in text.splitlines():
            match = _NETWORK.search(found)
            if match:
                taken = match.group(1)
                if taken.lower().startswith("socket") and not line:
                    line, device = found.strip(), said
            elif _DEVICE.search(found):
                said = found.strip()
        if taken:
            networks[taken] = networks.get(taken, 0) + 1
    return {"changed": False, "files": files, "networks": networks, "line": line, "device": device}
