"""A model's folder on this host: what is there, whether it is whole, and from which revision. Python 3.6.

`action`
    check   read headers and small files of `path`; with `full` also hash every file, in parallel, remembered by size
            and time of change
    record  write beside the files which revision they are (`revision`, `repo`, `source`) and their digests
    nonce   leave an empty file of the name `nonce` where the folder is or will be; `nonces` says which are seen
            there, `clear` removes this host's own: how shared folders are found
Nothing of a model is ever removed or altered.
"""

import glob
import hashlib
import json
import os
import re
import threading
import time

from bringup.agent import safetensors
from bringup.agent.modules.tree_transfer import staging
from bringup.agent.task import Failure
from bringup.agent.transfer.tree import PARTS, digest_of, git_blob, listed, room

ARGUMENTS = {
    "action": {"type": "str", "default": "check", "choices": ["check", "record", "nonce", "nonces", "clear"]},
    "path": {"type": "path", "required": True},
    "full": {"type": "bool", "default": False},
    "revision": {"type": "str"},
    "repo": {"type": "str"},
    "source": {"type": "str"},
    "digests": {"type": "dict", "default": {}},
    "nonce": {"type": "str"},
}

RECORD = ".bringup-weights.json"
_SMALL = (".json", ".jinja", ".txt", ".model", ".py", ".tiktoken")
_SMALL_LIMIT = 64 * 1024 * 1024
_NUMBERED = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")
_COMMIT = re.compile(r"[0-9a-f]{40}$")
_NONCE = ".bringup-nonce-"


def run(task):
    action = task.args["action"]
    path = task.args["path"].rstrip("/") or "/"
    if action == "check":
        return _check(task, path)
    if action == "record":
        return _record(task, path)
    return _nonce(task, action, path)


def _check(task, path):
    """What is in the folder: files by name, findings apart, the digest that must be equal on all hosts."""
    free, inodes = room(path)
    out = {"changed": False, "path": path, "exists": os.path.isdir(path), "files": {}, "missing": [],
           "parts": parts(path), "free": free, "inodes_free": inodes, "revision": None}
    if not out["exists"]:
        return out
    try:
        entries = [entry for entry in listed(path, follow=True) if not _hidden(entry["path"])]
    except OSError as error:
        raise Failure("cannot read %s: %s" % (path, error.strerror), found=error.filename)
    names = [entry["path"] for entry in entries if entry["kind"] == "file"]
    broken = [entry["path"] for entry in entries if entry["kind"] == "link"]
    index = _index(path, names)
    out.update(index["told"])
    wanted = set(index["tensors"]) | set(_numbered(names)) | set(broken)
    out["missing"] = sorted(wanted - set(names))
    sizes = dict((entry["path"], entry.get("size", 0)) for entry in entries)
    out["files"] = _files(path, names, sizes, index["tensors"])
    if task.args.get("full"):
        for name, digest in _hashes(task, path, names).items():
            out["files"][name]["sha256"] = digest
    out["revision"], out["record"] = _revision(path)
    out["digest"] = _digest(out["files"])
    out["bytes"] = sum(sizes.values())
    return out


def _hidden(name):
    return any(part.startswith(".") for part in name.split("/"))


def _index(path, names):
    """The tensors that the index places in each file, and what is wrong with the index."""
    tensors, told = {}, {"index": None}
    for name in names:
        if not name.endswith(".safetensors.index.json"):
            continue
        told["index"] = name
        try:
            with open(os.path.join(path, name), "rb") as handle:
                places = json.loads(handle.read().decode("utf-8"))["weight_map"]
            folder = os.path.dirname(name)
            for tensor, shard in places.items():
                tensors.setdefault(os.path.join(folder, shard), []).append(tensor)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            told["index_error"] = "%s: %s" % (type(error).__name__, error)
    return {"tensors": tensors, "told": told}


def _numbered(names):
    """The files that names like model-00001-of-00003 speak of: where there is no index they say how many there are."""
    out = set()
    for name in names:
        match = _NUMBERED.match(name)
        if match and int(match.group(3)) <= 100000:
            out.update("%s-%05d-of-%s.safetensors" % (match.group(1), number, match.group(3))
                       for number in range(1, int(match.group(3)) + 1))
    return out


def _files(path, names, sizes, tensors):
    """By name: size, and the header of weights or the digests of a small file. Read side by side: shares are slow."""
    out = dict((name, {"size": sizes[name]}) for name in names)

    def one(name):
        where = os.path.join(path, name)
        if name.endswith(".safetensors"):
            out[name] = safetensors.shard(where, tensors.get(name, ()))
        elif name.endswith(_SMALL) and sizes[name] <= _SMALL_LIMIT:
            out[name].update(sha256=digest_of(where).hexdigest(), blob=git_blob(where))

    _each(names, one)
    return out


def _each(names, work):
    """Run `work` for every name in some threads; the first error of any is raised when all have ended."""
    left, lock, errors = list(names), threading.Lock(), []

    def run_some():
        while not errors:
            with lock:
                if not left:
                    return
                name = left.pop(0)
            try:
                work(name)
            except OSError as error:
                errors.append(Failure("cannot read %s: %s" % (name, error.strerror or error)))

    threads = [threading.Thread(target=run_some) for _ in range(max(1, min(8, os.cpu_count() or 1, len(left))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _hashes(task, path, names):
    """SHA-256 of every file; those whose size and time of change are as they were are not read again."""
    folder = os.path.join(task.root, "cache", "weights")
    memory = os.path.join(folder, "%s.json" % hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16])
    known = _json(memory)
    found, done = {}, []

    def one(name):
        where = os.path.join(path, name)
        before = os.stat(where)
        mark = [before.st_size, before.st_mtime_ns, before.st_ino]
        if known.get(name, [None])[:3] == mark:
            found[name] = known[name]
        else:
            digest = digest_of(where).hexdigest()
            after = os.stat(where)
            if [after.st_size, after.st_mtime_ns, after.st_ino] != mark:
                raise OSError(0, "it is being written")
            found[name] = mark + [digest]
        done.append(before.st_size)
        task.line("hashed %d of %d files, %.1f GB" % (len(done), len(names), sum(done) / 1e9))

    _each(names, one)
    if not task.check:
        try:
            os.makedirs(folder, exist_ok=True)
            with open(memory + ".new", "w") as handle:
                json.dump(found, handle, sort_keys=True)
            os.rename(memory + ".new", memory)
        except OSError as error:
            task.line("digests are not remembered: %s: %s" % (folder, error.strerror))
    return dict((name, mark[3]) for name, mark in found.items())


def _digest(files):
    """One digest over headers and sizes of weights and the content of small files: equal folders have equal ones."""
    lines = []
    for name, one in sorted(files.items()):
        if name.endswith(".safetensors"):
            lines.append("%s %s %s" % (name, one.get("size"), one.get("header") or one.get("error")))
        elif "blob" in one:
            lines.append("%s %s" % (name, one["sha256"]))
        elif name.endswith((".bin", ".gguf", ".pt", ".pth")):
            lines.append("%s %s" % (name, one.get("size")))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _revision(path):
    """(revision, our record): by our record, the layout of a hub's cache, or what a hub's client left."""
    record = _json(os.path.join(path, RECORD))
    if record.get("revision"):
        return str(record["revision"]), record
    real = os.path.realpath(path)
    if os.path.basename(os.path.dirname(real)) == "snapshots" and _COMMIT.match(os.path.basename(real)):
        return os.path.basename(real), record
    commits = set()
    for name in glob.glob(os.path.join(path, ".cache", "huggingface", "download", "*.metadata")):
        try:
            with open(name) as handle:
                commits.add(handle.readline().strip())
        except (OSError, ValueError):
            continue  # its file is told by the others, or the revision stays unknown
    return (commits.pop() if len(commits) == 1 else None), record


def parts(path):
    """Unfinished pieces that cut-off downloads left: [{name, size}], ours and those of a hub's client."""
    out = []
    patterns = [os.path.join(path, ".cache", "huggingface", "download", "*.incomplete"),
                os.path.join(path, "*.incomplete"), os.path.join(path, "*.aria2"),
                os.path.join(path, PARTS, "*"), os.path.join(staging(path), PARTS, "*")]
    real = os.path.realpath(path)
    if os.path.basename(os.path.dirname(real)) == "snapshots":
        patterns.append(os.path.join(os.path.dirname(os.path.dirname(real)), "blobs", "*.incomplete"))
    for pattern in patterns:
        for name in sorted(glob.glob(pattern)):
            try:
                out.append({"name": name, "size": os.stat(name).st_size})
            except OSError:
                continue  # finished or removed this moment
    return out


def _json(path):
    try:
        with open(path, "rb") as handle:
            value = json.loads(handle.read().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _record(task, path):
    value = {"revision": task.args.get("revision"), "repo": task.args.get("repo"), "source": task.args.get("source"),
             "digests": task.args["digests"], "recorded_at": int(time.time())}
    where = os.path.join(path, RECORD)
    before = _json(where)
    same = all(before.get(name) == value[name] for name in ("revision", "repo", "digests"))
    if same or task.check:
        return {"changed": not same}
    try:
        with open(where + ".new", "w") as handle:
            json.dump(value, handle, sort_keys=True, indent=1)
        os.chmod(where + ".new", 0o644)
        os.rename(where + ".new", where)
    except OSError as error:
        raise Failure("cannot write %s: %s" % (where, error.strerror))
    return {"changed": True}


def _nonce(task, action, path):
    """Where hosts share the place of a folder, each sees the other's file."""
    place = path
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    own = os.path.join(place, _NONCE + str(task.args.get("nonce")))
    try:
        if action == "nonce":
            with open(own, "w"):
                pass
        elif action == "clear" and os.path.exists(own):
            os.unlink(own)
        seen = [name[len(_NONCE):] for name in os.listdir(place) if name.startswith(_NONCE)]
    except OSError as error:
        raise Failure("cannot write in %s: %s" % (place, error.strerror),
                      next="name a model_path that can be written, or bring the weights there yourself")
    return {"changed": action != "nonces", "seen": sorted(seen), "place": place}
