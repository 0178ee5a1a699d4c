"""Kernel builds on the host: looked for, started as a job, found again, proven again. Python 3.6.

`action`
    probe    what is here for a build (kernel_probe)
    find     whether the builds of `builds` ([{"name", "digest"}]) are here and sound
    start    prepare `build` and start its job, or attach to the one that runs: {"id", "state", ...}
    outcome  how the job of `digest` ended: its result.json, and the last lines where it failed
    verify   every file of the builds of `builds` as it was built, and the proof run again
A build lies in `bringup_root/builds/DIGEST`; while it is made, in the hidden folder beside it.
"""

import json
import os
import shutil
import subprocess
import sys

from bringup.agent import pids
from bringup.agent.modules import job, kernel_probe
from bringup.agent.task import Failure, Task

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["probe", "find", "start", "outcome", "verify"]},
    "python": {"type": "path"},
    "cuda_home": {"type": "path"},
    "tools": {"type": "list", "default": []},
    "packages": {"type": "list", "default": []},
    "pkg_config": {"type": "list", "default": []},
    "headers": {"type": "list", "default": []},
    "programs": {"type": "list", "default": []},
    "builds": {"type": "list", "default": []},
    "build": {"type": "dict", "default": {}},
    "digest": {"type": "str"},
}
MARKER = "bringup-build.json"


def run(task):
    action = task.args["action"]
    if action == "probe":
        return kernel_probe.run(task)
    os.umask(0o022)
    if action == "find":
        return {"changed": False, "builds": dict((item["name"], _seen(task, item["digest"]))
                                                 for item in task.args["builds"])}
    if action == "start":
        return _start(task, task.args["build"])
    if action == "outcome":
        return dict(outcome(task.root, task.args["digest"]), changed=False)
    return {"changed": False, "builds": dict((item["name"], _verified(task, item)) for item in task.args["builds"])}


def folder(root, digest):
    return os.path.join(root, "builds", digest[:20])


def staging(root, digest, kind="new"):
    return os.path.join(root, "builds", ".%s.%s" % (digest[:20], kind))


def job_id(digest):
    return "kernel-" + digest[:12]


def read(path):
    try:
        with open(path) as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return None


def found(root, digest):
    """What is known of a build: path, sound, reason, proof and size. Looked at by size, not by hash."""
    target = folder(root, digest)
    out = {"path": target, "digest": digest, "sound": False}
    marker = read(os.path.join(target, MARKER))
    if marker is None:
        return dict(out, reason="unfinished" if os.path.isdir(target) else "missing")
    if marker.get("digest") != digest or marker.get("path") != target:
        return dict(out, reason="moved here from %s" % marker.get("path"))
    size = 0
    for name, (length, _) in marker["files"].items():
        try:
            now = os.lstat(os.path.join(target, name)).st_size
        except OSError:
            return dict(out, reason="%s is gone" % name)
        if now != length:
            return dict(out, reason="%s is not as it was built" % name)
        size += length
    return dict(out, sound=True, reason=None, proof=marker.get("proof"), facts=marker.get("facts"), size=size,
                seconds=marker.get("seconds"), jobs=marker.get("jobs"), held=marker.get("held"),
                built_on=marker.get("built_on"))


def _seen(task, digest):
    """What is known of a build, and whether a job of it runs here now."""
    out = found(task.root, digest)
    if not out["sound"]:
        out["running"] = _job(task, "status", digest)["state"] in ("running", "starting")
    return out


def make(path):
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise Failure("cannot make %s: %s" % (path, error.strerror or error),
                      next="set bringup_root to a folder on a local disk that can be written")


def lay(task, place, spec, files, runner):
    """Fill a staging folder with the runner, its spec and the recipe's own files."""
    make(os.path.join(place, "files"))
    shutil.copyfile(task.blob(runner), os.path.join(place, "runner.py"))
    for name, digest in sorted((files or {}).items()):
        path = os.path.join(place, "files", *name.split("/"))
        make(os.path.dirname(path))
        shutil.copyfile(task.blob(digest), path)
    with open(os.path.join(place, "spec.json"), "w") as handle:
        json.dump(spec, handle, sort_keys=True, indent=1)


def _job(task, action, digest, **more):
    args = dict((name, spec.get("default")) for name, spec in job.ARGUMENTS.items())
    args.update(action=action, id=job_id(digest), **more)
    return job.run(Task(args, check=task.check, environment=task.environment, root=task.root, run_id=task.run_id,
                        lock_fd=task.lock_fd))


def _start(task, build):
    """Start the build's job; attach to one that runs; a finished one is answered by what it made."""
    digest = build["digest"]
    there = found(task.root, digest)
    if there["sound"]:
        return dict(there, changed=False, state="done", id=job_id(digest))
    if task.check:
        return {"changed": True, "state": "absent", "id": job_id(digest)}
    place = staging(task.root, digest)
    argv = [sys.executable or "python3", "-uSE", os.path.join(place, "runner.py"), place]
    state = _job(task, "status", digest, wait=1.0)
    if state["state"] not in ("running", "starting"):
        if not _compiled(place, digest):
            shutil.rmtree(place, ignore_errors=True)
        make(place)
        spec = dict(build["spec"], mode="build", digest=digest, target=folder(task.root, digest))
        lay(task, place, spec, build.get("files"), build["runner"])
        shutil.copyfile(task.blob(build["source"]), os.path.join(place, "source.tar"))
    started = _job(task, "start", digest, argv=argv, chdir=place, again=True, memory=build["spec"].get("memory"))
    return dict(started, changed=bool(started.get("changed")), folder=place)


def _compiled(place, digest):
    """Whether an earlier try was compiled and failed in its proof: the runner compares its files."""
    result = read(os.path.join(place, "result.json")) or {}
    marker = read(os.path.join(place, "compiled.json")) or {}
    if result.get("step") == "proof" and marker.get("digest") == digest:
        os.unlink(os.path.join(place, "result.json"))
        return True
    return False


def outcome(root, digest):
    """{"ok", "build", ...}: what the runner left, and what lies under the build's name now."""
    place = staging(root, digest)
    there = found(root, digest)
    result = read(os.path.join(place, "result.json"))
    if there["sound"]:
        if result is not None and result.get("ok"):
            shutil.rmtree(place, ignore_errors=True)
        return dict(result or {}, ok=True, build=there)
    result = result or {"ok": False, "step": "runner", "message": "the build left no result"}
    return dict(result, ok=False, build=there, folder=place)


def _verified(task, item):
    """A build proven again: its state, `findings` in a few words each."""
    there = found(task.root, item["digest"])
    if not there["sound"]:
        return there
    place = staging(task.root, item["digest"], "verify-%d" % os.getpid())
    try:
        spec = dict(item["spec"], mode="verify", out=there["path"], digest=item["digest"], target=there["path"])
        lay(task, place, spec, item.get("files"), item["runner"])
        result = run_here(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if not result.get("ok"):
        return dict(there, sound=False, reason=result.get("message") or "the proof failed", result=result)
    return dict(there, proof=result["proof"], seconds_proof=result.get("seconds"))


def run_here(place):
    """Run a staged runner to its end, in this call: for what takes seconds. Its result."""
    with open(os.devnull) as nothing, open(os.path.join(place, "log"), "w") as log:
        process = subprocess.Popen([sys.executable or "python3", "-uSE", os.path.join(place, "runner.py"), place],
                                   stdin=nothing, stdout=log, stderr=subprocess.STDOUT, cwd=place)
        process.wait()
    result = read(os.path.join(place, "result.json"))
    return result or {"ok": False, "step": "runner", "message": pids.read(os.path.join(place, "log"))[-300:]}
