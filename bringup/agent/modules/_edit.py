"""What lineinfile, replace and blockinfile share: read a text file, write its new content, tell what changed."""

import os

from bringup.agent.modules import _files
from bringup.agent.task import Failure


def target(task):
    """The path of the task, ~ expanded. Raises Failure for a folder."""
    path = _files.expand(task.args["path"])
    if os.path.isdir(path):
        raise Failure("Path %s is a directory !" % path, rc=256, path=path)
    return path


def finish(task, path, before, after, message, **fields):
    """Write `after` where it differs from `before` (None: no file yet), set attributes, and build the result.

    A link is followed for the content; attributes go to the path itself, as Ansible has it.
    """
    changed = before != after and after is not None
    saved = ""
    diff = _files.text_diff(path, before or b"", after or b"") if task.diff and changed else []
    if changed and not task.check:
        if task.args.get("backup") and before is not None:
            saved = _files.backup(path)
        folder = os.path.dirname(path)
        if before is None and folder and not os.path.isdir(folder):
            try:
                os.makedirs(folder)
            except OSError as error:
                raise _files.failure(error, "cannot create the folder %s" % folder, folder)
        args = {} if os.path.islink(path) else task.args
        _files.replace(task, os.path.realpath(path), after, args, task.args.get("validate"))
    old, new = {}, {}
    if not (task.check and not os.path.lexists(path)) and _files.apply_attributes(
            path, task.args, task.check, old, new):
        message = (message + " and " if changed else "") + "ownership, perms or SE linux context changed"
        changed = True
    out = {"changed": changed, "msg": message, "backup": saved}
    if saved:
        out["backup_file"] = saved
    out.update(fields)
    if task.diff:
        out["diff"] = diff + _files.state_diff(old, new)
    return out

