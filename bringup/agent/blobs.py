"""Files on their way to a module, named by their SHA-256. Python 3.6."""

import errno
import os

FALLBACKS = ("/tmp", "/var/tmp", "/dev/shm")
"""Where files are staged when this run holds no lock (and so has no state folder) or the state folder is full."""


SMALL = 65536
"""Files up to this size come with their task and are kept until the session ends."""

HELD = 8 * 1024 * 1024
"""Bytes of small files that are kept in memory; those beyond are staged on disk at once."""


class Store(object):
    """Staged files of one account's process, each readable by the account that the task runs as, and by nobody else.

    Small ones stay in memory until a task wants them: most runs change little.
    """

    def __init__(self, state, may_use):
        self.state = state
        self.may_use = may_use  # called: may the state folder be written now (the run holds the lock)?
        self.folders = []
        self.done = {}
        self.bad = {}
        self.incoming = {}
        self.small = {}
        self.held = 0

    def begin(self, number, digest, size, uid):
        """A file of `size` bytes follows in slices under `number`."""
        entry = {"digest": digest, "size": size, "uid": uid, "left": size, "file": None, "parts": None}
        self.incoming[number] = entry
        if size <= SMALL and self.held + size <= HELD:
            entry["parts"] = []
            self.held += size
            if size == 0:
                self._finish(number)
            return
        self._stage(entry)
        if size == 0:
            self._finish(number)

    def _stage(self, entry):
        """Open the file that a content goes into; what is in the way is remembered."""
        import hashlib

        digest, size, uid = entry["digest"], entry["size"], entry["uid"]
        entry["hash"] = hashlib.sha256()
        try:
            folder = self._folder(size)
            path = os.path.join(folder, "%s.%d" % (digest, uid))
            descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0),
                                 0o600)
            entry["path"] = path
            entry["file"] = os.fdopen(descriptor, "wb")
            if uid != os.geteuid():
                os.fchown(descriptor, uid, -1)
        except OSError as error:
            self._fail(entry, "cannot stage %d bytes: %s" % (size, error.strerror or error))

    def slice(self, number, data):
        """A piece; True when the file is whole (or has failed)."""
        entry = self.incoming.get(number)
        if entry is None:
            return False
        entry["left"] -= len(data)
        if entry["parts"] is not None:
            entry["parts"].append(data)
        else:
            self._write(entry, data)
        if entry["left"] <= 0:
            self._finish(number)
            return True
        return False

    def _write(self, entry, data):
        if entry["file"] is None:
            return
        try:
            entry["file"].write(data)
            entry["hash"].update(data)
        except OSError as error:
            self._fail(entry, "cannot stage %d bytes in %s: %s" % (
                entry["size"], os.path.dirname(entry["path"]), error.strerror or error))

    def refuse(self, digest, uid, reason):
        """The controller cannot send this file."""
        self.bad[(digest, uid)] = reason

    def content(self, digest, uid):
        """The bytes of a small file that is kept in memory and whole, else None."""
        data = self.small.get((digest, uid))
        if data is None:
            return None
        import hashlib

        return data if hashlib.sha256(data).hexdigest() == digest else None

    def find(self, digest, uid):
        """(path, None), (None, what went wrong), or (None, None) while it is not there."""
        key = (digest, uid)
        if key in self.small and key not in self.done:
            data = self.small[key]
            entry = {"digest": digest, "size": len(data), "uid": uid, "file": None, "parts": None}
            self._stage(entry)
            self._write(entry, data)
            self._close(entry)
        if key in self.done:
            if os.path.exists(self.done[key]):
                return self.done[key], None
            del self.done[key]  # a module has moved it to its place
        return None, self.bad.pop(key, None)

    def coming(self, digest, uid):
        return any(item["digest"] == digest and item["uid"] == uid for item in self.incoming.values())

    def drop(self, digest):
        """The task is done with it: large files go at once, small ones may serve another task."""
        for key in [key for key in self.done if key[0] == digest]:
            try:
                if os.path.getsize(self.done[key]) < SMALL:
                    continue
            except OSError:
                pass  # the module has moved it to its place
            _remove(self.done.pop(key))

    def close(self):
        for entry in self.incoming.values():
            if entry["file"] is not None:
                _quietly_close(entry["file"])
                _remove(entry["path"] + ".part")
        for path in self.done.values():
            _remove(path)
        for folder in self.folders:
            if os.path.basename(folder).startswith("bringup-"):
                import shutil

                shutil.rmtree(folder, ignore_errors=True)

    def _finish(self, number):
        entry = self.incoming.pop(number)
        if entry["parts"] is not None:
            key = (entry["digest"], entry["uid"])
            if key in self.small:
                self.held -= entry["size"]
            self.small[key] = b"".join(entry["parts"])
        else:
            self._close(entry)

    def _close(self, entry):
        """A staged file is whole: it gets its name when its digest is the one it was announced with."""
        if entry["file"] is None:
            return
        try:
            entry["file"].close()
            if entry["hash"].hexdigest() != entry["digest"]:
                self._fail(entry, "the file arrived damaged: its digest is not %s" % entry["digest"])
                return
            os.rename(entry["path"] + ".part", entry["path"])
        except OSError as error:
            self._fail(entry, "cannot stage %d bytes in %s: %s" % (
                entry["size"], os.path.dirname(entry["path"]), error.strerror or error))
            return
        self.done[(entry["digest"], entry["uid"])] = entry["path"]

    def _fail(self, entry, reason):
        self.bad[(entry["digest"], entry["uid"])] = reason
        if entry["file"] is not None:
            _quietly_close(entry["file"])
            _remove(entry["path"] + ".part")
            entry["file"] = None

    def _folder(self, size):
        tried = None
        for folder in self._candidates():
            try:
                free = os.statvfs(folder)
                if free.f_bavail * free.f_frsize > size + 65536:
                    return folder
                tried = OSError(errno.ENOSPC, "no space left on %s" % folder)
            except OSError as error:
                tried = error
        raise tried or OSError(errno.ENOENT, "no folder can be written")

    def _candidates(self):
        for folder in self.folders:
            yield folder
        if self.may_use():
            staging = os.path.join(self.state, "staging")
            if staging not in self.folders:
                try:
                    if not os.path.isdir(staging):
                        os.mkdir(staging, 0o711)
                    self.folders.insert(0, staging)
                    yield staging
                except OSError:
                    pass  # full or read-only: the next place is tried
        import tempfile

        for place in FALLBACKS:
            if any(os.path.dirname(folder) == place for folder in self.folders):
                continue
            try:
                folder = tempfile.mkdtemp(prefix="bringup-", dir=place)
                os.chmod(folder, 0o711)
            except OSError:
                continue
            self.folders.append(folder)
            yield folder


def _remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass  # gone already, or its folder is: nothing of ours is left


def _quietly_close(handle):
    try:
        handle.close()
    except OSError:
        pass  # the disk was full: that was told where it was written
