"""A pair of descriptors that speaks frames and never blocks. Python 3.6."""

import os

from bringup.agent.frames import Decoder

HIGH = 1024 * 1024
"""With more than this waiting to go out, nothing more is taken from who produces it."""


class Closed(Exception):
    """The other side is gone."""


class Wire(object):
    """Reads frames from one descriptor, writes them to another; `waiting` bytes have not gone out yet."""

    def __init__(self, read_fd, write_fd):
        self.read_fd = read_fd
        self.write_fd = write_fd
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self.decoder = Decoder()
        self._out = []
        self.waiting = 0
        self.broken = False

    def read(self):
        """The frames that are there. Raises Closed at the end of the stream, BadFrame when it is not ours."""
        try:
            data = os.read(self.read_fd, 262144)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Closed(error.strerror)
        if not data:
            raise Closed("end of stream")
        return self.decoder.feed(data)

    def send(self, frame):
        """Queue a frame; flush() writes it."""
        if not self.broken:
            self._out.append(frame)
            self.waiting += len(frame)

    def take_back(self, frame):
        """Undo send() of the frame that was queued last, when nothing of it has gone out."""
        if self._out and self._out[-1] is frame:
            self._out.pop()
            self.waiting -= len(frame)

    def flush(self):
        """Write what the other side takes now. A broken pipe drops all of it and sets `broken`."""
        while self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            try:
                count = os.write(self.write_fd, data)
            except BlockingIOError:
                self._out = [data]
                return
            except OSError:
                self.broken = True
                self._out = []
                self.waiting = 0
                return
            self.waiting -= count
            self._out = [data[count:]] if count < len(data) else []

    def close_write(self):
        """Let the other side see the end of what we send."""
        if self.write_fd is not None and self.write_fd != self.read_fd:
            os.close(self.write_fd)
        self.write_fd = None
        self.broken = True
        self._out = []
        self.waiting = 0

    def close(self):
        for fd in {self.read_fd, self.write_fd} - {None}:
            os.close(fd)
        self.read_fd = self.write_fd = None
        self.broken = True
        self._out = []
        self.waiting = 0
