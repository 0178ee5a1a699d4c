"""Files, folders and links: presence, mode, owner, times."""

import errno
import os
import shutil
import time

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = dict(_files.ATTRIBUTES, **{
    "path": {"type": "path", "required": True, "aliases": ["dest", "name"]},
    "state": {"type": "str", "choices": ["absent", "directory", "file", "hard", "link", "touch"]},
    "src": {"type": "path"},
    "recurse": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
    "follow": {"type": "bool", "default": True},
    "modification_time": {"type": "str"},
    "modification_time_format": {"type": "str", "default": "%Y%m%d%H%M.%S"},
    "access_time": {"type": "str"},
    "access_time_format": {"type": "str", "default": "%Y%m%d%H%M.%S"},
})


class _Times(object):
    """The access and modification times asked for: a number of seconds, "now", or None to leave them."""

    def __init__(self, args, state):
        kept = "preserve" if state in ("file", "hard", "directory", "link") else "now"
        self.access = _seconds(args.get("access_time") or kept, args.get("access_time_format"))
        self.modification = _seconds(args.get("modification_time") or kept, args.get("modification_time_format"))

    def apply(self, path, check):
        """Set them; returns whether that changes anything. `now` always does."""
        if self.access is None and self.modification is None:
            return False
        try:
            if self.access == "now" and self.modification == "now":
                # works without owning the file
                if not check:
                    os.utime(path, None)
                return True
            found = os.stat(path)
            now = time.time()
            wanted = [old if new is None else now if new == "now" else new
                      for new, old in ((self.access, found.st_atime), (self.modification, found.st_mtime))]
            if wanted == [found.st_atime, found.st_mtime]:
                return False
            if not check:
                os.utime(path, (wanted[0], wanted[1]))
        except OSError as error:
            raise _files.failure(error, "cannot set the times of %s" % path, path)
        return True


def _seconds(text, form):
    if text == "preserve":
        return None
    if text == "now":
        return "now"
    try:
        return time.mktime(time.strptime(text, form or "%Y%m%d%H%M.%S"))
    except (ValueError, OverflowError):
        raise Failure("the time %s does not have the form %s" % (text, form))


def run(task):
    args = dict(task.args)
    path = _files.expand(args["path"])
    src = _files.expand(args.get("src"))
    state = args.get("state")
    if state not in ("link", "absent") and src and os.path.isdir(path):
        path = os.path.join(path, os.path.basename(src))
    previous = _files.state_of(path)
    if state is None:
        state = previous if previous != "absent" else "directory" if args.get("recurse") else "file"
    if args.get("recurse") and state != "directory":
        raise Failure("recurse option requires state to be 'directory'", path=path)
    if src and state not in ("link", "hard"):
        raise Failure("src option requires state to be 'link' or 'hard'", path=path)
    args["path"], args["src"] = path, src
    job = _Job(task, args, path, previous, state)
    return getattr(job, state)()


class _Job(object):
    """One path on its way to the asked state."""

    def __init__(self, task, args, path, previous, state):
        self.task = task
        self.args = args
        self.path = path
        self.previous = previous
        self.state = state
        self.check = task.check
        self.follow = args.get("follow", True)
        self.times = _Times(args, state)
        self.before = {"path": path}
        self.after = {"path": path}

    def result(self, changed, **fields):
        if self.previous != self.state and self.state in ("absent", "directory", "link", "hard") and changed:
            self.before["state"] = self.previous
            self.after["state"] = self.state
        out = {"changed": changed, "path": self.path}
        out.update(fields)
        if os.path.lexists(self.path):
            out.update(_files.describe(self.path))
        else:
            out["state"] = "absent"
        if self.task.diff:
            out["diff"] = _files.state_diff(self.before, self.after)
        return out

    def attributes(self, path):
        changed = _files.apply_attributes(path, self.args, self.check, self.before, self.after)
        return self.times.apply(path, self.check) or changed

    def resolve(self):
        """With follow, go on with what a link points to."""
        if self.follow and self.previous == "link":
            self.path = os.path.realpath(self.path)
            self.previous = _files.state_of(self.path)

    def absent(self):
        if self.previous == "absent":
            return self.result(False)
        if not self.check:
            try:
                if self.previous == "directory":
                    shutil.rmtree(self.path)
                else:
                    os.unlink(self.path)
            except OSError as error:
                if error.errno != errno.ENOENT or os.path.lexists(self.path):
                    raise _files.failure(error, "cannot remove %s" % self.path, self.path)
        out = self.result(True)
        out["state"] = "absent"
        return out

    def file(self):
        self.resolve()
        if self.previous not in ("file", "hard"):
            raise Failure("file (%s) is %s, cannot continue" % (self.path, self.previous), path=self.path,
                          state=self.previous)
        return self.result(self.attributes(self.path))

    def touch(self):
        made = self.previous == "absent"
        if made and self.check:
            return self.result(True, dest=self.path)
        if made:
            try:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            except OSError as error:
                raise _files.failure(error, "cannot create %s" % self.path, self.path)
        target = os.path.realpath(self.path) if self.follow else self.path
        try:
            changed = self.attributes(target)
        except Failure:
            if made:
                os.unlink(self.path)
            raise
        return self.result(changed or made, dest=self.path)

    def directory(self):
        self.resolve()
        if self.previous == "absent":
            if not self.check:
                self._make_folders()
            return self.result(True)
        if self.previous != "directory":
            raise Failure("%s already exists as a %s" % (self.path, self.previous), path=self.path)
        changed = self.attributes(self.path)
        if self.args.get("recurse"):
            changed = self._recurse(self.path, set()) or changed
        return self.result(changed)

    def _make_folders(self):
        missing = []
        path = self.path.rstrip("/") or "/"
        while path and not os.path.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            try:
                os.mkdir(folder)
            except OSError as error:
                # somebody else may have made it meanwhile
                if error.errno != errno.EEXIST or not os.path.isdir(folder):
                    raise _files.failure(error, "cannot create the folder %s" % folder, folder)
            self.attributes(folder)

    def _recurse(self, top, seen):
        """Attributes of everything below; with follow, also of what links point to. A loop of links ends."""
        changed = False
        real = os.path.realpath(top)
        if real in seen:
            return False
        seen.add(real)
        for folder, folders, names in os.walk(top):
            for name in folders + names:
                path = os.path.join(folder, name)
                changed = self._one(path) or changed
                if not (os.path.islink(path) and self.follow and os.path.exists(path)):
                    continue
                target = os.path.join(folder, os.readlink(path))
                if os.path.isdir(target):
                    changed = self._recurse(target, seen) or changed
                changed = self._one(target) or changed
        return changed

    def _one(self, path):
        changed = _files.apply_attributes(path, self.args, self.check)
        return self.times.apply(path, self.check) or changed if os.path.exists(path) else changed

    def link(self):
        path, src, force = self.path, self.args["src"], self.args.get("force")
        if src is None and self.follow and os.path.islink(path) and os.path.exists(path):
            src = os.readlink(path)
        base = path if os.path.isdir(path) and not os.path.islink(path) else os.path.dirname(path)
        if src is not None and not force and not os.path.exists(os.path.join(base, src)):
            raise Failure("src file does not exist, use 'force=yes' if you really want to create the link: %s"
                          % os.path.join(base, src), path=path, src=src)
        if self.previous == "directory" and force and os.listdir(path):
            raise Failure("the directory %s is not empty, refusing to convert it" % path, path=path)
        if self.previous in ("directory", "file", "hard") and not force:
            raise Failure("refusing to convert from %s to symlink for %s" % (self.previous, path), path=path)
        if self.previous != "link" and src is None:
            raise Failure("src is required for creating new symlinks", path=path)
        changed = self.previous != "link" or (src is not None and os.readlink(path) != src)
        if changed and self.previous == "link":
            self.before["src"], self.after["src"] = os.readlink(path), src
        if changed and not self.check:
            self._swap(lambda name: os.symlink(src, name))
        return self._linked(changed, src)

    def _linked(self, changed, src):
        if self.check and not os.path.exists(self.path):
            return self.result(changed, dest=self.path, src=src)
        target = os.path.realpath(self.path) if self.follow else self.path
        fields = {"dest": self.path, "src": src}
        if self.follow and os.path.islink(self.path) and not os.path.exists(target):
            fields["warnings"] = ["the link points to nothing: mode, owner and times are left"]
        else:
            changed = self.attributes(target) or changed
        return self.result(changed, **fields)

    def hard(self):
        path, src, force = self.path, self.args["src"], self.args.get("force")
        if self.previous != "hard" and src is None:
            raise Failure("src is required for creating new hardlinks", path=path)
        if src is not None and not os.path.exists(src):
            raise Failure("src does not exist", dest=path, src=src)
        changed = self.previous != "hard"
        if self.previous == "hard" and src is not None:
            changed = os.stat(path).st_ino != os.stat(src).st_ino
            if changed and not force:
                raise Failure("Cannot link, different hard link exists at destination", dest=path, src=src)
        if self.previous == "file" and not force:
            raise Failure("Cannot link, file exists at destination", dest=path, src=src)
        if self.previous == "directory":
            raise Failure("Cannot link: a directory exists at destination", dest=path, src=src)
        if changed and not self.check:
            origin = os.path.realpath(src) if self.follow else src
            self._swap(lambda name: os.link(origin, name))
        return self._linked(changed, src)

    def _swap(self, make):
        """Make the link beside its place and rename it there; an empty folder gives way first."""
        staged = os.path.join(os.path.dirname(self.path) or ".", ".bringup-%s" % os.urandom(8).hex())
        try:
            make(staged)
            if self.previous == "directory":
                os.rmdir(self.path)
            os.rename(staged, self.path)
        except OSError as error:
            raise _files.failure(error, "cannot link %s" % self.path, self.path)
        finally:
            # the rename of one name of a file over another name of it does nothing and leaves both
            if os.path.lexists(staged):
                os.unlink(staged)
