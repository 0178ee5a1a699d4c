"""The store of releases on a host: immutable folders, `current` as one link, the history of what became of them.

Python 3.6. `<root>/releases/<digest>/release.json` never changes once it is whole. `<root>/current` is a symbolic link
replaced by rename. `<root>/releases/history.json` is a list of events, oldest first:
{"event": made|prepared|numbered|switched|unswitched|started|good|bad|left|pinned|unpinned|pruned, "digest", "number",
"at", "run", "by", "replica", "seconds", "reason"}. A `switched` says what was in use before (`previous`), and whether
a rollback left that (`leaving`) or a start that failed was undone (`undo`). `<root>/releases/<digest>/approved.json` is
how the host was when the release was last good here.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil

from bringup.agent.modules import _host_state, engine_process
from bringup.agent.processes import launch, proc
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True,
               "choices": ["put", "list", "switch", "unswitch", "rehearse", "mark", "approve", "sizes", "prune",
                           "number", "launch"]},
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
    "leaving": {"type": "bool", "default": False},
    "undo": {"type": "bool", "default": False},
}

_DIGEST = re.compile(r"^[0-9a-f]{64}$")


def run(task):
    os.umask(0o022)  # the engines' account reads what is written here
    return {"put": _put, "list": _list, "switch": _switch, "unswitch": _unswitch, "rehearse": _rehearse, "mark": _mark,
            "approve": _approve, "sizes": _sizes, "prune": _prune, "number": _number,
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
    """Add an event: `_remember_all` with one."""
    _remember_all(task, [(digest, event, more)])


def _remember_all(task, events):
    """Add events at once, one writer at a time: a contract that is asked beside a run marks without that run's lock."""
    entries = []
    for digest, event, more in events:
        entry = {"event": event, "digest": digest, "at": proc.now(), "run": task.run_id, "by": task.args.get("by")}
        entry.update((key, value) for key, value in more.items() if value is not None)
        entries.append(entry)
    folder = os.path.dirname(_history_path(task))
    proc.make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        proc.write_json(_history_path(task), history(task) + entries)
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
    found, broken, launches, approved = {}, {}, {}, {}
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
            approved[digest] = proc.read_json(os.path.join(folder, digest, "approved.json"))
    return {"changed": False, "releases": found, "broken": broken, "launches": launches, "current": current(task),
            "history": history(task), "approved": dict((d, a) for d, a in approved.items() if a)}


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
    """Point `current` at a release: written beside it, then renamed over it.

    `leaving` says that a rollback leaves what was in use: that is marked with the same stroke, so that a run cut off
    here never comes back to it. `undo` says that a start failed and this is what was in use before. A link that was
    changed by hand put nothing in use: what the last switch went to is left then, and where the link names the release
    already, the switch is only written down.
    """
    digest = _digest(task)
    before = current(task)
    used = _switched_to(task) or before
    if before == digest == used:
        return {"changed": False, "before": before}
    if read_release(task, digest) is None:
        raise Failure("the release %s is not here: nothing was switched" % digest[:12], next="invoke provision")
    if not task.check:
        if before != digest:
            path = os.path.join(task.root, "current")
            os.rename(_staged(task, digest, path), path)
        leaving = used if task.args["leaving"] and used != digest else None
        events = [(digest, "switched", {"previous": used if before == digest else before, "leaving": leaving,
                                        "undo": task.args["undo"] or None})]
        if leaving:
            events.append((leaving, "left", {"reason": task.args.get("reason")}))
        _remember_all(task, events)
    return {"changed": before != digest, "before": before}


def _switched_to(task):
    """The release that the last switch here went to, None without one."""
    last = [e for e in history(task) if e["event"] in ("switched", "unswitched")][-1:]
    return last[0]["digest"] if last and last[0]["event"] == "switched" else None


def _staged(task, digest, path):
    """The link to a release under a name beside `path`."""
    staged = path + ".%d.new" % os.getpid()
    if os.path.islink(staged):
        os.unlink(staged)
    os.symlink(os.path.join("releases", digest), staged)
    return staged


def _unswitch(task):
    """Take `current` away where it names this release: nothing was in use here before a first start that failed."""
    digest = _digest(task)
    if current(task) != digest:
        return {"changed": False}
    if not task.check:
        os.unlink(os.path.join(task.root, "current"))
        _remember(task, digest, "unswitched", reason=task.args.get("reason"))
    return {"changed": True}


def _rehearse(task):
    """Do what `switch` does, under another name: the link is made, renamed, read through and removed again."""
    digest = _digest(task)
    before = current(task)
    path = os.path.join(task.root, "current.rehearsed")
    if not task.check:
        if os.path.lexists(path) and not os.path.islink(path):
            raise Failure("%s is no symbolic link: it was not made by bringup" % path, next="move it away")
        os.rename(_staged(task, digest, path), path)
        try:
            document = proc.read_json(os.path.join(path, "release.json"))
            if hashlib.sha256(canonical((document or {}).get("identity"))).hexdigest() != digest:
                raise Failure("the release %s cannot be read through the link" % digest[:12], found=path)
        finally:
            os.unlink(path)
    return {"changed": False, "before": before}


def _approve(task):
    """Write down how this host is now that the release is good here: what drift is measured against."""
    digest = _digest(task)
    if read_release(task, digest) is None:
        raise Failure("the release %s is not here" % digest[:12], next="invoke provision")
    path = os.path.join(_folder(task, digest), "approved.json")
    state = dict(_host_state.of_host(), run=task.run_id, by=task.args.get("by"))
    before = proc.read_json(path) or {}
    same = all(before.get(key) == state[key] for key in ("kernel", "drivers", "packages"))
    if not task.check and not same:
        proc.write_json(path, dict(state, at=proc.now()))
    return {"changed": False, "approved": state}


def _mark(task):
    digest = _digest(task)
    if not task.check:
        _remember(task, digest, task.args["event"], replica=task.args.get("replica"),
                  seconds=task.args.get("seconds"), reason=task.args.get("reason"))
    return {"changed": False}


def _sizes(task):
    """Bytes that each of the named releases takes, for those that may be removed. Raises Failure for another."""
    _may_go(task)
    return {"changed": False, "freed": dict((digest, _size(_folder(task, digest))) for digest in task.args["digests"]
                                            if os.path.isdir(_folder(task, digest)))}


def _may_go(task):
    """Raises Failure for a release that is in use, pinned, or of which a process runs."""
    used = set([current(task)])
    for name in launch.names(task.root):
        place = launch.Place(task.root, name)
        record = place.read()
        if engine_process.state_of(place, record)["state"] == "running":
            used.add(record.get("release"))
    pins = dict((e["digest"], e["event"] == "pinned") for e in history(task) if e["event"] in ("pinned", "unpinned"))
    for digest in task.args["digests"]:
        if not _DIGEST.match(digest):
            raise Failure("%r is not the digest of a release" % digest)
        if digest in used:
            raise Failure("the release %s is in use here" % digest[:12], next="invoke releases")
        if pins.get(digest):
            raise Failure("the release %s is pinned here" % digest[:12], next="invoke release.unpin")


def _prune(task):
    """Remove exactly the releases that were named; `freed` says what each took (bytes)."""
    _may_go(task)
    numbers = dict((e["digest"], e["number"]) for e in history(task) if e.get("number") is not None)
    freed = {}
    for digest in task.args["digests"]:
        folder = _folder(task, digest)
        if os.path.isdir(folder):
            freed[digest] = _size(folder)
            if not task.check:
                shutil.rmtree(folder)
                _remember(task, digest, "pruned", number=numbers.get(digest))
    return {"changed": bool(freed), "removed": sorted(freed), "freed": freed}


def _size(folder):
    """Bytes of the files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(place, name)).st_size
    return total
