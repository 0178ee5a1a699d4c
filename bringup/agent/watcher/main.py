"""The watcher's process: look, ask, decide, act, every few seconds, until it is ended. Python 3.6.

Started as `python3 PROGRAM SPEC`: PROGRAM is this package as a zip, SPEC the document that `replica_watch` wrote. What
it found and did is printed (the journal keeps it) and stands in the state file, which `invoke status` reads.
"""

import json
import os
import subprocess
import sys
import threading
import time

from bringup.agent.lock import Lock, Unavailable
from bringup.agent.modules import engine_probe, engine_process
from bringup.agent.processes import launch, proc
from bringup.agent.task import Failure, Task
from bringup.agent.watcher import deciding, talking

FIELDS = ("root", "name", "state", "manager", "replica", "node", "node_rank", "release", "generation", "key", "address",
          "port", "peers", "restarts", "silence", "start_limit", "grace", "tick", "token_every")
"""What a spec holds; endpoint (the head's: address, port, model, key_variable, token), on_alert, secrets, account and
user may come."""

TOKEN_LIMIT = 120.0
"""Seconds without a token from a serving head that are worth a call."""
WRITTEN_EVERY = 10.0
ALERT_TIMEOUT = 60.0


class Watcher(object):
    """One node's watcher. `spec` as `replica_watch` writes it."""

    def __init__(self, spec):
        self.spec = spec
        self.place = launch.Place(spec["root"], spec["name"])
        now = time.time()
        kept = proc.read_json(spec["state"]) or {}
        same = kept.get("generation") == spec["generation"]
        self.memory = deciding.Memory(now, kept if same else None)
        self.peers = [deciding.Peer(peer["node"], peer["node_rank"], now, peer["address"], peer["port"])
                      for peer in spec["peers"]]
        self.serves = None
        self.token_at = now
        self.asking = None
        self.here = deciding.Here("unknown")
        self.held = False
        self.blind = False
        self.written = 0.0

    def report(self):
        """What the others and `invoke status` are told."""
        now = time.time()
        return {"node": self.spec["node"], "replica": self.spec["replica"], "phase": self.memory.phase,
                "cause": self.memory.cause, "since": round(self.memory.since, 3), "attempt": self.memory.attempt,
                "generation": self.spec["generation"], "named": self.here.named, "runs": self.here.runs,
                "empty": self.here.empty, "waits": self.memory.waits, "held": self.held,
                "restarts": len(self.memory.lately(now)), "restarts_allowed": self.spec["restarts"],
                "token_age": None if self.serves is None else round(now - self.token_at, 1),
                "at": round(now, 3), "pid": os.getpid()}

    def turn(self):
        """One look and what follows from it."""
        before = (self.memory.phase, self.memory.waits, self.held)
        try:
            self.here = self.look()
        except Failure as error:
            # the container engine does not answer: what runs is not known, and nothing is decided on that
            if not self.blind:
                say("cannot look: %s" % error.message)
            self.blind = True
            return
        self.blind = False
        self.ask_peers()
        self.ask_head()
        self.held = Lock(self.spec["root"]).is_held()
        if not self.held:
            for action in deciding.step(self.memory, self.spec, self.here, self.peers, self.serves, time.time()):
                if not self.act(action):
                    break
        if (self.memory.phase, self.memory.waits, self.held) != before:
            say("%s%s%s" % (self.memory.phase, ": " + self.memory.cause if self.memory.cause else "",
                            ", waits " + self.memory.waits if self.memory.waits else ""))
            self.written = 0.0
        if time.time() - self.written > WRITTEN_EVERY:
            self.write()

    def write(self):
        self.written = time.time()
        document = dict(self.memory.kept(), report=self.report(), generation=self.spec["generation"])
        try:
            proc.write_json(self.spec["state"], document)
        except OSError as error:
            say("the state cannot be written: %s" % (error.strerror or error))

    def look(self):
        """This node's process, and the release that the node names."""
        record = self.place.read()
        try:
            named = os.path.basename(os.readlink(os.path.join(self.spec["root"], "current")).rstrip("/"))
        except OSError:
            named = None
        if not record:
            return deciding.Here("absent", named=named)
        seen = engine_process.state_of(self.place, record)
        missing = ["%d %s" % (p["pid"], p["command"]) for p in engine_process.missing(record, seen)]
        leftover = [p["pid"] for p in seen["leftover"]]
        return deciding.Here(seen["state"], record.get("release"), named, missing, leftover, _ended(seen.get("exit")),
                             record.get("stopped_by") == "watcher")

    def ask_peers(self):
        threads = []
        for peer in self.peers:
            thread = threading.Thread(target=self._ask, args=(peer,))
            thread.daemon = True
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join(talking.PATIENCE * 2)

    def _ask(self, peer):
        report = talking.ask(peer.address, peer.port, self.spec["key"])
        if report is not None:
            peer.report = report
            peer.heard = time.time()

    def ask_head(self):
        """The head's watcher asks for a token: every 30 s, sooner while it starts; beside the loop, it may hang."""
        head = self.spec.get("endpoint")
        if not head or not self.here.runs:
            self.serves = None if not head else False
            return
        if self.asking is not None and self.asking.is_alive():
            return
        pause = self.spec["token_every"] if self.serves else 2.0
        if self.asking is not None and time.time() - self.asked < pause:
            return
        self.asked = time.time()
        self.asking = threading.Thread(target=self._token, args=(head,))
        self.asking.daemon = True
        self.asking.start()

    def _token(self, head):
        secrets = self.secrets()
        args = {"address": head["address"], "port": head["port"], "model": head["model"],
                "key": secrets.get(head.get("key_variable") or ""), "token": head.get("token", True), "timeout": 60.0}
        seen = engine_probe.run(Task(args, root=self.spec["root"]))
        # of a pool that a router asks no token is wanted
        self.serves = bool(seen["health"] == 200 and (seen["token"] or not args["token"]))
        if self.serves:
            self.token_at = time.time()
            if self.memory.alerted.startswith("no token"):
                self.memory.alerted = ""
        elif self.memory.phase == deciding.WATCHING and time.time() - self.token_at > TOKEN_LIMIT:
            if not self.memory.alerted.startswith("no token"):
                self.memory.alerted = "no token: %s" % (seen["error"] or "")
                self.alert("no token", "generated no token for %d s: %s" % (
                    int(time.time() - self.token_at), seen["error"] or "?"))

    def act(self, action):
        """Do one action. False when it could not be done: the next turn decides anew."""
        if action[0] == "alert":
            self.alert(action[1], action[2])
            return True
        lock = Lock(self.spec["root"])
        try:
            if not lock.take():
                return False  # a run came in between: it decides now
        except (Unavailable, OSError) as error:
            say("no lock: %s" % error)
            return False
        mine = lock.read_record() is None
        if mine:
            lock.write_record({"run": "watcher", "operator": "watcher of %s" % self.spec["replica"],
                               "machine": self.spec["node"], "verb": action[0], "since": round(time.time(), 3),
                               "heard": round(time.time(), 3)})
        try:
            getattr(self, "_" + action[0])()
            return True
        except (Failure, OSError) as error:
            say("%s failed: %s" % (action[0], getattr(error, "message", error)))
            if action[0] == "start":
                self.memory.enter(deciding.DOWN, time.time(), "%s: %s" % (
                    self.spec["node"], getattr(error, "message", error)))
            return False
        finally:
            lock.release(mine)

    def secrets(self):
        """What the engine's environment gets beside its launch document: those of a container stand in the spec."""
        return self.spec.get("secrets") or launch.read_secrets(self.place)

    def _task(self, action):
        args = dict((name, spec.get("default")) for name, spec in engine_process.ARGUMENTS.items())
        args.update(action=action, name=self.spec["name"], manager=self.spec["manager"],
                    release=self.spec["release"], grace=self.spec["grace"], account=self.spec.get("account"),
                    user=self.spec.get("user"), secrets=self.secrets())
        return Task(args, root=self.spec["root"], run_id="watcher")

    def _stop(self):
        say("stops what runs here")
        engine_process.end(self._task("stop"), self.place)
        record = self.place.read()
        record.update(stopped=True, stopped_by="watcher")
        proc.write_json(self.place.record, record)

    def _start(self):
        say("starts release %s" % self.spec["release"][:12])
        engine_process.run(self._task("start"))

    def _note(self):
        """The rank processes of the new start, so that one that goes is missed."""
        engine_process.note_ranks(self.place, self.place.read())

    def alert(self, event, text):
        """Call the site's command, without waiting for it."""
        say("%s: %s" % (event, text))
        command = self.spec.get("on_alert")
        if not command:
            return
        env = dict(os.environ, BRINGUP_EVENT=event, BRINGUP_REPLICA=self.spec["replica"],
                   BRINGUP_NODE=self.spec["node"], BRINGUP_TEXT="%s %s" % (self.spec["replica"], text))

        def call():
            try:
                child = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, env=env,
                                         start_new_session=True)
                try:
                    child.wait(timeout=ALERT_TIMEOUT)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, 9)
                    child.wait()
                if child.returncode:
                    say("on_alert ended with %s" % child.returncode)
            except OSError as error:
                say("on_alert cannot be called: %s" % (error.strerror or error))

        thread = threading.Thread(target=call)
        thread.daemon = True
        thread.start()


def _ended(seen):
    if not seen:
        return ""
    if seen.get("reason"):
        return "(%s)" % seen["reason"]
    if seen.get("signal"):
        return "by signal %s" % seen["signal"]
    return "with status %s" % seen.get("code")


def text_of(spec):
    """A spec as it is kept. Raises KeyError when something is left out."""
    for name in FIELDS:
        spec[name]
    return json.dumps(spec, indent=1, sort_keys=True) + "\n"


def say(text):
    sys.stdout.write("%s %s\n" % (time.strftime("%Y-%m-%dT%H:%M:%S"), text))
    sys.stdout.flush()


def main(argv):
    """Watch until ended. The exit status of a spec that cannot be read is 2."""
    spec = proc.read_json(argv[0]) if len(argv) == 1 else None
    if not spec:
        sys.stderr.write("usage: PROGRAM SPEC; the spec cannot be read\n")
        return 2
    os.umask(0o022)
    watcher = Watcher(spec)
    server = None
    say("watches %s on %s" % (spec["replica"], spec["node"]))
    while True:
        began = time.time()
        if server is None:
            try:
                server = talking.serve(spec["address"], spec["port"], spec["key"], watcher.report)
            except OSError as error:
                # after a boot the address may come later than we do
                say("cannot listen on %s port %d: %s" % (spec["address"], spec["port"], error.strerror or error))
        watcher.turn()
        time.sleep(max(0.2, spec["tick"] - (time.time() - began)))
