"""The Docker or Podman client of this host: found, called, its words understood. Python 3.6."""

import calendar
import json
import os
import re
import subprocess
import time

from bringup.agent.processes.launch import CLEAN_PATH
from bringup.agent.task import Failure

_MENDS = (
    ("permission denied while trying to connect", "let the run become root, or add the account to the group docker"),
    ("cannot connect to the docker daemon", "systemctl start docker"),
    ("could not select device driver", "install nvidia-container-toolkit, then: nvidia-ctk runtime configure "
                                       "--runtime=docker && systemctl restart docker"),
    ("unknown or invalid runtime name", "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"),
    ("unresolvable cdi devices", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    ("no such image", "invoke provision brings it"),
    ("port is already allocated", "end what holds the port, or choose another in the inventory"),
    ("no space left on device", "free disk under the folder that `docker info` names as root"),
)


def path_of(client):
    """The client's path. Raises Failure when it is not on this host."""
    folders = os.environ.get("PATH", "").split(":") + CLEAN_PATH.split(":")
    for path in [client] if "/" in client else [os.path.join(folder, client) for folder in folders if folder]:
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise Failure("%s is not on this host" % client, expected="the client of a container engine",
                  next="install it, or choose another manager: systemd, detached")


def call(client, *words, **options):
    """Run the client: (exit status, standard output, standard error) as texts. Raises Failure when it hangs."""
    argv = (path_of(client),) + words
    timeout = options.get("timeout", 60)
    try:
        done = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True)
    except OSError as error:
        raise Failure("cannot run %s: %s" % (argv[0], error.strerror))
    try:
        out, err = done.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        done.kill()
        done.communicate()
        raise Failure("%s %s did not answer within %d s" % (client, words[0], timeout),
                      next="look at the container engine: systemctl status docker")
    return done.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def failure(client, what, code, text):
    """The Failure for words of the client that did not work, with what mends it where that is known."""
    lowered = text.lower()
    mend = next((mend for sign, mend in _MENDS if sign in lowered), None)
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("See '")]
    return Failure("%s: %s" % (what, lines[0] if lines else "%s ended with %s" % (client, code)), rc=code,
                   stderr=text.strip(), next=mend)


def inspect(client, kind, name):
    """The client's document of a container or image, None when there is none. Raises Failure for anything else."""
    words = ("image", "inspect", name) if kind == "image" else ("inspect", "--type", "container", name)
    code, out, err = call(client, *words)
    if code == 0:
        try:
            found = json.loads(out)
        except ValueError:
            raise Failure("%s inspect printed no JSON" % client, stdout=out[:400])
        return found[0] if found else None
    lowered = err.lower()
    if "no such" in lowered or "not known" in lowered or "not found" in lowered or "no container with" in lowered:
        return None
    raise failure(client, "%s cannot be asked" % client, code, err)


_TIME = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(\.\d+)? ?(Z|[+-]\d\d:?\d\d)?")


def moment(text):
    """Seconds since the epoch of an RFC 3339 time, None where it is none (a container that never ended has year 1)."""
    match = _TIME.match(text or "")
    if match is None or text.startswith("0001-"):
        return None
    seconds = calendar.timegm(time.strptime(match.group(1).replace(" ", "T"), "%Y-%m-%dT%H:%M:%S"))
    zone = match.group(3) or "Z"
    if zone != "Z":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        seconds -= minutes * 60 * (1 if zone[0] == "+" else -1)
    return seconds + float(match.group(2) or 0)
