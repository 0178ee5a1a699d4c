"""An interpreter that was sent along, unpacked under `pythons/` of bringup_root. Python 3.6.

It becomes the base of environments, so it is never removed by us. Nothing of the host's own Python is touched.
"""

import errno
import os
import shutil
import tarfile

from bringup.agent.modules import python_env_probe
from bringup.agent.task import Failure


def folder(root, name):
    """Where an interpreter lies on this host."""
    return os.path.join(root, "pythons", name)


def run(task):
    """Unpack the archive of `archive` (digest, name, version) unless it is there and runs."""
    wanted = task.args["archive"]
    place = folder(task.root, os.path.basename(wanted["name"]))
    program = os.path.join(place, "bin", "python%s" % ".".join(wanted["version"].split(".")[:2]))
    seen = python_env_probe.ask(program)
    if seen is not None and seen["version"] == wanted["version"]:
        return {"changed": False, "interpreter": seen}
    if task.check:
        return {"changed": True, "interpreter": None}
    staged = "%s.new-%d" % (place, os.getpid())
    shutil.rmtree(staged, ignore_errors=True)
    try:
        _unpack(task.blob(wanted["digest"]), staged)
        seen = python_env_probe.ask(os.path.join(staged, "bin", os.path.basename(program)))
        if seen is None or seen["version"] != wanted["version"]:
            raise Failure("the interpreter that was sent does not run here", expected="Python %s" % wanted["version"],
                          found=seen["version"] if seen else "it does not start",
                          next="is bringup_root mounted noexec, or the bundle made for another machine?")
        if os.path.lexists(place):  # broken: it did not answer
            shutil.rmtree(place)
        os.rename(staged, place)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return {"changed": True, "interpreter": python_env_probe.ask(program)}


def _unpack(path, target):
    """The folder `python/` of the archive as `target`. Raises Failure for a member that would lie outside."""
    try:
        with tarfile.open(path) as archive:
            members = []
            for member in archive.getmembers():
                parts = member.name.strip("/").split("/")
                if parts[0] != "python" or ".." in parts or member.name.startswith("/"):
                    raise Failure("the archive of the interpreter holds a file outside of it", found=member.name)
                if member.issym() or member.islnk():
                    base = parts[:-1] if member.issym() else []
                    inside = os.path.normpath("/".join(base + [member.linkname]))
                    if member.linkname.startswith("/") or not inside.startswith("python"):
                        raise Failure("the archive of the interpreter links to outside of it", found=member.name)
                elif not (member.isreg() or member.isdir()):
                    continue
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                members.append(member)
            outer = target + ".outer"
            shutil.rmtree(outer, ignore_errors=True)
            os.makedirs(outer)
            try:
                archive.extractall(outer, members)
                os.rename(os.path.join(outer, "python"), target)
            finally:
                shutil.rmtree(outer, ignore_errors=True)
    except (OSError, tarfile.TarError, EOFError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise Failure("the disk is full: the interpreter does not fit", found=target,
                          next="free space under bringup_root")
        raise Failure("the interpreter cannot be unpacked: %s" % error, found=path)
