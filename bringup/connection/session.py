"""A host's session: connect, start the agent, stream requests to it, post what it says into the run's queue."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from bringup.agent import bootstrap, frames
from bringup.base.errors import BringupError, LockedError, UnreachableError
from bringup.connection.faults import fault_of
from bringup.connection.filing import frames_of
from bringup.connection.gate import Gate
from bringup.connection.messages import (
    Closed,
    Connected,
    Finished,
    Lost,
    Message,
    Note,
    NotRun,
    Output,
    Request,
    Started,
    Target,
    Unreachable,
)
from bringup.connection.pipes import Pipe

HEARTBEAT = 5.0
"""Seconds between the agent's beats, and between ours."""

LOST_AFTER = 15.0
"""Seconds without a frame after which a host counts as lost: three beats."""

SILENCE = 60.0
"""Seconds without us after which the agent ends by itself."""

GRACE = 60.0
"""Seconds that a task under way may go on when its session was cut."""

AGENT_START = 30.0
"""Seconds from the start of the command to the agent's first word: login scripts run in between."""

SHORT_WAY = 0.015
"""Seconds for a round trip: below it asking for the byte code costs less than compiling on the host."""

SLOW_START = 3.0
"""Seconds from our command to the first word of the host's Python above which a person is told."""

INLINE = 65536
"""Files up to this size are sent with their task; larger ones when the host asks for them."""

BUILTINS = frozenset({"lock", "unlock", "take_over", "journal", "runs"})
"""Modules that the agent answers itself."""


_PACKING = threading.Lock()  # what is packed for one host is kept for all: one thread does it


class Inbox(Protocol):
    """Where messages go: `queue.SimpleQueue` and `queue.Queue` are such."""

    def put(self, item: Message, /) -> None: ...


class Session:
    """One host, one connection, one agent, for the length of a run.

    Requests may be submitted before the connection stands; they wait. Every request gets, in the order of submission,
    Started and Finished, or NotRun; or the session ends with Unreachable or Lost. After `close` comes Closed.
    Two threads: one connects and reads, one writes, so that neither side waits for the other.
    """

    def __init__(self, target: Target, queue: Inbox, *, operator: str, run_id: str, gate: Gate | None = None,
                 verb: str = "") -> None:
        self.target = target
        self.host = target.host
        self._queue = queue
        self._operator = operator
        self._run_id = run_id
        self._verb = verb
        self._gate = gate or Gate()
        self._pipe: Pipe | None = None
        self._marker = bootstrap.token()
        self._condition = threading.Condition()
        # (request, frame) that wait to be written; a text is the name of a file of the agent, packed when it is sent
        self._control: deque[tuple[int, bytes | str]] = deque()
        self._magic: str | None = None
        self._files: deque[tuple[int, Iterator[bytes]]] = deque()
        self._file_number = 0
        self._requests: dict[int, Request] = {}
        self._modules_sent: set[str] = set()
        self._running: int | None = None
        self._started = False  # the agent was sent
        self._closing = False
        self._ended = False
        self._connected = False
        self._took: dict[str, float] = {}
        self._heard = time.monotonic()
        self._errors = bytearray()
        self._thread = threading.Thread(target=self._work, name=f"session {self.host}", daemon=True)

    # what the run calls

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; they are sent without waiting for those before them."""
        with self._condition:
            for request in requests:
                self._requests[request.id] = request
                self._control.extend((0, name) for name in self._sources(request))
                self._control.append((request.id, frames.control(_task(request, self.target), request.id)))
                for blob in request.blobs:
                    if blob.size <= INLINE:
                        self._file_number += 1
                        own = frames_of(request, blob, self._file_number)
                        self._control.extend((request.id, frame) for frame in own)
            self._condition.notify()

    def cancel(self, request: int | None = None) -> None:
        """Cancel one request, or all: what has not begun is answered NotRun, what runs is ended with its processes."""
        with self._condition:
            unsent = {number for number, _ in self._control if number and request in (None, number)}
            self._control = deque(item for item in self._control if item[0] not in unsent)
            self._files = deque(item for item in self._files if request not in (None, item[0]))
            for number in sorted(unsent):
                self._requests.pop(number, None)
                self._post(NotRun(self.host, number))
            if self._started and (request is None or request not in unsent):
                self._control.appendleft((0, frames.control({"t": "cancel", "all": request is None}, request or 0)))
            self._condition.notify()

    def close(self) -> None:
        """End the session: what runs is cancelled. Closed follows when the agent is gone, or at once when none runs."""
        with self._condition:
            if self._closing or self._ended:
                return
            self._closing = True
            if not self._started:
                self._ended = True
                self._post(Closed(self.host))
                return
            self._control.append((0, frames.control({"t": "close"})))
            self._condition.notify()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the session's thread to end; False when it did not within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # the session's own thread

    def _work(self) -> None:
        try:
            try:
                self._pipe = self._connect()
                info, rest = self._await_agent(self._pipe)
            except BringupError as error:
                self._end(Closed(self.host) if self._closing else Unreachable(self.host, error))
                return
            if self._ended:
                return
            self._connected = True
            info.update(self._took)
            self._post(Connected(self.host, info))
            if info["start_seconds"] > SLOW_START:
                self._post(Note(self.host, f"{info['start_seconds']:.1f} s passed before Python ran: see the load, "
                                           "and what the login scripts of that account do (~/.bashrc)"))
            threading.Thread(target=self._write_loop, args=(self._pipe,), name=f"writer {self.host}",
                             daemon=True).start()
            self._read_loop(self._pipe, rest)
        except Exception as error:  # the run waits for a word of this host: a fault must not end the thread without one
            self._end(self._faulted(error))
        finally:
            with self._condition:
                self._ended = True
                self._files.clear()
                self._condition.notify()
            if self._pipe is not None:
                self._pipe.close()

    def _post(self, message: Message) -> None:
        self._queue.put(message)

    def _end(self, message: Message) -> None:
        with self._condition:
            if self._ended:
                return  # closed while it was still on its way: that was told
            self._ended = True
            self._condition.notify()
            self._post(message)

    def _connect(self) -> Pipe:
        command = bootstrap.command(self._marker, self.target.python)
        if self.target.connection == "local":
            from bringup.connection.local import LocalPipe

            return LocalPipe(self.target, self._marker)
        from bringup.connection.dial import connect
        from bringup.connection.way import server_of

        link = connect(server_of(self.target), self._gate)
        self._took = {"connect_seconds": round(link.seconds, 3), "greeting_seconds": round(link.greeting, 3)}
        from bringup.connection.ssh import SshPipe

        return SshPipe(self.host, link, command)

    def _taken(self) -> bytes:
        """The control frames that wait, as bytes; the caller holds the lock."""
        out = []
        for _, item in self._control:
            if isinstance(item, str):
                with _PACKING:
                    out.append(frames.control({"t": "source", **bootstrap.packed(item, self._magic)}))
            else:
                out.append(item)
        self._control.clear()
        return b"".join(out)

    def _send_agent(self, pipe: Pipe) -> None:
        """The agent, who we are, and what was submitted so far, in one write."""
        with self._condition:
            if self._ended:
                return
            self._started = True
            early = self._taken()
        # a pipe that is closed already has said why: the reader tells it
        with _PACKING:
            agent = bootstrap.payload(self._magic)
        with contextlib.suppress(OSError):
            pipe.write(agent + frames.control(self._hello()) + early)

    def _hello(self) -> dict[str, Any]:
        password = self.target.become_password
        return {"t": "hello", "run": self._run_id, "operator": self._operator, "machine": controller_id(),
                "root": self.target.root, "heartbeat": HEARTBEAT, "silence": SILENCE, "grace": GRACE,
                "verb": self._verb, "password": password.reveal() if password is not None else None}

    def _await_agent(self, pipe: Pipe) -> tuple[dict[str, Any], list[tuple[int, int, bytes]]]:
        """Start the agent and read up to its first frame; what comes before is noise of login scripts.

        Over a short way the agent waits until the host's Python has said which byte code it takes; over a long one the
        sources are sent at once, which saves a round trip.
        """
        asked = self._marker.encode() + b"? "
        marker = self._marker.encode() + b"\n"
        seen = bytearray()
        began = time.monotonic()
        until = began + AGENT_START
        first: float | None = None
        decoder = self._decoder = frames.Decoder()
        noise: bytes | None = None
        waiting = pipe.round_trip < SHORT_WAY
        if not waiting:
            self._send_agent(pipe)
        while True:
            data = pipe.read(min(1.0, max(0.0, until - time.monotonic())))
            self._errors += pipe.errors()
            if data == b"" or self._ended:
                raise self._no_agent(pipe, bytes(seen))
            if data:
                seen += data
            if first is None and (asked in seen or marker in seen):
                first = time.monotonic() - began
            if waiting and asked in seen and b"\n" in seen[seen.index(asked):]:
                waiting = False
                self._magic = bytes(seen).split(asked, 1)[1].split(b"\n", 1)[0].decode("ascii", "replace")
                self._send_agent(pipe)
            if data and noise is None and marker in seen:
                before, _, rest = bytes(seen).partition(marker)
                noise = before.split(asked, 1)[0]
                seen = bytearray(rest)
            if data and noise is not None:
                received = decoder.feed(bytes(seen))
                seen.clear()
                if received:
                    info = frames.message(received[0][2])
                    info["noise"] = _lines(noise + bytes(self._errors))
                    info["start_seconds"] = round(first or 0.0, 3)
                    self._errors.clear()
                    self._heard = time.monotonic()
                    return info, received[1:]
            if noise is None and len(seen) > 1_048_576:
                del seen[:-65536]
            if time.monotonic() >= until:
                raise UnreachableError(
                    f"the agent did not start within {AGENT_START:g} s", host=self.host,
                    expected="the login shell runs the command that it is given", found=_last(bytes(seen)),
                    next="see what the login scripts of that account wait for (~/.bashrc, ~/.profile)")

    def _no_agent(self, pipe: Pipe, seen: bytes) -> UnreachableError:
        found = [line.split(" ", 1)[1] for line in _lines(seen) if line.startswith(f"{self._marker}-found ")]
        if f"{self._marker}-none" in _lines(seen):
            wanted = self.target.python
            if wanted:
                what = f"there is no Python at {wanted}"
            else:
                what = "there is no Python on this host"
            pythons = _usable(found)
            return UnreachableError(
                what, host=self.host, expected="Python 3.6 or newer",
                found=", ".join(pythons[:8]) or "no file named python* in PATH, /usr/local/bin, /opt/*/bin",
                next=(f"ansible_python_interpreter: {pythons[0]}" if pythons
                      else "install it there: apt-get install python3, dnf install python3"))
        errors = _lines(bytes(self._errors) + seen)
        status = pipe.status()
        old = next((line for line in errors if "is older than 3.6" in line), None)
        if old or any("Unknown option: -I" in line for line in errors):
            return UnreachableError("the Python of this host is too old for the agent", host=self.host,
                                    expected="Python 3.6 or newer", found=old or "Python 2",
                                    next="set ansible_python_interpreter to a newer one")
        return UnreachableError(
            "the agent did not start" + (f": the command ended with status {status}" if status is not None else ""),
            host=self.host, details=[f"it printed  {line}" for line in errors[-8:]],
            next="try `ssh HOST python3 -V` as the same account")

    def _read_loop(self, pipe: Pipe, received: list[tuple[int, int, bytes]]) -> None:
        decoder = self._decoder
        while True:
            for kind, number, payload in received:
                last = self._on_frame(kind, number, payload)
                if last is not None:
                    self._end(last)
                    return
            received = []
            data = pipe.read(1.0)
            self._errors = (self._errors + pipe.errors())[-65536:]
            now = time.monotonic()
            if data == b"":
                self._end(self._gone(pipe))
                return
            if data:
                self._heard = now
                try:
                    received = decoder.feed(data)
                except frames.BadFrame as error:
                    self._end(self._lost("something else wrote into the agent's stream", found=str(error)))
                    return
            elif now - self._heard > LOST_AFTER:
                self._end(self._lost(f"no heartbeat for {now - self._heard:.0f} s"))
                return

    def _gone(self, pipe: Pipe) -> Message:
        lines = _lines(bytes(self._errors))
        status = None if self._closing else pipe.status()
        return self._lost("the connection ended" if status is None else f"the agent ended with status {status}",
                          details=[f"it printed  {line}" for line in lines[-8:]])

    def _faulted(self, error: Exception) -> Message:
        told = fault_of(self.host, error)
        return Lost(self.host, told, self._running) if self._connected else Unreachable(self.host, told)

    def _lost(self, what: str, found: str | None = None, details: Sequence[str] = ()) -> Message:
        """The session is over before its time; when we were closing it anyhow, that is no loss."""
        if self._closing:
            return Closed(self.host)
        error = UnreachableError(what, host=self.host, found=found, details=details,
                                 next="when it answers again, run the same command: what was done is not done twice")
        return Lost(self.host, error, self._running)

    def _on_frame(self, kind: int, number: int, payload: bytes) -> Message | None:
        """Handle one frame; the message that ends the session, if it does."""
        if kind in (frames.STDOUT, frames.STDERR):
            request = self._requests.get(number)
            if request is not None and not request.no_log:
                self._post(Output(self.host, number, "stdout" if kind == frames.STDOUT else "stderr",
                                  payload.decode("utf-8", "replace")))
            return None
        message = frames.message(payload)
        told = message["t"]
        if told == "result":
            if self._running != number:  # a task that begins and ends at once is told of once
                self._post(Started(self.host, number))
            self._running = None
            self._requests.pop(number, None)
            self._post(Finished(self.host, number, message["result"], message["seconds"]))
        elif told == "started":
            self._running = number
            self._post(Started(self.host, number))
        elif told == "notrun":
            self._requests.pop(number, None)
            self._post(NotRun(self.host, number))
        elif told == "want":
            self._send_file(number, message["digest"])
        elif told == "note":
            self._post(Note(self.host, message["text"]))
        elif told == "stopped":
            return Lost(self.host, LockedError(
                "another operator took this run over; it stopped at the end of its task", host=self.host,
                found=str(message["by"].get("text", ""))), None)
        elif told == "bye":
            return Closed(self.host)
        return None

    # the other thread

    def _write_loop(self, pipe: Pipe) -> None:
        beat = time.monotonic() + HEARTBEAT
        ping = frames.control({"t": "ping"})
        try:
            while True:
                with self._condition:
                    if not self._control and not self._files and not self._ended:
                        self._condition.wait(max(0.0, beat - time.monotonic()))
                    if self._ended:
                        return
                    data = self._taken()
                    number, file = self._files.popleft() if self._files else (0, None)
                if data:
                    pipe.write(data)
                if file is not None:
                    piece = next(file, None)
                    if piece is not None:
                        pipe.write(piece)
                        with self._condition:
                            if number in self._requests:
                                self._files.append((number, file))
                if time.monotonic() >= beat:
                    beat = time.monotonic() + HEARTBEAT
                    pipe.write(ping)
        except OSError:
            pipe.close()  # the reading thread sees the end, and tells it
        except Exception as error:  # as in `_work`
            self._end(self._faulted(error))
            pipe.close()

    # files and sources

    def _sources(self, request: Request) -> list[str]:
        """The names of the agent's files that this request needs and that were not sent yet."""
        if request.module in BUILTINS:
            return []
        out = [name for name in bootstrap.needed_by(request.module) if name not in self._modules_sent]
        self._modules_sent.update(out)
        return out

    def _send_file(self, number: int, digest: str) -> None:
        request = self._requests.get(number)
        blob = next((item for item in request.blobs if item.digest == digest), None) if request is not None else None
        with self._condition:
            if request is None or blob is None:
                refusal = {"t": "blob", "digest": digest, "size": 0, "file": 0,
                           "error": "it was not among the task's files", "become": request.become if request else None}
                self._control.append((number, frames.control(refusal, number)))
            else:
                self._file_number += 1
                self._files.append((number, frames_of(request, blob, self._file_number)))
            self._condition.notify()


def _task(request: Request, target: Target) -> dict[str, Any]:
    return {"t": "task", "segment": request.segment, "module": request.module, "args": dict(request.args),
            "become": request.become, "environment": {**target.environment, **request.environment},
            "timeout": request.timeout, "check": request.check, "diff": request.diff,
            "ignore_errors": request.ignore_errors, "no_log": request.no_log, "digest": request.digest}


def _lines(data: bytes) -> list[str]:
    return [line.rstrip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]


def _usable(paths: Sequence[str]) -> list[str]:
    """Pythons among what was found, version managers' stand-ins last."""
    own = [path for path in dict.fromkeys(paths) if re.fullmatch(r"python[0-9.]*", path.rpartition("/")[2])]
    return sorted(own, key=lambda path: ("/shims/" in path, not path.startswith("/usr/bin/"), "python2" in path))


def _last(data: bytes) -> str | None:
    lines = _lines(data)
    return lines[-1] if lines else None


def controller_id() -> str:
    """This machine, for the record of a run: the same machine may go on with a run that it began."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            own = Path(path).read_text().strip()
        except OSError:
            continue
        return hashlib.sha256(b"bringup " + own.encode()).hexdigest()[:16]
    return hashlib.sha256(f"bringup {socket.gethostname()} {os.getuid()}".encode()).hexdigest()[:16]
