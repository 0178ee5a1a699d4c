"""Processes of this host: who descends from whom, is it the same one still, ending groups. Python 3.6."""

import errno
import os
import signal


def start_time(pid):
    """The start time of a process in clock ticks since boot, or None when it is gone (or a zombie)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else fields[19]


def state(pid):
    """The state letter of a process (`R`, `S`, `D`, ...), or None when it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else None


def _stat(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as handle:
            text = handle.read().decode("ascii", "replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2:].split()


def boot_id():
    """This boot of the host; empty where the kernel does not say."""
    return read("/proc/sys/kernel/random/boot_id")


def read(path):
    """The stripped text of a small file, empty when it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(pid):
    """All living processes below one: a dict of pid -> (start time, process group)."""
    children = {}
    facts = {}
    for other in all_pids():
        fields = _stat(other)
        if fields is None or fields[0] in ("Z", "X"):
            continue
        children.setdefault(int(fields[1]), []).append(other)
        facts[other] = (fields[19], int(fields[2]))
    out = {}
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in out:
                out[child] = facts[child]
                todo.append(child)
    return out


def signal_all(found, number, own_group):
    """A signal to every process of a descendants() dict and to the groups that they lead, unless the pid was reused."""
    for pid, (started, group) in found.items():
        if start_time(pid) != started:
            continue
        try:
            if group == pid and group != own_group:
                os.killpg(group, number)
            os.kill(pid, number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EPERM):
                raise


def living(found):
    """Those of a descendants() dict that are still the same living process."""
    return dict((pid, item) for pid, item in found.items() if start_time(pid) == item[0])


def marked(name, value):
    """Processes whose environment holds NAME=VALUE, as far as we may read it: pid -> command line."""
    wanted = ("%s=%s" % (name, value)).encode()
    out = {}
    for pid in all_pids():
        try:
            with open("/proc/%d/environ" % pid, "rb") as handle:
                if wanted not in handle.read().split(b"\0"):
                    continue
        except OSError:
            continue
        if pid != os.getpid() and start_time(pid) is not None:
            out[pid] = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip()
    return out


def ending(code):
    """How a process ended, in words, from its waitpid status."""
    if os.WIFSIGNALED(code):
        number = os.WTERMSIG(code)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "signal %d" % number
        return "was killed by %s%s" % (name, " (out of memory?)" if number == signal.SIGKILL else "")
    return "ended with status %d" % os.WEXITSTATUS(code)
