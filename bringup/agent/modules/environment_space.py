"""Environments on this host, what each takes and what uses it; removing those that are provably ours. Python 3.6.

Ours is one under `<root>/envs` whose marker names its own digest and this very folder. One on a network file system is
named and never removed: other machines may use it. With an environment goes what engines compiled for it.
"""

import fcntl
import os
import shutil
import time

from bringup.agent.lock import NETWORK, file_system
from bringup.agent.modules import python_env_build, python_env_check
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["list", "remove"]},
    "digests": {"type": "list", "default": []},
}


def run(task):
    if task.args["action"] == "list":
        return {"changed": False, "environments": _found(task)}
    found = _found(task)
    removed, kept = {}, {}
    for digest in task.args["digests"]:
        item = found.get(digest)
        if item is None:
            continue
        reason = item["keep"] or _why_not(item["path"])
        if reason:
            kept[digest] = reason
            continue
        if not task.check:
            aside = python_env_build.beside(item["path"], "old-%d" % int(time.time() * 1000))
            try:
                os.rename(item["path"], aside)
                shutil.rmtree(aside)
                _remove_caches(task.root, digest)
            except OSError as error:
                raise Failure("the environment %s cannot be removed: %s" % (item["path"], error.strerror or error))
        removed[digest] = item["bytes"]
    return {"changed": bool(removed), "removed": removed, "kept": kept}


def _remove_caches(root, digest):
    """The folders of an environment under cache/compiled, one for each kind of device; a link there is left alone."""
    folder = os.path.join(root, "cache", "compiled")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if (name == digest[:20] or name.startswith(digest[:20] + "-")) and not os.path.islink(path):
            shutil.rmtree(path)


def _found(task):
    """digest -> name, path, bytes, keep (why it must stay; None when it may go)."""
    folder = os.path.join(task.root, "envs")
    out = {}
    commands = None
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if name.startswith(".") or not os.path.isdir(path):
            continue
        marker = python_env_check.read_marker(path)
        digest = (marker or {}).get("digest") or ""
        if commands is None:
            commands = seen_in_processes()
        keep = None
        if not digest or python_env_build.folder(task.root, digest) != path or \
                os.path.realpath(marker.get("path") or "") != os.path.realpath(path):
            keep = "it was not made here by bringup"
        elif file_system(path) in NETWORK:
            keep = "it lies on a network file system, other machines may use it"
        elif any(os.path.realpath(path) + "/" in text or path + "/" in text for text in commands):
            keep = "a process runs from it"
        out[digest or path] = {"name": (marker or {}).get("name"), "path": path, "bytes": folder_size(path),
                               "keep": keep}
    return out


def _why_not(path):
    """Why it cannot be removed now: somebody builds it."""
    lock = python_env_build.beside(path, "lock")
    try:
        with open(lock) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except OSError:
        return "somebody builds it"
    return None


def seen_in_processes(parts=("cmdline", "maps")):
    """Command lines and mapped files of all processes, as far as they can be read."""
    out = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        for part in parts:
            try:
                with open("/proc/%s/%s" % (name, part), "rb") as handle:
                    out.append(handle.read().decode("utf-8", "replace").replace("\0", " "))
            except OSError:
                continue
    return out


def folder_size(folder):
    """Bytes of the files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total
