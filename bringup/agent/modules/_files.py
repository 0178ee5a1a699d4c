"""Files on a host: paths, digests, attributes, and writing that is whole or not at all."""

import errno
import grp
import hashlib
import os
import pwd
import shlex
import stat
import time

from bringup.agent.modules import _modes
from bringup.agent.task import Failure

ATTRIBUTES = {
    "mode": {"type": "mode"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def expand(path):
    """`~` and $VARIABLES resolved on this host, for the account that runs the task. None stays None."""
    if path is None:
        return None
    return os.path.expanduser(os.path.expandvars(str(path)))


def state_of(path):
    """absent, link, directory, hard (more than one name) or file (all else)."""
    try:
        found = os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return "absent"
        raise Failure("cannot look at %s: %s" % (path, error.strerror), path=path)
    if stat.S_ISLNK(found.st_mode):
        return "link"
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    return "hard" if found.st_nlink > 1 else "file"


def digest(path, algorithm="sha1"):
    """Hex digest of a file's content."""
    state = hashlib.new(algorithm)
    with open(path, "rb") as source:
        for part in iter(lambda: source.read(1 << 20), b""):
            state.update(part)
    return state.hexdigest()


def read(path):
    """The bytes of a file. Raises Failure with the path."""
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError as error:
        raise Failure("cannot read %s: %s" % (path, error.strerror), path=path)


def failure(error, what, path):
    """A Failure for an OSError; a full disk is told as a full disk, with what is free there."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return Failure("%s: %s" % (what, _fullness(path, reason)), path=path, errno=error.errno,
                       next="free space there, then run again: nothing half-written was left")
    if error.errno == errno.EROFS:
        return Failure("%s: the file system is read-only" % what, path=path, errno=error.errno)
    if error.errno == errno.EBUSY:
        return Failure("%s: %s (a mount point, as in containers, cannot be replaced)" % (what, reason), path=path,
                       errno=error.errno)
    return Failure("%s: %s" % (what, reason), path=path, errno=error.errno)


def _fullness(path, reason):
    place = os.path.dirname(path) or "."
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError:
        return "%s under %s" % (reason, place)
    if found.f_files and not found.f_favail:
        return "the disk is full: no inodes left on the file system of %s" % place
    return "the disk is full: %s (%d bytes free on the file system of %s)" % (
        reason, found.f_bavail * found.f_frsize, place)


def user_id(owner):
    """Numeric id of an account given by name or number. Raises Failure when the name is unknown."""
    if owner is None:
        return None
    try:
        return int(owner)
    except ValueError:
        pass
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        raise Failure("chown failed: failed to look up user %s" % owner)


def group_id(group):
    """Numeric id of a group given by name or number. Raises Failure when the name is unknown."""
    if group is None:
        return None
    try:
        return int(group)
    except ValueError:
        pass
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise Failure("chgrp failed: failed to look up group %s" % group)


def describe(path):
    """What results tell of a path that exists: uid, gid, owner, group, mode, state, size. {} for an absent one."""
    try:
        found = os.lstat(path)
    except OSError:
        return {}
    out = {"uid": found.st_uid, "gid": found.st_gid, "mode": _modes.octal(stat.S_IMODE(found.st_mode)),
           "size": found.st_size, "state": state_of(path)}
    out["owner"] = _name("/etc/passwd", found.st_uid, lambda uid: pwd.getpwuid(uid).pw_name)
    out["group"] = _name("/etc/group", found.st_gid, lambda gid: grp.getgrgid(gid).gr_name)
    return out


_names = {}  # type: dict[object, str]


def _name(table, number, look_up):
    """The name of an account or group; remembered while the host's table of them stays the same file."""
    try:
        found = os.stat(table)
        key = (table, number, found.st_ino, found.st_mtime, found.st_size)
    except OSError:
        key = None
    if key not in _names:
        try:
            name = look_up(number)
        except KeyError:
            return str(number)
        if key is None:
            return name
        _names[key] = name
    return _names[key]


def apply_attributes(path, args, check, before=None, after=None):
    """Owner, group and mode of `path` itself (a link is not followed) as asked; returns whether that changes it.

    Only what is asked is touched. `before` and `after` (dicts) receive the values that differ. In check mode an
    absent path counts as changed, since it would be made.
    """
    try:
        found = os.lstat(path)
    except OSError as error:
        if check:
            return True
        raise failure(error, "cannot look at %s" % path, path)
    changed = False
    for name, wanted, current, set_one in (
            ("owner", user_id(args.get("owner")), found.st_uid, lambda value: os.lchown(path, value, -1)),
            ("group", group_id(args.get("group")), found.st_gid, lambda value: os.lchown(path, -1, value))):
        if wanted is None or wanted in (current, -1):
            continue
        changed = True
        _note(before, after, name, current, wanted)
        if not check:
            try:
                set_one(wanted)
            except OSError as error:
                raise failure(error, "ch%s of %s failed" % ("own" if name == "owner" else "grp", path), path)
    return _apply_mode(path, args.get("mode"), found, check, changed, before, after)


def _apply_mode(path, mode, found, check, changed, before, after):
    # Linux keeps no mode for a link
    if mode is None or stat.S_ISLNK(found.st_mode):
        return changed
    current = stat.S_IMODE(found.st_mode)
    wanted = _modes.parse(mode, current, stat.S_ISDIR(found.st_mode))
    if changed and not check:
        # chown drops set-id bits
        now = stat.S_IMODE(os.lstat(path).st_mode)
    else:
        now = current
    if wanted != now and not check:
        try:
            os.chmod(path, wanted)
        except OSError as error:
            raise failure(error, "chmod of %s failed" % path, path)
    if wanted != current:
        _note(before, after, "mode", _modes.octal(current), _modes.octal(wanted))
        changed = True
    return changed


def _note(before, after, name, old, new):
    if before is not None:
        before[name] = old
    if after is not None:
        after[name] = new


def state_diff(before, after):
    """Two dicts of a path's state as a diff of lines, or [] when they are equal."""
    if before == after:
        return []
    return [{"before": _lines(before), "after": _lines(after)}]


def _lines(values):
    return "".join("%s: %s\n" % (key, values[key]) for key in sorted(values))


def text_diff(path, before, after, limit=104448):
    """The diff of a file's content, [] when equal; binary and very large content is only named."""
    if before == after:
        return []
    headers = {"before_header": path, "after_header": path}
    if b"\0" in before or b"\0" in after:
        return [dict(headers, before="binary content differs\n", after="")]
    if len(before) > limit or len(after) > limit:
        return [dict(headers, before="%d bytes\n" % len(before),
                     after="%d bytes (larger than %d: not shown)\n" % (len(after), limit))]
    return [dict(headers, before=before.decode("utf-8", "replace"), after=after.decode("utf-8", "replace"))]


def backup(path):
    """A copy of the file beside it, named by time; returns its path. Content, mode, owner and times are kept."""
    import shutil

    name = "%s.%d.%s" % (path, os.getpid(), time.strftime("%Y-%m-%d@%H:%M:%S~"))
    try:
        shutil.copy2(path, name)
        found = os.stat(path)
        os.chown(name, found.st_uid, found.st_gid)
    except OSError as error:
        if error.errno != errno.EPERM or not os.path.exists(name):
            raise failure(error, "cannot back up %s" % path, path)
    return name


def validate(task, command, path):
    """Run the task's `validate` command with `path` for %s. Raises Failure when it does not end with 0."""
    if not command:
        return
    if "%s" not in command:
        raise Failure("validate must contain %%s: %s" % command)
    done = task.command(shlex.split(command % shlex.quote(path)))
    if done.rc != 0:
        raise Failure("failed to validate", exit_status=done.rc, stdout=done.stdout, stderr=done.stderr, rc=done.rc)


def replace(task, path, content, args=None, validation=None, keep=True):
    """Put `content` (bytes, or the path of a file as text) under `path` by a rename of a file staged beside it.

    The new file has owner, mode and extended attributes of the one it replaces (with `keep`), else the umask's
    mode; `args` may ask for owner, group and mode, set before the file gets its name. A failure leaves `path` as it
    was and no staged file. The content is synced to disk, the folder is not: after a power cut either file is whole.
    """
    args = args or {}
    staged = os.path.join(os.path.dirname(path) or ".", ".bringup-%s" % os.urandom(8).hex())
    try:
        # nobody else may read the content before owner and mode are set
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise failure(error, "cannot write %s" % path, path)
    try:
        try:
            _fill(descriptor, content)
        finally:
            os.close(descriptor)
        _attributes_of(path if keep else None, staged)
        apply_attributes(staged, args, False)
        validate(task, validation, staged)
        os.rename(staged, path)
    except OSError as error:
        raise failure(error, "cannot write %s" % path, path)
    finally:
        if os.path.lexists(staged):
            os.unlink(staged)


def _fill(descriptor, content):
    if isinstance(content, bytes):
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view):]
    else:
        with open(content, "rb") as source:
            for part in iter(lambda: source.read(1 << 20), b""):
                view = memoryview(part)
                while view:
                    view = view[os.write(descriptor, view):]
    os.fsync(descriptor)


def _attributes_of(path, staged):
    """Give the staged file owner, mode and extended attributes (SELinux context, ACLs) of the file at `path`."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        found = None
    if found is None:
        os.chmod(staged, 0o666 & ~_modes.umask())
        return
    try:
        os.chown(staged, found.st_uid, found.st_gid)
    except OSError as error:
        # an ordinary user writing into another's file by way of its folder: the file becomes the user's
        if error.errno != errno.EPERM:
            raise
    os.chmod(staged, stat.S_IMODE(found.st_mode))
    try:
        names = os.listxattr(path)
    except (OSError, AttributeError):
        return
    for name in names:
        try:
            os.setxattr(staged, name, os.getxattr(path, name))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EACCES, errno.ENODATA):
                raise
