"""What the settings of a host share."""

import abc
import os

from bringup.agent.modules import _files
from bringup.agent.task import Failure


class Setting(abc.ABC):
    """One setting: why the host lacks it, what is wrong with it, what it was, how to set it and to put it back.

    `place` is put before every path; tests give a folder there.
    """

    name = ""

    def __init__(self, task, place=""):
        self.task = task
        self.place = place

    def path(self, path):
        return self.place + path

    def text(self, path, default=None):
        """A file's text, the default where it is not there or cannot be read."""
        try:
            with open(self.path(path), "rb") as source:
                return source.read().decode("utf-8", "surrogateescape")
        except OSError:
            return default

    def write(self, path, text, mode=0o644):
        """A file of ours or of the host, whole or not at all; its folder is made."""
        full = self.path(path)
        folder = os.path.dirname(full)
        if not os.path.isdir(folder):
            os.makedirs(folder)
        args = {} if os.path.exists(full) else {"mode": mode}
        _files.replace(self.task, os.path.realpath(full), text.encode("utf-8", "surrogateescape"), args)

    def put_back(self, path, text):
        """A file as it was: its text, or gone for None."""
        if text is None:
            if os.path.exists(self.path(path)):
                os.unlink(self.path(path))
        else:
            self.write(path, text)

    def poke(self, path, value):
        """Write a value into /proc or /sys."""
        try:
            with open(self.path(path), "w") as target:
                target.write(value)
        except OSError as error:
            raise Failure("cannot write %s to %s: %s" % (value, path, error.strerror), path=path)

    def writable(self, path):
        """Whether the kernel lets this process write there (in containers /proc/sys and /sys are read-only)."""
        try:
            os.close(os.open(self.path(path), os.O_WRONLY))
        except OSError:
            return False
        return True

    def command(self, *words, **options):
        """Run a command; raises Failure when it ends otherwise than with 0."""
        done = self.task.command(list(words), environment={"LC_ALL": "C.UTF-8"}, timeout=options.get("timeout", 60))
        if done.rc != 0:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise Failure("%s ended with %s" % (" ".join(words), done.rc), rc=done.rc, stdout=done.stdout,
                          stderr=done.stderr, found=lines[-1] if lines else "")
        return done.stdout

    def ask(self, *words):
        """What a command prints; "" when it is not there or fails."""
        try:
            done = self.task.command(list(words), environment={"LC_ALL": "C.UTF-8"}, timeout=30)
        except Failure:
            return ""
        return done.stdout if done.rc == 0 else ""

    def diff(self):
        return [{"before": "".join(line + "\n" for line in self.wrong()), "after": ""}]

    def missing(self):
        return None

    @abc.abstractmethod
    def wrong(self):
        """What is not as it should be: lines of text; none when all is well."""

    @abc.abstractmethod
    def before(self):
        """The values to keep, so that they can be put back."""

    @abc.abstractmethod
    def apply(self):
        """Change what is wrong."""

    @abc.abstractmethod
    def restore(self, kept):
        """Put the kept values back."""


def container():
    """The kind of container that this process runs in, "" outside of one."""
    text = ""
    try:
        with open("/run/systemd/container") as source:
            text = source.read().strip()
    except OSError:
        pass
    if not text and (os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")):
        text = "docker"
    return text
