"""Long work that outlives the session: started once, followed by offset, found again by its id.

A job is a command under a small supervisor (a transient systemd unit where systemd runs and we are root, a session of
its own otherwise) with its state under `bringup_root/jobs/ID`: job.json (command, run, boot id, pids and start times),
output, status.json (how it ended). The supervisor holds the jobs' lock, so that nobody changes the host meanwhile.
With `memory` (bytes) a unit is held to so much; without systemd the command has to see to that itself.
"""

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time

from bringup.agent import pids
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "default": "start", "choices": ["start", "status", "follow", "cancel"]},
    "id": {"type": "str"},
    "argv": {"type": "list"},
    "cmd": {"type": "str"},
    "chdir": {"type": "path"},
    "environment": {"type": "dict"},
    "again": {"type": "bool", "default": False},
    "memory": {"type": "int"},
    "offset": {"type": "int", "default": 0},
    "limit": {"type": "int", "default": 262144},
    "wait": {"type": "float", "default": 0},
}

START = 15.0
"""Seconds until the supervisor must have said that it runs."""

SUPERVISOR = r'''
import fcntl, json, os, signal, subprocess, sys, time
folder, locks, run = sys.argv[1:4]
def path(name):
    return os.path.join(folder, name)
def write(name, value):
    with open(path(name + ".new"), "w") as handle:
        json.dump(value, handle, sort_keys=True)
        handle.flush()
        os.fsync(handle.fileno())
    os.rename(path(name + ".new"), path(name))
def started(pid):
    with open("/proc/%d/stat" % pid) as handle:
        text = handle.read()
    return text[text.rindex(")") + 2:].split()[19]
with open(path("spec.json")) as handle:
    spec = json.load(handle)
os.unlink(path("spec.json"))
held = os.open(locks, os.O_RDONLY | os.O_CREAT, 0o644)
fcntl.flock(held, fcntl.LOCK_SH)
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
output = os.open(path("output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
child = []
asked = []
def stop(number, frame):
    asked.append(time.time())
    for process in child:
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except OSError:
            pass
signal.signal(signal.SIGTERM, stop)
job = json.load(open(path("job.json")))
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
job.update(boot=boot, supervisor=os.getpid(), supervisor_started=started(os.getpid()), began=time.time())
try:
    process = subprocess.Popen(spec["argv"], cwd=spec["chdir"], env=spec["environment"], stdin=subprocess.DEVNULL,
                               stdout=output, stderr=output, start_new_session=True)
except OSError as error:
    write("job.json", job)
    told = "cannot run %s: %s" % (spec["argv"][0], error.strerror)
    write("status.json", {"rc": 127, "ended": time.time(), "msg": told})
    sys.exit(0)
child.append(process)
try:
    job.update(pid=process.pid, started=started(process.pid))
except (OSError, ValueError):
    job.update(pid=process.pid, started="")
write("job.json", job)
killed = False
while process.poll() is None:
    try:
        process.wait(0.2 if asked else 2.0)
    except subprocess.TimeoutExpired:
        if asked and not killed and time.time() - asked[0] > 10:
            killed = True
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
write("status.json", {"rc": process.returncode, "ended": time.time(), "cancelled": bool(asked)})
'''


def run(task):
    action = task.args.get("action") or "start"
    if action == "start":
        return _start(task)
    job = _Job(task.root, _id(task.args))
    if action == "status":
        # with `wait` a start that is under way is waited for: what becomes of it decides what to do
        return dict(job.decided() if task.args.get("wait") else job.state(), changed=False)
    if action == "follow":
        return _follow(task, job)
    return _cancel(task, job)


def _argv(args):
    if args.get("argv"):
        return [str(part) for part in args["argv"]]
    if args.get("cmd"):
        return ["/bin/sh", "-c", args["cmd"]]
    raise Failure("a job needs argv or cmd")


def _digest(args):
    text = json.dumps([_argv(args), args.get("chdir"), sorted((args.get("environment") or {}).items())], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _id(args):
    name = args.get("id")
    if not name:
        return _digest(args)[:12]
    if not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise Failure("a job's id holds letters, digits, - _ . only", found=name)
    return name


class _Job(object):
    def __init__(self, root, name):
        self.name = name
        self.folder = os.path.join(root, "jobs", name)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        try:
            return json.loads(pids.read(self.path(name)) or "null")
        except ValueError:
            return None

    def state(self):
        """id, state (absent, starting, running, done, failed, cancelled, lost), rc, and what is known of it."""
        job = self.read("job.json")
        if job is None:
            return {"id": self.name, "state": "absent"}
        out = {"id": self.name, "argv": job.get("argv"), "run": job.get("run"), "began": job.get("began"),
               "pid": job.get("pid"), "manager": job.get("manager"), "output": self.path("output"),
               "size": _size(self.path("output"))}
        status = self.read("status.json")
        if status is not None:
            rc = status["rc"]
            kind = "cancelled" if status.get("cancelled") else "done" if rc == 0 else "failed"
            out.update(state=kind, rc=rc, ended=status.get("ended"))
            if status.get("msg"):
                out["msg"] = status["msg"]
            return out
        if "supervisor" not in job:
            out["state"] = "starting" if self.coming(job) else "lost"
            if out["state"] == "lost":
                out["msg"] = "it was cut off while it was being started"
        elif self.alive(job):
            out["state"] = "running"
        else:
            out["state"] = "lost"
            out["msg"] = ("the host was started anew meanwhile" if job.get("boot") != pids.boot_id()
                          else "its processes are gone and left no status")
        return out

    def alive(self, job):
        return "supervisor" in job and job.get("boot") == pids.boot_id() and (
            pids.start_time(job["supervisor"]) == job.get("supervisor_started"))

    def coming(self, job):
        """Whether a job without a supervisor may still get one: for some seconds, unless who would start it is gone."""
        if job.get("boot") != pids.boot_id() or not 0 <= time.time() - job.get("asked", 0) < START:
            return False
        starter, started = job.get("starter") or (0, "")
        return os.path.exists(self.path("launched")) or not starter or pids.start_time(starter) == started

    def decided(self):
        """The state once it is no longer `starting`: a start that was cut off is told from one that goes on."""
        until = time.time() + START + 1.0
        state = self.state()
        while state["state"] == "starting" and time.time() < until:
            time.sleep(0.02)
            state = self.state()
        return state


def _size(path):
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _start(task):
    args = task.args
    job = _Job(task.root, _id(args))
    digest = _digest(args)
    before = job.decided()
    known = (job.read("job.json") or {}).get("digest")
    if before["state"] == "running":
        if known != digest:
            raise Failure("the job %s is running another command" % job.name, found=before.get("argv"),
                          next="follow it, or cancel it first")
        return dict(before, changed=False, attached=True)
    if before["state"] in ("done", "failed", "cancelled", "lost") and known == digest and not args.get("again") and (
            before["state"] == "done"):
        return dict(before, changed=False, attached=True)
    if task.check:
        return {"changed": True, "id": job.name, "state": "absent"}
    _prepare(task, job, digest)
    manager = _launch(task, job)
    until = time.time() + START
    while time.time() < until:
        now = job.state()
        if now["state"] not in ("starting", "absent"):
            return dict(now, changed=True, attached=False, manager=manager, previous=before["state"])
        time.sleep(0.01)
    raise Failure("the job's supervisor did not come up within %d s" % START, id=job.name,
                  found=pids.read(job.path("supervisor.log"))[-500:])


def _prepare(task, job, digest):
    args = task.args
    try:
        os.makedirs(os.path.join(task.root, "state"), exist_ok=True)
        os.makedirs(job.folder, 0o750, exist_ok=True)
        guard = os.open(job.path("guard"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure("another session is starting the job %s now" % job.name)
        for name in ("output", "status.json", "job.json", "launched"):
            _remove(job.path(name))
        environment = task.command_environment(args.get("environment"))
        environment.pop("BRINGUP_RUN", None)
        _write(job.path("spec.json"), {"argv": _argv(args), "chdir": args.get("chdir"), "environment": environment})
        _write(job.path("job.json"), {
            "id": job.name, "argv": _argv(args), "digest": digest, "run": task.run_id, "boot": pids.boot_id(),
            "asked": time.time(), "starter": [os.getpid(), pids.start_time(os.getpid())]})
        with open(job.path("run.py"), "w") as handle:
            handle.write(SUPERVISOR)
        os.close(guard)
    except OSError as error:
        raise Failure("a job needs %s to be written: %s" % (task.root, error.strerror),
                      next="set bringup_root to a folder on a local disk that can be written")


def _launch(task, job):
    """Start the supervisor; the name of the manager that keeps it."""
    _write(job.path("launched"), True)
    words = [sys.executable or "python3", "-SIE", job.path("run.py"), job.folder,
             os.path.join(task.root, "state", "lock.jobs"), task.run_id or "-"]
    if os.geteuid() == 0 and os.path.isdir("/run/systemd/system"):
        unit = "bringup-job-%s" % job.name
        most = task.args.get("memory")
        # one that is killed for memory must not take the rest of the job along: it says so and goes on with less
        held = ["--property=MemoryMax=%d" % most, "--property=MemorySwapMax=0", "--property=OOMPolicy=continue",
                "--property=OOMScoreAdjust=800"] if most else []
        for more in [held, []] if held else [[]]:  # an old systemd does not know all of them
            done = task.command(["systemd-run", "--quiet", "--collect", "--unit", unit, "--property=KillMode=mixed",
                                 "--property=TimeoutStopSec=15"] + more + words, timeout=20)
            if done.rc == 0:
                return "systemd"
    log = os.open(job.path("supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        # a shell between: it leaves at once, so that the supervisor is nobody's child here
        environment = dict((key, value) for key, value in os.environ.items() if key != "BRINGUP_RUN")
        subprocess.Popen(["/bin/sh", "-c", '"$@" & exit 0', "sh"] + words, stdin=subprocess.DEVNULL, stdout=log,
                         stderr=log, start_new_session=True, env=environment, cwd="/").wait()
    finally:
        os.close(log)
    return "detached"


def _follow(task, job):
    args = task.args
    offset = int(args.get("offset") or 0)
    until = time.time() + float(args.get("wait") or 0)
    while True:
        state = job.state()
        data = _read_from(job.path("output"), offset, int(args.get("limit") or 262144))
        if data or state["state"] not in ("running", "starting") or time.time() >= until:
            break
        time.sleep(0.05)
    if state["state"] == "running" and b"\n" in data:
        data = data[:data.rindex(b"\n") + 1]
    text = data.decode("utf-8", "replace")
    return dict(state, changed=False, text=text, offset=offset + len(data))


def _read_from(path, offset, limit):
    try:
        with open(path, "rb") as handle:
            handle.seek(offset)
            return handle.read(limit)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return b""
        raise Failure("the job's output cannot be read: %s" % error.strerror)


def _cancel(task, job):
    before = job.decided()
    if before["state"] != "running":
        return dict(before, changed=False)
    if task.check:
        return dict(before, changed=True)
    record = job.read("job.json")
    if not job.alive(record):
        return dict(job.state(), changed=False)
    os.kill(record["supervisor"], signal.SIGTERM)
    until = time.time() + 14.0
    while time.time() < until:
        now = job.state()
        if now["state"] not in ("running", "starting"):
            return dict(now, changed=True)
        time.sleep(0.02)
    raise Failure("the job %s did not end within 14 s of TERM and KILL" % job.name, pid=record.get("pid"),
                  found="state %s" % pids.state(record.get("pid") or 0))


def _write(path, value):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as handle:
        json.dump(value, handle, sort_keys=True)


def _remove(path):
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
