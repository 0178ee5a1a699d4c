"""Python environments on the host: looked at, built under a temporary name, verified, then renamed. Python 3.6.

`action`
    probe    what is here: machine, glibc, interpreters, uv, free space; CUDA toolkits where `cuda` asks for them
    bring    unpack the interpreter of `archive` (digest, name, version) under bringup_root
    find     whether the environments of `environments` (name and digest suffice) are here and sound
    build    build the environments of `environments` that are not sound, side by side
    verify   prove each environment of `environments` again, every recorded hash included; changes nothing
An environment is a dict: name, digest, python (path of the interpreter), version ("3.11.2"), lock (SHA-256 of the
lock's text), packages ({name: version}), overrides ([names]), overlay ({"digest", "size"} of a tar or null),
sources ([names of packages that may be built]), build (variables for those builds), cuda_home (its CUDA toolkit or
null), memory_per_job (bytes that one compiler of those builds may take),
verify ({"config": {...}, "imports": [...], "commands": [...]}).
"""

import os
import queue
import threading
import time

from bringup.agent.modules import python_env_bring, python_env_build, python_env_check, python_env_probe
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["probe", "bring", "find", "build", "verify"]},
    "pythons": {"type": "list", "default": []},
    "python": {"type": "path"},
    "cuda": {"type": "bool", "default": False},
    "cuda_home": {"type": "path"},
    "archive": {"type": "dict"},
    "environments": {"type": "list", "default": []},
    "uv": {"type": "path"},
    "uv_digest": {"type": "str"},
    "uv_version": {"type": "str"},
    "cache": {"type": "path"},
    "index": {"type": "dict", "default": {}},
}


def run(task):
    action = task.args["action"]
    if action == "probe":
        return python_env_probe.run(task)
    os.umask(0o022)  # engines of another account read what is built here
    if action == "bring":
        return python_env_bring.run(task)
    if action == "find":
        return _found(task)
    if action == "verify":
        return _each(task, python_env_check.again)
    if task.check:
        return _planned(task)
    return _each(task, python_env_build.build)


def _planned(task):
    missing = [item["name"] for item in task.args["environments"]
               if python_env_check.unsound(_folder(task, item), item["digest"])]
    return {"changed": bool(missing), "environments": {}, "missing": missing}


def _found(task):
    out = {}
    for item in task.args["environments"]:
        place, began = _folder(task, item), time.time()
        reason = python_env_check.unsound(place, item["digest"])
        out[item["name"]] = dict(python_env_check.described(place), name=item["name"], digest=item["digest"],
                                 sound=reason is None, reason=reason, seconds=time.time() - began)
    return {"changed": False, "environments": out}


def _folder(task, item):
    return python_env_build.folder(task.root, item["digest"])


class _Aside(object):
    """The task as a thread may use it: lines go through the main thread, files were fetched before."""

    def __init__(self, task, files=None, sound=None):
        files = files or {}
        self.sound = sound or {}
        self.uv = files.pop("uv", None)
        self.args = task.args
        self.root = task.root
        self.command_environment = task.command_environment
        self.blob = files.__getitem__
        self.lines = queue.Queue()
        self.line = self.lines.put


def _each(task, work):
    """Run `work` for every environment side by side; all end before the first failure is told."""
    items = task.args["environments"]
    aside = _Aside(task, *(_files(task, items) if task.args["action"] == "build" else ()))
    done, failed = {}, {}
    gate = threading.Semaphore(max(1, min(len(items), os.cpu_count() or 1)))

    def one(item):
        with gate:
            try:
                done[item["name"]] = work(aside, item)
            except Failure as error:
                failed[item["name"]] = error
            except Exception as error:  # a thread's error would be lost with it
                failed[item["name"]] = Failure("%s: %s" % (type(error).__name__, error))

    threads = [threading.Thread(target=one, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    while True:
        alive = any(thread.is_alive() for thread in threads)
        try:
            task.line(aside.lines.get(timeout=0.05))
        except queue.Empty:
            if not alive:
                break
    out = {"changed": any(item.get("changed") for item in done.values()), "environments": done}
    if failed:
        name = sorted(failed)[0]
        error = failed[name]
        fields = dict(error.fields, environments=done, failed_environments=sorted(failed))
        raise Failure("environment %s: %s" % (name, error.message), **fields)
    return out


def _files(task, items):
    """What the environments that must be built need: locks and overlays by digest, the uv under `uv`. Then those that
    are sound as they are, by name, with the seconds that the look took: all files of one are looked at, once."""
    files, sound = {}, {}
    for item in items:
        began = time.time()
        if python_env_check.unsound(_folder(task, item), item["digest"]) is None:
            sound[item["name"]] = dict(python_env_check.described(_folder(task, item)), seconds=time.time() - began)
        else:
            files["uv"] = files.get("uv") or python_env_build.tool(task)
            for digest in (item["lock"], (item.get("overlay") or {}).get("digest")):
                if digest and digest not in files:
                    files[digest] = task.blob(digest)
            for name, digest in sorted((item.get("wheels") or {}).items()):
                python_env_build.keep_wheel(task, name, digest)
    return files, sound
