"""Set up, take away or ask the watcher of an engine process on this host. Python 3.6.

`set` writes the spec (its key is readable for root, or us, alone) and starts the watcher in place of one that is
there; `program` is the SHA-256 of the packed program, which comes along when it is missing. `remove` ends it. `status`
gives what it wrote last, and whether it lives.
"""

import os
import shutil

from bringup.agent.processes import proc, systemd, watchers
from bringup.agent.watcher import main as watcher

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["set", "remove", "status"]},
    "name": {"type": "str", "required": True},
    "program": {"type": "str"},
    "spec": {"type": "dict", "no_log": True},
    "manager": {"type": "str", "default": "detached"},
}

USUAL_TICK = 2.0
"""Seconds between two looks of a watcher."""


def run(task):
    place = watchers.Place(task.root, task.args["name"])
    action = task.args["action"]
    if action == "status":
        spec = proc.read_json(place.spec) or {}
        return {"changed": False, "there": watchers.is_there(place), "alive": watchers.alive(place),
                "wanted": spec.get("wanted"), "generation": spec.get("generation"),
                "report": (proc.read_json(place.state) or {}).get("report")}
    if task.check:
        return {"changed": action == "set" or watchers.is_there(place)}
    if action == "remove":
        return {"changed": watchers.remove(place)}
    os.umask(0o022)
    proc.make_folder(place.folder)
    proc.make_folder(os.path.dirname(place.spec), 0o700)
    program = place.program(task.args["program"])
    if not os.path.exists(program):
        staged = "%s.%d" % (program, os.getpid())
        shutil.copyfile(task.blob(task.args["program"]), staged)
        os.rename(staged, program)
    spec = dict(task.args["spec"], root=task.root, name=task.args["name"], manager=task.args["manager"],
                state=place.state)
    spec.setdefault("tick", USUAL_TICK)
    watchers.remove(place)  # with what it remembers: this is a new beginning
    proc.write_file(place.spec, watcher.text_of(spec), 0o600)
    watchers.start(place, program, spec, systemd.available() and os.geteuid() == 0)
    return {"changed": True, "pid": (proc.read_json(place.record) or {}).get("pid")}
