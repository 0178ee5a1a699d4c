"""The managers `docker` and `podman`: one container an engine process, ours by its labels. Python 3.6.

A container that ended is kept until the next start of the same process, so that its log can be read. What outlives
its container (a rank that the engine lost sight of) is found by the mark in its environment.
"""

import json
import os
import signal
import time

from bringup.agent.processes import container_client as client_of
from bringup.agent.processes import container_words as words_of
from bringup.agent.processes import launch as launches
from bringup.agent.processes import proc
from bringup.agent.task import Failure

_KEPT = ("release", "replica", "node", "node_rank", "role", "ranks", "world_size", "ports", "addresses", "mark")


class Containers(object):
    """A manager; `kind` is docker or podman."""

    PAUSE = 0.5
    """Seconds between two looks: each is a call of the client."""

    def __init__(self, kind, seen=None):
        self.kind = kind
        self.seen = seen or words_of.Host()

    def _client(self, record):
        return record.get("client") or self.kind

    def found(self, place, client=None):
        """The record of a container of ours that has none on disk, made of its labels; {} when there is none."""
        client = client or self.kind
        try:
            seen = client_of.inspect(client, "container", words_of.container_name(place.name))
        except Failure:
            return {}  # no client or no engine: then nothing of ours runs under it
        labels = ((seen or {}).get("Config") or {}).get("Labels") or {}
        if labels.get(words_of.ROOT_LABEL) != place.root or labels.get(words_of.NAME_LABEL) != place.name:
            return {}
        record = json.loads(labels.get(words_of.RECORD_LABEL) or "{}")
        state = seen.get("State") or {}
        record.update(name=place.name, manager=self.kind, client=client, container=seen["Id"], boot_id=proc.boot_id(),
                      started=client_of.moment(state.get("StartedAt")) or proc.now(), stopped=False, run=None)
        return record

    def names(self, root):
        """Processes of ours that have a container here, whether or not their record is left."""
        try:
            code, out, _ = client_of.call(self.kind, "ps", "--all", "--filter",
                                          "label=%s=%s" % (words_of.ROOT_LABEL, root), "--format", "{{.Names}}")
        except Failure:
            return []
        lead = words_of.container_name("")
        return sorted(line[len(lead):] for line in out.split() if line.startswith(lead)) if code == 0 else []

    def status(self, place, record):
        """What is known about the process: state (running, exited, stopped, absent), pids, exit."""
        out = {"state": "absent", "pid": None, "pids": [], "leftover": [], "exit": None}
        if not record:
            return out
        seen = client_of.inspect(self._client(record), "container", record["container"])
        state = (seen or {}).get("State") or {}
        members = self._members(record, state)
        out["pids"] = [_shown(member) for member in members]
        if state.get("Running"):
            out.update(state="running", pid=int(state.get("Pid") or 0) or None)
            return out
        out["exit"] = _exit(state) if seen else {"code": None, "signal": None, "at": None,
                                                 "reason": "its container was removed by somebody else"}
        out["state"] = "stopped" if record.get("stopped") else "exited"
        out["leftover"] = out["pids"]
        return out

    def _members(self, record, state):
        """Processes of the container's control group, and those that carry our mark wherever they are."""
        everyone = proc.processes()
        mine = set(p["pid"] for p in everyone if record.get("mark") and proc.marked(p["pid"], record["mark"]))
        pid = int(state.get("Pid") or 0)
        if state.get("Running") and pid:
            group = _group_of(pid, record["container"])
            mine.update(p["pid"] for p in proc.of_cgroup(group))
        return [p for p in everyone if p["pid"] in mine]

    def start(self, task, place, document, owner, secrets):
        """Run the container. Returns the record. Raises Failure with the client's own words and what mends it."""
        box = document.get("container")
        if not box:
            raise Failure("the release was not made for containers", expected="a release with an image",
                          next="invoke provision")
        client = box.get("client") or self.kind
        self._make_room(place, client)
        lacking = words_of.needed(document, self.seen)
        if lacking:
            raise Failure("%s is not on this host: %s that the container needs" % lacking[0], next="invoke preflight",
                          found="missing: " + ", ".join(path for path, _ in lacking))
        launches.prepare(place, owner, {})
        if box.get("caches"):
            launches.make_caches(place, box["caches"], owner)
        mark = "|".join((task.root, place.name, "%x-%x" % (int(time.time() * 1000), os.getpid())))
        env_file = _write_secrets(place, secrets)
        argv = words_of.run_words(place, document, owner, env_file, task.args["grace"], mark, self.seen)
        try:
            code, out, err = client_of.call(client, "run", *argv, timeout=300)
        finally:
            if env_file:
                os.unlink(env_file)  # the container has them now; one copy less
        if code != 0:
            self._clear(place, client)
            raise client_of.failure(client, "the container of %s was not started" % place.name, code, err)
        container = out.strip().splitlines()[-1]
        seen = client_of.inspect(client, "container", container) or {}
        state = seen.get("State") or {}
        pid = int(state.get("Pid") or 0)
        record = dict((key, document.get(key)) for key in _KEPT)
        record.update(name=place.name, manager=self.kind, client=client, container=container, mark=mark,
                      image=box["image"], addresses=document.get("addresses") or [], boot_id=proc.boot_id(),
                      run=task.run_id, stopped=False, pid=pid or None, ticks=(proc.stat(pid) or {}).get("ticks")
                      if pid else None, started=proc.now(), unit=words_of.container_name(place.name))
        proc.write_json(place.record, record)
        return record

    def _make_room(self, place, client):
        """Remove the container of an earlier start; one that is not ours stays, and nothing is started."""
        name = words_of.container_name(place.name)
        seen = client_of.inspect(client, "container", name)
        if seen is None:
            return
        labels = (seen.get("Config") or {}).get("Labels") or {}
        if labels.get(words_of.ROOT_LABEL) != place.root:
            raise Failure("the container %s was not made by bringup here; it is left alone" % name,
                          found="label %s=%s" % (words_of.ROOT_LABEL, labels.get(words_of.ROOT_LABEL) or "none"),
                          next="%s rename or rm it" % client)
        if (seen.get("State") or {}).get("Running"):
            raise Failure("the container %s runs already" % name, next="invoke stop")
        self._remove(client, seen["Id"])

    def _clear(self, place, client):
        """A container that could not start is left behind as `created`: remove it, ours only."""
        seen = client_of.inspect(client, "container", words_of.container_name(place.name))
        labels = ((seen or {}).get("Config") or {}).get("Labels") or {}
        if seen and labels.get(words_of.ROOT_LABEL) == place.root and not (seen.get("State") or {}).get("Running"):
            self._remove(client, seen["Id"])

    def _remove(self, client, container):
        code, _, err = client_of.call(client, "rm", container)
        if code != 0:
            raise client_of.failure(client, "the container of the last start cannot be removed", code, err)

    def stop(self, place, record, grace):
        """TERM, grace, KILL by the engine, then what outlived its container. Returns the processes that are left."""
        client = self._client(record)
        code, _, err = client_of.call(client, "stop", "-t", "%d" % max(0, int(round(grace))), record["container"],
                                      timeout=grace + 60)
        seen = client_of.inspect(client, "container", record["container"])
        state = (seen or {}).get("State") or {}
        if state.get("Running"):
            raise client_of.failure(client, "%s was not stopped" % words_of.container_name(place.name), code, err)
        left = self._end(record)
        record["stopped"] = True
        record["stopped_at"] = proc.now()
        proc.make_folder(place.folder)
        proc.write_json(place.record, record)
        return [_shown(member) for member in left]

    def _end(self, record):
        end = time.time() + 5.0
        while True:
            left = self._members(record, {})
            if not left or time.time() >= end:
                return left
            for member in left:
                if proc.alive(member["pid"], member["ticks"]):
                    try:
                        os.kill(member["pid"], signal.SIGKILL)
                    except OSError:
                        continue  # gone meanwhile, or not ours to end: looked at again
            time.sleep(0.05)

    def read_log(self, place, record, after, limit):
        """Lines behind a time: ([[time, text], ...], the next place). The place is the last line's time and how many
        lines had just that time."""
        stamp, _, count = (after or "").partition("#")
        lines = self._lines(record, *(["--since", stamp] if stamp else []))
        skip = int(count or 0)
        if stamp:
            fresh = [line for line in lines if line[0] > stamp]
            same = [line for line in lines if line[0] == stamp]
            lines = same[skip:] + fresh
        return _told(lines), _place(lines, after, stamp, skip)

    def tail(self, place, record, count):
        """The last lines of this start, and the place behind them."""
        lines = self._lines(record, "--tail", "%d" % count)[-count:]
        return _told(lines), _place(lines, "", "", 0)

    def _lines(self, record, *words):
        """(stamp, text) of both streams in the order of time."""
        code, out, err = client_of.call(self._client(record), "logs", "--timestamps", *(words + (record["container"],)))
        if code != 0:
            return []
        found = []
        for text in out.split("\n") + err.split("\n"):
            stamp, _, line = text.partition(" ")
            if client_of.moment(stamp) is not None:
                found.append((_padded(stamp), line.rstrip("\r")))
        return sorted(found, key=lambda item: item[0])

    def prove(self, place, document):
        """What keeps this process from starting as a container: the engine, the image, devices and files."""
        box = document.get("container")
        if not box:
            return [{"check": "image", "found": "the release was not made for containers", "next": "invoke provision"}]
        client = box.get("client") or self.kind
        try:
            image = client_of.inspect(client, "image", box["image"])
        except Failure as failed:
            return [{"check": "container", "found": failed.message, "next": failed.fields.get("next")}]
        problems = []
        if image is None:
            problems.append({"check": "image", "found": "the image %s is not here" % box["image"],
                             "next": "invoke provision brings it"})
        problems += [{"check": "device", "found": "%s is not on this host: %s that the container needs" % item,
                      "next": "invoke preflight"} for item in words_of.needed(document, self.seen)]
        return problems


def _place(lines, after, stamp, skip):
    if not lines:
        return after or ""
    last = lines[-1][0]
    count = sum(1 for line in lines if line[0] == last)
    return "%s#%d" % (last, count + (skip if last == stamp else 0))


def _padded(stamp):
    """A time whose text sorts as the time does: Docker drops zeros at the end of the fraction."""
    head, dot, rest = stamp.partition(".")
    if not dot:
        return stamp if not stamp.endswith("Z") else "%s.%s" % (stamp[:-1], "0" * 9) + "Z"
    digits = rest[:len(rest) - len(rest.lstrip("0123456789"))]
    return "%s.%s%s" % (head, digits.ljust(9, "0"), rest[len(digits):])


def _told(lines):
    return [[client_of.moment(stamp), text] for stamp, text in lines]


def _exit(state):
    code = state.get("ExitCode")
    signalled = isinstance(code, int) and 128 < code < 160
    out = {"code": None if signalled else code, "signal": code - 128 if signalled else None,
           "at": client_of.moment(state.get("FinishedAt"))}
    if state.get("OOMKilled"):
        out["reason"] = "the kernel ended it: its control group was out of memory"
    elif state.get("Error"):
        out["reason"] = state["Error"]
    return out


def _group_of(pid, container):
    """The control group of a container's first process; None where its name does not name the container."""
    try:
        with open("/proc/%d/cgroup" % pid) as handle:
            groups = [line.rstrip("\n").split(":", 2)[-1] for line in handle]
    except OSError:
        return None
    return next((group for group in groups if container[:12] in group), None)


def _shown(member):
    return {"pid": member["pid"], "ticks": member["ticks"], "comm": member["comm"],
            "command": proc.command_line(member["pid"])}


def _write_secrets(place, secrets):
    """The secrets as the client reads them (NAME=VALUE, no quoting), 0600; None without any."""
    if not secrets:
        return None
    for value in secrets.values():
        if "\n" in str(value) or "\0" in str(value):
            raise Failure("a secret for the engine holds a line break: it cannot be given in its environment")
    proc.make_folder(os.path.dirname(place.secrets), 0o700)
    proc.write_file(place.secrets, "".join("%s=%s\n" % (name, secrets[name]) for name in sorted(secrets)), 0o600)
    return place.secrets
