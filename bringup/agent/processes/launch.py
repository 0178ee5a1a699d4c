"""The launch file of a release on a host, its script, and where a process's record lies. Python 3.6."""

import os
import pwd
import re
import shlex

from bringup.agent.processes import proc
from bringup.agent.task import Failure

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
API_KEY = "$API_KEY"
"""Stands in a command line for the key of an engine that takes it as an argument only."""
CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Place(object):
    """Where everything about one engine process lies under a host's bringup_root."""

    def __init__(self, root, name):
        if not _NAME.match(name or ""):
            raise Failure("the process name %r is not one of ours" % (name,), expected="<replica>-<node>")
        self.root = root
        self.name = name
        self.folder = os.path.join(root, "processes", name)
        self.record = os.path.join(self.folder, "record.json")
        self.exit = os.path.join(self.folder, "exit.json")
        self.log = os.path.join(self.folder, "log")
        self.times = os.path.join(self.folder, "times")
        self.work = os.path.join(self.folder, "work")
        self.secrets = os.path.join(root, "state", "secrets", name + ".env")

    def launch(self, release):
        return os.path.join(self.root, "releases", release, "launch", self.name + ".json")

    def script(self, release):
        return os.path.join(self.root, "releases", release, "launch", self.name + ".sh")

    def read(self):
        return proc.read_json(self.record) or {}


def names(root):
    """The processes that have a record on this host."""
    folder = os.path.join(root, "processes")
    try:
        return sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, "record.json")))
    except OSError:
        return []


def load(place, release):
    """The launch document of a release for this process. Raises Failure when it is not here."""
    document = proc.read_json(place.launch(release))
    if document is None:
        raise Failure("the release %s is not prepared here for %s" % (release[:12], place.name),
                      expected=place.launch(release), found="no such file", next="invoke provision")
    return document


def script_text(launch):
    """The shell script that becomes the engine: environment, then exec. A person can read it and run it by hand."""
    lines = ["#!/bin/sh",
             "# %s of release %s: written by bringup, made anew at each start" % (launch["name"], launch["release"])]
    for name in sorted(launch["env"]):
        lines.append("export %s=%s" % (name, shlex.quote(str(launch["env"][name]))))
    lines.append("exec %s" % " ".join(_word(str(word)) for word in launch["argv"]))
    return "\n".join(lines) + "\n"


def _word(word):
    """A word for the shell; `$API_KEY` stays a variable, which the secrets' file fills."""
    if API_KEY in word:
        return '"$API_KEY"'.join(shlex.quote(part) if part else "" for part in word.split(API_KEY))
    return shlex.quote(word)


def account(task):
    """Who the engine runs as: (name, uid, gid, home), or None when we are not root and it is ourselves.

    The engines' own account when it is there, else the named user; never root unless nobody else is named.
    """
    if os.geteuid() != 0:
        return None
    for name in (task.args.get("account"), task.args.get("user")):
        if not name or name == "root":
            continue
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return (entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
    entry = pwd.getpwuid(0)
    return (entry.pw_name, 0, entry.pw_gid, entry.pw_dir)


def home(place, owner):
    """HOME of an engine: its account's own, else a folder that all starts share, for what engines compile and keep.

    The engines' account has `bringup_root` for a home, where it may not write.
    """
    if owner is None:
        return os.path.expanduser("~")
    try:
        if os.stat(owner[3]).st_uid == owner[1]:
            return owner[3]
    except OSError:
        pass  # the account has none, or one that we may not see: it gets one of ours
    return os.path.join(place.root, "cache", "home-" + owner[0])


def prepare(place, owner, secrets):
    """Make the process's folder and its work folder, and keep the secrets in a file that only root (or we) can read."""
    proc.make_folder(place.folder)
    proc.make_folder(place.work, 0o750)
    compiled = os.path.join(place.root, "cache", "compiled")
    proc.make_folder(compiled)
    if owner is not None:
        os.chown(compiled, owner[1], owner[2])
        os.chown(place.work, owner[1], owner[2])
        there = home(place, owner)
        if there != owner[3]:
            proc.make_folder(there, 0o750)
            os.chown(there, owner[1], owner[2])
    if not secrets:
        if os.path.exists(place.secrets):
            os.unlink(place.secrets)
        return
    proc.make_folder(os.path.dirname(place.secrets), 0o700)
    text = "".join("%s=%s\n" % (name, _quoted(str(secrets[name]))) for name in sorted(secrets))
    proc.write_file(place.secrets, text, 0o600)


def make_caches(place, folder, owner):
    """The folder of compiled caches, which a container needs to be there, for the account that writes to it. That
    account owns the folder above and may put a link there: root follows none."""
    compiled = os.path.join(place.root, "cache", "compiled")
    if os.path.dirname(folder) != compiled:
        raise Failure("%s is no folder of compiled caches" % folder, expected=compiled + "/...")
    try:
        if not os.path.lexists(folder):
            os.mkdir(folder)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if owner is not None:
                os.fchown(opened, owner[1], owner[2])
        finally:
            os.close(opened)
    except OSError as error:
        raise Failure("the folder of compiled caches cannot be had: %s" % (error.strerror or error), found=folder,
                      next="is it a link, or of somebody else? move it away: what lies there is compiled anew")


def _quoted(value):
    if "\n" in value or "\0" in value:
        raise Failure("a secret for the engine holds a line break: it cannot be given in its environment")
    return '"%s"' % value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")


def read_secrets(place):
    """The secrets kept for this process, as a dict. Container engines take them without quotes."""
    out = {}
    plain = place.read().get("manager") in ("docker", "podman")
    try:
        with open(place.secrets, "rb") as handle:
            lines = handle.read().decode("utf-8").splitlines()
    except OSError:
        return out
    for line in lines:
        name, _, value = line.partition("=")
        out[name] = value if plain else re.sub(r"\\(.)", r"\1", value[1:-1])
    return out
