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


def available():
    """Bytes that can be had now: the kernel's MemAvailable, or less where a control group says so."""
    found = re.search(r"(?m)^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"))
    out = int(found.group(1)) * 1024 if found else 0
    for limit, used in (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
                        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")):
        most, now = _read(limit).strip(), _read(used).strip()
        if most.isdigit() and now.isdigit() and int(most) < 1 << 60:
            out = min(out, max(0, int(most) - int(now)))
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
    if os.geteuid() != 0 or not os.path.isdir("/run/systemd/system"):
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
