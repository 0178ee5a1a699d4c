"""The lock of a run on this host, the record of the run beside it, and the host's identity. Python 3.6.

Two files, both held by `flock`, so that the kernel gives them up with the last process that has them open:
`state/lock`, exclusive, by the agent of the run and its workers; `state/lock.jobs`, shared, by the same and by every
job that they leave behind. A run takes the first; when only jobs hold the second, the operator whose jobs they are may
go on, anybody else is refused. The record beside them says whose they are.
"""

import errno
import fcntl
import json
import os
import time

from bringup.agent import pids

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "9p",
           "beegfs", "gpfs", "afs", "orangefs", "pvfs2", "ocfs2", "gfs2", "fuse.s3fs", "fuse.juicefs", "fuse.ceph-fuse")
"""File systems that several machines see: a lock there says nothing of one machine."""


class Refused(Exception):
    """The state folder must not be used."""

    def __init__(self, message, **fields):
        super(Refused, self).__init__(message)
        self.message = message
        self.fields = fields


class Unavailable(Exception):
    """The state folder cannot be written."""


def state_folder(root):
    return os.path.join(root, "state")


def machine_id():
    """The identity of this machine's installation; empty where it has none."""
    return pids.read("/etc/machine-id") or pids.read("/var/lib/dbus/machine-id")


def file_system(path):
    """The type of the file system that holds a path, from the kernel's mount table."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in pids.read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        inside = point == "/" or real == point or real.startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


class Lock(object):
    """The lock under one `bringup_root`."""

    def __init__(self, root):
        self.root = root
        self.state = state_folder(root)
        self.path = os.path.join(self.state, "lock")
        self.record_path = os.path.join(self.state, "run.json")
        self.jobs_path = os.path.join(self.state, "lock.jobs")
        self.fd = None
        self.jobs_fd = None
        self.jobs_alive = False
        self.record = None
        self._written = 0.0
        self.trouble = None

    def prepare(self):
        """Make the state folder and check that it is this machine's. Raises Unavailable, Refused."""
        try:
            os.makedirs(self.state, 0o755, exist_ok=True)
        except OSError as error:
            raise Unavailable("%s cannot be made: %s" % (self.state, error.strerror or error))
        if not os.access(self.state, os.W_OK | os.X_OK):
            raise Unavailable("%s cannot be written by %s" % (self.state, _account()))
        kind = file_system(self.state)
        if kind in NETWORK:
            raise Refused("%s lies on a network file system (%s)" % (self.state, kind),
                          expected="a local disk: the lock and the state of a host are its own", found=kind,
                          next="set bringup_root to a folder on a local disk")
        own = machine_id()
        path = os.path.join(self.state, "machine")
        there = pids.read(path)
        if there and own and there != own:
            raise Refused("%s belongs to another machine" % self.state, expected="machine id %s" % own,
                          found="machine id %s" % there,
                          next="if this disk was cloned or moved on purpose: rm %s" % path)
        if own and not there:
            try:
                _write(path, own + "\n")
            except OSError as error:
                raise Unavailable("%s cannot be written: %s" % (path, error.strerror or error))

    def take(self):
        """True when the lock is ours now; `jobs_alive`: whether jobs of an earlier run go on. Raises Unavailable."""
        if self.fd is not None:
            return True
        fd = _open(self.path)
        if not _flock(fd, fcntl.LOCK_EX):
            os.close(fd)
            return False
        jobs = _open(self.jobs_path)
        self.jobs_alive = not _flock(jobs, fcntl.LOCK_EX)
        _flock(jobs, fcntl.LOCK_SH)
        self.fd, self.jobs_fd = fd, jobs
        return True

    def is_held(self):
        """True while the agent of some run lives."""
        return self.fd is not None or not _free(self.path)

    def jobs_run(self):
        """True while a job that some run left behind lives."""
        return not _free(self.jobs_path)

    def read_record(self):
        """The record of the run that holds the lock, or held it and did not finish; None when there is none."""
        text = pids.read(self.record_path)
        try:
            value = json.loads(text) if text else None
        except ValueError:
            return {"run": "unknown", "operator": "unknown", "damaged": True}
        return value if isinstance(value, dict) else None

    def write_record(self, record=None, **changes):
        """Write or refresh the record; a full disk does not undo the lock."""
        self.record = dict(record if record is not None else self.record or {}, **changes)
        self._written = time.time()
        try:
            _write(self.record_path, json.dumps(self.record, sort_keys=True) + "\n")
            self.trouble = None
        except OSError as error:
            self.trouble = "the record of the run cannot be written: %s" % (error.strerror or error)

    def refresh(self, heard, every=5.0):
        """Note when the controller was last heard, not more often than every few seconds."""
        if self.fd is not None and self.record is not None and time.time() - self._written >= every:
            self.write_record(heard=round(heard, 3))

    def release(self, finished):
        """Give the lock up. A finished run takes its record with it; one that is not leaves it to be found."""
        if self.fd is None:
            return
        if finished:
            self.remove_record()
        os.close(self.jobs_fd)
        os.close(self.fd)
        self.fd = self.jobs_fd = None
        self.record = None

    def remove_record(self):
        try:
            os.unlink(self.record_path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def clear_staging(self):
        """Remove files that a killed run left on their way; nobody else is at it while we hold the lock."""
        staging = os.path.join(self.state, "staging")
        try:
            names = os.listdir(staging)
        except OSError:
            return
        for name in names:
            try:
                os.unlink(os.path.join(staging, name))
            except OSError:
                continue  # not ours to remove: it does no harm

    def stop_path(self, run):
        return os.path.join(self.state, "stop-" + run)

    def ask_to_stop(self, run, by):
        """Raises OSError."""
        _write(self.stop_path(run), json.dumps(by) + "\n")

    def asked_to_stop(self):
        """Who wants this run to stop, or None."""
        if self.fd is None or self.record is None:
            return None
        text = pids.read(self.stop_path(self.record["run"]))
        return text or None

    def forget_stop(self, run):
        try:
            os.unlink(self.stop_path(run))
        except OSError:
            pass  # was never asked for, or another taker cleared it


def _flock(fd, how):
    """True when the lock was given at once."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise Unavailable("the lock cannot be taken: %s" % (error.strerror or error))
    return True


def _free(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return _flock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def _open(path):
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        first = error
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise Unavailable("%s cannot be opened: %s" % (path, first.strerror or first))


def _write(path, text):
    temporary = "%s.%d" % (path, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, text.encode("utf-8"))
        os.fdatasync(fd)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    os.rename(temporary, path)


def _account():
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "uid %d" % os.geteuid()
