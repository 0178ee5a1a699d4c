"""A child of the agent under sudo: the same agent, as another account. Python 3.6.

sudo reads the password from standard input behind a prompt that we made up; one attempt. Python under it says `ready`
before it reads anything, so that nothing of the agent is taken for a password.
"""

import os
import signal
import sys
import time

from bringup.agent import bootstrap
from bringup.agent.wire import Closed, Wire

DEADLINE = 30.0
"""Seconds that sudo and Python may take to come up."""

PUZZLED = 3.0
"""Seconds after which a line of sudo that has no end is taken for a question."""

_REASONS = (
    ("must have a tty", "sudo asks for a terminal (requiretty in sudoers)",
     "remove `Defaults requiretty` for this account in sudoers"),
    ("is not in the sudoers file", "the account is not in sudoers",
     "add it to sudoers, or set bringup_privileged: false"),
    ("is not allowed to", "sudoers does not allow it", "allow it in sudoers, or set bringup_privileged: false"),
    ("may not run sudo", "sudoers does not allow it", "allow it in sudoers, or set bringup_privileged: false"),
    ("no new privileges", "the session must not gain privileges (no_new_privs)",
     "connect as root, or set bringup_privileged: false"),
    ("unknown user", "there is no such account", "check become_user"),
    ("account validation failure", "the account is locked or its password has expired", "unlock it on the host"),
    ("incorrect password attempt", "the sudo password is wrong", "give the right one: --ask-become-pass"),
    ("a terminal is required", "sudo asks for a terminal", "allow `sudo -S` for this account"),
    ("effective uid is not 0", "sudo is not installed setuid root, or its file system is mounted nosuid",
     "mend sudo on the host"),
)


class Elevated(object):
    """One sudo child: `starting`, then `up` or `failed` (with `reason` and `next`)."""

    def __init__(self, account, own_name, password, payload, hello):
        self.account = account
        self.own_name = own_name
        self.password = password
        self.payload = payload
        self.hello = hello
        self.state = "starting"
        self.reason = ""
        self.next = ""
        self.refused = False
        self.wire = None
        self.process = None
        self.error_fd = None
        self.deadline = 0.0
        self.found = ""
        self._pending = []
        token = bootstrap.token()
        self._prompt = ("[bringup-%s]" % token).encode()
        self._marker = ("agent-%s" % token).encode()
        self._ready = self._marker + b"? "
        self._errors = b""
        self._output = b""
        self._asked = False
        self._fed = False
        self._said = time.time()
        self.heard = time.time()

    def start(self, deadline):
        """Start sudo; the loop then watches out_fd and err_fd."""
        import subprocess

        code = bootstrap.line(self._marker.decode())
        argv = ["sudo", "-S", "-H", "-p", self._prompt.decode(), "-u", self.account, "--",
                sys.executable or "python3", "-SIE", "-c", code]
        environment = dict(os.environ, LC_ALL="C", LANGUAGE="C")
        self.deadline = deadline
        try:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, env=environment, start_new_session=True, bufsize=0)
        except OSError as error:
            self.fail("sudo cannot be started: %s" % (error.strerror or error),
                      "install sudo, connect as root, or set bringup_privileged: false")
            return
        # descriptors of our own: the loop closes them, and Popen must not close their numbers again later
        self.wire = Wire(os.dup(self.process.stdout.fileno()), os.dup(self.process.stdin.fileno()))
        self.error_fd = os.dup(self.process.stderr.fileno())
        os.set_blocking(self.error_fd, False)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def send(self, frame):
        if self.state == "up":
            self.wire.send(frame)
        else:
            self._pending.append(frame)

    def read_errors(self):
        """What sudo (or Python) says on standard error: perhaps the prompt. False at its end."""
        try:
            data = os.read(self.error_fd, 65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._errors = (self._errors + data)[-65536:]
        self._said = time.time()
        if self.state == "starting":
            self._answer()
        return bool(data)

    def take_errors(self):
        """What the child printed since the last call, as text."""
        text, self._errors = self._errors.decode("utf-8", "replace"), b""
        return text

    def _answer(self):
        count = self._errors.count(self._prompt)
        if count >= 1 and not self._asked:
            self._asked = True
            if self.password is None:
                self.fail("sudo asks for the password of %s and none was given" % self.own_name,
                          "add --ask-become-pass, or allow %s to use sudo without a password" % self.own_name)
                return
            self.wire.send((self.password + "\n").encode("utf-8"))
            self.wire.flush()
        if count >= 2 or (self._asked and b"Sorry, try again" in self._errors):
            self.fail("the sudo password of %s is wrong (one attempt was made)" % self.own_name,
                      "give the right one: --ask-become-pass")

    def read(self):
        """Frames of a child that is up; before that, the way there. Raises Closed."""
        if self.state == "up":
            return self.wire.read()
        try:
            data = os.read(self.wire.read_fd, 65536)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Closed(error.strerror)
        if not data:
            raise Closed("end of stream")
        self._output = self._output + data
        if not self._fed and self._ready in self._output:
            self._fed = True
            self._output = self._output.split(self._ready, 1)[1]
            self.wire.send(self.payload)
            self.wire.flush()
        if self._fed and self._marker + b"\n" in self._output:
            rest = self._output.split(self._marker + b"\n", 1)[1]
            self._output = b""
            self.state = "up"
            self.password = None
            for frame in [self.hello] + self._pending:
                self.wire.send(frame)
            self._pending = []
            return self.wire.decoder.feed(rest)
        return []

    def ended(self):
        """The child is gone: find the reason. Returns its exit status."""
        if self.state == "starting" and self.error_fd is not None:
            self.read_errors()
        began = time.time()
        asked = False
        while self.process.poll() is None and time.time() < began + 8.0:
            if time.time() > began + 2.0 and not asked:
                asked = True
                self.kill()
            time.sleep(0.005)
        status = self.process.returncode
        if self.state == "starting":
            self._explain(status)
        return status

    def puzzled(self, now):
        """True when sudo (or PAM below it) has asked something that is not our prompt and waits for the answer."""
        rest = self._errors.replace(self._prompt, b"")
        last = rest.rsplit(b"\n", 1)[-1].strip()
        if self._fed or not last or now - self._said < PUZZLED:
            return False
        text = last.decode("utf-8", "replace")
        self.fail("sudo asks something that is not the password: %s" % text,
                  "allow sudo with the password alone (or none) for this account", text)
        return True

    def _explain(self, status):
        if status is None:
            self.fail("sudo does not end")
            return
        text = self._errors.replace(self._prompt, b"").decode("utf-8", "replace").strip()
        for sign, reason, advice in _REASONS:
            if sign in text:
                self.refused = "password" not in reason
                self.fail(reason, advice, text)
                return
        if self._asked:
            self.fail("sudo did not accept the password of %s" % self.own_name,
                      "give the right one: --ask-become-pass", text)
            return
        self.fail("sudo ended with status %d" % status, "", text)

    def fail(self, reason, advice="", text=""):
        self.state = "failed"
        self.reason = reason
        self.next = advice
        self.found = text.splitlines()[-1] if text else ""
        self.password = None
        self._pending = []
        self.kill()

    def kill(self):
        """Only for a child that is not up: sudo may be root's, then closing its input ends it."""
        if self.process is None:
            return
        if self.wire is not None:
            self.wire.close_write()
        try:
            os.kill(self.process.pid, signal.SIGTERM)
        except OSError:
            pass  # it is root's, or gone: the closed input ends it

    def failure(self, host_user):
        """The result of a task that wanted this account."""
        out = {"failed": True, "msg": "cannot become %s: %s" % (self.account, self.reason), "elevation": True}
        if self.next:
            out["next"] = self.next
        if self.found:
            out["found"] = self.found
        out["connected_as"] = host_user
        return out
