"""Memory of a host: what can be had now, what a build may take of it, and how it is held to that. Python 3.6.

The bound is the kernel's where systemd runs and we are root (a control group); else each process is bounded by itself
(its private memory), which one that is many does not notice. Either way the kernel's choice of whom to end falls on a
build first and on an engine last.
"""

import os
import re
import subprocess

from bringup.agent.processes import proc

RESERVE = 2 << 30
"""Bytes that a build leaves to the host."""
FIRST = "800"
"""oom_score_adj of a build, of -1000 to 1000: before anything that was not marked itself."""


def available(of_proc="/proc", of_groups="/sys/fs/cgroup"):
    """Bytes that can be had now: the kernel's MemAvailable, or less where a control group says so: the container's,
    and where a build stays in the session's own group (no unit is to be had) that one and those above it."""
    found = re.search(r"(?m)^MemAvailable:\s*(\d+) kB", _read(os.path.join(of_proc, "meminfo")))
    out = int(found.group(1)) * 1024 if found else 0
    for folder in _groups(_read(os.path.join(of_proc, "self", "cgroup")), of_groups):
        for limit, used in (("memory.max", "memory.current"),
                            ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _read(os.path.join(folder, limit)).strip(), _read(os.path.join(folder, used)).strip()
            if most.isdigit() and now.isdigit() and int(most) < 1 << 60:
                out = min(out, max(0, int(most) - int(now)))
    return out


def _units():
    """Whether a build gets a unit of its own."""
    return os.geteuid() == 0 and os.path.isdir("/run/systemd/system")


def _groups(text, base):
    """The folders of the control groups that bound a build, from what /proc/self/cgroup says."""
    out = [base, os.path.join(base, "memory")]
    if _units():
        return out
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        if names and "memory" not in names.split(","):
            continue
        top = os.path.join(base, "memory") if names else base
        parts = [part for part in path.split("/") if part not in ("", "..")]
        out += [os.path.join(top, *parts[:count]) for count in range(1, len(parts) + 1)]
    return out


def serving(root):
    """Pids of engine processes that were started under this bringup_root (watchers left out)."""
    start = ("%s=%s|" % (proc.MARK, root)).encode("utf-8")
    out = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as handle:
                words = handle.read(1 << 20).split(b"\0")
        except OSError:
            continue
        if any(word.startswith(start) and not word[len(start):].startswith(b"watch-") for word in words):
            out.append(int(name))
    return out


def share(free, serving):
    """Bytes of `free` that a build may take: all but a reserve; on a host that serves three quarters at most."""
    reserve = max(RESERVE, free // 4) if serving else RESERVE
    return max(free - reserve, free // 2)


def held(most):
    """(words, how): the words before a command that hold it to so many bytes, and who does that.

    A shell between makes it the first to go when memory is short; where its /proc cannot be written it is as any other.
    """
    mark = "echo %s 2>/dev/null >/proc/self/oom_score_adj; " % FIRST
    scope = _scope(most)
    if scope:
        return scope + ["/bin/sh", "-c", mark + 'exec "$@"', "sh"], "its control group"
    return ["/bin/sh", "-c", mark + 'ulimit -d %d; exec "$@"' % (most >> 10), "sh"], "a limit of each process"


def _scope(most):
    """systemd-run with a bound; [] where that is not to be had (no systemd, not root, no bus)."""
    if not _units():
        return []
    words = ["systemd-run", "--quiet", "--scope", "--collect", "--property=MemoryMax=%d" % most,
             "--property=MemorySwapMax=0", "--"]
    try:
        with open(os.devnull, "r+") as nothing:
            tried = subprocess.Popen(words + ["true"], stdin=nothing, stdout=nothing, stderr=nothing)
            return words if tried.wait(20) == 0 else []
    except subprocess.TimeoutExpired:
        tried.kill()
        tried.wait()
        return []
    except OSError:
        return []


def _read(path):
    try:
        with open(path) as handle:
            return handle.read()
    except OSError:
        return ""
