"""The manager for hosts without systemd: a session of its own, a keeper that waits, a record to prove it. Python 3.6.

The keeper is a small process that outlives the agent: it leads the session, starts the engine in a process group of
its own, notes how it ended, and ends what the engine leaves behind. The engine writes straight into its log, so that
the keeper's end is not the engine's end.
"""

import os
import signal
import time

from bringup.agent.processes import launch as launches
from bringup.agent.processes import proc
from bringup.agent.task import Failure

LOG_KEPT = 64 * 1024 * 1024
"""Bytes: a log longer than this at a start is put aside as log.1 and begun anew."""
_TIMES_KEPT = 2 * 1024 * 1024


def status(place, record):
    """What is known about the process: state (running, exited, stopped, absent), pids, exit."""
    out = {"state": "absent", "pid": None, "pids": [], "leftover": [], "exit": None}
    if not record:
        return out
    members = proc.of_session(record)
    out["pids"] = _shown(members)
    pid = record.get("pid")
    if record.get("boot_id") == proc.boot_id() and pid and proc.alive(pid, record.get("ticks")):
        out.update(state="running", pid=pid)
        return out
    out["exit"] = _how_it_ended(place, record)
    if record.get("stopped"):
        out["state"] = "stopped"
    else:
        out["state"] = "exited"
        if out["exit"] is None and record.get("boot_id") != proc.boot_id():
            out["exit"] = {"code": None, "signal": None, "at": None, "reason": "the host was rebooted"}
    out["leftover"] = out["pids"]
    return out


def _how_it_ended(place, record):
    """The exit as the keeper wrote it; it needs a moment after the engine's end."""
    end = time.time() + 1
    while True:
        seen = proc.read_json(place.exit)
        if seen is not None or time.time() >= end or not proc.alive(record.get("keeper") or 0,
                                                                    record.get("keeper_ticks")):
            return seen or proc.read_json(place.exit)
        time.sleep(0.02)


def _shown(members):
    return [{"pid": p["pid"], "ticks": p["ticks"], "comm": p["comm"], "command": proc.command_line(p["pid"])}
            for p in members]


def start(task, place, document, owner, secrets):
    """Start the engine of a launch document. Returns the record. Raises Failure when it cannot be started."""
    launches.prepare(place, owner, secrets)
    if os.path.exists(place.log) and os.path.getsize(place.log) > LOG_KEPT:
        os.rename(place.log, place.log + ".1")
    for path in (place.exit, place.times):
        if os.path.exists(path):
            os.unlink(path)
    offset = os.path.getsize(place.log) if os.path.exists(place.log) else 0
    nonce = "%x-%x" % (int(time.time() * 1000), os.getpid())
    mark = "|".join((task.root, place.name, nonce))
    record = {"name": place.name, "manager": "detached", "release": document["release"],
              "replica": document["replica"], "node": document["node"], "node_rank": document["node_rank"],
              "role": document["role"], "ranks": document["ranks"], "world_size": document["world_size"],
              "ports": document["ports"], "addresses": document.get("addresses") or [], "mark": mark,
              "boot_id": proc.boot_id(), "log_from": offset, "run": task.run_id, "stopped": False}
    env = {"PATH": launches.CLEAN_PATH, "LANG": "C.UTF-8", "HOME": launches.home(place, owner),
           proc.MARK: mark}
    env.update(launches.read_secrets(place))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _keeper(place, record, ["/bin/sh", place.script(document["release"])], env, owner, writing)
        finally:
            os._exit(1)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as handle:
        answer = handle.read().decode("utf-8", "replace")
    if answer != "started":
        raise Failure("cannot start %s: %s" % (place.name, answer or "the keeper ended at once"))
    return place.read()


def _keeper(place, record, argv, env, owner, writing):
    """Become the keeper: leave the agent's session, start the engine, wait for it, write down how it ended."""
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _close_others((null, log, writing))
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.chdir("/")
    try:
        engine = os.fork()
        if engine == 0:
            try:
                _become_engine(place, argv, env, owner, log)
            finally:
                os._exit(127)
        record.update(pid=engine, session=os.getpid(), keeper=os.getpid(), started=proc.now(),
                      ticks=(proc.stat(engine) or {}).get("ticks"),
                      keeper_ticks=(proc.stat(os.getpid()) or {}).get("ticks"))
        proc.write_json(place.record, record)
        os.write(writing, b"started")
    except OSError as error:
        os.write(writing, str(error).encode("utf-8"))
        os._exit(1)
    os.close(writing)
    _wait(place, engine, log, record)
    os._exit(0)


def _close_others(kept):
    try:
        opened = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        opened = range(3, 4096)
    for number in opened:
        if number not in kept and number > 2:
            try:
                os.close(number)
            except OSError:
                continue


def _become_engine(place, argv, env, owner, log):
    os.setpgid(0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ImportError, ValueError, OSError):
        pass  # without root the limit stays as it is: preflight reports it (memlock)
    try:
        if owner is not None and owner[1] != 0:
            os.initgroups(owner[0], owner[2])
            os.setgid(owner[2])
            os.setuid(owner[1])
        os.chdir(place.work)
        os.execve(argv[0], argv, env)
    except OSError as error:
        os.write(2, ("bringup: cannot run %s: %s\n" % (argv[0], error)).encode("utf-8"))


def _wait(place, engine, log, record):
    """Note when the log grew (offset and time) until the engine ends, then how it ended; then end what is left."""
    times = os.open(place.times, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    size, written = record["log_from"], 0
    while True:
        pid, code = os.waitpid(engine, os.WNOHANG)
        seen = os.fstat(log).st_size
        if seen != size and written < _TIMES_KEPT:
            written += os.write(times, ("%d %.3f\n" % (seen, time.time())).encode("ascii"))
            size = seen
        if pid:
            break
        time.sleep(0.1)
    signalled = os.WIFSIGNALED(code)
    proc.write_json(place.exit, {"code": None if signalled else os.WEXITSTATUS(code),
                                 "signal": os.WTERMSIG(code) if signalled else None, "at": proc.now()})
    _end(record, 10.0)


def _end(record, grace):
    """TERM to all that is provably ours, KILL after `grace` seconds. Returns what is still there."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        end = time.time() + wait
        sent = set()
        while True:
            members = proc.of_session(record)
            if not members:
                return []
            for member in members:
                if number == signal.SIGKILL or member["pid"] not in sent:
                    sent.add(member["pid"])
                    _signal(member, number)
            if time.time() >= end:
                break
            time.sleep(0.05)
    return proc.of_session(record)


def _signal(member, number):
    if not proc.alive(member["pid"], member["ticks"]):
        return
    try:
        os.kill(member["pid"], number)
    except OSError:
        return


def stop(place, record, grace):
    """End the process and everything of its session. Returns the processes that are left, as `status` shows them."""
    left = _end(record, grace)
    end = time.time() + 2
    while proc.alive(record.get("keeper") or 0, record.get("keeper_ticks")) and time.time() < end:
        time.sleep(0.02)
    record["stopped"] = True
    record["stopped_at"] = proc.now()
    proc.write_json(place.record, record)
    return _shown(left)


def read_log(place, record, after, limit):
    """Lines behind a byte offset: ([[time or None, text], ...], next offset). An unfinished last line waits."""
    offset = int(after) if after else int(record.get("log_from") or 0)
    try:
        with open(place.log, "rb") as handle:
            handle.seek(0, 2)
            if handle.tell() < offset:
                offset = 0
            handle.seek(offset)
            data = handle.read(limit)
    except OSError:
        return [], str(offset)
    cut = data.rfind(b"\n") + 1
    if not cut and len(data) == limit:
        cut = len(data)
    moments = _moments(place)
    lines, at = [], offset
    for raw in data[:cut].split(b"\n")[:-1] if data[:cut].endswith(b"\n") else [data[:cut]]:
        at += len(raw) + 1
        lines.append([_moment(moments, at), raw.rstrip(b"\r").decode("utf-8", "replace")])
    return ([] if not cut else lines), str(offset + cut)


def tail(place, record, count):
    """The last lines of this start's log, and the offset behind them."""
    start_at = int(record.get("log_from") or 0)
    try:
        size = os.path.getsize(place.log)
    except OSError:
        return [], "0"
    begin = max(start_at, size - 400 * max(1, count)) if size >= start_at else 0
    lines, after = read_log(place, record, str(begin), max(1, size - begin))
    if begin > start_at and lines:
        lines = lines[1:]
    return lines[-count:], after


def _moments(place):
    out = []
    try:
        with open(place.times, "rb") as handle:
            for line in handle:
                words = line.split()
                if len(words) == 2:
                    out.append((int(words[0]), float(words[1])))
    except (OSError, ValueError):
        return out
    return out


def _moment(moments, offset):
    import bisect

    at = bisect.bisect_left(moments, (offset, 0.0))
    return moments[at][1] if at < len(moments) else proc.now()  # written since the keeper looked last
