"""Keep one line in a file, or keep it out."""

import os
import re

from bringup.agent.modules import _edit, _files
from bringup.agent.task import Failure

ARGUMENTS = dict(_files.ATTRIBUTES, **{
    "path": {"type": "path", "required": True, "aliases": ["dest", "destfile", "name"]},
    "state": {"type": "str", "default": "present", "choices": ["absent", "present"]},
    "regexp": {"type": "str", "aliases": ["regex"]},
    "search_string": {"type": "str"},
    "line": {"type": "str", "aliases": ["value"]},
    "insertafter": {"type": "str"},
    "insertbefore": {"type": "str"},
    "backrefs": {"type": "bool", "default": False},
    "create": {"type": "bool", "default": False},
    "backup": {"type": "bool", "default": False},
    "firstmatch": {"type": "bool", "default": False},
    "validate": {"type": "str"},
})
_EXCLUSIVE = (("insertbefore", "insertafter"), ("regexp", "search_string"), ("backrefs", "search_string"))


def run(task):
    args = task.args
    for one, other in _EXCLUSIVE:
        if args.get(one) and args.get(other):
            raise Failure("parameters are mutually exclusive: %s|%s" % (one, other))
    path = _edit.target(task)
    if args.get("state", "present") == "absent":
        return _absent(task, path)
    if args.get("backrefs") and args.get("regexp") is None:
        raise Failure("regexp is required with backrefs=true")
    if args.get("line") is None:
        raise Failure("line is required with state=present")
    exists = os.path.exists(path)
    if not exists and not args.get("create"):
        raise Failure("Destination %s does not exist !" % path, rc=257, path=path)
    before = _files.read(path) if exists else None
    lines = _split(before)
    message = _present(lines, args)
    after = b"".join(lines) if message else before
    return _edit.finish(task, path, before, after, message, **_warning(args))


def _split(data):
    """Lines with their ends, broken at line feeds only."""
    parts = (data or b"").split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _warning(args):
    if "" in (args.get("regexp"), args.get("search_string")):
        return {"warnings": ["an empty pattern matches every line of the file; use '^' where that is meant"]}
    return {}


def _pattern(text):
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise Failure("the regular expression cannot be read: %s" % error, found=text)


def _matcher(args):
    """A function from a line to its match (true or not); None when neither regexp nor search_string is given."""
    if args.get("regexp") is not None:
        return _pattern(args["regexp"]).search
    if args.get("search_string") is not None:
        wanted = args["search_string"].encode("utf-8", "surrogateescape")
        return lambda line: wanted in line
    return None


def _present(lines, args):
    """Bring the line into `lines`, in place. Returns what was done, "" for nothing."""
    line = args["line"].encode("utf-8", "surrogateescape")
    first = args.get("firstmatch")
    after, before = args.get("insertafter"), args.get("insertbefore")
    if after is None and before is None:
        after = "EOF"
    found, match = _find(lines, _matcher(args), first)
    place = None
    if found is None:
        anchor = _pattern(after) if after not in (None, "BOF", "EOF") else None
        if anchor is None and before not in (None, "BOF"):
            anchor = _pattern(before)
        found, place = _place(lines, line, anchor, bool(after), first)
    if found is not None:
        new = match.expand(line) if args.get("backrefs") and match else line
        if not new.endswith(b"\n"):
            new += b"\n"
        if lines[found] == new:
            return ""
        lines[found] = new
        return "line replaced"
    if args.get("backrefs"):
        return ""
    return _insert(lines, line, place, after, before)


def _find(lines, matcher, first):
    found, match = None, None
    for number, current in enumerate(lines):
        hit = matcher(current) if matcher is not None else None
        if hit:
            found, match = number, hit
            if first:
                break
    return found, match


def _place(lines, line, anchor, after, first):
    """Where the very line stands already, and where the anchor says that it goes."""
    found, place = None, None
    for number, current in enumerate(lines):
        if current.rstrip(b"\r\n") == line:
            found = number
        elif anchor is not None and anchor.search(current):
            place = number + 1 if after else number
            if first:
                break
    return found, place


def _insert(lines, line, place, after, before):
    if before == "BOF" or after == "BOF":
        place = 0
    elif after == "EOF" or place is None:
        place = len(lines)
    elif after and place < len(lines) and lines[place].rstrip(b"\r\n") == line:
        return ""
    if place == len(lines) and lines and lines[-1][-1:] not in (b"\n", b"\r"):
        lines[-1] += b"\n"
    lines.insert(place, line + b"\n")
    return "line added"


def _absent(task, path):
    args = task.args
    matcher = _matcher(args)
    if matcher is None and args.get("line") is None:
        raise Failure("one of line, search_string, or regexp is required with state=absent")
    if not os.path.exists(path):
        return {"changed": False, "msg": "file not present"}
    before = _files.read(path)
    if matcher is None:
        line = args["line"].encode("utf-8", "surrogateescape")

        def matcher(current):
            return current.rstrip(b"\r\n") == line

    lines = _split(before)
    kept = [current for current in lines if not matcher(current)]
    count = len(lines) - len(kept)
    message = "%d line(s) removed" % count if count else ""
    return _edit.finish(task, path, before, b"".join(kept), message, found=count, **_warning(args))
