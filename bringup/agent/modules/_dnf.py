"""Packages of the Red Hat family, by dnf or yum; what is installed is asked of rpm."""

import re
import time

from bringup.agent.modules import _locks
from bringup.agent.task import Failure

_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "LANGUAGE": "C"}


def run(task, args, program):
    deadline = time.monotonic() + max(args.get("lock_timeout") or 0, 0)
    out = {"changed": False}
    if args.get("update_cache") and not task.check:
        _run(task, [program, "-y", "makecache"], deadline)
        out["cache_updated"] = True
    if not args["name"]:
        if not args.get("update_cache"):
            raise Failure("name or update_cache is needed")
        return out
    names = [re.sub("=", "-", name, count=1) for name in args["name"]]
    if args["state"] == "absent":
        names, verb = [name for name in names if _installed(task, name)], "remove"
    elif args["state"] == "latest":
        verb = "install"
    else:
        names, verb = [name for name in names if not _installed(task, name)], "install"
    if not names:
        return out
    return _change(task, args, out, program, verb, names, deadline)


def _change(task, args, out, program, verb, names, deadline):
    words = [program, verb] + names
    if verb == "install" and args["state"] == "latest":
        # install leaves an installed package at its version: upgrade those
        present = [name for name in names if _installed(task, name)]
        missing = [name for name in names if name not in present]
        commands = ([[program, "install"] + missing] if missing else []) + (
            [[program, "upgrade"] + present] if present else [])
    else:
        commands = [words]
    for command in commands:
        if not _would_change(task, command, deadline):
            continue
        out["changed"] = True
        if not task.check:
            done = _run(task, command[:1] + ["-y"] + command[1:], deadline)
            out.update(rc=done.rc, stdout=done.stdout, stderr=done.stderr, stdout_lines=done.stdout.splitlines())
    return out


def _installed(task, name):
    return task.command(["rpm", "-q", "--whatprovides", name], environment=_ENVIRONMENT).rc == 0 or \
        task.command(["rpm", "-q", name], environment=_ENVIRONMENT).rc == 0


def _would_change(task, command, deadline):
    """--assumeno shows the transaction and ends with 1; with nothing to do it ends with 0."""
    _locks.wait(task, _locks.RPM, deadline)
    done = task.command(command[:1] + ["--assumeno"] + command[1:], environment=_ENVIRONMENT)
    if done.rc == 0 or "Nothing to do" in done.stdout + done.stderr:
        return False
    if "Transaction Summary" in done.stdout:
        return True
    raise _explained(command, done)


def _run(task, command, deadline):
    _locks.wait(task, _locks.RPM, deadline)
    done = task.command(command, environment=_ENVIRONMENT, stream=True)
    if done.rc != 0:
        raise _explained(command, done)
    return done


def _explained(command, done):
    text = done.stderr + done.stdout
    message, following = "%s ended with %d" % (" ".join(command), done.rc), None
    missing = re.findall(r"No match for argument: (\S+)|Unable to find a match: (\S+)|No package (\S+) available", text)
    if missing:
        message = "No package matching '%s' is available" % next(name for name in missing[0] if name)
    elif "No space left on device" in text or "needs" in text and "more space" in text:
        message, following = "the disk is full: the packages do not fit", "free space, then run again"
    elif "superuser" in text or "must be root" in text or "need to be root" in text:
        message, following = "packages can only be changed by root", "say become: true"
    elif "unfinished transactions" in text:
        message, following = "the package database holds unfinished transactions", "sudo yum-complete-transaction"
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    fields = {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr, "found": lines[-1] if lines else ""}
    if following:
        fields["next"] = following
    return Failure(message, **fields)
