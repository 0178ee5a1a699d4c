"""What keeps a watcher on this host: a unit that comes back at boot, or a process of its own. Python 3.6."""

import os
import signal
import sys
import time

from bringup.agent.processes import launch as launches
from bringup.agent.processes import proc, systemd
from bringup.agent.task import Failure


class Place(object):
    """Where everything about the watcher of one engine process lies."""

    def __init__(self, root, name):
        self.engine = launches.Place(root, name)
        self.folder = os.path.join(root, "state", "watch")
        self.spec = os.path.join(root, "state", "secrets", name + ".watch.json")
        self.state = os.path.join(self.folder, name + ".json")
        self.record = os.path.join(self.folder, name + ".record.json")
        self.log = os.path.join(self.folder, name + ".log")
        self.unit = "bringup-watch-%s.service" % name
        self.unit_path = os.path.join(systemd.UNITS, self.unit)

    def program(self, digest):
        return os.path.join(self.folder, "program-%s.zip" % digest[:16])


def unit_text(place, program, replica, node):
    """Comes back when it ends and at boot; what it starts outlives it."""
    return "\n".join([
        systemd.HEADER, "[Unit]", "Description=watcher of bringup: replica %s, node %s" % (replica, node),
        "After=network-online.target", "Wants=network-online.target", "StartLimitIntervalSec=0", "", "[Service]",
        "Type=simple", "ExecStart=%s -SIE %s %s" % (systemd.quoted(sys.executable or "/usr/bin/python3"),
                                                    systemd.quoted(program), systemd.quoted(place.spec)),
        "Restart=always", "RestartSec=2", "KillMode=process", "StandardOutput=journal", "StandardError=journal",
        "SyslogIdentifier=bringup-watch", "", "[Install]", "WantedBy=multi-user.target", ""])


def start(place, program, spec, under_systemd):
    """Start the watcher whose spec is written, in place of one that is there. Raises Failure."""
    end(place)
    if under_systemd:
        proc.write_file(place.unit_path, unit_text(place, program, spec["replica"], spec["node"]))
        for words in (("daemon-reload",), ("enable", place.unit), ("restart", place.unit)):
            code, _, err = systemd.systemctl(*words)
            if code != 0:
                raise Failure("systemd did not start the watcher %s" % place.unit, stderr=err.strip(),
                              next="journalctl -u %s" % place.unit)
        proc.write_json(place.record, {"unit": place.unit})
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setsid()
            if os.fork() == 0:
                _become(place, program, writing)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as handle:
        pid = int(handle.read() or b"0")
    seen = proc.stat(pid) if pid else None
    if seen is None:
        raise Failure("the watcher ended at once", found=place.log)
    proc.write_json(place.record, {"pid": pid, "ticks": seen["ticks"], "boot_id": proc.boot_id()})


def _become(place, program, writing):
    """The watcher's process: nothing of the agent's files stays open in it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.write(writing, b"%d" % os.getpid())
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)
    os.chdir("/")
    env = {"PATH": launches.CLEAN_PATH, "LANG": "C.UTF-8",
           proc.MARK: "|".join((place.engine.root, "watch-" + place.engine.name, "%x" % int(time.time() * 1000)))}
    python = sys.executable or "/usr/bin/python3"
    os.execve(python, [python, "-SIE", program, place.spec], env)


def is_there(place):
    """True when a watcher of this process is set up here."""
    return os.path.exists(place.spec) or os.path.exists(place.record)


def alive(place):
    """True while the watcher's process lives."""
    record = proc.read_json(place.record) or {}
    if record.get("unit"):
        return systemd.more_of(record["unit"], ("ActiveState",)).get("ActiveState") in ("active", "activating")
    return record.get("boot_id") == proc.boot_id() and proc.alive(record.get("pid") or 0, record.get("ticks"))


def end(place):
    """End the watcher here, whichever keeps it. True when there was one."""
    record = proc.read_json(place.record) or {}
    if record.get("unit") and systemd.is_ours(place.unit_path):
        systemd.systemctl("disable", "--now", place.unit)
        os.unlink(place.unit_path)
        systemd.systemctl("daemon-reload")
    elif record.get("boot_id") == proc.boot_id() and proc.alive(record.get("pid") or 0, record.get("ticks")):
        os.kill(record["pid"], signal.SIGTERM)
        until = time.time() + 5
        while proc.alive(record["pid"], record["ticks"]) and time.time() < until:
            time.sleep(0.02)
        if proc.alive(record["pid"], record["ticks"]):
            os.kill(record["pid"], signal.SIGKILL)
    if os.path.exists(place.record):
        os.unlink(place.record)
    return bool(record)


def remove(place):
    """End the watcher and forget it. True when there was one."""
    there = is_there(place)
    end(place)
    for path in (place.spec, place.state):
        if os.path.exists(path):
            os.unlink(path)
    return there
