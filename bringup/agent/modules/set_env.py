"""What set_env scripts set: sourced once, in order, in a clean shell, on the host or in an image. Python 3.6.

The shell starts with nothing but a plain PATH and HOME (in an image: with the image's own variables). Functions and
what the shell itself keeps are left out.
"""

import os

from bringup.agent.processes import container_client
from bringup.agent.processes.launch import CLEAN_PATH
from bringup.agent.task import Failure

ARGUMENTS = {
    "scripts": {"type": "list", "required": True},
    "client": {"type": "str"},
    "image": {"type": "str"},
}
_OWN = ("_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS", "HOME", "HOSTNAME", "BRINGUP_RUN")
_MARK = "-- bringup: before, after --"
# the scripts look at BASH_SOURCE and read variables that are not set: bash, without -u
_SHELL = r'''
env -0; printf '%s\0' "$1"; shift
for script in "$@"; do
    [ -f "$script" ] || { echo "missing $script" >&2; exit 3; }
    . "$script" >&2 || { echo "failed $script" >&2; exit 4; }
done
env -0
'''


def run(task):
    scripts = [str(path) for path in task.args["scripts"]]
    words = ["-c", _SHELL, "set_env", _MARK] + scripts
    image = task.args.get("image")
    if image:
        program = container_client.path_of(task.args.get("client") or "docker")
        argv = [program, "run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "/bin/bash", image]
        done = task.command(argv + ["--noprofile", "--norc"] + words, timeout=120)
    else:
        clean = ["env", "-i", "PATH=" + CLEAN_PATH, "HOME=" + os.path.expanduser("~"), "LANG=C.UTF-8"]
        done = task.command(clean + ["/bin/bash", "--noprofile", "--norc"] + words, timeout=120)
    if done.rc != 0:
        raise _failure(done, scripts, image)
    before, _, after = done.stdout.partition(_MARK + "\0")
    was, now = _variables(before), _variables(after)
    changed = dict((name, value) for name, value in now.items() if was.get(name) != value and name not in _OWN)
    return {"changed": False, "variables": changed, "scripts": scripts}


def _failure(done, scripts, image):
    where = "in the image" if image else "on this host"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if last.startswith("missing "):
        return Failure("%s is not there %s" % (last[8:], where), expected="the scripts of CANN and NNAL",
                       next="install them, or name the right ones: deployment: set_env: [PATH, ...]")
    return Failure("the scripts cannot be sourced %s" % where, rc=done.rc, stderr=done.stderr[-400:],
                   found=last or "exit status %s" % done.rc, next="bash -c '. %s'" % (scripts[0] if scripts else ""))


def _variables(text):
    out = {}
    for item in text.split("\0"):
        name, equals, value = item.partition("=")
        if equals and not name.startswith("BASH_FUNC_"):
            out[name] = value
    return out
