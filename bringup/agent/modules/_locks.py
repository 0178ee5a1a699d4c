"""Locks of the package database: who holds one, and waiting until it is free. Nothing here removes or ends anything."""

import fcntl
import os
import struct
import time

from bringup.agent.task import Failure

DPKG = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock",
        "/var/cache/apt/archives/lock")
RPM = ("/var/lib/rpm/.rpm.lock", "/var/cache/dnf/metadata_lock.pid")
_FLOCK = "hhqqi"


def holder(path):
    """The pid that holds a record lock on the file, 0 when it is not to be told, None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def program(pid):
    """The name of a process, as far as it can be read."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            words = source.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        if words:
            return words[:80]
        with open("/proc/%d/comm" % pid) as source:
            return source.read().strip()
    except OSError:
        return "a process that has ended"


def wait(task, paths, deadline, every=5.0):
    """Return when none of the lock files is held. `deadline` is on time.monotonic's clock.

    Says every few seconds who holds the lock and how long it will still wait. Raises Failure at the deadline.
    """
    began = time.monotonic()
    told = None
    while True:
        held = next(((path, pid) for path, pid in ((path, holder(path)) for path in paths) if pid is not None), None)
        if held is None:
            return
        path, pid = held
        who = "pid %d (%s)" % (pid, program(pid)) if pid else "a process of another container"
        left = deadline - time.monotonic()
        if left <= 0:
            raise Failure("the package lock is still held after %d s" % (time.monotonic() - began),
                          expected="%s free" % path, found="held by %s" % who,
                          next="wait for %s to end, or raise lock_timeout; the lock was left alone" % who)
        if told is None or time.monotonic() - told >= every:
            told = time.monotonic()
            task.line("waiting for the package lock %s: held by %s, %d s left" % (path, who, left))
        time.sleep(min(0.5, max(left, 0.01)))
