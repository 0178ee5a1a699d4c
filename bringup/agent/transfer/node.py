"""One host's part of a transfer, run as a job: take what is missing, give what is whole, tell how far it is.

Started with the path of a JSON file, which it reads and removes:
transfer  name of this transfer; a controller that comes back finds its own by it; `mark` of this beginning of it
state     folder for `state.json`; a file `leave` there ends the process once it is done
dest, staging, entries, again     the tree (see tree.py)
key       hex, shared by all hosts of this transfer
listen    address to give on, or null; `parents` [[address, port], ...] nearest first; `upstream` {"kind": "hub" |
          "folder", ...} instead of parents
rate      bytes a second, in and out each, or null; streams; patience and linger in seconds
Python 3.6.
"""

import json
import os
import sys
import threading
import time

from bringup.agent.transfer.hub import Hub
from bringup.agent.transfer.serve import Server
from bringup.agent.transfer.take import Folder, Nothing, Peers
from bringup.agent.transfer.tree import Store
from bringup.agent.transfer.wire import BLOCK, Trouble

TRIES = 4
"""Times that one file is tried before the transfer fails."""

PAUSE = 1.0
"""Seconds before the second try; each further pause is twice as long, up to 30."""


class Rate(object):
    """No more than so many bytes a second, whoever asks."""

    def __init__(self, per_second):
        self.per_second = float(per_second or 0)
        self.lock = threading.Lock()
        self.next = time.monotonic()

    def take(self, size):
        if not self.per_second:
            return
        with self.lock:
            now = time.monotonic()
            # a burst of a quarter second, or of one block where that is more
            burst = max(0.25, BLOCK / self.per_second)
            self.next = max(self.next, now - burst) + size / self.per_second
            wait = self.next - now
        if wait > 0:
            time.sleep(wait)


class Node(object):
    """The process of one host."""

    def __init__(self, spec):
        self.spec = spec
        self.key = bytes(bytearray.fromhex(spec["key"]))
        self.store = Store(spec["dest"], spec["staging"], spec["entries"], spec.get("again") or ())
        self.in_rate = Rate(spec.get("rate"))
        self.out_rate = Rate(spec.get("rate"))
        self.lock = threading.Lock()
        self.received = 0
        self.began = time.time()
        self.complete = False
        self.error = None
        self.tries = {}
        self.taken = set()
        self.wait_until = {}
        self.deaf = None
        self.server = None
        if spec.get("listen"):
            try:
                self.server = Server(self, spec["listen"])
            except Trouble as trouble:
                # it takes all the same; those below ask the next one above, or take through the controller
                self.deaf = trouble.message
                self.note(trouble.message)
        upstream = spec.get("upstream") or {}
        if upstream.get("kind") == "hub":
            self.source = Hub(self, upstream)
        elif upstream.get("kind") == "folder":
            self.source = Folder(self, upstream["path"])
        elif spec.get("parents"):
            self.source = Peers(self, spec["parents"], float(spec.get("patience") or 60))
        else:
            self.source = Nothing()

    def count(self, size):
        with self.lock:
            self.received += size

    def note(self, text):
        print("%s %s" % (time.strftime("%H:%M:%S"), text))
        sys.stdout.flush()

    def told(self):
        """What is known of this host's part, as `state.json` has it."""
        return {"transfer": self.spec["transfer"], "mark": self.spec.get("mark"),
                "bytes": self.store.here(), "of": self.store.size(),
                "files": len(self.store.whole), "files_of": len(self.store.entries), "received": self.received,
                "sent": self.server.sent if self.server else 0, "seconds": round(time.time() - self.began, 3),
                "complete": self.complete, "error": self.error, "source": self.source.source(),
                "port": self.server.port if self.server else None, "listen": self.spec.get("listen"), "deaf": self.deaf,
                "pid": os.getpid(), "at": time.time()}

    def run(self):
        """The exit status: 0 when the tree is whole."""
        if self.server is not None:
            self.server.start()
        self.write()
        threads = [threading.Thread(target=self._stream) for _ in range(int(self.spec.get("streams") or 4))]
        for thread in threads:
            thread.daemon = True
            thread.start()
        while any(thread.is_alive() for thread in threads) and self.error is None:
            time.sleep(0.1)
            self.write()
        if self.error is None:
            try:
                self.store.finish()
                self.complete = True
                self.note("whole: %d files, %d bytes received" % (len(self.store.whole), self.received))
            except Trouble as trouble:
                self.fail(trouble)
        self.write()
        # those below learn of an error before the process goes
        self._linger(5.0 if self.error else float(self.spec.get("linger") or 0))
        return 1 if self.error else 0

    def _linger(self, seconds):
        until = time.time() + seconds
        while self.server is not None and not os.path.exists(os.path.join(self.spec["state"], "leave")):
            if max(until, self.server.last + seconds) < time.time():
                break
            time.sleep(0.1)
            self.write()

    def fail(self, trouble):
        with self.lock:
            if self.error is None:
                self.error = dict(trouble.fields, kind=trouble.kind, message=trouble.message)
        self.note("failed: %s" % trouble.message)

    def write(self):
        path = os.path.join(self.spec["state"], "state.json")
        try:
            with open(path + ".new", "w") as handle:
                json.dump(self.told(), handle, sort_keys=True)
            os.rename(path + ".new", path)
        except OSError as error:
            if self.error is None:
                self.fail(Trouble("write", "cannot write %s: %s" % (path, error.strerror)))

    def _stream(self):
        """Take files until none is left or the transfer has failed."""
        while self.error is None:
            try:
                entry = self._next()
                if entry is None:
                    return
                if entry is False:
                    time.sleep(0.1)
                    continue
                self._take(entry)
            except Trouble as trouble:
                self.fail(trouble)
            except Exception as error:  # a thread's error would be lost with it
                self.fail(Trouble("input", "%s: %s" % (type(error).__name__, error)))

    def _next(self):
        """A file that can be taken now, False when none can yet, None when nothing is left for this stream."""
        with self.lock:
            missing = [entry for entry in self.store.missing() if entry["path"] not in self.taken]
        if not missing:
            return None if not self.store.missing() else False
        now = time.time()
        for entry in missing:
            if self.wait_until.get(entry["path"], 0) > now or not self.source.ready(entry["path"]):
                continue
            with self.lock:
                # another stream may have taken it, or brought it, since the list was made
                if entry["path"] in self.taken or entry["path"] in self.store.whole:
                    continue
                self.taken.add(entry["path"])
            return entry
        return False

    def _take(self, entry):
        name = entry["path"]
        part = self.store.part(entry)
        try:
            self.store.commit(entry, part, self.source.copy(entry, part))
        except Trouble as trouble:
            part.close()
            if trouble.kind in ("space", "write", "input", "unreachable"):
                raise
            self._again(name, trouble)
        except OSError as error:
            part.close()
            self._again(name, Trouble("network", "%s: %s" % (name, error.strerror or error)))
        finally:
            with self.lock:
                self.taken.discard(name)

    def _again(self, name, trouble):
        """Try the file once more, later; what is there of it is kept. Raises the trouble after TRIES without a way on.

        Peers have their own patience: a parent that is gone is no fault of the file.
        """
        count = self.tries[name] = self.tries.get(name, 0) + 1
        patient = isinstance(self.source, Peers) and trouble.kind in ("network", "missing", "key")
        if count >= TRIES and not patient:
            raise trouble
        self.note("%s: %s; tried again" % (name, trouble.message))
        self.wait_until[name] = time.time() + min(30.0, PAUSE * 2 ** (count - 1) if not patient else 0.5)


def main(path):
    """Run the part that the file at `path` describes; the exit status."""
    with open(path) as handle:
        spec = json.load(handle)
    os.unlink(path)
    os.umask(0o022)
    try:
        node = Node(spec)
    except Trouble as trouble:
        print(trouble.message)
        return 1
    return node.run()
