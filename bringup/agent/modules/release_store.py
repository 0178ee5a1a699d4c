"""The store of releases on a host: immutable folders, `current` as one link, the history of what became of them.

Python 3.6. `<root>/releases/<digest>/release.json` never changes once it is whole. `<root>/current` is a symbolic link
replaced by rename. `<root>/releases/history.json` is a list of events, oldest first:
{"event": made|switched|started|good|bad|left|pruned, "digest", "number", "at", "run", "by", "replica", "seconds",
"reason"}.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil

from bringup.agent.modules import engine_process
from bringup.agent.processes import launch, proc
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True,
               "choices": ["put", "list", "switch", "mark", "prune", "number", "launch"]},
    "digest": {"type": "str"},
    "document": {"type": "dict"},
    "number": {"type": "int"},
    "event": {"type": "str"},
    "reason": {"type": "str"},
    "seconds": {"type": "float"},
    "replica": {"type": "str"},
    "by": {"type": "str"},
    "launches": {"type": "list", "default": []},
    "digests": {"type": "list", "default": []},
    "documents": {"type": "bool", "default": True},
}

_DIGEST = re.compile(r"^[0-9a-f]{64}$")


def run(task):
    os.umask(0o022)  # the engines' account reads what is written here
    return {"put": _put, "list": _list, "switch": _switch, "mark": _mark, "prune": _prune, "number": _number,
            "launch": _launch}[task.args["action"]](task)


def canonical(identity: object) -> bytes:
    """The text whose SHA-256 names a release."""
    return json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _digest(task):
    digest = task.args.get("digest") or ""
    if not _DIGEST.match(digest):
        raise Failure("%r is not the digest of a release" % digest, expected="64 hexadecimal digits")
    return digest


def _folder(task, digest):
    return os.path.join(task.root, "releases", digest)


def _history_path(task):
    return os.path.join(task.root, "releases", "history.json")


def history(task):
    """The events, oldest first. Raises Failure when the file is there and cannot be read as one."""
    path = _history_path(task)
    if not os.path.exists(path):
        return []
    events = proc.read_json(path)
    if not isinstance(events, list):
        raise Failure("the history of releases cannot be read", found=path, next="move it away and look into it")
    return events


def _remember(task, digest, event, **more):
    """Add an event, one writer at a time: a contract that is asked beside a run marks without that run's lock."""
    entry = {"event": event, "digest": digest, "at": proc.now(), "run": task.run_id, "by": task.args.get("by")}
    entry.update((key, value) for key, value in more.items() if value is not None)
    folder = os.path.dirname(_history_path(task))
    proc.make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        proc.write_json(_history_path(task), history(task) + [entry])
    finally:
        os.close(descriptor)


def current(task):
    """The digest that `current` names, or None. Raises Failure when `current` is something else than our link."""
    path = os.path.join(task.root, "current")
    if not os.path.islink(path):
        if os.path.exists(path):
            raise Failure("%s is no symbolic link: it was not made by bringup" % path, next="move it away")
        return None
    return os.path.basename(os.readlink(path).rstrip("/"))


def read_release(task, digest):
    """The document of a release, proven by its digest. None when it is not here; Failure when it was changed."""
    document = proc.read_json(os.path.join(_folder(task, digest), "release.json"))
    if document is None:
        return None
    if hashlib.sha256(canonical(document.get("identity"))).hexdigest() != digest:
        raise Failure("the release %s was changed after it was made" % digest[:12],
                      found=os.path.join(_folder(task, digest), "release.json"), next="invoke provision makes it anew")
    return document


def _put(task):
    digest, document = _digest(task), task.args["document"]
    if hashlib.sha256(canonical(document["identity"])).hexdigest() != digest:
        raise Failure("the release that was sent does not have the digest %s" % digest[:12])
    if read_release(task, digest) is not None:
        return {"changed": False, "digest": digest}
    if not task.check:
        folder = _folder(task, digest)
        proc.make_folder(os.path.join(folder, "launch"))
        proc.write_json(os.path.join(folder, "release.json"), document, 0o444)
        _remember(task, digest, "made", number=task.args.get("number"))
    return {"changed": True, "digest": digest}


def _launch(task):
    """Put the launch files of this host's processes; says which differ from those of the last start."""
    digest = _digest(task)
    if read_release(task, digest) is None:
        raise Failure("the release %s is not here" % digest[:12], next="invoke provision")
    changed = []
    for document in task.args["launches"]:
        place = launch.Place(task.root, document["name"])
        before = proc.read_json(place.launch(digest))
        if before != document:
            changed.append({"name": document["name"], "before": before})
            if not task.check:
                engine_process.write_launch(place, document)
    return {"changed": bool(changed), "differs": changed}


def _list(task):
    folder = os.path.join(task.root, "releases")
    found, broken, launches = {}, {}, {}
    for digest in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if not _DIGEST.match(digest):
            continue
        try:
            document = read_release(task, digest)
        except Failure as failure:
            broken[digest] = failure.message
            continue
        if document is not None:
            found[digest] = document if task.args["documents"] else {}
            launches[digest] = _launches(os.path.join(folder, digest, "launch"))
    return {"changed": False, "releases": found, "broken": broken, "launches": launches, "current": current(task),
            "history": history(task)}


def _launches(folder):
    if not os.path.isdir(folder):
        return {}
    names = sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json"))
    return dict((name, proc.read_json(os.path.join(folder, name + ".json"))) for name in names)


def _number(task):
    """Give a release its number, once: the next free one, or the one named (the head's word on the other hosts)."""
    digest = _digest(task)
    events = history(task)
    known = dict((e["digest"], e["number"]) for e in events if e.get("number") is not None)
    if digest in known:
        return {"changed": False, "number": known[digest]}
    number = task.args.get("number")
    if number is None:
        number = max([0] + list(known.values())) + 1
    if not task.check:
        _remember(task, digest, "numbered", number=number)
    return {"changed": True, "number": number}


def _switch(task):
    """Point `current` at a release: written beside it, then renamed over it."""
    digest = _digest(task)
    before = current(task)
    if before == digest:
        return {"changed": False, "before": before}
    if read_release(task, digest) is None:
        raise Failure("the release %s is not here: nothing was switched" % digest[:12], next="invoke provision")
    if not task.check:
        path = os.path.join(task.root, "current")
        staged = path + ".%d.new" % os.getpid()
        if os.path.islink(staged):
            os.unlink(staged)
        os.symlink(os.path.join("releases", digest), staged)
        os.rename(staged, path)
        _remember(task, digest, "switched", previous=before)
    return {"changed": True, "before": before}


def _mark(task):
    digest = _digest(task)
    if not task.check:
        _remember(task, digest, task.args["event"], replica=task.args.get("replica"),
                  seconds=task.args.get("seconds"), reason=task.args.get("reason"))
    return {"changed": False}


def _prune(task):
    """Remove exactly the releases that were named; never the current one, never one that a process runs."""
    used = set([current(task)])
    for name in launch.names(task.root):
        used.add(launch.Place(task.root, name).read().get("release"))
    removed = []
    for digest in task.args["digests"]:
        if not _DIGEST.match(digest):
            raise Failure("%r is not the digest of a release" % digest)
        if digest in used:
            raise Failure("the release %s is in use here" % digest[:12], next="invoke releases")
    for digest in task.args["digests"]:
        folder = _folder(task, digest)
        if os.path.isdir(folder):
            if not task.check:
                shutil.rmtree(folder)
                _remember(task, digest, "pruned")
            removed.append(digest)
    return {"changed": bool(removed), "removed": removed}
