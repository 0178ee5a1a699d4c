"""Put a file, a folder or a text on the host. The controller names content by digest; it is fetched when it differs.

Beside what a playbook gives, the controller half adds
    _file   for one file: {"name", "digest" (SHA-256), "sha1", "md5", "size", "mode"}
    _tree   for a folder: {"files": [the same, name relative], "folders": [names], "links": [[name, target]]}
    _source what results call `src`
"""

import os
import stat

from bringup.agent.modules import _files, _modes, _trees
from bringup.agent.task import Failure

ARGUMENTS = dict(_files.ATTRIBUTES, **{
    "src": {"type": "path"},
    "content": {"type": "raw"},
    "dest": {"type": "path", "required": True},
    "backup": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": True},
    "validate": {"type": "str"},
    "directory_mode": {"type": "mode"},
    "remote_src": {"type": "bool", "default": False},
    "follow": {"type": "bool", "default": False},
    "local_follow": {"type": "bool", "default": True},
    "checksum": {"type": "str"},
})


class Content(object):
    """What is to lie at a path: its digest, and how to get at it."""

    def __init__(self, name, digest, sha1=None, md5=None, mode=None, path=None):
        self.name = name
        self.digest = digest
        self.sha1 = sha1
        self.md5 = md5
        self.mode = mode
        self._path = path

    @classmethod
    def sent(cls, entry):
        return cls(entry["name"], entry["digest"], entry.get("sha1"), entry.get("md5"), entry.get("mode"))

    def path(self, task):
        """A readable file with the content; asks the controller for it when it is not here."""
        return self._path if self._path is not None else task.blob(self.digest)

    def source(self, task):
        """The content's bytes where they are at hand, else path()."""
        return self._path if self._path is not None else task.content(self.digest)


def run(task):
    args = dict(task.args)
    args["dest"] = _files.expand(args["dest"])
    if args.get("remote_src") and args.get("content") is None:
        return _from_host(task, args)
    if args.get("_tree") is not None:
        return _tree(task, args)
    if args.get("_file") is None:
        raise Failure("no content was sent for %s" % args["dest"])
    content = Content.sent(args["_file"])
    return put(task, args, args["dest"], content)


def put(task, args, dest, content, keep=True, new_mode=None):
    """One file to its place; returns the result. `new_mode` is what a file that is replaced gets with no mode asked."""
    if args.get("mode") == "preserve":
        args = dict(args, mode=content.mode)
    made = False
    if dest.endswith("/"):
        dest = os.path.join(dest, content.name)
        made = make_folders(task, args, os.path.dirname(dest))
    if os.path.isdir(dest):
        if args.get("content") is not None:
            raise Failure("can not use content with a dir as dest", path=dest)
        dest = os.path.join(dest, content.name)
    if os.path.islink(dest) and args.get("follow") and os.path.exists(dest):
        dest = os.path.realpath(dest)
    if os.path.lexists(dest) and not args.get("force", True) and os.path.exists(dest):
        return {"changed": made, "msg": "file already exists", "dest": dest, "src": args.get("_source")}
    link = os.path.islink(dest)
    same = not link and os.path.isfile(dest) and os.access(dest, os.R_OK) and _files.digest(dest, "sha256") == \
        content.digest
    if not task.check:
        _verify(task, args, content, same)
    return _place(task, args, dest, content, same, made, keep and not link, new_mode)


def _verify(task, args, content, same):
    """The `checksum` that the playbook gives is SHA-1 of the source."""
    wanted = args.get("checksum")
    if not wanted:
        return
    found = content.sha1 or (_files.digest(content.path(task)) if not same else None)
    if found is not None and found != wanted:
        raise Failure("Copied file does not match the expected checksum. Transfer failed.", checksum=found,
                      expected_checksum=wanted)


def _place(task, args, dest, content, same, made, keep, new_mode):
    out = {"dest": dest, "src": args.get("_source"), "checksum": content.sha1, "md5sum": content.md5}
    diff, old, new = [], {}, {}
    folder = os.path.dirname(dest) or "."
    if not same:
        if task.diff:
            before = _files.read(dest) if os.path.isfile(dest) and not os.path.islink(dest) else b""
            source = content.source(task)
            diff = _files.text_diff(dest, before, source if isinstance(source, bytes) else _files.read(source))
        if not task.check:
            if not os.path.isdir(folder):
                raise Failure("Destination directory %s does not exist" % folder, path=dest)
            if args.get("backup") and os.path.exists(dest):
                out["backup_file"] = _files.backup(dest)
            wanted = args
            if new_mode is not None and args.get("mode") is None and os.path.lexists(dest):
                wanted = dict(args, mode=new_mode)
            _files.replace(task, dest, content.source(task), wanted, args.get("validate"), keep)
    changed = made or not same
    if os.path.lexists(dest) and not (task.check and not same):
        changed = _files.apply_attributes(dest, args, task.check, old, new) or changed
    out["changed"] = changed
    out.update(_files.describe(dest))
    if not changed:
        out["path"] = dest
    if task.diff:
        out["diff"] = diff + _files.state_diff(old, new)
    return out


def make_folders(task, args, folder):
    """Make the missing folders down to `folder`, owner, group and directory_mode set; whether any was missing."""
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    if task.check:
        return bool(missing)
    asked = dict(args, mode=args.get("directory_mode"))
    for path in reversed(missing):
        try:
            os.mkdir(path)
        except OSError as error:
            raise _files.failure(error, "cannot create the folder %s" % path, path)
        _files.apply_attributes(path, asked, False)
    return bool(missing)


def _tree(task, args):
    """A folder of the controller: files first, then folders that hold none, then links."""
    dest = args["dest"].rstrip("/") + "/"
    tree = args["_tree"]
    changed, diff, results, filled = False, [], [], set()
    for entry in tree.get("files", ()):
        name = entry["name"]
        folder, base = os.path.split(name)
        content = Content.sent(dict(entry, name=base))
        result = put(task, dict(args, content=None), os.path.join(dest, folder, ""), content)
        changed = result["changed"] or changed
        diff.extend(result.get("diff", ()))
        results.append(result)
        while folder:
            filled.add(folder)
            folder = os.path.dirname(folder)
    for name in tree.get("folders", ()):
        if name not in filled:
            changed = _folder(task, args, os.path.join(dest, name) if name else dest.rstrip("/")) or changed
    for name, target in tree.get("links", ()):
        changed = _trees.link(task, os.path.join(dest, name), target) or changed
    if len(results) == 1:
        out = results[0]
        out["changed"] = changed
    else:
        out = {"changed": changed, "dest": dest, "src": args.get("_source")}
    if task.diff:
        out["diff"] = diff
    return out


def _folder(task, args, path):
    if os.path.lexists(path) and not os.path.isdir(path):
        raise Failure("%s already exists as a %s" % (path, _files.state_of(path)), path=path)
    changed = make_folders(task, args, path)
    if not (task.check and changed):
        asked = dict(args, mode=args.get("directory_mode"))
        changed = _files.apply_attributes(path, asked, task.check) or changed
    return changed


def _from_host(task, args):
    """remote_src: the source lies on the host."""
    src = _files.expand(args.get("src"))
    if not src or not os.path.exists(src):
        raise Failure("Source %s not found" % src, path=src)
    args["_source"] = src
    if os.path.isdir(src):
        return _trees.copy_folder(task, args, src)
    if not os.path.isfile(src):
        raise Failure("Cannot copy invalid source '%s': not a file" % src, path=src)
    if not os.access(src, os.R_OK):
        raise Failure("Source %s not readable" % src, path=src)
    mode = _modes.octal(stat.S_IMODE(os.stat(src).st_mode))
    content = Content(os.path.basename(src), _files.digest(src, "sha256"), _files.digest(src), _md5(src), mode, src)
    return put(task, args, args["dest"], content, keep=False, new_mode=mode)


def _md5(path):
    try:
        return _files.digest(path, "md5")
    except ValueError:
        # switched off where only approved algorithms are allowed
        return None
