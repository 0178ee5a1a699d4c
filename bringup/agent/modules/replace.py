"""Replace what a pattern matches in a file."""

import os
import re

from bringup.agent.modules import _edit, _files
from bringup.agent.task import Failure

ARGUMENTS = dict(_files.ATTRIBUTES, **{
    "path": {"type": "path", "required": True, "aliases": ["dest", "destfile", "name"]},
    "regexp": {"type": "str", "required": True},
    "replace": {"type": "str", "default": ""},
    "after": {"type": "str"},
    "before": {"type": "str"},
    "backup": {"type": "bool", "default": False},
    "validate": {"type": "str"},
    "encoding": {"type": "str", "default": "utf-8"},
})


def run(task):
    args = task.args
    path = _edit.target(task)
    if not os.path.exists(path):
        raise Failure("Path %s does not exist !" % path, rc=257, path=path)
    data = _files.read(path)
    encoding = args.get("encoding") or "utf-8"
    try:
        text = data.decode(encoding, "surrogateescape")
        start, end = _section(text, args.get("after"), args.get("before"))
        if start is None:
            return {"changed": False, "msg": "Pattern for before/after params did not match the given file",
                    "rc": 0}
        new, count = re.subn(args["regexp"], args.get("replace") or "", text[start:end], flags=re.MULTILINE)
    except re.error as error:
        raise Failure("the regular expression cannot be read: %s" % error, found=args["regexp"])
    except (LookupError, UnicodeError) as error:
        raise Failure("%s cannot be read as %s: %s" % (path, encoding, error), path=path)
    changed = count > 0 and new != text[start:end]
    after = (text[:start] + new + text[end:]).encode(encoding, "surrogateescape") if changed else data
    return _edit.finish(task, path, data, after, "%d replacements made" % count if changed else "", rc=0)


def _section(text, after, before):
    """The part between what `after` and `before` match; (None, None) when they do not."""
    if after and before:
        pattern = "%s(?P<part>.*?)%s" % (after, before)
    elif after:
        pattern = "%s(?P<part>.*)" % after
    elif before:
        pattern = "(?P<part>.*)%s" % before
    else:
        return 0, len(text)
    match = re.search(pattern, text, re.DOTALL)
    return match.span("part") if match else (None, None)
