"""What a path is: kind, mode, owner, times, digest."""

import errno
import grp
import os
import pwd
import stat

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "path": {"type": "path", "required": True, "aliases": ["dest", "name"]},
    "follow": {"type": "bool", "default": False},
    "get_checksum": {"type": "bool", "default": True},
    "checksum_algorithm": {"type": "str", "default": "sha1", "aliases": ["checksum", "checksum_algo"],
                           "choices": ["md5", "sha1", "sha224", "sha256", "sha384", "sha512"]},
    "get_mime": {"type": "bool", "default": True, "aliases": ["mime", "mime_type", "mime-type"]},
    "get_attributes": {"type": "bool", "default": True, "aliases": ["attr", "attributes"]},
}
_BITS = (("rusr", stat.S_IRUSR), ("wusr", stat.S_IWUSR), ("xusr", stat.S_IXUSR), ("rgrp", stat.S_IRGRP),
         ("wgrp", stat.S_IWGRP), ("xgrp", stat.S_IXGRP), ("roth", stat.S_IROTH), ("woth", stat.S_IWOTH),
         ("xoth", stat.S_IXOTH), ("isuid", stat.S_ISUID), ("isgid", stat.S_ISGID))
_ACCESS = (("readable", os.R_OK), ("writeable", os.W_OK), ("executable", os.X_OK))


def run(task):
    args = task.args
    path = _files.expand(args["path"])
    try:
        found = os.stat(path) if args.get("follow") else os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return {"changed": False, "stat": {"exists": False}}
        raise Failure("cannot look at %s: %s" % (path, error.strerror), path=path)
    out = _fields(path, found)
    if stat.S_ISLNK(found.st_mode):
        out["lnk_source"] = os.path.realpath(path)
        out["lnk_target"] = os.readlink(path)
    if stat.S_ISREG(found.st_mode) and os.access(path, os.R_OK):
        if args.get("get_checksum", True):
            out["checksum"] = _files.digest(path, args.get("checksum_algorithm", "sha1"))
        if args.get("get_mime", True):
            _mime(task, path, out)
    elif args.get("get_mime", True):
        _mime(task, path, out)
    if args.get("get_attributes", True):
        _attributes(task, path, out)
    return {"changed": False, "stat": out}


def _fields(path, found):
    mode = found.st_mode
    out = {"exists": True, "path": path, "mode": "%04o" % stat.S_IMODE(mode), "isdir": stat.S_ISDIR(mode),
           "ischr": stat.S_ISCHR(mode), "isblk": stat.S_ISBLK(mode), "isreg": stat.S_ISREG(mode),
           "isfifo": stat.S_ISFIFO(mode), "islnk": stat.S_ISLNK(mode), "issock": stat.S_ISSOCK(mode),
           "uid": found.st_uid, "gid": found.st_gid, "size": found.st_size, "inode": found.st_ino,
           "dev": found.st_dev, "nlink": found.st_nlink, "atime": found.st_atime, "mtime": found.st_mtime,
           "ctime": found.st_ctime, "blocks": found.st_blocks, "block_size": found.st_blksize,
           "device_type": found.st_rdev}
    out.update((name, bool(mode & bit)) for name, bit in _BITS)
    out.update((name, os.access(path, bit)) for name, bit in _ACCESS)
    try:
        out["pw_name"] = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        pass
    try:
        out["gr_name"] = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        out["gr_name"] = None
    return out


def _mime(task, path, out):
    out.update(mimetype="unknown", charset="unknown")
    try:
        done = task.command(["file", "--mime-type", "--mime-encoding", path])
    except Failure:
        return
    if done.rc == 0:
        kind, _, charset = done.stdout.rsplit(": ", 1)[-1].strip().partition("; charset=")
        out.update(mimetype=kind, charset=charset or "unknown")


def _attributes(task, path, out):
    out.update(attributes=[], attr_flags="", version=None)
    try:
        done = task.command(["lsattr", "-vd", path])
    except Failure:
        return
    words = done.stdout.split()
    if done.rc == 0 and len(words) >= 2:
        flags = words[1].replace("-", "")
        out.update(version=words[0], attr_flags=flags,
                   attributes=[_FLAGS[flag] for flag in flags if flag in _FLAGS])


_FLAGS = {
    "A": "noatime", "a": "append", "c": "compressed", "C": "nocow", "d": "nodump", "D": "dirsync", "e": "extents",
    "E": "encrypted", "h": "blocksize", "i": "immutable", "I": "indexed", "j": "journalled", "N": "inline",
    "s": "zero", "S": "synchronous", "t": "notail", "T": "blockroot", "u": "undelete", "X": "compressedraw",
    "Z": "compresseddirty",
}
