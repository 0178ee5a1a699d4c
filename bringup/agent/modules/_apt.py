"""Packages of Debian and Ubuntu. What would change is read from apt-get's own simulation."""

import fnmatch
import os
import re
import time

from bringup.agent.modules import _locks
from bringup.agent.task import Completed, Failure

_OPTIONS = ["-y", "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "DEBIAN_PRIORITY": "critical", "LC_ALL": "C.UTF-8",
                "LANGUAGE": "C"}
_FORMAT = "${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Status}\\n"
_LISTS = "/var/lib/apt/lists"
_UPDATES = "/var/lib/dpkg/updates"
_PLANNED = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?", re.MULTILINE)


def run(task, args):
    deadline = time.monotonic() + max(args.get("lock_timeout") or 0, 0)
    updated = _update(task, args, deadline)
    out = {"changed": False, "cache_updated": updated}
    if not args["name"]:
        if not (args.get("update_cache") or args.get("autoremove")):
            raise Failure("name or update_cache is needed")
        out["changed"] = updated
        return out
    installed = _installed(task)
    if args["state"] == "absent":
        names = [name for name in args["name"] if _has(installed, name.split("=")[0], args.get("purge"))]
        words = ["remove"] + (["--purge"] if args.get("purge") else [])
    elif args["state"] == "latest":
        names, words = args["name"], ["install"]
    else:
        names = [name for name in args["name"] if not _satisfied(installed, name)]
        words = ["install"]
    if args.get("autoremove"):
        words.append("--auto-remove")
    if not names:
        return out
    return _change(task, args, out, words + _choices(args) + names, deadline)


def _change(task, args, out, words, deadline):
    if _interrupted():
        # the simulation would not say so, and apt-get only after the packages were fetched
        raise _explained("apt-get", Completed([], 100, "", "E: dpkg was interrupted", 0.0))
    planned = _plan(task, words)
    if not planned:
        return out
    out["changed"] = True
    out["packages"] = ["%s %s%s" % (verb, name, " " + version if version else "") for verb, name, _, version in planned]
    if task.diff:
        out["diff"] = [{"before": "".join("%s %s\n" % (name, old) for _, name, old, _ in planned if old),
                        "after": "".join("%s %s\n" % (name, new) for verb, name, _, new in planned if verb == "Inst")}]
    if task.check:
        return out
    done = _apt_get(task, words, deadline)
    out.update(stdout=done.stdout, stderr=done.stderr, rc=done.rc)
    out["stdout_lines"] = done.stdout.splitlines()
    return out


def _interrupted():
    """Whether dpkg was cut off: steps that it wrote down and did not finish."""
    try:
        return any(name.isdigit() for name in os.listdir(_UPDATES))
    except OSError:
        return False


def _choices(args):
    out = []
    if args.get("install_recommends") is not None:
        out.append("--install-recommends" if args["install_recommends"] else "--no-install-recommends")
    if args.get("default_release"):
        out += ["-t", args["default_release"]]
    if args.get("allow_downgrade"):
        out.append("--allow-downgrades")
    return out


def _installed(task):
    """name, and name:architecture -> (version, status) of every package that dpkg knows."""
    done = task.command(["dpkg-query", "-W", "-f", _FORMAT], environment=_ENVIRONMENT)
    if done.rc not in (0, 1):
        raise _explained("dpkg-query", done)
    out = {}
    for line in done.stdout.splitlines():
        name, architecture, version, status = (line.split("\t") + ["", "", ""])[:4]
        if status == "installed" or name not in out:
            out[name] = (version, status)
        out["%s:%s" % (name, architecture)] = (version, status)
    return out


def _has(installed, name, purge):
    status = installed.get(name, ("", ""))[1]
    return status not in ("", "not-installed") and (purge or status != "config-files")


def _satisfied(installed, wanted):
    name, _, version = wanted.partition("=")
    found, status = installed.get(name, ("", ""))
    return status == "installed" and (not version or found == version or fnmatch.fnmatchcase(found, version))


def _plan(task, words):
    """What apt-get would do: (Inst | Remv | Purg, name, old version, new version) of each package."""
    done = task.command(["apt-get", "-s", "-q"] + _OPTIONS + words, environment=_ENVIRONMENT)
    if done.rc != 0:
        raise _explained("apt-get " + " ".join(words), done)
    return [match.groups("") for match in _PLANNED.finditer(done.stdout)]


def _update(task, args, deadline):
    valid = args.get("cache_valid_time") or 0
    if not (args.get("update_cache") or valid):
        return False
    if valid:
        try:
            if time.time() - os.stat(_LISTS).st_mtime < valid:
                return False
        except OSError:
            pass
    if not task.check:
        done = _apt_get(task, ["update"], deadline)
        if re.search(r"^(W|E): (Failed to fetch|Some index files failed)", done.stderr, re.MULTILINE):
            raise Failure("the package lists could not be brought up to date", stderr=done.stderr, rc=done.rc,
                          found=_last(done.stderr), next="check the mirrors in /etc/apt and the way to them")
    return True


def _apt_get(task, words, deadline):
    """Run apt-get when the locks are free; somebody who takes one in between is waited for too."""
    while True:
        _locks.wait(task, _locks.DPKG, deadline)
        done = task.command(["apt-get", "-q"] + _OPTIONS + words, environment=_ENVIRONMENT, stream=True)
        if done.rc == 0:
            return done
        if "Could not get lock" not in done.stderr or time.monotonic() >= deadline:
            raise _explained("apt-get " + " ".join(words), done)
        time.sleep(1.0)


def _last(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _explained(what, done):
    """A Failure that names the cause behind apt's message, and the way out."""
    text = done.stderr + done.stdout
    message, following = "%s ended with %d" % (what, done.rc), None
    missing = re.findall(r"Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate|"
                         r"Version '([^']+)' for '([^']+)' was not found", text)
    if "dpkg was interrupted" in text:
        message = "the package database is half configured: an earlier installation was cut off"
        following = "sudo dpkg --configure -a"
    elif "--fix-broken" in text or "Unmet dependencies" in text:
        message = "packages on this host have unmet dependencies"
        following = "sudo apt-get --fix-broken install"
    elif "No space left on device" in text or "enough free space" in text:
        message = "the disk is full: the packages do not fit"
        following = "free space (df -h / /var /boot), then run again"
    elif "Permission denied" in text or "are you root" in text:
        message = "packages can only be changed by root"
        following = "say become: true"
    elif missing:
        first = missing[0]
        wanted = first[0] or first[1] or "%s=%s" % (first[3], first[2])
        message = "No package matching '%s' is available" % wanted
        following = "check the name, or bring the lists up to date with update_cache: true"
    fields = {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr, "found": _last(done.stderr or done.stdout)}
    if following:
        fields["next"] = following
    return Failure(message, **fields)
