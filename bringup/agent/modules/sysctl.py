"""A kernel parameter: its line in a sysctl file and, where asked, its value now."""

import os
import re

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "name": {"type": "str", "required": True, "aliases": ["key"]},
    "value": {"type": "str", "aliases": ["val"]},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "sysctl_file": {"type": "path", "default": "/etc/sysctl.conf"},
    "sysctl_set": {"type": "bool", "default": False},
    "reload": {"type": "bool", "default": True},
    "ignoreerrors": {"type": "bool", "default": False},
}


def run(task):
    args = task.args
    name, state = args["name"].strip(), args.get("state", "present")
    if state == "present" and args.get("value") in (None, ""):
        raise Failure("value is needed with state=present", name=name)
    value = _plain(args.get("value"))
    path = _files.expand(args.get("sysctl_file") or "/etc/sysctl.conf")
    before = _files.read(path) if os.path.exists(path) else b""
    after = _edited(before.decode("utf-8", "surrogateescape"), name, value if state == "present" else None)
    written = after.encode("utf-8", "surrogateescape")
    current = current_value(name)
    setting = state == "present" and args.get("sysctl_set") and current != value
    if setting and current is None and not args.get("ignoreerrors"):
        raise Failure("this kernel does not have the parameter %s" % name, name=name,
                      expected="/proc/sys/%s" % _proc(name))
    out = {"changed": written != before or bool(setting), "name": name, "value": value, "sysctl_file": path,
           "current": current}
    if task.diff:
        out["diff"] = _files.text_diff(path, before, written)
    if task.check:
        return out
    if setting:
        _set(task, name, value)
    if written != before:
        _files.replace(task, os.path.realpath(path), written)
        if args.get("reload", True):
            _reload(task, path)
    return out


def _plain(value):
    """A value with single blanks, as /proc shows it; yes and no as 1 and 0."""
    if value is None:
        return None
    text = " ".join(str(value).split())
    return {"true": "1", "yes": "1", "false": "0", "no": "0"}.get(text.lower(), text)


def _proc(name):
    """net.ipv4.conf.eth0/1.forwarding -> net/ipv4/conf/eth0.1/forwarding, as sysctl itself reads names."""
    if "/" in name and ("." not in name or name.index("/") < name.index(".")):
        return name
    return name.replace(".", "\0").replace("/", ".").replace("\0", "/")


def current_value(name):
    """The value that the kernel has now, blanks single; None where it has no such parameter or hides it."""
    try:
        with open(os.path.join("/proc/sys", _proc(name))) as source:
            return " ".join(source.read().split())
    except (OSError, UnicodeDecodeError):
        return None


def _edited(text, name, value):
    """The file's text with the parameter's line set, or taken out for None. Comments and other lines stay."""
    pattern = re.compile(r"^\s*-?\s*%s\s*=" % re.escape(name).replace(r"\.", "[./]"))
    lines = text.splitlines(True)
    out, done = [], False
    for line in lines:
        if not pattern.match(line):
            out.append(line)
            continue
        kept = " ".join(line.partition("=")[2].split())
        if value is None or done:
            continue
        done = True
        out.append(line if kept == value else "%s=%s\n" % (name, value))
    if value is not None and not done:
        if out and not out[-1].endswith("\n"):
            out[-1] += "\n"
        out.append("%s=%s\n" % (name, value))
    return "".join(out)


def _set(task, name, value):
    try:
        with open(os.path.join("/proc/sys", _proc(name)), "w") as target:
            target.write(value)
    except OSError as error:
        if not task.args.get("ignoreerrors"):
            raise Failure("cannot set %s to %s: %s" % (name, value, error.strerror), name=name,
                          next="in a container the kernel's parameters belong to the machine outside")


def _reload(task, path):
    words = ["sysctl"] + (["-e"] if task.args.get("ignoreerrors") else []) + ["-p", path]
    done = task.command(words, environment={"LC_ALL": "C.UTF-8"})
    if done.rc != 0 and not task.args.get("ignoreerrors"):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failure("the file was written, the kernel did not take all of it", rc=done.rc, stdout=done.stdout,
                      stderr=done.stderr, found=lines[-1] if lines else "", next="sysctl -p %s" % path)
