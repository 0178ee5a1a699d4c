"""Ask a host many questions at once: commands, files, and what only Python can ask (`bringup.agent.questions`).

All probes of a call run side by side, each in a process of its own under its own deadline. What is stuck in the kernel
and cannot be killed is abandoned: its pipes are closed and the answer says so. Nothing is judged here: an answer holds
what was printed, as it was printed.
"""

import errno
import glob
import json
import os
import selectors
import shutil
import signal
import subprocess
import time

from bringup.agent import questions, questions_load

ARGUMENTS = {
    "probes": {"type": "list", "required": True},
    "parallel": {"type": "int", "default": 96},
}

DEFAULT_DEADLINE = 15.0
DEFAULT_LIMIT = 4 * 1024 * 1024
FILE_LIMIT = 256 * 1024
PATHS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/cuda/bin",
         "/opt/rocm/bin", "/usr/local/Ascend/driver/tools", "/opt/mellanox/bin")


def run(task):
    """Run `probes`: a list of {"id", "argv" | "read" | "ask" with "with", "deadline", "limit", "keep"}.

    Returns {"answers": [...], "clock": {...}}; an answer holds id, rc, stdout, stderr, seconds, timed_out, missing,
    truncated, abandoned and, for files, files and errors (path -> text).
    """
    started = time.time()
    task.line("clock %.6f" % started)
    waiting = list(task.args["probes"])
    parallel = max(1, int(task.args.get("parallel") or 96))
    environment = _environment(task)
    selector = selectors.DefaultSelector()
    running = []
    answers = {}
    parent = os.getppid()
    while waiting or running:
        if os.getppid() != parent:
            raise SystemExit("the agent is gone")  # what was started ends with us
        while waiting and len(running) < parallel:
            probe = waiting.pop(0)
            if parallel == 1:
                task.line("asks %s" % probe["id"])  # one after the other takes minutes: that is watched
            child = _start(probe, environment, task.run_id)
            if child.answer is not None:
                answers[child.id] = child.answer
                continue
            for stream, fd in child.streams.items():
                selector.register(fd, selectors.EVENT_READ, (child, stream))
            running.append(child)
        if not running:
            continue
        _pump(selector, running)
        for child in list(running):
            if child.step(selector):
                running.remove(child)
                answers[child.id] = child.answer
    ended = time.time()
    task.line("clock %.6f" % ended)
    return {
        "changed": False,
        "answers": [answers[str(probe["id"])] for probe in task.args["probes"]],
        "clock": {"started": started, "ended": ended},
        "uid": os.getuid(),
    }


def _environment(task):
    env = task.command_environment({"LC_ALL": "C", "LANG": "C"})
    have = [part for part in env.get("PATH", "").split(os.pathsep) if part]
    env["PATH"] = os.pathsep.join(have + [part for part in PATHS if part not in have])
    return env


def _pump(selector, running):
    soonest = min(child.wake() for child in running)
    events = selector.select(max(0.0, min(0.25, soonest - time.monotonic()))) if selector.get_map() else []
    if not selector.get_map():
        time.sleep(0.01)
    for key, _ in events:
        child, stream = key.data
        try:
            data = os.read(key.fd, 65536)
        except OSError:
            data = b""
        if data:
            child.take(stream, data)
        else:
            selector.unregister(key.fd)
            child.close(stream)


def _start(probe, environment, run):
    child = _Child(probe)
    try:
        if probe.get("argv"):
            child.command([str(word) for word in probe["argv"]], environment)
        elif probe.get("read"):
            patterns = [str(pattern) for pattern in probe["read"]]
            child.fork(lambda: _read_files(patterns, int(probe.get("limit") or FILE_LIMIT)))
        else:
            name, given = str(probe.get("ask")), dict(probe.get("with") or {}, run=run)
            child.fork(lambda: questions.answer(name, given))
    except OSError as error:
        child.refuse(error, _is_nowhere(probe, error))
    return child


def _is_nowhere(probe, error):
    """A name that no folder of PATH holds. The kernel says "permission denied" when one of them may not be read."""
    if error.errno == errno.ENOENT:
        return True
    argv = probe.get("argv") or [""]
    return error.errno == errno.EACCES and "/" not in str(argv[0]) and shutil.which(str(argv[0])) is None


class _Child(object):
    """One probe under way."""

    def __init__(self, probe):
        self.id = str(probe["id"])
        self.deadline = float(probe.get("deadline") or DEFAULT_DEADLINE)
        self.limit = int(probe.get("limit") or DEFAULT_LIMIT)
        self.tail = probe.get("keep") == "tail"
        self.started = time.monotonic()
        self.pid = 0
        self.process = None
        self.streams = {}
        self.chunks = {}
        self.sizes = {}
        self.structured = False
        self.truncated = False
        self.timed_out = False
        self.killed = 0
        self.next_kill = self.started + self.deadline
        self.rc = None
        self.gone = None
        self.answer = None

    def command(self, argv, environment):
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd="/",
            start_new_session=True)
        self.pid = self.process.pid
        self._stream("stdout", self.process.stdout.fileno())
        self._stream("stderr", self.process.stderr.fileno())

    def fork(self, body):
        """Run `body` in a forked child; what it returns comes back as JSON."""
        self.structured = True
        self.limit = 64 * 1024 * 1024
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child_body(write_end, body)
        os.close(write_end)
        self.pid = pid
        self._stream("stdout", read_end)

    def _stream(self, name, fd):
        self.streams[name] = fd
        self.chunks[name] = []
        self.sizes[name] = 0

    def take(self, stream, data):
        self.sizes[stream] += len(data)
        self.chunks[stream].append(data)
        while self.sizes[stream] > self.limit and len(self.chunks[stream]) > 1:
            # a log keeps its end, everything else its beginning
            dropped = self.chunks[stream].pop(0 if self.tail else -1)
            self.sizes[stream] -= len(dropped)
            self.truncated = True

    def close(self, stream):
        fd = self.streams.pop(stream, None)
        if fd is None:
            return
        if self.process is not None:
            getattr(self.process, stream).close()
        else:
            os.close(fd)

    def wake(self):
        """When this child wants attention next, on the monotonic clock."""
        return min(self.next_kill, time.monotonic() + (0.02 if self.gone else 0.1))

    def step(self, selector):
        """Look after the child; True when its answer is complete."""
        now = time.monotonic()
        if self.rc is None:
            self._reap()
        if self.rc is not None:
            self.gone = self.gone or now
            # a grandchild may hold the pipes: do not wait for it
            if not self.streams or now - self.gone > 0.3:
                return self._finish(selector)
        elif now >= self.next_kill:
            if self.killed >= 2:
                return self._finish(selector)
            self.timed_out = True
            self._signal((signal.SIGTERM, signal.SIGKILL)[self.killed])
            self.killed += 1
            self.next_kill = now + 0.7
        return False

    def _reap(self):
        if self.process is not None:
            self.rc = self.process.poll()
            return
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except OSError:
            self.rc = -1
            return
        if pid:
            self.rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)

    def _signal(self, number):
        for send in (os.killpg, os.kill):
            try:
                send(self.pid, number)
                return
            except OSError:
                continue

    def _finish(self, selector):
        for stream, fd in list(self.streams.items()):
            try:
                selector.unregister(fd)
            except (KeyError, ValueError):
                pass
            self.close(stream)
        answer = self._frame()
        if self.rc is None:
            answer["abandoned"] = _state(self.pid)
        out = b"".join(self.chunks.get("stdout", []))
        if not self.structured:
            answer["stdout"] = out.decode("utf-8", "replace")
            answer["stderr"] = b"".join(self.chunks.get("stderr", [])).decode("utf-8", "replace")
        else:
            try:
                answer.update(json.loads(out.decode("utf-8", "replace")))
            except ValueError:
                answer["rc"] = answer["rc"] if answer["rc"] not in (0, None) else 1
                answer["stderr"] = "no complete answer" + (" before the deadline" if self.timed_out else "")
        self.answer = answer
        return True

    def _frame(self):
        return {"id": self.id, "rc": self.rc, "stdout": "", "stderr": "", "timed_out": self.timed_out,
                "missing": False, "truncated": self.truncated, "seconds": round(time.monotonic() - self.started, 3)}

    def refuse(self, error, missing):
        self.answer = self._frame()
        self.answer["rc"] = 127 if missing else 126
        self.answer["missing"] = missing
        self.answer["stderr"] = error.strerror or str(error)


def _child_body(write_end, body):
    """What the forked child does: lets go of everything of its parent's, answers, and ends without cleaning up."""
    status = 1
    try:
        os.setsid()
        questions_load.end_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        # an abandoned child that kept the connection's descriptors would keep the connection open
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            if fd > 2 and fd != write_end:
                try:
                    os.close(fd)
                except OSError:
                    pass
        try:
            result = body()
        except Exception as error:  # the answer carries it: a probe never ends the others
            result = {"rc": 1, "stderr": "%s: %s" % (type(error).__name__, error)}
        data = json.dumps(result).encode("utf-8")
        while data:
            data = data[os.write(write_end, data):]
        status = 0
    finally:
        os._exit(status)


def _state(pid):
    """The state letter of a process that could not be killed, `?` when even that cannot be read."""
    try:
        with open("/proc/%d/stat" % pid) as handle:
            return handle.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def _read_files(patterns, limit):
    files, errors = {}, {}
    for pattern in patterns:
        found = sorted(glob.glob(pattern)) if any(mark in pattern for mark in "*?[") else [pattern]
        for path in found:
            try:
                with open(path, "rb") as handle:
                    files[path] = handle.read(limit).decode("utf-8", "replace")
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EISDIR):
                    errors[path] = error.strerror or str(error)
    return {"rc": 0 if files else 1, "missing": not files and not errors, "files": files, "errors": errors}
