"""Run a line through a shell of the host."""

from bringup.agent.modules import command
from bringup.agent.task import Failure

FREE_FORM = "cmd"
ARGUMENTS = {
    "cmd": {"type": "str", "required": True},
    "chdir": {"type": "path"},
    "creates": {"type": "path"},
    "removes": {"type": "path"},
    "executable": {"type": "path"},
    "stdin": {"type": "str"},
    "stdin_add_newline": {"type": "bool", "default": True},
    "strip_empty_ends": {"type": "bool", "default": True},
}


def run(task):
    line = task.args.get("cmd")
    if not line:
        raise Failure("no command given", rc=256)
    executable = task.args.get("executable") or "/bin/sh"
    return command.execute(task, line, line, shell=True, executable=executable)
