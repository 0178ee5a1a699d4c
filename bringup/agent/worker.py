"""The child that runs modules, one task after the other, so that the agent's loop goes on. Python 3.6.

The loop forks it, keeps it for consecutive tasks of one account, and replaces it after a cancel, a deadline or a crash.
"""

import importlib
import os
import signal
import sys
import time
from collections import deque

from bringup.agent import bootstrap, frames

OUTPUT_CAP = 1024 * 1024
"""Bytes of a task's live output sent for each stream before only the end is kept; and of each text in a result."""

TAIL = 64 * 1024


class Worker(object):
    """The loop's handle on a forked worker: a wire to it, its pid and the account it runs as."""

    def __init__(self, pid, wire, user):
        self.pid = pid
        self.wire = wire
        self.user = user


def fork(user, sources, close_fds, wire_class):
    """Start a worker as `user` (a pwd entry, or None for our own account). Raises OSError."""
    to_worker, from_worker = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            for fd in [to_worker[1], from_worker[0]] + close_fds:
                os.close(fd)
            _settle(user)
            _Serving(to_worker[0], from_worker[1], sources).run()
            status = 0
        except (EOFError, OSError):
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            try:
                sys.stderr.flush()
            finally:
                os._exit(status)
    os.close(to_worker[0])
    os.close(from_worker[1])
    return Worker(pid, wire_class(from_worker[0], to_worker[1]), user)


def _settle(user):
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    if user is not None:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name, SHELL=user.pw_shell or "/bin/sh")
        for name in ("XDG_RUNTIME_DIR", "MAIL", "SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_COMMAND"):
            os.environ.pop(name, None)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a module prints must not reach the frames
    os.close(null)


class _Serving(object):
    def __init__(self, read_fd, write_fd, sources):
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.sources = sources
        self.decoder = frames.Decoder()
        self.ready = []
        self.number = 0
        self.sent = {}
        self.tails = {}
        self.tail_sizes = {}
        self.left_out = {}
        self.out = []
        self.out_size = 0
        self.flushed = 0.0

    def run(self):
        while True:
            message = self.next()
            if message["t"] == "source":
                self.sources[message["name"]] = bootstrap.unpacked(message)
            elif message["t"] == "task":
                self.perform(message)

    def next(self):
        return frames.message(self.frame())

    def frame(self):
        """The payload of the next frame; waits for it."""
        while not self.ready:
            data = os.read(self.read_fd, 262144)
            if not data:
                raise EOFError()
            self.ready.extend(self.decoder.feed(data))
        return self.ready.pop(0)[2]

    def perform(self, message):
        self.number = message["id"]
        self.sent = {"stdout": 0, "stderr": 0}
        self.tails = {"stdout": deque(), "stderr": deque()}
        self.tail_sizes = {"stdout": 0, "stderr": 0}
        self.left_out = {"stdout": 0, "stderr": 0}
        os.umask(0o022)
        try:
            os.chdir(os.environ.get("HOME") or "/")
        except OSError:
            os.chdir("/")
        started = time.time()
        result = self.call(message)
        self.end_output()
        seconds = round(time.time() - started, 6)
        _cap(result)
        self.put(frames.control({"t": "result", "result": result, "seconds": seconds}, self.number))
        self.flush()

    def call(self, message):
        from bringup.agent.task import Failure, Task

        task = Task(message.get("args") or {}, check=message.get("check", False), diff=message.get("diff", False),
                    environment=message.get("environment"), root=message.get("root", ""), line=self.line,
                    blob=self.blob, run_id=message.get("run", ""), lock_fd=message.get("lock_fd"),
                    content=self.content)
        name = message["module"]
        try:
            module = importlib.import_module("bringup.agent.modules." + name)
        except ImportError as error:
            return {"failed": True, "msg": "the module %s cannot be loaded on the host: %s" % (name, error)}
        except Exception as error:
            return _broken(name, error)
        # a playbook's task comes with the defaults filled in, a call of a fleet action may leave them out
        for argument, spec in getattr(module, "ARGUMENTS", {}).items():
            if spec.get("default") is not None:
                task.args.setdefault(argument, spec["default"])
        try:
            result = module.run(task)
        except Failure as failure:
            return dict(failure.fields, failed=True, msg=failure.message)
        except OSError as error:
            return {"failed": True, "msg": _os_error(error), "errno": error.errno, "exception": _trace()}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _broken(name, error)
        return result if isinstance(result, dict) else {"changed": False, "result": result}

    def blob(self, digest):
        """The path of a staged file."""
        return self.ask({"t": "want", "digest": digest}, digest)

    def content(self, digest):
        """The bytes of a small file, the path of a large one."""
        return self.ask({"t": "want", "digest": digest, "bytes": True}, digest)

    def ask(self, want, digest):
        self.put(frames.control(want, self.number))
        self.flush()
        while True:
            message = self.next()
            if message["t"] == "source":
                self.sources[message["name"]] = bootstrap.unpacked(message)
            elif message["t"] == "blob" and message["digest"] == digest:
                if message.get("error"):
                    from bringup.agent.task import Failure

                    raise Failure("the file did not reach the host: %s" % message["error"])
                return self.frame() if message.get("bytes") else message["path"]

    def line(self, text, stream):
        if stream not in self.sent:
            stream = "stdout"
        data = text.encode("utf-8", "replace")
        if self.sent[stream] > OUTPUT_CAP:
            self.keep(stream, data)
            return
        self.sent[stream] += len(data) + 1
        kind = frames.STDOUT if stream == "stdout" else frames.STDERR
        self.put(frames.pack(kind, self.number, data))
        if self.out_size > 32768 or time.time() - self.flushed > 0.05:
            self.flush()

    def keep(self, stream, data):
        """Past the cap: only the last lines are kept, for the end."""
        tail = self.tails[stream]
        tail.append(data)
        self.tail_sizes[stream] += len(data) + 1
        while self.tail_sizes[stream] > TAIL and len(tail) > 1:
            gone = len(tail.popleft()) + 1
            self.tail_sizes[stream] -= gone
            self.left_out[stream] += gone

    def end_output(self):
        for stream, tail in self.tails.items():
            if not tail:
                continue
            kind = frames.STDOUT if stream == "stdout" else frames.STDERR
            if self.left_out[stream]:
                self.put(frames.pack(kind, self.number, b"[... %d bytes left out ...]" % self.left_out[stream]))
            for data in tail:
                self.put(frames.pack(kind, self.number, data[-TAIL:]))

    def put(self, frame):
        self.out.append(frame)
        self.out_size += len(frame)

    def flush(self):
        data, self.out, self.out_size = b"".join(self.out), [], 0
        self.flushed = time.time()
        while data:
            data = data[os.write(self.write_fd, data):]


def _cap(result):
    """Cut the texts of a result that are too long to send, in the middle."""
    for key, value in list(result.items()):
        if isinstance(value, str) and len(value) > 2 * OUTPUT_CAP + 131072 and key in ("stdout", "stderr", "msg"):
            left_out = len(value) - 2 * OUTPUT_CAP
            result[key] = "%s\n[... %d characters left out ...]\n%s" % (
                value[:OUTPUT_CAP], left_out, value[-OUTPUT_CAP:])
    for stream in ("stdout", "stderr"):
        lines = result.get(stream + "_lines")
        if isinstance(lines, list) and sum(len(str(item)) for item in lines) > 2 * OUTPUT_CAP:
            result[stream + "_lines"] = str(result.get(stream, "")).splitlines()


def _os_error(error):
    text = error.strerror or str(error)
    where = error.filename if error.filename is not None else ""
    if isinstance(where, bytes):
        where = where.decode("utf-8", "replace")
    return "%s: %s" % (where, text) if where else text


def _trace():
    import traceback

    return traceback.format_exc()


def _broken(name, error):
    return {"failed": True, "msg": "the module %s broke: %s: %s" % (name, type(error).__name__, error),
            "exception": _trace()}
