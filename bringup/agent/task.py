"""What a module on the host is given, and how it fails. Python 3.6."""

import os
import signal
import time


class Failure(Exception):
    """A module failed: the message, and further fields of the result (rc, stdout, expected, found, next...)."""

    def __init__(self, message, **fields):
        super(Failure, self).__init__(message)
        self.message = message
        self.fields = fields


class Completed(object):
    """A finished command: argv, rc, stdout and stderr as bytes decoded with replacement, seconds, timed_out."""

    def __init__(self, argv, rc, stdout, stderr, seconds, timed_out=False):
        self.argv = argv
        self.rc = rc
        self.stdout = stdout
        self.stderr = stderr
        self.seconds = seconds
        self.timed_out = timed_out


class Task(object):
    """One task as the host sees it.

    args: the module's arguments, defaults filled in. check, diff: bool. environment: dict added to commands.
    root: this host's bringup_root. blob(digest) -> path of a staged file whose SHA-256 is digest (hex);
    content(digest) -> its bytes where it is small, else the path.
    line(text, stream) sends a line of output to the controller while the task runs.
    lock_fd: file descriptor of the run's lock, to be inherited by what must outlive the agent, or None.
    """

    def __init__(self, args, check=False, diff=False, environment=None, root="", line=None, blob=None,
                 run_id="", lock_fd=None, content=None):
        self.args = args
        self.check = check
        self.diff = diff
        self.environment = environment or {}
        self.root = root
        self.run_id = run_id
        self.lock_fd = lock_fd
        self._line = line
        self._blob = blob
        self._content = content or blob

    def line(self, text, stream="stdout"):
        if self._line is not None:
            self._line(text, stream)

    def blob(self, digest):
        if self._blob is None:
            raise Failure("no file with the digest %s was sent" % digest)
        return self._blob(digest)

    def content(self, digest):
        if self._content is None:
            raise Failure("no file with the digest %s was sent" % digest)
        return self._content(digest)

    def command_environment(self, extra=None):
        env = dict(os.environ)
        env.update((str(k), str(v)) for k, v in self.environment.items())
        env.update((str(k), str(v)) for k, v in (extra or {}).items())
        return env

    def command(self, argv, stdin=None, cwd=None, environment=None, timeout=None, shell=False, executable=None,
                stream=False):
        """Run a command in a process group of its own and wait for it; with `stream` its lines go to the controller.

        Raises Failure when it cannot be started. A deadline ends the whole group: TERM, then KILL after 5 s.
        """
        import subprocess  # slow to load, and most modules start nothing

        started = time.time()
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, cwd=cwd, env=self._marked(self.command_environment(environment)), shell=shell,
                executable=executable, start_new_session=True)
        except OSError as error:
            raise Failure("cannot run %s: %s" % (argv if shell else argv[0], error.strerror or error),
                          rc=error.errno or 2, cmd=argv)
        try:
            out, err, timed_out = _communicate(process, stdin, timeout, self.line if stream else None)
        except BaseException:
            end_group(process)
            raise
        return Completed(argv, process.returncode, out, err, time.time() - started, timed_out)


    def _marked(self, environment):
        """What a run waits for carries its id, so that nothing of it is overlooked when the run is taken over."""
        if self.run_id:
            environment["BRINGUP_RUN"] = self.run_id
        return environment


CAP = 1024 * 1024
"""Bytes of a command's output that are kept from its beginning, and as many from its end."""


class Capped(object):
    """The beginning and the end of a stream of bytes, whatever its length."""

    def __init__(self):
        self.head = []
        self.tail = []
        self.head_size = 0
        self.tail_size = 0
        self.left_out = 0

    def append(self, data):
        if self.head_size < CAP:
            part = data[:CAP - self.head_size]
            self.head.append(part)
            self.head_size += len(part)
            data = data[len(part):]
        if data:
            self.tail.append(data)
            self.tail_size += len(data)
            while self.tail_size - len(self.tail[0]) >= CAP:
                gone = self.tail.pop(0)
                self.tail_size -= len(gone)
                self.left_out += len(gone)

    def text(self):
        """Decoded with replacement."""
        head, tail = b"".join(self.head), b"".join(self.tail)
        if self.left_out:
            head += ("\n[... %d bytes left out ...]\n" % self.left_out).encode()
        return (head + tail).decode("utf-8", "replace")


def _communicate(process, stdin, timeout, line):
    import selectors
    import threading

    chunks = {"stdout": Capped(), "stderr": Capped()}
    partial = {"stdout": b"", "stderr": b""}
    if stdin is not None:
        data = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8")

        def feed():
            try:
                process.stdin.write(data)
                process.stdin.close()
            except (OSError, ValueError):
                return

        feeder = threading.Thread(target=feed)
        feeder.daemon = True
        feeder.start()
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ, "stdout")
    selector.register(process.stderr, selectors.EVENT_READ, "stderr")
    deadline = None if timeout is None else time.time() + timeout
    timed_out = False
    gone_since = None
    while selector.get_map():
        left = 1.0 if deadline is None else max(0.0, min(1.0, deadline - time.time()))
        events = selector.select(left)
        for key, _ in events:
            data = os.read(key.fileobj.fileno(), 65536)
            if not data:
                selector.unregister(key.fileobj)
                continue
            chunks[key.data].append(data)
            if line is not None:
                parts = (partial[key.data] + data).split(b"\n")
                partial[key.data] = parts.pop()
                for part in parts:
                    line(part.decode("utf-8", "replace"), key.data)
        if not timed_out and deadline is not None and time.time() >= deadline:
            timed_out = True
            end_group(process)
        # a daemon that the command left behind may hold the pipes: do not wait for it for ever
        if process.poll() is not None and not events:
            gone_since = gone_since or time.time()
            if time.time() - gone_since > 2:
                break
    process.wait()
    if line is not None:
        for name, rest in partial.items():
            if rest:
                line(rest.decode("utf-8", "replace"), name)
    return chunks["stdout"].text(), chunks["stderr"].text(), timed_out


def end_group(process, grace=5.0):
    """TERM, then KILL, to the process group that the process leads. Returns when it is gone or was killed."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(process.pid, number)
        except OSError:
            return
        end = time.time() + wait
        while time.time() < end:
            if process.poll() is not None:
                return
            time.sleep(0.02)
