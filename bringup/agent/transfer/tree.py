"""A tree of files: listed, and filled file by file so that each appears under its name only when whole. Python 3.6.

An entry is a dict: path (relative, with /), kind (file, link, dir), and for a file size, mode, and sha256 where it is
known; for a link its target as `link`.
"""

import errno
import hashlib
import os
import stat
import threading
import time

from bringup.agent.transfer.wire import BLOCK, Trouble

PARTS = ".bringup-parts"
"""Folder of unfinished files, inside the folder that is filled."""

ASIDE = ".bringup-aside"
"""Folder of files that were replaced by whole ones: nothing is deleted."""


def listed(folder, follow=False, skip=()):
    """The entries of a folder, sorted by path. With `follow`, links to files are taken as the files; one that leads
    nowhere stays a link. Raises OSError."""
    out = []
    for here, folders, files in os.walk(folder):
        inside = os.path.relpath(here, folder)
        inside = "" if inside == "." else inside + "/"
        folders[:] = sorted(name for name in folders if inside or name not in (PARTS, ASIDE))
        for name in list(folders):
            if os.path.islink(os.path.join(here, name)):
                folders.remove(name)
                out.append({"path": inside + name, "kind": "link", "link": os.readlink(os.path.join(here, name))})
        if inside and not folders and not files:
            out.append({"path": inside[:-1], "kind": "dir"})
        for name in files:
            entry = _entry(os.path.join(here, name), inside + name, follow)
            if entry is not None and entry["path"] not in skip:
                out.append(entry)
    return sorted(out, key=lambda entry: entry["path"])


def _entry(path, name, follow):
    found = os.stat(path) if follow and os.path.exists(path) else os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return {"path": name, "kind": "link", "link": os.readlink(path)}
    if not stat.S_ISREG(found.st_mode):
        return None
    return {"path": name, "kind": "file", "size": found.st_size, "mode": stat.S_IMODE(found.st_mode)}


def checked(entries):
    """The entries, when every path stays inside the tree. Raises Trouble `input`."""
    for entry in entries:
        parts = str(entry.get("path", "")).split("/")
        if not entry.get("path") or any(part in ("", ".", "..") for part in parts) or parts[0] in (PARTS, ASIDE) or (
                "\0" in entry["path"]):
            raise Trouble("input", "a path leaves the tree", found=entry.get("path"))
    return entries


def digest_of(path, size=None):
    """A SHA-256 object over a file, or over its first `size` bytes."""
    digest = hashlib.sha256()
    left = size
    with open(path, "rb") as handle:
        while left is None or left > 0:
            data = handle.read(BLOCK if left is None else min(BLOCK, left))
            if not data:
                break
            digest.update(data)
            left = None if left is None else left - len(data)
    return digest


def git_blob(path):
    """The digest that git gives a file, hex: SHA-1 over `blob SIZE`, a zero byte and the content."""
    digest = hashlib.sha1(("blob %d" % os.stat(path).st_size).encode("ascii") + b"\0")
    with open(path, "rb") as handle:
        for data in iter(lambda: handle.read(BLOCK), b""):
            digest.update(data)
    return digest.hexdigest()


class Store(object):
    """The folder that is filled: `dest` itself where it exists, else `staging`, which becomes it at the end."""

    def __init__(self, dest, staging, entries, again=()):
        self.dest = dest
        self.entries = dict((entry["path"], entry) for entry in checked(entries))
        self.again = set(again)
        self.lock = threading.Lock()
        self.base = dest if os.path.isdir(dest) else staging
        self.whole = set(path for path, entry in self.entries.items() if self._is_whole(entry))
        self.digests = dict((path, entry["sha256"]) for path, entry in self.entries.items() if entry.get("sha256"))

    def _is_whole(self, entry):
        path = os.path.join(self.base, entry["path"])
        if entry["kind"] == "dir":
            return os.path.isdir(path)
        if entry["kind"] == "link":
            return os.path.islink(path) and os.readlink(path) == entry["link"]
        if entry["path"] in self.again and self.base == self.dest:
            return False
        try:
            found = os.stat(path)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == entry["size"]

    def missing(self):
        """Entries of files that are still to come, in their order."""
        return [entry for path, entry in sorted(self.entries.items())
                if entry["kind"] == "file" and path not in self.whole]

    def size(self):
        """Bytes of all files."""
        return sum(entry.get("size", 0) for entry in self.entries.values())

    def here(self):
        """Bytes that are on the disk already: whole files and parts."""
        return sum(entry.get("size", 0) if path in self.whole else self.part_size(entry)
                   for path, entry in self.entries.items() if entry["kind"] == "file")

    def path(self, entry):
        return os.path.join(self.base, entry["path"])

    def part_path(self, entry):
        return os.path.join(self.base, PARTS, entry["path"].replace("%", "%25").replace("/", "%2F"))

    def part_size(self, entry):
        try:
            return min(os.stat(self.part_path(entry)).st_size, entry["size"])
        except OSError:
            return 0

    def part(self, entry):
        """The unfinished file of an entry, to be written on. Raises Trouble `write` or `space`."""
        try:
            os.makedirs(os.path.join(self.base, PARTS), 0o755, exist_ok=True)
            return Part(self.part_path(entry), entry["size"])
        except OSError as error:
            raise writing(error, self.base)

    def commit(self, entry, part, sha256):
        """Give a finished part its name, when it is what was meant. Raises Trouble `digest`, `space` or `write`."""
        sha256_here = found = part.finish()
        wanted = entry.get("sha256") or sha256
        if not wanted and entry.get("blob"):
            wanted, found = entry["blob"], git_blob(part.path)  # a hub names its small files so
        if part.size != entry["size"] or (wanted and found != wanted):
            part.remove()
            raise Trouble("digest", "%s did not arrive as it was sent" % entry["path"], path=entry["path"],
                          expected="%d bytes, digest %s" % (entry["size"], wanted),
                          found="%d bytes, digest %s" % (part.size, found))
        path = self.path(entry)
        try:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            os.chmod(part.path, entry.get("mode", 0o644))
            if os.path.lexists(path):
                self._put_aside(path, entry)
            os.rename(part.path, path)
        except OSError as error:
            raise writing(error, self.base)
        with self.lock:
            self.digests[entry["path"]] = sha256_here
            self.whole.add(entry["path"])

    def _put_aside(self, path, entry):
        """What stood under the name is kept: another name, never gone."""
        aside = os.path.join(self.base, ASIDE, "%s.%d" % (entry["path"], int(time.time())))
        os.makedirs(os.path.dirname(aside), 0o755, exist_ok=True)
        os.rename(path, aside)

    def finish(self):
        """All files are there: links and empty folders, then the folder's own name. Raises Trouble."""
        try:
            for _, entry in sorted(self.entries.items()):
                path = self.path(entry)
                if entry["kind"] == "dir":
                    os.makedirs(path, 0o755, exist_ok=True)
                elif entry["kind"] == "link" and not self._is_whole(entry):
                    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
                    if os.path.lexists(path):
                        self._put_aside(path, entry)
                    os.symlink(entry["link"], path)
            _remove_empty(os.path.join(self.base, PARTS))
            with self.lock:
                if self.base != self.dest:
                    os.makedirs(self.base, 0o755, exist_ok=True)
                    os.rename(self.base, self.dest)
                    self.base = self.dest
        except OSError as error:
            raise writing(error, self.dest)

    def open_whole(self, name):
        """A whole file for reading and its entry, None when it is not there yet. Raises OSError."""
        with self.lock:
            if name not in self.whole or self.entries[name]["kind"] != "file":
                return None
            return open(os.path.join(self.base, name), "rb"), self.entries[name]


class Part(object):
    """An unfinished file with the digest of what is in it so far."""

    def __init__(self, path, limit):
        self.path = path
        try:
            self.size = os.stat(path).st_size
        except OSError:
            self.size = 0
        self.handle = open(path, "r+b" if self.size else "wb")
        if self.size > limit:
            self.restart()
        self.digest = digest_of(path, self.size) if self.size else hashlib.sha256()
        self.handle.seek(self.size)

    def restart(self):
        """Begin at zero: what is there does not belong to the file."""
        self.handle.seek(0)
        self.handle.truncate()
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data):
        """Raises Trouble `space` or `write`."""
        try:
            self.handle.write(data)
        except OSError as error:
            raise writing(error, os.path.dirname(self.path))
        self.digest.update(data)
        self.size += len(data)

    def finish(self):
        """To the disk; the digest of the whole, hex."""
        try:
            self.handle.flush()
            os.fsync(self.handle.fileno())
            self.handle.close()
        except OSError as error:
            raise writing(error, os.path.dirname(self.path))
        return self.digest.hexdigest()

    def close(self):
        try:
            self.handle.close()
        except OSError:
            return  # what could not be written is not counted next time

    def remove(self):
        self.close()
        os.unlink(self.path)


def writing(error, folder):
    """An OSError of a write, told with what matters: the folder, and the room that is left there."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = room(folder)
        word = "the quota is used up" if error.errno == errno.EDQUOT else "no space is left"
        return Trouble("space", "%s under %s" % (word, folder), free=free[0], inodes_free=free[1])
    return Trouble("write", "cannot write under %s: %s" % (folder, error.strerror or error), path=error.filename)


def room(folder):
    """Bytes and inodes that are free where a folder is or will be; (None, None) when that cannot be told."""
    there = folder
    while not os.path.isdir(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    try:
        found = os.statvfs(there)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


def _remove_empty(folder):
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
