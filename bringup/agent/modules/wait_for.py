"""Wait until a port answers or is closed, a file is there or gone, or a text stands in it."""

import errno
import os
import re
import select
import socket
import time

from bringup.agent.modules import _files
from bringup.agent.task import Failure

ARGUMENTS = {
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int"},
    "path": {"type": "path"},
    "search_regex": {"type": "str"},
    "state": {"type": "str", "default": "started", "choices": ["absent", "present", "started", "stopped"]},
    "timeout": {"type": "int", "default": 300},
    "delay": {"type": "int", "default": 0},
    "sleep": {"type": "int", "default": 1},
    "connect_timeout": {"type": "int", "default": 5},
    "msg": {"type": "str"},
}


def run(task):
    args = task.args
    if task.check:
        return {"changed": False, "skipped": True, "msg": "wait_for does not wait in check mode"}
    port, path, state = args.get("port"), _files.expand(args.get("path")), args.get("state", "started")
    if port and path:
        raise Failure("port and path parameter can not both be passed to wait_for", elapsed=0)
    if path and state == "stopped":
        raise Failure("state=stopped should only be used for checking a port in the wait_for module", elapsed=0)
    try:
        pattern = re.compile(args["search_regex"].encode("utf-8"), re.MULTILINE) if args.get("search_regex") else None
    except re.error as error:
        raise Failure("Invalid regular expression: %s" % error, elapsed=0)
    began = time.monotonic()
    end = began + args.get("timeout", 300)
    if args.get("delay"):
        time.sleep(args["delay"])
    match = None
    if not port and not path:
        time.sleep(args.get("timeout", 300))
    else:
        wait = _Wait(args, port, path, pattern, end)
        gone = state in ("absent", "stopped")
        match = wait.until(wait.is_gone if gone else wait.is_there, gone, began)
    return {"changed": False, "state": state, "port": port, "path": path, "search_regex": args.get("search_regex"),
            "elapsed": int(time.monotonic() - began), "match_groups": _groups(match),
            "match_groupdict": {key: _text(value) for key, value in match.groupdict().items()} if match else {}}


def _groups(match):
    return [_text(value) for value in match.groups()] if match else []


def _text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Wait(object):
    """The one condition that is waited for; `is_there` keeps the match of the pattern."""

    def __init__(self, args, port, path, pattern, end):
        self.args = args
        self.host = args.get("host") or "127.0.0.1"
        self.port = port
        self.path = path
        self.pattern = pattern
        self.end = end
        self.match = None
        self.last = ""

    def until(self, condition, gone, began):
        while True:
            if condition():
                return self.match
            left = self.end - time.monotonic()
            if left <= 0:
                raise Failure(self.args.get("msg") or self.reason(gone), elapsed=int(time.monotonic() - began),
                              found=self.last)
            time.sleep(min(self.args.get("sleep", 1), max(left, 0.01)))

    def reason(self, gone):
        subject = "%s:%s" % (self.host, self.port) if self.port else self.path
        if gone:
            return "Timeout when waiting for %s to %s." % (subject, "stop" if self.port else "be absent")
        if self.pattern is not None:
            return "Timeout when waiting for search string %s in %s" % (self.args["search_regex"], subject)
        return "Timeout when waiting for %s%s" % ("" if self.port else "file ", subject)

    def connect(self):
        left = max(self.end - time.monotonic(), 0.1)
        return socket.create_connection((self.host, self.port), min(self.args.get("connect_timeout", 5), left))

    def is_gone(self):
        if self.path:
            self.last = "%s is there" % self.path
            return not os.access(self.path, os.F_OK)
        try:
            self.connect().close()
        except OSError:
            return True
        self.last = "the port takes connections"
        return False

    def is_there(self):
        if self.path:
            return self._file()
        try:
            connection = self.connect()
        except OSError as error:
            self.last = str(error.strerror or error)
            return False
        try:
            return self.pattern is None or self._read(connection)
        finally:
            connection.close()

    def _file(self):
        try:
            os.stat(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise Failure("Failed to stat %s, %s" % (self.path, error.strerror))
            self.last = "%s is not there" % self.path
            return False
        if self.pattern is None:
            return True
        try:
            with open(self.path, "rb") as source:
                self.match = self.pattern.search(source.read())
        except OSError as error:
            self.last = "%s cannot be read: %s" % (self.path, error.strerror)
            return False
        self.last = "%s does not hold it" % self.path
        return self.match is not None

    def _read(self, connection):
        data = b""
        while time.monotonic() < self.end:
            ready, _, _ = select.select([connection], [], [], max(self.end - time.monotonic(), 0.01))
            if not ready:
                break
            part = connection.recv(4096)
            if not part:
                break
            data += part
            self.match = self.pattern.search(data)
            if self.match:
                return True
        self.last = "%d bytes came without it" % len(data)
        return False
