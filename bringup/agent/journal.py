"""What became of each task of a run, on the host's own disk: digests of arguments, never arguments. Python 3.6."""

import json
import os
import time

from bringup.agent import pids

KEPT = 20
"""So many runs are remembered."""

SYNC_EVERY = 0.25
"""Seconds. An entry is written at once (it survives the agent); so much later it is on the disk (a power cut)."""


class Journal(object):
    """One run's entries, appended to `state/journal/RUN.jsonl`."""

    def __init__(self, state, run):
        self.folder = os.path.join(state, "journal")
        self.path = os.path.join(self.folder, run + ".jsonl")
        self.run = run
        self._fd = None
        self._unsynced_since = None
        self._boot = pids.boot_id()
        self.counts = {}
        self.trouble = None

    def open(self):
        """Raises OSError."""
        if not os.path.isdir(self.folder):
            os.mkdir(self.folder, 0o755)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._prune()

    def _prune(self):
        names = [os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".jsonl")]
        names.sort(key=lambda path: os.stat(path).st_mtime)
        for path in names[:-KEPT]:
            if path != self.path:
                os.unlink(path)

    def count(self, result):
        """Count a result that gets no entry of its own, for the end of the run."""
        if result.get("changed"):
            self.counts["changed"] = self.counts.get("changed", 0) + 1

    def write(self, entry):
        """Append one entry. A disk that is full is remembered in `trouble`, and the run goes on."""
        entry = dict(entry, at=round(time.time(), 3), boot=self._boot)
        if "result" in entry:
            self.counts[entry["result"]] = self.counts.get(entry["result"], 0) + 1
        try:
            os.write(self._fd, (json.dumps(entry, sort_keys=True) + "\n").encode("utf-8"))
        except OSError as error:
            self.trouble = "the journal cannot be written: %s" % (error.strerror or error)
            return
        if self._unsynced_since is None:
            self._unsynced_since = time.time()

    def sync(self, force=False):
        """Put what was written on the disk, when it is due."""
        if self._unsynced_since is None or (not force and time.time() - self._unsynced_since < SYNC_EVERY):
            return
        self._unsynced_since = None
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self.trouble = "the journal cannot be written: %s" % (error.strerror or error)

    def close(self):
        if self._fd is not None:
            self.sync(force=True)
            os.close(self._fd)
            self._fd = None


def look_up(state, run, digests, held):
    """What the journal of a run says of tasks: digest -> {"state": ..., ...}.

    States: `ended` (with `result`: ok, changed, failed, skipped, and `rc` where there was one), `running` (its agent
    still holds the lock), `interrupted` (begun, no end written, nobody at it), `unknown` (no entry).
    """
    entries = {}
    try:
        with open(os.path.join(state, "journal", run + ".jsonl"), "rb") as handle:
            for line in handle:
                try:
                    entry = json.loads(line.decode("utf-8"))
                except ValueError:
                    continue  # the last line of a run that lost its power
                entries.setdefault(entry.get("digest"), []).append(entry)
    except OSError:
        entries = {}
    out = {}
    for digest in digests or sorted(key for key in entries if key):
        found = entries.get(digest)
        if not found:
            out[digest] = {"state": "unknown"}
        elif found[-1].get("event") == "end":
            out[digest] = dict((key, found[-1][key]) for key in ("result", "rc", "at", "seconds") if key in found[-1])
            out[digest]["state"] = "ended"
        else:
            alive = held and found[-1].get("boot") == pids.boot_id()
            out[digest] = {"state": "running" if alive else "interrupted", "at": found[-1].get("at")}
    return out


RUNS_KEPT = 2000
"""Entries of `state/runs.jsonl` that are kept: two for a run."""


def note_run(state, entry):
    """Append what a run began or ended with to `state/runs.jsonl`; who calls holds the lock. Raises OSError."""
    path = os.path.join(state, "runs.jsonl")
    line = (json.dumps(dict(entry, at=round(time.time(), 3)), sort_keys=True) + "\n").encode("utf-8")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # the last one was cut by a lost power
        os.write(fd, line)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    if size > RUNS_KEPT * 400:
        _shorten(path)


def _shorten(path):
    with open(path, "rb") as handle:
        lines = handle.readlines()
    if len(lines) > RUNS_KEPT:
        staged = "%s.%d" % (path, os.getpid())
        with open(staged, "wb") as handle:
            handle.writelines(lines[-RUNS_KEPT:])
            handle.flush()
            os.fsync(handle.fileno())
        os.rename(staged, path)


def runs_of(state):
    """Every kept run, the oldest first: what it began with, `ended` (what it ended with) or None."""
    found = {}
    order = []
    try:
        with open(os.path.join(state, "runs.jsonl"), "rb") as handle:
            lines = handle.readlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            entry = json.loads(line.decode("utf-8"))
        except ValueError:
            continue  # cut by a lost power
        run = entry.get("run")
        if entry.get("event") == "began":
            if run in found and found[run]["ended"] is None:
                continue  # connected again in the middle: the same run
            found[run] = dict(entry, ended=None)
            order.append(run)
        elif run in found:
            found[run]["ended"] = entry
    return [found[run] for run in sorted(set(order), key=order.index)]


def release_in_use(root):
    """The digest that `current` names, None without one."""
    try:
        return os.path.basename(os.readlink(os.path.join(root, "current")).rstrip("/"))
    except OSError:
        return None
