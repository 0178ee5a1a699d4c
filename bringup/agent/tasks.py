"""The tasks of the loop: where each runs, one after the other, and how one is ended before its end. Python 3.6."""

import os
import pwd
import signal
import time

from bringup.agent import builtins, frames, pids
from bringup.agent.elevate import DEADLINE, Elevated
from bringup.agent.wire import Closed, Wire
from bringup.agent.worker import fork

TERM_GRACE = 5.0
"""Seconds between TERM and KILL."""

GIVE_UP = 3.0
"""Seconds after KILL until a process that does not go is reported as stuck in the kernel."""


class Tasks(object):
    """The half of the agent that runs tasks; `bringup.agent.loop.Agent` holds its state."""

    def advance(self):
        """Begin what can begin: the next task, when none is under way."""
        while self.current is None and self.ending is None and self.queue:
            message = self.queue[0]
            if message["segment"] in self.failed:
                self.queue.popleft()
                self.send({"t": "notrun"}, message["id"])
                continue
            if self.stopping is not None:
                break
            kind, place = self.place(message.get("become"))
            if kind == "wait":
                return
            self.queue.popleft()
            self.begin(kind, place, message)
        if self.stopping is not None and self.current is None and self.ending is None:
            for queued in self.queue:
                self.send({"t": "notrun"}, queued["id"])
            self.queue.clear()
            closed = self.stopping.get("closed")
            self.farewell = {"t": "bye"} if closed else {"t": "stopped", "by": self.stopping}
            self.done = True

    def place(self, become):
        """Where a task runs: ("own", None), ("setuid", pwd entry), ("child", child), ("wait", None), or
        ("failed", result)."""
        if not become or become == self.user:
            return "own", None
        if self.uid == 0:
            try:
                return "setuid", pwd.getpwnam(become)
            except KeyError:
                return "failed", {"failed": True, "msg": "cannot become %s: there is no such account" % become}
        child = self.child_for(become)
        if child.state == "failed" and child.refused and become != "root":
            other = self.child_for("root")
            if other.state != "failed":
                child = other
        if child.state == "starting":
            return "wait", None
        if child.state == "failed":
            return "failed", child.failure(self.user)
        return "child", child

    def child_for(self, become):
        """The sudo child for an account, started if there is none; None where no sudo is needed."""
        if not become or become == self.user or self.uid == 0:
            return None
        root = self.children.get("root")
        if become != "root" and root is not None and root.state == "up":
            return root
        child = self.children.get(become)
        if child is None:
            hello = dict(self.hello, t="hello", child=True, address=address(), locale=locale())
            password = hello.pop("password", None)
            child = Elevated(become, self.user, password, self.payload, frames.control(hello))
            self.children[become] = child
            child.start(time.time() + DEADLINE)
            for source in self.extra:
                child.send(frames.control(source))
        return child

    def begin(self, kind, place, message):
        now = time.time()
        self.started = frames.control({"t": "started"}, message["id"])
        self.up.send(self.started)
        timeout = message.get("timeout")
        self.current = {"kind": kind, "message": message, "began": now, "flow": None, "worker": None, "child": None,
                        "used": [], "want": None, "bytes": False,
                        "deadline": None if timeout is None else now + timeout}
        if kind == "failed":
            self.finish(place, journal=False)
            return
        if kind == "child":
            self.forward(place, message)
            return
        self.write_journal("begin", message)
        if message["module"] in builtins.BUILTINS:
            self.current["kind"] = "builtin"
            self.current["flow"] = builtins.BUILTINS[message["module"]](self, message.get("args") or {})
            self.step_builtin()
            return
        self.current["kind"] = "worker"
        try:
            worker = self.worker(place)
        except OSError as error:
            self.finish({"failed": True, "msg": "no process can be started: %s" % (error.strerror or error)})
            return
        self.current["worker"] = worker
        lock_fd = self.lock.jobs_fd if self.lock is not None else None
        worker.wire.send(frames.control(dict(message, t="task", root=self.root, run=self.run_id, lock_fd=lock_fd)))

    def forward(self, child, message):
        own = message.get("become") == child.account
        sent = dict(message, become=None if own else message["become"], segment=message["id"], ignore_errors=True)
        self.current["child"] = child
        if self.journal_child is not child:
            self.write_journal("begin", message)
        child.send(frames.control(sent, message["id"]))

    def worker(self, user):
        name = user.pw_name if user is not None else ""
        if name not in self.workers:
            close = [fd for wire in self.wires() for fd in {wire.read_fd, wire.write_fd} if fd is not None]
            close += [child.error_fd for child in self.children.values() if child.error_fd is not None]
            self.workers[name] = fork(user, self.sources, close, Wire)
        return self.workers[name]

    def step_builtin(self):
        try:
            next(self.current["flow"])
        except StopIteration as stop:
            self.finish(stop.value)

    def finish(self, result, seconds=None, journal=True):
        """The current task has ended with this result."""
        current, self.current = self.current, None
        message = current["message"]
        seconds = time.time() - current["began"] if seconds is None else seconds
        if journal and not (current["kind"] == "child" and self.journal_child is current["child"]):
            self.write_journal("end", message, result, seconds)
        child = current["child"]
        if child is not None and message["module"] in ("lock", "take_over") and result.get("state") == "locked":
            self.journal_child = child
        elif child is not None and message["module"] == "unlock" and self.journal_child is child:
            self.journal_child = None
        for digest in current["used"]:
            self.store.drop(digest)
        if result.get("failed") and not message.get("ignore_errors"):
            self.failed.add(message["segment"])
        self.up.take_back(self.started)  # the result says it too
        self.send({"t": "result", "result": result, "seconds": round(seconds, 6)}, message["id"])

    def write_journal(self, event, message, result=None, seconds=None):
        if not message.get("digest") and result is not None and self.journal is not None:
            self.journal.count(result)  # a call of a controller's own: no entry, but the run's end says what was done
        if not message.get("digest") or (self.journal is None and self.journal_child is None):
            return
        entry = {"event": event, "digest": message["digest"], "module": message["module"], "id": message["id"]}
        if result is not None:
            entry["result"] = ("failed" if result.get("failed") else "skipped" if result.get("skipped") else
                               "changed" if result.get("changed") else "ok")
            entry["seconds"] = round(seconds, 3)
            if isinstance(result.get("rc"), int):
                entry["rc"] = result["rc"]
        if self.journal is not None:
            self.journal.write(entry)
            if self.journal.trouble:
                self.note(self.journal.trouble)
                self.journal.trouble = None
        else:
            self.journal_child.send(frames.control({"t": "note", "entry": entry}))

    # what workers say

    def on_worker(self, worker):
        if worker.wire.read_fd is None:
            return  # retired while other events of this round were handled
        try:
            received = worker.wire.read()
        except (Closed, frames.BadFrame):
            self.worker_gone(worker)
            return
        for kind, number, payload in received:
            if self.current is None or self.current["message"]["id"] != number:
                continue
            if kind != frames.CONTROL:
                self.up.send(frames.pack(kind, number, payload))
                continue
            message = frames.message(payload)
            if message["t"] == "want":
                self.current["want"], self.current["bytes"] = message["digest"], message.get("bytes")
                self.answer_want(ask=True)
            elif message["t"] == "result" and self.ending is None:
                self.finish(message["result"], message["seconds"])

    def answer_want(self, ask=False):
        """Give the worker the file that it waits for, or ask the controller for it."""
        current = self.current
        if current is None or not current.get("want") or current["worker"] is None:
            return
        worker, digest = current["worker"], current["want"]
        uid = worker.user.pw_uid if worker.user is not None else self.uid
        data = self.store.content(digest, uid) if current["bytes"] else None
        if data is not None:
            current["want"] = None
            worker.wire.send(frames.control({"t": "blob", "digest": digest, "bytes": True}))
            worker.wire.send(frames.pack(frames.SLICE, 0, data))
            return
        path, error = self.store.find(digest, uid)
        if path is not None or error is not None:
            current["want"] = None
            current["used"].append(digest)
            answer = {"t": "blob", "digest": digest, "path": path, "error": error}
            worker.wire.send(frames.control(answer))
        elif ask and not self.store.coming(digest, uid):
            self.send({"t": "want", "digest": digest}, current["message"]["id"])

    def worker_gone(self, worker):
        self.forget_worker(worker)
        if self.ending is not None and self.ending["worker"] is worker:
            return
        status = _reap(worker.pid)
        if self.current is not None and self.current["worker"] is worker:
            words = pids.ending(status) if status is not None else "went away"
            self.finish({"failed": True, "msg": "the process that ran the module %s %s" % (
                self.current["message"]["module"], words)})

    def forget_worker(self, worker):
        for name, other in list(self.workers.items()):
            if other is worker:
                del self.workers[name]
                worker.wire.close()

    def retire_workers(self):
        """End the idle workers; the next task forks a new one."""
        for worker in list(self.workers.values()):
            self.forget_worker(worker)
            _reap(worker.pid)

    # ending a task before its end

    def end_worker(self, result):
        """TERM, later KILL, to the worker and everything below it; the result is told when they are gone."""
        if self.ending is not None:
            return
        worker = self.current["worker"]
        found = pids.descendants(worker.pid)
        found[worker.pid] = (pids.start_time(worker.pid), worker.pid)
        pids.signal_all(found, signal.SIGTERM, os.getpgid(0))
        now = time.time()
        self.ending = {"worker": worker, "found": found, "kill": now + TERM_GRACE, "killed": None, "result": result}

    def tend_ending(self, now):
        ending = self.ending
        _reap(ending["worker"].pid, wait=False)
        left = pids.living(ending["found"])
        if left and ending["killed"] is None and now >= ending["kill"]:
            for pid in left:
                ending["found"].update(pids.descendants(pid))
            pids.signal_all(ending["found"], signal.SIGKILL, os.getpgid(0))
            ending["killed"] = now
            return
        if left and (ending["killed"] is None or now < ending["killed"] + GIVE_UP):
            return
        result = ending["result"]
        if left:
            stuck = ["%d (%s) in state %s at %s" % (
                pid, pids.read("/proc/%d/comm" % pid), pids.state(pid),
                pids.read("/proc/%d/wchan" % pid) or "?") for pid in sorted(left)]
            result = dict(result, stuck=stuck, msg=result["msg"] + "; cannot be killed: " + ", ".join(stuck))
        self.forget_worker(ending["worker"])
        self.ending = None
        if self.current is not None:
            self.finish(result)


def _reap(pid, wait=True):
    """The wait status of a child, None when it was reaped before (or, without waiting, still lives)."""
    try:
        found, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found else None


def locale():
    names = [name for name in os.environ if name.startswith("LC_") or name in ("LANG", "LANGUAGE")]
    return dict((name, os.environ[name]) for name in names)


def address():
    return os.environ.get("SSH_CONNECTION", "").split(" ")[0]
