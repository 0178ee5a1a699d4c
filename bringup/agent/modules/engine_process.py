"""Start, stop, watch and read one engine process of a release, whichever manager keeps it. Python 3.6.

Nothing is started beside a process of ours that runs another release, and nothing is ended that the record, the
control group or the mark in its environment does not prove to be ours.
"""

import os
import time

from bringup.agent.modules import python_env_check
from bringup.agent.processes import detached, launch, proc, systemd, watchers
from bringup.agent.processes.containers import Containers
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True,
               "choices": ["start", "stop", "status", "logs", "ports", "note", "prove"]},
    "name": {"type": "str"},
    "names": {"type": "list"},
    "manager": {"type": "str", "choices": ["systemd", "docker", "podman", "detached"], "default": "detached"},
    "release": {"type": "str"},
    "launch": {"type": "dict"},
    "account": {"type": "str"},
    "user": {"type": "str"},
    "grace": {"type": "float", "default": 30.0},
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "after": {"type": "dict", "default": {}},
    "lines": {"type": "int", "default": 0},
    "since": {"type": "float"},
    "wait": {"type": "float", "default": 0.0},
    "note": {"type": "dict", "default": {}},
    "ports": {"type": "list", "default": []},
    "addresses": {"type": "list", "default": []},
    "ending": {"type": "list", "default": []},
}

_MANAGERS = {"systemd": systemd, "docker": Containers("docker"), "podman": Containers("podman"), "detached": detached}
_SLICE = 1024 * 1024


def run(task):
    os.umask(0o022)  # the engines' account reads what is written here
    action = task.args["action"]
    if action == "ports":
        return {"changed": False, "taken": proc.clashes(task.args["ports"], task.args["addresses"])}
    if action == "status":
        return _status(task)
    place = launch.Place(task.root, task.args.get("name"))
    return {"start": _start, "stop": _stop, "logs": _logs, "note": _note, "prove": _prove}[action](task, place)


def _manager(record, default):
    return _MANAGERS[record.get("manager") or default]


def _record(task, place):
    """What is kept of the process; where that was lost, what the labels of its container say."""
    record = place.read()
    manager = _MANAGERS[task.args["manager"]]
    if not record and isinstance(manager, Containers):
        client = ((task.args.get("launch") or {}).get("container") or {}).get("client")
        return manager.found(place, client)
    return record


def _names(task):
    """The processes that were ever started here, those whose record was lost too."""
    known = launch.names(task.root)
    manager = _MANAGERS[task.args["manager"]]
    if isinstance(manager, Containers):
        known += [name for name in manager.names(task.root) if name not in known]
    return known


def state_of(place, record):
    """State, pid and processes of a recorded process, from the manager that keeps it."""
    return _manager(record, "detached").status(place, record)


def _one(task, name):
    place = launch.Place(task.root, name)
    record = _record(task, place)
    seen = _manager(record, task.args["manager"]).status(place, record)
    for key in ("release", "replica", "node", "node_rank", "role", "ranks", "world_size", "ports", "started", "run",
                "unit", "manager", "note", "stopped_at"):
        seen[key] = record.get(key)
    seen["name"] = name
    seen["missing"] = missing(record, seen)
    seen["watch"] = _watched(task, name)
    seen["uptime"] = round(time.time() - record["started"], 1) if seen["state"] == "running" else None
    return seen


def _watched(task, name):
    """What the watcher here wrote last, None without one."""
    place = watchers.Place(task.root, name)
    return (proc.read_json(place.state) or {}).get("report") or {} if watchers.is_there(place) else None


def missing(record, seen):
    """Rank processes that were there when the replica became ready and are gone now."""
    if seen["state"] != "running":
        return []
    there = set((p["pid"], p["ticks"]) for p in seen["pids"])
    return [p for p in (record.get("note") or {}).get("workers", []) if (p["pid"], p["ticks"]) not in there]


def _status(task):
    """The state of the named processes (all recorded ones when none is named); with `after`, new log lines too.

    `wait` seconds are spent at most, fewer when a line comes or a process ends.
    """
    names = task.args.get("names") or _names(task)
    end = time.time() + task.args["wait"]
    first = None
    while True:
        seen = dict((name, _one(task, name)) for name in names)
        news = False
        for name in names:
            if name in task.args["after"] and seen[name]["state"] != "absent":
                place = launch.Place(task.root, name)
                record = _record(task, place)
                lines, after = _manager(record, task.args["manager"]).read_log(
                    place, record, task.args["after"][name], _SLICE)
                seen[name]["lines"], seen[name]["after"] = lines, after
                news = news or bool(lines)
        states = dict((name, seen[name]["state"]) for name in names)
        first = first or states
        if news or states != first or "exited" in states.values() or time.time() >= end:
            return {"changed": False, "processes": seen, "boot_id": proc.boot_id(), "time": proc.now()}
        time.sleep(getattr(_MANAGERS[task.args["manager"]], "PAUSE", 0.1))


def _start(task, place):
    document = task.args.get("launch") or launch.load(place, task.args["release"])
    record = _record(task, place)
    manager = _MANAGERS[task.args["manager"]]
    seen = _manager(record, task.args["manager"]).status(place, record)
    if seen["state"] == "running":
        if record.get("release") == document["release"]:
            return {"changed": False, "record": record}
        raise Failure("%s runs release %s already" % (place.name, str(record.get("release"))[:12]),
                      expected="nothing of ours running there", next="invoke stop")
    if seen["leftover"]:
        raise Failure("%d processes of an earlier start of %s are still there" % (len(seen["leftover"]), place.name),
                      found=_told(seen["leftover"]), next="invoke stop")
    taken = proc.clashes(document["ports"], document.get("addresses") or [])
    if taken:
        raise Failure(_port_message(taken[0]), expected="ports %s free" % _ports(document["ports"]), taken=taken,
                      next=_ours(task, taken[0]) or "end that process, or choose another port in the inventory")
    if task.check:
        return {"changed": True}
    owner = launch.account(task)
    write_launch(place, document)
    record = manager.start(task, place, document, owner, task.args["secrets"])
    return {"changed": True, "record": record, "account": owner[0] if owner else None}


def _ours(task, item):
    """What ends the process that holds a port when we started it: one that an earlier plan had here; else None."""
    for name in launch.names(task.root):
        place = launch.Place(task.root, name)
        record = place.read()
        if record and item["pid"] in [p["pid"] for p in state_of(place, record)["pids"]]:
            return "it is ours, of an earlier plan (%s): invoke stop ends it" % name
    return None


def write_launch(place, document):
    """Put a launch document and its script where the release lies. True when either differed."""
    path, script = place.launch(document["release"]), place.script(document["release"])
    proc.make_folder(os.path.dirname(path))
    text = launch.script_text(document)
    try:
        with open(script, "rb") as handle:
            same = handle.read() == text.encode("utf-8") and proc.read_json(path) == document
    except OSError:
        same = False
    if not same:
        proc.write_json(path, document)
        proc.write_file(script, text, 0o755)
    return not same


def _ports(ports):
    return ", ".join(str(port) for port in ports)


def _port_message(item):
    who = "process %s (%s)" % (item["pid"], item["command"]) if item["pid"] else "a process that we may not see"
    return "port %d is taken by %s" % (item["port"], who)


def _told(processes):
    return "; ".join("%d %s" % (p["pid"], p["command"]) for p in processes[:5])


def _stop(task, place):
    """End the process for good: its watcher goes first, which would start it again."""
    watch = watchers.Place(task.root, place.name)
    watched = watchers.is_there(watch)
    if watched and not task.check:
        watchers.remove(watch)
    done = end(task, place)
    return dict(done, changed=done["changed"] or watched)


def end(task, place):
    """End the process and everything of it. Raises Failure when something outlives KILL."""
    record = _record(task, place)
    if not record:
        return {"changed": False, "leftover": [], "taken": []}
    manager = _manager(record, task.args["manager"])
    seen = manager.status(place, record)
    if seen["state"] != "running" and not seen["pids"]:
        return {"changed": False, "leftover": [], "taken": []}
    if task.check:
        return {"changed": True, "leftover": [], "taken": []}
    left = manager.stop(place, record, task.args["grace"])
    taken = proc.clashes(record.get("ports") or [], record.get("addresses") or [])
    if left:
        raise Failure("%d processes of %s outlived KILL" % (len(left), place.name), found=_told(left), leftover=left,
                      next="a process in uninterruptible sleep (state D) ends only with its device or the host")
    return {"changed": True, "leftover": left, "taken": taken}


def _logs(task, place):
    """Log lines: the last `lines` when no `after` is given, else what came since, waiting up to `wait` seconds."""
    record = _record(task, place)
    if not record:
        raise Failure("nothing was ever started here under the name %s" % place.name, next="invoke status")
    manager = _manager(record, task.args["manager"])
    after = task.args["after"].get(place.name)
    if after is None:
        lines, after = manager.tail(place, record, task.args["lines"] or 50)
        if task.args["since"] is not None:
            # by this host's own clock; a line without a time came with the one before it
            begin = time.time() - task.args["since"]
            lines = [line for at, line in enumerate(lines) if _moment(lines, at) >= begin]
        return {"changed": False, "lines": lines, "after": after}
    end = time.time() + task.args["wait"]
    while True:
        lines, after = manager.read_log(place, record, after, _SLICE)
        if lines or time.time() >= end:
            return {"changed": False, "lines": lines, "after": after}
        time.sleep(getattr(manager, "PAUSE", 0.1))


def _moment(lines, at):
    return next((lines[i][0] for i in range(at, -1, -1) if lines[i][0]), 0.0)


def _note(task, place):
    """Keep what was found out about a running process beside its record: ready time, ranks, its rank processes."""
    record = _record(task, place)
    if not record:
        raise Failure("nothing of ours was started here under the name %s" % place.name)
    record["note"] = dict(task.args["note"])
    return {"changed": False, "workers": note_ranks(place, record, write=not task.check)}


def note_ranks(place, record, write=True):
    """Keep the rank processes that run now beside the record, so that one that goes later is missed."""
    seen = _manager(record, "detached").status(place, record)
    note = dict(record.get("note") or {})
    note["workers"] = [p for p in seen["pids"] if p["pid"] == seen["pid"] or _is_rank(p)]
    record["note"] = note
    if write:
        proc.write_json(place.record, record)
    return note["workers"]


def _is_rank(process):
    title = process["command"]
    return title.startswith(("VLLM::", "sglang::")) or process["comm"].startswith(("VLLM::", "sglang::"))


def _prove(task, place):
    """Whether this process of a release can start now: program, CUDA toolkit, the model's folder, the ports."""
    document = task.args.get("launch") or launch.load(place, task.args["release"])
    problems = []
    values = document.get("values") or {}
    if values.get("environment"):
        reason = python_env_check.unsound(values["env"], values["environment"])
        if reason is not None:
            problems.append({"check": "environment", "found": "%s: %s" % (values["env"], reason),
                             "next": "invoke provision builds it again"})
    program = document["argv"][0]
    if document.get("container"):
        kind = document["container"]["client_kind"]
        problems += _MANAGERS[kind].prove(place, document)
    elif not problems and (not program.startswith("/") or not os.path.isfile(program)
                           or not os.access(program, os.X_OK)):
        problems.append({"check": "environment", "found": "%s is not there or cannot be run" % program,
                         "next": "invoke provision builds it again"})
    home = values.get("cuda_home")
    if home and not document.get("container") and not os.access(os.path.join(home, "bin", "nvcc"), os.X_OK):
        problems.append({"check": "toolkit", "found": "the CUDA toolkit %s is gone: what engines compile at run time "
                         "takes it" % home, "next": "invoke provision finds the one that is there"})
    model = document.get("model_path")
    if model and model.startswith("/") and not os.path.exists(model):
        problems.append({"check": "model", "found": "%s is not there" % model, "next": "bring the weights back"})
    record = _record(task, place)
    manager = _manager(record, task.args["manager"])
    seen = manager.status(place, record)
    mine = set(p["pid"] for p in seen["pids"])
    # a published port is held by a process of the container engine, for us
    published = record.get("ports") or [] if isinstance(manager, Containers) and seen["state"] == "running" else []
    for name in task.args["ending"]:  # processes of an earlier plan that end before this one starts
        other = launch.Place(task.root, name)
        kept = other.read()
        mine.update(p["pid"] for p in state_of(other, kept)["pids"])
        if kept.get("manager") in ("docker", "podman"):
            published = published + (kept.get("ports") or [])
    for item in proc.clashes(document["ports"], document.get("addresses") or []):
        if item["port"] not in published and (item["pid"] is None or item["pid"] not in mine):
            problems.append({"check": "port", "found": _port_message(item),
                             "next": _ours(task, item) or "end that process"})
    return {"changed": False, "problems": problems}
