"""Folders copied on the host itself (copy with remote_src), and links inside copied folders."""

import os
import shutil
import stat

from bringup.agent.modules import _files


def link(task, path, target):
    """A symbolic link at `path` to `target`; replaces a link or file there. Returns whether that changes anything."""
    if os.path.islink(path) and os.readlink(path) == target:
        return False
    if task.check:
        return True
    staged = os.path.join(os.path.dirname(path), ".bringup-%s" % os.urandom(8).hex())
    try:
        if not os.path.isdir(os.path.dirname(path)):
            os.makedirs(os.path.dirname(path))
        os.symlink(target, staged)
        os.rename(staged, path)
    except OSError as error:
        raise _files.failure(error, "cannot link %s" % path, path)
    finally:
        if os.path.lexists(staged):
            os.unlink(staged)
    return True


def copy_folder(task, args, src):
    """Bring what lies in `src` under `dest` (into dest/NAME without a slash at the end of src), modes kept.

    Files that are only in `dest` stay.
    """
    dest = args["dest"]
    top = dest if src.endswith("/") else os.path.join(dest, os.path.basename(src))
    changed = _merge(task, src.rstrip("/") or "/", top.rstrip("/") or "/", args)
    named = os.path.join(dest, os.path.basename(src)) if os.path.isdir(dest) and not src.endswith("/") else dest
    if os.path.lexists(named):
        changed = _files.apply_attributes(named, args, task.check) or changed
    out = {"changed": changed, "dest": dest, "src": src, "checksum": None, "md5sum": None}
    out.update(_files.describe(dest))
    return out


def _merge(task, src, dest, args):
    follow = args.get("_local_follow", False)
    changed = not os.path.isdir(dest)
    if changed and task.check:
        return True
    try:
        if changed:
            os.makedirs(dest)
            shutil.copystat(src, dest)
        changed = _owner(task, dest, args) or changed
        for name in sorted(os.listdir(src)):
            one, other = os.path.join(src, name), os.path.join(dest, name)
            if os.path.islink(one) and not follow:
                changed = link(task, other, os.readlink(one)) or changed
            elif os.path.isdir(one):
                changed = _merge(task, one, other, args) or changed
            elif os.path.isfile(one):
                changed = _file(task, one, other, args) or changed
    except OSError as error:
        raise _files.failure(error, "cannot copy %s to %s" % (src, dest), dest)
    return changed


def _file(task, one, other, args):
    changed = not os.path.isfile(other) or _files.digest(one, "sha256") != _files.digest(other, "sha256")
    if changed and not task.check:
        mode = stat.S_IMODE(os.stat(one).st_mode)
        _files.replace(task, other, one, {"mode": mode}, keep=os.path.isfile(other))
    return _owner(task, other, args) or changed


def _owner(task, path, args):
    if not os.path.lexists(path):
        return False
    return _files.apply_attributes(path, {"owner": args.get("owner"), "group": args.get("group")}, task.check)
