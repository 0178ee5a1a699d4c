"""Bring a tree of files (weights, a build) to this host, or give it to others: as a job, from host to host. Python 3.6.

`action`
    list    the files of `path` (entries, see bringup.agent.transfer.tree) and the room there; with `upstream` the
            files that the hub names, and the commit
    start   start this host's part as a job, or find it running: `transfer` names it, `mark` tells one beginning of it
            from another (each has a key of its own), `program` is the SHA-256 of the packed program that was sent
            along. The port that it gives on is in the answer
    status  how far it is; with `wait` up to so many seconds until it has ended or is whole
    end     let it go: those below need nothing more
    read    `length` bytes of a file at `offset`, base64, and its SHA-256 with `whole`; `write` puts such a piece
            (`blob`) at the end of what is there, `left` says what that is: the way through the controller, where hosts
            do not reach each other
    finish  what was written so: all files whole, then the folder gets its name
Only the job writes; a folder that exists is filled file by file, another one appears whole under its name.
"""

import base64
import json
import os
import re
import shutil
import socket
import sys
import time

from bringup.agent.modules import job
from bringup.agent.task import Failure
from bringup.agent.transfer.hub import Hub
from bringup.agent.transfer.tree import Store, digest_of, listed, room
from bringup.agent.transfer.wire import Trouble

ARGUMENTS = {
    "action": {"type": "str", "required": True,
               "choices": ["list", "start", "status", "end", "read", "write", "left", "finish"]},
    "path": {"type": "path"},
    "transfer": {"type": "str"},
    "mark": {"type": "str"},
    "program": {"type": "str"},
    "entries": {"type": "list", "default": []},
    "again": {"type": "list", "default": []},
    "follow": {"type": "bool", "default": False},
    "key": {"type": "str", "no_log": True},
    "address": {"type": "str"},
    "towards": {"type": "list", "default": []},
    "parents": {"type": "list", "default": []},
    "upstream": {"type": "dict", "no_log": True},
    "rate": {"type": "int"},
    "streams": {"type": "int", "default": 4},
    "patience": {"type": "float", "default": 60.0},
    "linger": {"type": "float", "default": 60.0},
    "wait": {"type": "float", "default": 0.0},
    "name": {"type": "str"},
    "offset": {"type": "int", "default": 0},
    "length": {"type": "int", "default": 0},
    "whole": {"type": "bool", "default": False},
    "blob": {"type": "str"},
    "sha256": {"type": "str"},
}

SPARE = 64 * 1024 * 1024
"""Bytes that are left free beside what is to come."""

FULL = 256 * 1024
"""Bytes below which a disk counts as full."""

BEGIN = 20.0
"""Seconds until the job must have told its state."""


def run(task):
    action = task.args["action"]
    try:
        if action == "list":
            return _list(task.args)
        if action == "start":
            return _start(task)
        if action == "status":
            return _status(task)
        if action == "end":
            return _end(task)
        if action == "read":
            return _read(task.args)
        if action == "write":
            return _write(task)
        return _left(task.args) if action == "left" else _finish(task)
    except Trouble as trouble:
        raise Failure(trouble.message, kind=trouble.kind, **trouble.fields)


def staging(path):
    """Where a tree is gathered that is not there yet: beside its place, on the same file system."""
    return os.path.join(os.path.dirname(path), ".%s.bringup-new" % os.path.basename(path))


def _list(args):
    if args.get("upstream") and args["upstream"].get("kind") == "hub":
        entries, commit = Hub(None, args["upstream"]).entries()
        return {"changed": False, "entries": entries, "commit": commit, "there": True}
    path = (args.get("upstream") or {}).get("path") or args["path"]
    free, inodes = room(path)
    out = {"changed": False, "there": os.path.isdir(path), "entries": [], "free": free, "inodes_free": inodes}
    if out["there"]:
        try:
            out["entries"] = listed(path, args.get("follow"))
        except OSError as error:
            raise Failure("cannot read %s: %s" % (path, error.strerror), found=error.filename)
    return out


def _name(args):
    name = str(args.get("transfer") or "")
    if not re.match(r"[0-9a-z-]{4,40}$", name):
        raise Failure("a transfer is named by letters and digits", found=name)
    return name


def _folder(task):
    """Where the state of this host's part lies."""
    return os.path.join(task.root, "state", "transfers", _name(task.args))


class _Job(object):
    """The task as the job module sees it: other arguments, all else the same."""

    def __init__(self, task, args):
        self.args = args
        self.check = task.check
        self.root = task.root
        self.run_id = task.run_id
        self.command = task.command
        self.command_environment = task.command_environment


def _ask_job(task, **args):
    return job.run(_Job(task, dict(args, id="transfer-" + _name(task.args))))


def _start(task):
    args = task.args
    if task.check:
        store = _one(args)
        _space(store, args["path"].rstrip("/"))
        return {"changed": bool(store.missing()), "missing": len(store.missing())}
    before = _ask_job(task, action="status")
    told = _told(task)
    if before["state"] == "running" and told and not told.get("error") and told.get("mark") == args.get("mark"):
        return dict(told, changed=False, attached=True, job=before["state"])
    if before["state"] in ("running", "starting"):
        _ask_job(task, action="cancel")
    path = args["path"].rstrip("/")
    store = Store(path, staging(path), args["entries"], args.get("again") or ())
    _space(store, path)
    folder = _folder(task)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in ("state.json", "leave"):
            if os.path.exists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
        program = _program(task)
        spec = _spec(args, folder, path)
        descriptor = os.open(os.path.join(folder, "spec.json"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            json.dump(spec, handle)
    except OSError as error:
        raise Failure("cannot write under %s: %s" % (task.root, error.strerror), found=error.filename)
    started = _ask_job(task, action="start", again=True, argv=[
        sys.executable or "python3", "-SIE", program, os.path.join(folder, "spec.json")])
    until = time.time() + BEGIN
    while time.time() < until:
        told = _told(task)
        if told:
            return dict(told, changed=True, attached=False, job=started["state"])
        if _ask_job(task, action="status")["state"] not in ("running", "starting"):
            break
        time.sleep(0.05)
    said = _ask_job(task, action="follow", offset=0).get("text", "").splitlines()
    raise Failure("the transfer did not begin", output=said[-10:], found=said[-1] if said else "no output")


def _spec(args, folder, path):
    address = args.get("address") or _route(args.get("towards") or [])
    return {"transfer": _name(args), "mark": args.get("mark"), "state": folder, "dest": path, "staging": staging(path),
            "entries": args["entries"], "again": args.get("again") or [], "key": args["key"], "listen": address,
            "parents": args.get("parents") or [], "upstream": args.get("upstream"), "rate": args.get("rate"),
            "streams": args.get("streams"), "patience": args.get("patience"), "linger": args.get("linger")}


def _route(peers):
    """The address of ours that a connection to the first peer that has a way takes, None where none has."""
    for peer in peers:
        try:
            family, _, _, _, target = socket.getaddrinfo(str(peer), 9, 0, socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(target)
                return sock.getsockname()[0]
        except (OSError, UnicodeError):
            continue  # the next one may have a way; none at all is the controller's way then
    return None


def _space(store, path):
    """Room for what is still to come. Raises Failure before a byte is written."""
    free, inodes = room(path)
    needed = store.size() - store.here()
    if free is not None and needed and needed + SPARE > free:
        raise Failure("no room for what is to come under %s" % path, kind="space", expected="%d bytes free" % (
            needed + SPARE), found="%d bytes free" % free, needed=needed + SPARE, free=free,
            next="free some on %s, or name another folder: nothing is deleted by us" % os.path.dirname(path))
    if inodes is not None and len(store.missing()) + 16 > inodes:
        raise Failure("no inodes for what is to come under %s" % path, kind="space",
                      expected="%d free" % (len(store.missing()) + 16), found="%d free" % inodes)


def _program(task):
    digest = task.args["program"]
    tools = os.path.join(task.root, "cache", "tools")
    path = os.path.join(tools, "transfer-%s.zip" % digest[:16])
    if not os.path.exists(path):
        os.makedirs(tools, exist_ok=True)
        staged = "%s.%d" % (path, os.getpid())
        shutil.copyfile(task.blob(digest), staged)
        os.rename(staged, path)
    return path


def _told(task):
    try:
        with open(os.path.join(_folder(task), "state.json")) as handle:
            value = json.load(handle)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _status(task):
    until = time.time() + float(task.args.get("wait") or 0)
    while True:
        state = _ask_job(task, action="status")["state"]
        told = _told(task) or {}
        if state not in ("running", "starting") or told.get("complete") or told.get("error") or time.time() >= until:
            break
        time.sleep(0.1)
    out = dict(told, changed=False, job=state)
    if state in ("failed", "lost", "cancelled") and not told.get("complete") and not told.get("error"):
        said = _ask_job(task, action="follow", offset=0).get("text", "").splitlines()
        out["error"] = _full(task.root) or {
            "kind": "lost", "message": "the transfer's process ended (%s)" % state, "found": said[-1] if said else None}
    return out


def _full(root):
    """That the disk which holds a transfer's state has no room: then its process cannot even say so. Else None."""
    free, inodes = room(root)
    if (free is not None and free < FULL) or (inodes is not None and inodes < 2):
        return {"kind": "space", "message": "no space is left under %s, where a transfer keeps its state" % root,
                "free": free, "inodes_free": inodes}
    return None


def _end(task):
    state = _ask_job(task, action="status")["state"]
    if state not in ("running", "starting"):
        return {"changed": False, "job": state}
    try:
        with open(os.path.join(_folder(task), "leave"), "w"):
            pass
    except OSError as error:
        raise Failure("cannot write under %s: %s" % (task.root, error.strerror))
    until = time.time() + 2.0
    while time.time() < until:
        if _ask_job(task, action="status")["state"] not in ("running", "starting"):
            return {"changed": True, "job": "done"}
        time.sleep(0.05)
    told = _told(task) or {}
    if told.get("complete"):
        return {"changed": True, "job": "leaving"}
    return dict(_ask_job(task, action="cancel"), changed=True)


def _read(args):
    path = os.path.join(args["path"], args["name"])
    try:
        with open(path, "rb") as handle:
            handle.seek(int(args["offset"]))
            data = handle.read(int(args["length"]))
        out = {"changed": False, "data": base64.b64encode(data).decode("ascii")}
        if args.get("whole"):
            out["sha256"] = digest_of(path).hexdigest()
    except OSError as error:
        raise Failure("cannot read %s: %s" % (path, error.strerror))
    return out


def _one(args):
    path = args["path"].rstrip("/")
    return Store(path, staging(path), args["entries"], args.get("again") or ())


def _left(args):
    """The files that are not whole here, with the bytes of each that are there; the room for the rest is checked."""
    store = _one(args)
    _space(store, args["path"].rstrip("/"))
    return {"changed": False, "left": dict((entry["path"], store.part_size(entry)) for entry in store.missing())}


def _write(task):
    """Put a piece at the end of a file; it gets its name with its last byte."""
    args = task.args
    store = _one(args)
    entry = store.entries[args["name"]]
    if task.check:
        return {"changed": True}
    part = store.part(entry)
    if part.size != int(args["offset"]):
        part.close()
        raise Failure("another writer is at work on %s" % entry["path"], expected="%d bytes there" % args["offset"],
                      found="%d bytes" % part.size)
    content = task.content(args["blob"])
    if not isinstance(content, bytes):
        with open(content, "rb") as handle:
            content = handle.read()
    part.write(content)
    if part.size == entry["size"]:
        store.commit(entry, part, args.get("sha256"))
    else:
        part.close()
    return {"changed": True, "offset": part.size}


def _finish(task):
    store = _one(task.args)
    missing = [entry["path"] for entry in store.missing()]
    if missing:
        raise Failure("%d files are still missing" % len(missing), found=", ".join(missing[:3]))
    if task.check:
        return {"changed": True}
    store.finish()
    return {"changed": True, "complete": True}
