"""Kernel builds on this host, what each takes and what uses it; removing those that are provably ours. Python 3.6.

Ours is one under `<root>/builds` whose marker names its own digest and this very folder. What a try left that did not
get its name counts as well, unless its job runs. The newest build of each recipe stays: preflight and a provision use
builds that no release names.
"""

import glob
import os
import re
import shutil
import time

from bringup.agent.lock import NETWORK, file_system
from bringup.agent.modules import job, kernel_build
from bringup.agent.modules.environment_space import folder_size, seen_in_processes
from bringup.agent.task import Failure, Task

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["list", "remove"]},
    "digests": {"type": "list", "default": []},
}
_UNFINISHED = re.compile(r"^\.([0-9a-f]{20})\.(new|take|old)$")


def run(task):
    found = _found(task)
    if task.args["action"] == "list":
        return {"changed": False, "builds": found}
    removed, kept = {}, {}
    for digest in task.args["digests"]:
        item = found.get(digest)
        if item is None:
            continue
        if item["keep"]:
            kept[digest] = item["keep"]
            continue
        if not task.check:
            _remove(task, item)
        removed[digest] = item["bytes"]
    return {"changed": bool(removed), "removed": removed, "kept": kept}


def _remove(task, item):
    """Out of its name first: nobody finds half a build."""
    aside = os.path.join(os.path.dirname(item["path"]), ".gone-%d" % int(time.time() * 1000000))
    try:
        os.rename(item["path"], aside)
        shutil.rmtree(aside)
    except OSError as error:
        raise Failure("the build %s cannot be removed: %s" % (item["path"], error.strerror or error))


def _found(task):
    """digest (the path of what is unfinished or not ours) -> name, path, bytes, keep (why it must stay, or None)."""
    folder = os.path.join(task.root, "builds")
    out, times = {}, {}
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    texts = seen_in_processes(("cmdline", "maps", "environ")) + _pth_texts(task.root) if names else []
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isdir(path):
            continue
        unfinished = _UNFINISHED.match(name)
        if name.startswith(".") and not unfinished:
            continue
        marker = kernel_build.read(os.path.join(path, kernel_build.MARKER)) or {}
        digest = str(marker.get("digest") or "")
        own = bool(digest) and kernel_build.folder(task.root, digest) == path and marker.get("path") == path
        keep = None
        if unfinished:
            keep = "it is being built" if _worked_on(task, unfinished.group(1)) else None
        elif not own:
            keep = "it was not made here by bringup"
        if keep is None and file_system(path) in NETWORK:
            keep = "it lies on a network file system, other machines may use it"
        if keep is None and any(path + "/" in text or os.path.realpath(path) + "/" in text for text in texts):
            keep = "a process or an environment uses it"
        key = digest if own and not unfinished else path
        out[key] = {"name": "unfinished build %s" % unfinished.group(1)[:12] if unfinished else marker.get("name"),
                    "path": path, "bytes": folder_size(path), "keep": keep}
        if key == digest:
            times.setdefault(marker.get("name"), []).append((float(marker.get("built_at") or 0), key))
    for name, made in times.items():
        item = out[max(made)[1]]
        item["keep"] = item["keep"] or "the newest build of %s" % name
    return out


def _worked_on(task, digest):
    """Whether the job that makes this build runs, or the one that brings it."""
    args = dict((name, spec.get("default")) for name, spec in job.ARGUMENTS.items())
    return any(job.run(Task(dict(args, action="status", id=name), root=task.root))["state"] in ("running", "starting")
               for name in (kernel_build.job_id(digest), "transfer-kernel-" + digest))


def _pth_texts(root):
    """The lines by which environments take packages from elsewhere."""
    out = []
    for path in glob.glob(os.path.join(root, "envs", "*", "lib", "python*", "site-packages", "*.pth")):
        try:
            with open(path, "rb") as handle:
                out.append(handle.read().decode("utf-8", "replace").replace("\n", "/\n"))
        except OSError:
            continue
    return out
