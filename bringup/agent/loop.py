"""The agent: one selector loop, no threads, the tasks in forked children. Python 3.6.

Control frames from the controller (the number of the frame is the request's):
    hello    run, operator, machine, root, password?, heartbeat, silence, grace, child?, address?
    source   name, text or code: a file of the package that a task needs
    task     module, args, segment, become, environment, timeout, check, diff, ignore_errors, no_log, digest
    blob     digest, size, file: slices under the number `file` follow; or error
    cancel   all?: the request of the frame's number, or everything
    ping     heard?
    note     entry: for the journal, from the agent that is this one's parent
    close    end now
To the controller: ready, started, result, notrun, want (digest), hb, note (text), stopping, stopped (by), bye.
"""

import math
import os
import pwd
import select
import signal
import sys
import time
from collections import deque

from bringup.agent import bootstrap, frames
from bringup.agent.blobs import Store
from bringup.agent.elevate import DEADLINE
from bringup.agent.lock import state_folder
from bringup.agent.tasks import Tasks, address, locale
from bringup.agent.wire import HIGH, Closed

GATHER = 0.02
"""Seconds that results may wait for more of them: each packet costs both sides as much as several results."""

GATHER_BYTES = 16384

BEHIND = 8 * HIGH
"""Bytes that may wait for another account's process before less is taken from the controller."""

ONLY_LOOKS = ("probe",)
"""Modules that change nothing: behind a cut session they are ended at once."""

READ, WRITE = select.POLLIN | select.POLLHUP | select.POLLERR, select.POLLOUT


class Agent(Tasks):
    """Serves one controller over one wire, until it says close, is silent too long or the wire ends."""

    def __init__(self, wire, sources, payload):
        self.up = wire
        self.sources = sources
        self.payload = payload
        self.extra = []
        self.hello = {}
        self.root = "/opt/bringup"
        self.run_id = ""
        self.uid = os.geteuid()
        self.user = _name(self.uid)
        self.queue = deque()
        self.current = None
        self.started = b""
        self.ending = None
        self.failed = set()
        self.workers = {}
        self.children = {}
        self.routes = {}
        self.store = None
        self.lock = None
        self.journal = None
        self.journal_child = None
        self.up_since = None
        self.farewell = None
        self.stopping = None
        self.told_stop = False
        self.cut_at = None
        self.done = False
        self.heard = time.time()
        self.record_heard = self.heard
        self.next_beat = time.time()
        self.next_look = time.time()

    # the loop

    def run(self):
        """Returns the exit status."""
        signal.signal(signal.SIGTERM, self._terminate)
        while not self.done:
            self.advance()
            if self.done:
                break
            for wire in self.wires():
                if wire is not self.up or self.up_is_due():
                    wire.flush()
            self.wait()
            self.tick()
        self.shut_down()
        return 0

    def _terminate(self, number, frame):
        self.cut("terminated")
        if self.cut_at is not None:
            self.cut_at = 0.0  # no grace for the task under way

    def up_is_due(self):
        """While more tasks wait, what goes up is gathered for a moment."""
        if not self.up.waiting:
            self.up_since = None
            return False
        now = time.time()
        if self.up_since is None:
            self.up_since = now
        if self.queue and self.up.waiting < GATHER_BYTES and now < self.up_since + GATHER:
            return False
        self.up_since = None
        return True

    def wires(self):
        out = [] if self.cut_at is not None else [self.up]
        out += [worker.wire for worker in self.workers.values()]
        out += [child.wire for child in self.children.values() if child.wire is not None and child.state != "failed"]
        return out

    def wait(self):
        """Wait for frames, at most until the next beat, and handle what came."""
        poll = select.poll()
        handlers = {}

        def watch(wire, handler, may_read):
            mask = (READ if may_read else 0)
            gathering = wire is self.up and self.up_since is not None
            if wire.waiting and wire.write_fd is not None and wire.write_fd != wire.read_fd and not gathering:
                poll.register(wire.write_fd, WRITE)
            if mask:
                poll.register(wire.read_fd, mask)
                handlers[wire.read_fd] = handler

        calm = self.up.waiting < HIGH
        if self.cut_at is None:
            # a file for an account whose process takes it more slowly than it comes must not gather here
            behind = any(child.wire is not None and child.wire.waiting > BEHIND for child in self.children.values())
            watch(self.up, self.on_controller, not behind)
        for worker in self.workers.values():
            watch(worker.wire, lambda w=worker: self.on_worker(w), calm)
        for child in self.children.values():
            if child.state == "failed":
                continue
            watch(child.wire, lambda c=child: self.on_child(c), calm)
            if child.error_fd is not None:
                poll.register(child.error_fd, READ)
                handlers[child.error_fd] = lambda c=child: self.on_child_errors(c)
        for fd, mask in poll.poll(math.ceil(self.patience() * 1000)):
            if fd in handlers and mask & READ:
                handlers[fd]()

    def patience(self):
        """Seconds until something is due."""
        now = time.time()
        due = [self.next_beat, now + 1.0]
        if self.up_since is not None:
            due.append(self.up_since + GATHER)
        if self.ending is not None or self.cut_at is not None:
            due.append(now + 0.02)
        if self.current is not None:
            if self.current["deadline"] is not None:
                due.append(self.current["deadline"])
            if self.current["kind"] == "builtin":
                due.append(now + 0.1)
        return max(0.0, min(due) - now)

    def tick(self):
        now = time.time()
        if now >= self.next_beat:
            beat = float(self.hello.get("heartbeat", 5.0))
            self.next_beat = now + beat
            if not self.waits_for_a_frozen_child(now - 2.5 * beat):
                self.send({"t": "hb"})
            for child in self.children.values():
                child.send(frames.control({"t": "ping", "heard": self.record_heard}))
        if self.cut_at is None and now - self.heard > float(self.hello.get("silence", 60.0)):
            self.cut("silence")
        if self.up.broken:
            self.cut("broken")
        if self.lock is not None:
            self.lock.refresh(self.record_heard)
            if now >= self.next_look:
                self.next_look = now + 0.5
                self.look_for_stop()
        if self.journal is not None:
            self.journal.sync(force=self.current is None and not self.queue)
        for child in list(self.children.values()):
            if child.state == "starting" and child.puzzled(now):
                continue
            if child.state == "starting" and now > child.deadline:
                child.fail("sudo did not come up within %d s" % DEADLINE, "try `sudo -u %s true` there" % child.account)
        self.tend_current(now)
        if self.cut_at is not None and self.current is None and not self.ending:
            self.done = True

    def waits_for_a_frozen_child(self, since):
        """The task under way is with a child that gave no sign since then: no beat, for it may never end."""
        child = self.current["child"] if self.current is not None else None
        return child is not None and child.state == "up" and child.heard < since

    def tend_current(self, now):
        if self.ending is not None:
            self.tend_ending(now)
            return
        current = self.current
        if current is None:
            return
        if current["kind"] == "builtin":
            self.step_builtin()
        elif current["deadline"] is not None and now >= current["deadline"] and current["kind"] == "worker":
            seconds = current["message"].get("timeout")
            self.end_worker({"failed": True, "timed_out": True, "msg": "did not end within %g s" % seconds})
        elif self.cut_at is not None and now > self.cut_at + self.grace_of(current):
            if current["kind"] == "worker":
                self.end_worker({"failed": True, "msg": "ended: the session was cut", "cut": True})
            elif current["kind"] == "child" and current["child"].state == "failed":
                self.current = None

    def grace_of(self, current):
        """Seconds that a task goes on behind a cut session: nobody waits for what only looks; it may load devices."""
        return 0.0 if current["message"].get("module") in ONLY_LOOKS else float(self.hello.get("grace", 60.0))

    # what the controller says

    def on_controller(self):
        if self.cut_at is not None:
            return
        try:
            received = self.up.read()
        except (Closed, frames.BadFrame):
            self.cut("end")
            return
        if received:
            self.heard = time.time()
            if not self.hello.get("child"):
                self.record_heard = self.heard
        for kind, number, payload in received:
            if kind == frames.SLICE:
                self.on_slice(number, payload)
            elif kind == frames.CONTROL:
                self.on_control(number, frames.message(payload))

    def on_control(self, number, message):
        getattr(self, "do_" + message["t"].replace("-", "_"))(number, message)

    def do_hello(self, number, message):
        self.hello = message
        self.root = message["root"]
        self.run_id = message["run"]
        self.store = Store(state_folder(self.root), lambda: self.lock is not None)
        if "locale" in message:  # sudo was run in the C locale, to be understood; commands are not
            for name in locale():
                del os.environ[name]
            os.environ.update(message["locale"])
        self.next_beat = time.time() + float(message.get("heartbeat", 5.0))

    def do_source(self, number, message):
        self.sources[message["name"]] = bootstrap.unpacked(message)
        self.extra.append(message)
        frame = frames.control(message)
        for worker in self.workers.values():
            worker.wire.send(frame)
        for child in self.children.values():
            child.send(frame)

    def do_task(self, number, message):
        message["id"] = number
        if self.stopping is not None or self.cut_at is not None:
            self.send({"t": "notrun"}, number)
            return
        self.queue.append(message)
        self.child_for(message.get("become"))  # sudo comes up while earlier tasks run

    def do_blob(self, number, message):
        become = message.get("become")
        child = self.child_for(become)
        if child is not None:
            own = child.account == become
            child.send(frames.control(dict(message, become=None if own else become), number))
            if message["size"] and not message.get("error"):
                self.routes[message["file"]] = [child, message["size"]]
            return
        uid = self.uid
        if become and become != self.user:
            try:
                uid = pwd.getpwnam(become).pw_uid
            except KeyError:
                uid = self.uid  # the task itself tells that there is no such account
        if message.get("error"):
            self.store.refuse(message["digest"], uid, message["error"])
        else:
            self.store.begin(message["file"], message["digest"], message["size"], uid)
        self.answer_want()

    def on_slice(self, number, payload):
        route = self.routes.get(number)
        if route is not None:
            route[0].send(frames.pack(frames.SLICE, number, payload))
            route[1] -= len(payload)
            if route[1] <= 0:
                del self.routes[number]
        elif self.store.slice(number, payload):
            self.answer_want()

    def do_cancel(self, number, message):
        if message.get("all"):
            for queued in self.queue:
                self.send({"t": "notrun"}, queued["id"])
            self.queue.clear()
        else:
            for queued in list(self.queue):
                if queued["id"] == number:
                    self.queue.remove(queued)
                    self.send({"t": "notrun"}, number)
                    return
        if self.current is not None and (message.get("all") or self.current["message"]["id"] == number):
            self.cancel_current()

    def cancel_current(self):
        current = self.current
        result = {"failed": True, "cancelled": True, "msg": "cancelled"}
        if current["kind"] == "worker":
            self.end_worker(result)
        elif current["kind"] == "child":
            current["child"].send(frames.control({"t": "cancel"}, current["message"]["id"]))
        else:
            current["flow"].close()
            self.finish(result)

    def do_ping(self, number, message):
        if message.get("heard"):
            self.record_heard = message["heard"]

    def do_note(self, number, message):
        if self.journal is not None:
            self.journal.write(message["entry"])

    def do_close(self, number, message):
        for queued in self.queue:
            self.send({"t": "notrun"}, queued["id"])
        self.queue.clear()
        if self.current is not None:
            self.cancel_current()
        self.stopping = self.stopping or {"closed": True}

    # what the children under sudo say

    def on_child_errors(self, child):
        if child.error_fd is None:
            return  # closed while other events of this round were handled
        if not child.read_errors():
            os.close(child.error_fd)
            child.error_fd = None
        elif child.state == "up":
            sys.stderr.write(child.take_errors())
            sys.stderr.flush()

    def on_child(self, child):
        if child.wire.read_fd is None:
            return
        try:
            received = child.read()
        except (Closed, frames.BadFrame):
            self.child_gone(child)
            return
        child.heard = time.time()
        for kind, number, payload in received:
            if kind != frames.CONTROL:
                self.up.send(frames.pack(kind, number, payload))
                continue
            message = frames.message(payload)
            self.from_child(child, number, message)

    def from_child(self, child, number, message):
        told = message["t"]
        if told == "stopping":
            self.stopping = message["by"]
            self.send(message)
        elif told in ("want", "note"):
            self.send(message, number)
        elif told == "result" and self.current is not None and self.current["message"]["id"] == number:
            self.finish(message["result"], message["seconds"])
        elif told == "notrun" and self.current is not None and self.current["message"]["id"] == number:
            self.finish({"failed": True, "cancelled": True, "msg": "cancelled"})

    def child_gone(self, child):
        was_up = child.state == "up"
        status = child.ended()
        if was_up:
            child.fail("the agent under sudo ended with status %s" % status, "")
        child.wire.close()
        if child.error_fd is not None:
            os.close(child.error_fd)
            child.error_fd = None
        if self.journal_child is child:
            self.journal_child = None
        if self.current is not None and self.current["child"] is child:
            self.finish(child.failure(self.user))

    # lock, stop, end

    def identity(self):
        """Who this run is, for the record beside the lock."""
        return {"run": self.run_id, "operator": self.hello.get("operator", ""),
                "machine": self.hello.get("machine", ""), "address": self.hello.get("address") or address()}

    def look_for_stop(self):
        by = self.lock.asked_to_stop()
        if by is None or self.told_stop:
            return
        self.told_stop = True
        self.send({"t": "stopping", "by": {"text": by}})
        if not self.hello.get("child"):  # a child goes on until its parent, which keeps the order of tasks, ends it
            self.stopping = {"text": by}

    def note(self, text):
        self.send({"t": "note", "text": text})

    def send(self, message, number=0):
        self.up.send(frames.control(message, number))

    def cut(self, reason):
        """The controller is gone: what is under way may end, nothing begins."""
        if self.cut_at is not None:
            return
        self.cut_at = time.time()
        self.queue.clear()
        self.up.close()
        self.up.broken = True
        if self.lock is not None:
            self.lock.write_record(cut=round(self.cut_at, 3))  # the same command typed again waits for us
        if self.current is not None and self.current["kind"] == "builtin":
            self.current["flow"].close()
            self.current = None
        for child in self.children.values():
            if child.wire is not None:
                child.wire.close_write()

    def shut_down(self):
        for child in self.children.values():
            if child.wire is not None:
                child.wire.close_write()
        self.retire_workers()
        if self.store is not None:
            self.store.close()
        if self.journal is not None:
            self.journal.close()
        for child in self.children.values():
            if child.process is not None:
                child.ended()
        if self.lock is not None:
            self.lock.release(finished=False)
        if self.cut_at is None and self.farewell is not None:  # said last: nothing of ours is left then
            self.send(self.farewell)
            end = time.time() + 5.0
            self.up.flush()
            while self.up.waiting and time.time() < end:
                time.sleep(0.005)
                self.up.flush()


def _name(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
