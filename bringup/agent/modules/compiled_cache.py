"""What engines compiled at run time on this host, packed for its likes, and unpacked where nothing is yet. Python 3.6.

`action`
    look     files and bytes under `path` (a folder of `bringup_root/cache/compiled`), and the kind of machine
    pack     put them into one archive under `bringup_root/cache/compiled-out`: {"entries", "folder", "files"}
    unpack   take them out of the archive that came there; what is there already stays
    drop     remove the archive
The engines' account owns what lies there and may put anything there: files are read and written as that account, by a
child that has given root up, and a link is never followed. Times are kept, because builds are judged by them.
"""

import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
import time

from bringup.agent import pids
from bringup.agent.modules import tree_transfer
from bringup.agent.processes import launch, proc
from bringup.agent.task import Failure
from bringup.agent.transfer.tree import digest_of, room

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["look", "pack", "unpack", "drop"]},
    "path": {"type": "path", "required": True},
    "account": {"type": "str"},
    "user": {"type": "str"},
    "settled": {"type": "float", "default": 60.0},
}
ARCHIVE = "caches.tar"
DRIVERS_OWN = "cuda"
"""The folder that the driver keeps by itself: an index of its own version, worth little elsewhere."""
_KIND = re.compile(r"^[0-9a-zA-Z][0-9a-zA-Z._-]*$")
_UNFINISHED = re.compile(r"(^|[./])\.?tmp[._-]|\.(lock|tmp|pid)$")


def run(task):
    path = task.args["path"].rstrip("/")
    kind = os.path.basename(path)
    if os.path.dirname(path) != os.path.join(task.root, "cache", "compiled") or not _KIND.match(kind):
        raise Failure("%s is no folder of compiled caches" % path)
    out = os.path.join(task.root, "cache", "compiled-out", kind)
    action = task.args["action"]
    if action == "look":
        found = list(_files(path, 0))
        return {"changed": False, "files": len(found), "bytes": sum(size for _, size in found), "machine": machine(),
                "folder": out}
    if task.check:
        return {"changed": True}
    if action == "pack":
        return _pack(path, out, float(task.args["settled"]))
    if action == "unpack":
        return _unpack(task, path, out)
    for folder in (out, tree_transfer.staging(out)):
        if os.path.isdir(folder):
            shutil.rmtree(folder)
    return {"changed": True}


def machine():
    """What compiled code depends on beside the environment: processor, its instructions, the devices."""
    devices = set()
    base = "/sys/bus/pci/devices"
    for name in os.listdir(base) if os.path.isdir(base) else ():
        # display controllers and processing accelerators
        if pids.read(os.path.join(base, name, "class"))[:4] in ("0x03", "0x12"):
            devices.add("%s:%s" % (pids.read(os.path.join(base, name, "vendor"))[2:],
                                   pids.read(os.path.join(base, name, "device"))[2:]))
    words = re.search(r"^(?:flags|Features)\s*:(.*)$", pids.read("/proc/cpuinfo"), re.M)
    flags = " ".join(sorted(words.group(1).split())) if words else ""
    return "%s %s %s" % (os.uname()[4], hashlib.sha256(flags.encode()).hexdigest()[:8], ",".join(sorted(devices)))


def _files(path, settled):
    """(path inside, size) of the files that are whole: none that is being written, no link, nothing of the driver."""
    newest = time.time() - settled
    for here, folders, names in os.walk(path):
        inside = os.path.relpath(here, path)
        inside = "" if inside == "." else inside + "/"
        if not inside and DRIVERS_OWN in folders:
            folders.remove(DRIVERS_OWN)
        folders.sort()
        for name in sorted(names):
            try:
                found = os.lstat(os.path.join(here, name))
            except OSError:
                continue  # an engine at work has just removed it
            if stat.S_ISREG(found.st_mode) and not _UNFINISHED.search(inside + name) and (
                    not settled or found.st_mtime <= newest):
                yield inside + name, found.st_size


def _pack(path, out, settled):
    try:
        owner = os.stat(path)
        proc.make_folder(out)
        target = os.path.join(out, ARCHIVE)
        handle = open(target + ".new", "wb")
    except OSError as error:
        raise Failure("cannot pack %s: %s" % (path, error.strerror or error), found=error.filename)
    with handle:
        told = _as_owner(owner.st_uid, owner.st_gid, lambda: _write(path, handle, settled))
    os.rename(target + ".new", target)
    entry = {"path": ARCHIVE, "kind": "file", "size": os.path.getsize(target), "mode": 0o644,
             "sha256": digest_of(target).hexdigest()}
    return {"changed": True, "entries": [entry], "folder": out, "files": told["files"], "bytes": told["bytes"]}


def _write(path, handle, settled):
    count = total = 0
    with tarfile.open(fileobj=handle, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, _ in _files(path, settled):
            try:
                descriptor = os.open(os.path.join(path, name), os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue  # gone, or made a link, since it was seen: the other host compiles it
            with os.fdopen(descriptor, "rb") as source:
                found = os.fstat(source.fileno())
                data = source.read() if stat.S_ISREG(found.st_mode) else b""
                if not stat.S_ISREG(found.st_mode) or len(data) != found.st_size:
                    continue
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = found.st_size, found.st_mtime, stat.S_IMODE(found.st_mode) & 0o755
                archive.addfile(entry, io.BytesIO(data))
            count, total = count + 1, total + found.st_size
    handle.flush()
    os.fsync(handle.fileno())
    return {"files": count, "bytes": total}


def _unpack(task, path, out):
    packed = os.path.join(out, ARCHIVE)
    owner = launch.account(task)
    compiled = os.path.dirname(path)
    try:
        proc.make_folder(compiled)
        if owner is not None:
            os.chown(compiled, owner[1], owner[2])
        needed = os.path.getsize(packed) + tree_transfer.SPARE
    except OSError as error:
        raise Failure("cannot unpack %s: %s" % (packed, error.strerror or error), found=error.filename)
    free = room(compiled)[0]
    if free is not None and needed > free:
        raise Failure("no room for compiled caches under %s" % compiled, kind="space", found="%d bytes free" % free,
                      expected="%d bytes free" % needed)
    uid, gid = (owner[1], owner[2]) if owner is not None else (os.geteuid(), os.getegid())
    return dict(_as_owner(uid, gid, lambda: _take_out(packed, path)), changed=True)


def _take_out(packed, path):
    """Beside the place first, then file by file under its name: an engine that starts sees whole files only."""
    staged = os.path.join(os.path.dirname(path), ".%s.new" % os.path.basename(path))
    shutil.rmtree(staged, ignore_errors=True)
    count = 0
    with tarfile.open(packed) as archive:
        for entry in archive:
            parts = entry.name.split("/")
            if not entry.isreg() or any(part in ("", ".", "..") for part in parts):
                raise Failure("the archive holds something that is no plain file", found=entry.name)
            target, place = os.path.join(path, *parts), os.path.join(staged, *parts)
            if os.path.lexists(target):
                continue
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as handle:
                shutil.copyfileobj(archive.extractfile(entry), handle)
            os.chmod(place, entry.mode & 0o755)
            os.utime(place, (entry.mtime, entry.mtime))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(place, target)
            count += 1
    shutil.rmtree(staged, ignore_errors=True)
    return {"files": count}


def _as_owner(uid, gid, work):
    """What `work` answers, done by a child as that account. Raises Failure."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            told = _done_as(uid, gid, work)
            os.write(write_end, json.dumps(told).encode("utf-8"))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as handle:
        text = handle.read()
    os.waitpid(child, 0)
    told = json.loads(text.decode("utf-8")) if text else {"failed": "the child that reads or writes the caches ended"}
    if told.get("failed"):
        raise Failure(told["failed"], found=told.get("found"))
    return told


def _done_as(uid, gid, work):
    try:
        if os.geteuid() == 0 and uid != 0:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        os.umask(0o022)
        return work()
    except Failure as failure:
        return {"failed": failure.message, "found": failure.fields.get("found")}
    except (OSError, tarfile.TarError) as error:
        return {"failed": "compiled caches: %s" % (getattr(error, "strerror", None) or error),
                "found": getattr(error, "filename", None)}
