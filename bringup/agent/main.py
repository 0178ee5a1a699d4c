"""Where the agent begins on a host. Python 3.6."""

import gc
import os
import pwd
import signal
import sys

from bringup.agent import frames, pids
from bringup.agent.lock import machine_id
from bringup.agent.loop import Agent
from bringup.agent.wire import Wire


def main(marker, sources, payload):
    """Take over standard input and output, say the marker and what this host is, then serve until the end."""
    gc.set_threshold(20000)  # a run makes few circles of objects, and looking for them often costs it
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.pop("OLDPWD", None)
    wire = Wire(read_fd, write_fd)
    wire.send(marker.encode("ascii") + b"\n" + frames.control(dict(about(), t="ready")))
    wire.flush()
    status = Agent(wire, sources, payload).run()
    sys.stderr.flush()
    os._exit(status)


def about():
    """What the controller is told of this host."""
    try:
        entry = pwd.getpwuid(os.geteuid())
        user, home = entry.pw_name, entry.pw_dir
    except KeyError:
        user, home = str(os.geteuid()), os.environ.get("HOME", "/")
    return {
        "python": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3],
        "platform": "%s %s" % (sys.platform, os.uname().machine),
        "user": user, "uid": os.geteuid(), "home": home, "hostname": os.uname().nodename,
        "machine_id": machine_id(), "boot_id": pids.boot_id(), "pid": os.getpid(),
    }

