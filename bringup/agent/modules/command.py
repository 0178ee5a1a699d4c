"""Run a program, no shell between."""

import datetime
import glob
import os
import shlex

from bringup.agent.modules import _files
from bringup.agent.task import Failure

FREE_FORM = "cmd"
ARGUMENTS = {
    "cmd": {"type": "str"},
    "argv": {"type": "list"},
    "chdir": {"type": "path"},
    "creates": {"type": "path"},
    "removes": {"type": "path"},
    "stdin": {"type": "str"},
    "stdin_add_newline": {"type": "bool", "default": True},
    "strip_empty_ends": {"type": "bool", "default": True},
    "expand_argument_vars": {"type": "bool", "default": True},
}


def run(task):
    args = task.args
    if (args.get("cmd") is None) == (not args.get("argv")):
        raise Failure("one of cmd and argv is needed, and only one" if args.get("argv") else "no command given", rc=256)
    if args.get("argv"):
        argv = [str(part) for part in args["argv"]]
    else:
        try:
            argv = shlex.split(args["cmd"])
        except ValueError as error:
            raise Failure("the command cannot be split into words: %s" % error, rc=256, cmd=args["cmd"])
    if not argv:
        raise Failure("no command given", rc=256)
    shown = list(argv)
    if args.get("expand_argument_vars", True):
        known = task.command_environment()
        argv = [_expand(part, known) for part in argv]
    return execute(task, argv, shown)


def execute(task, argv, shown, shell=False, executable=None):
    """Decide by creates and removes, run, and report as the command and shell modules do."""
    args = task.args
    out = {"changed": False, "stdout": "", "stderr": "", "rc": None, "cmd": shown, "start": None, "end": None,
           "delta": None, "msg": ""}
    chdir = _files.expand(args.get("chdir"))
    if chdir is not None and not os.path.isdir(chdir):
        raise Failure("Unable to change directory before execution: %s is not a folder" % chdir, cmd=shown, rc=None)
    reason = _skip(args, chdir or ".")
    if reason:
        out.update(msg="%s not run command since %s" % ("Would" if task.check else "Did", reason), rc=0,
                   stdout="skipped, since %s" % reason.replace("'", ""))
        return _finished(out)
    if task.check:
        out.update(rc=0, msg="Command would have run if not in check mode", changed=True)
        if args.get("creates") is None and args.get("removes") is None:
            out.update(skipped=True, changed=False)
        return _finished(out)
    stdin = args.get("stdin")
    if stdin is not None and args.get("stdin_add_newline", True):
        stdin += "\n"
    out["start"] = str(datetime.datetime.now())
    began = datetime.datetime.now()
    done = task.command(argv, stdin=stdin, cwd=chdir, shell=shell, executable=executable, stream=True)
    ended = datetime.datetime.now()
    out.update(changed=True, rc=done.rc, stdout=done.stdout, stderr=done.stderr, end=str(ended),
               delta=str(ended - began))
    if args.get("strip_empty_ends", True):
        out["stdout"] = out["stdout"].rstrip("\r\n")
        out["stderr"] = out["stderr"].rstrip("\r\n")
    _finished(out)
    if done.rc != 0:
        out.pop("msg")
        raise Failure("non-zero return code", **out)
    return out


def _expand(text, known):
    """`~` and $NAME in one word, from the environment the command will get; unknown names stay."""
    import re

    def value(match):
        return known.get(match.group(1) or match.group(2), match.group(0))

    text = re.sub(r"\$(?:(\w+)|\{([^}]*)\})", value, text)
    return os.path.expanduser(text)


def _skip(args, folder):
    creates, removes = _files.expand(args.get("creates")), _files.expand(args.get("removes"))
    if creates and glob.glob(os.path.join(folder, creates)):
        return "'%s' exists" % creates
    if removes and not glob.glob(os.path.join(folder, removes)):
        return "'%s' does not exist" % removes
    return None


def _finished(out):
    out["stdout_lines"] = out["stdout"].splitlines()
    out["stderr_lines"] = out["stderr"].splitlines()
    return out
