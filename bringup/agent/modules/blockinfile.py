"""Keep a block of lines between two markers in a file, or keep it out."""

import os
import re

from bringup.agent.modules import _edit, _files
from bringup.agent.task import Failure

ARGUMENTS = dict(_files.ATTRIBUTES, **{
    "path": {"type": "path", "required": True, "aliases": ["dest", "destfile", "name"]},
    "state": {"type": "str", "default": "present", "choices": ["absent", "present"]},
    "block": {"type": "str", "default": "", "aliases": ["content"]},
    "marker": {"type": "str", "default": "# {mark} ANSIBLE MANAGED BLOCK"},
    "marker_begin": {"type": "str", "default": "BEGIN"},
    "marker_end": {"type": "str", "default": "END"},
    "insertafter": {"type": "str"},
    "insertbefore": {"type": "str"},
    "create": {"type": "bool", "default": False},
    "backup": {"type": "bool", "default": False},
    "validate": {"type": "str"},
    "append_newline": {"type": "bool", "default": False},
    "prepend_newline": {"type": "bool", "default": False},
})


def run(task):
    args = task.args
    if args.get("insertbefore") and args.get("insertafter"):
        raise Failure("parameters are mutually exclusive: insertbefore|insertafter")
    path = _edit.target(task)
    exists = os.path.exists(path)
    present = args.get("state", "present") == "present"
    if not exists and not args.get("create"):
        raise Failure("Path %s does not exist !" % path, rc=257, path=path)
    if not exists and not present:
        return {"changed": False, "msg": "File %s not present" % path}
    before = _files.read(path) if exists else None
    lines = (before or b"").splitlines(True)
    marks = [args["marker"].replace("{mark}", args[key]).encode("utf-8") + b"\n"
             for key in ("marker_begin", "marker_end")]
    block = _block(args["block"].encode("utf-8", "surrogateescape"), marks) if present else []
    place = _cut(lines, marks)
    if place is None:
        place = _anchor(lines, before or b"", args)
    _insert(lines, place, block, args, present)
    after = b"".join(lines)
    message = "" if after == before else "File created" if before is None else \
        "Block inserted" if block else "Block removed"
    return _edit.finish(task, path, before, after, message)


def _block(text, marks):
    if not text:
        return []
    return [marks[0]] + (text if text.endswith(b"\n") else text + b"\n").splitlines(True) + [marks[1]]


def _cut(lines, marks):
    """Take the block out of `lines`; where it stood, None when it is not there."""
    ends = [max((number for number, line in enumerate(lines) if line == mark), default=None) for mark in marks]
    if None in ends:
        return None
    del lines[min(ends):max(ends) + 1]
    return min(ends)


def _anchor(lines, text, args):
    """The line number before which the block goes."""
    after, before = args.get("insertafter"), args.get("insertbefore")
    wanted = after if after not in (None, "EOF") else before if before not in (None, "BOF") else None
    if wanted is None:
        return 0 if before == "BOF" else len(lines)
    try:
        pattern = re.compile(wanted.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise Failure("the regular expression cannot be read: %s" % error, found=wanted)
    found = None
    if pattern.flags & re.MULTILINE:
        match = pattern.search(text)
        if match:
            found = text.count(b"\n", 0, match.end() if after else match.start())
    else:
        found = max((number for number, line in enumerate(lines) if pattern.search(line)), default=None)
    if found is None:
        return len(lines)
    return found + 1 if after is not None else found


def _insert(lines, place, block, args, present):
    if place > 0 and not lines[place - 1].endswith(b"\n"):
        lines[place - 1] += b"\n"
    if args.get("prepend_newline") and present and place and lines[place - 1] != b"\n":
        lines.insert(place, b"\n")
        place += 1
    lines[place:place] = block
    end = place + len(block)
    if args.get("append_newline") and present and end < len(lines) and lines[end] != b"\n":
        lines.insert(end, b"\n")
