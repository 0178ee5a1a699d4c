"""The manager for hosts where systemd is PID 1: one unit per engine process, written by us. Python 3.6."""

import json
import os
import subprocess
import time

from bringup.agent.processes import launch as launches
from bringup.agent.processes import proc
from bringup.agent.task import Failure

UNITS = "/etc/systemd/system"
HEADER = "# written by bringup: changes here are lost at the next start"
_SHOWN = ("LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecMainCode", "ExecMainStatus",
          "ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic", "ControlGroup", "InvocationID",
          "FragmentPath")


def available():
    """True when systemd runs this host."""
    return os.path.isdir("/run/systemd/system")


def unit_name(name):
    return "bringup-%s.service" % name


def unit_text(document, script, work, secrets, owner, grace, mark, home):
    """The unit of one engine process. No restart of a single rank, not enabled at boot, killed as a group."""
    lines = [
        HEADER,
        "[Unit]",
        "Description=GLM engine of bringup: replica %s, node %s (%s, rank %d), release %s" % (
            document["replica"], document["node"], document["role"], document["node_rank"], document["release"][:12]),
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Type=simple",
        "User=%s" % owner,
        "WorkingDirectory=%s" % _plain(work),
        "Environment=PATH=%s LANG=C.UTF-8" % launches.CLEAN_PATH,
        "Environment=%s" % quoted("HOME=" + home),
        "Environment=%s" % quoted("%s=%s" % (proc.MARK, mark)),
        "EnvironmentFile=-%s" % _plain(secrets),
        "ExecStart=/bin/sh %s" % quoted(script).replace("$", "$$"),
        "KillMode=control-group",
        "KillSignal=SIGTERM",
        "TimeoutStopSec=%d" % max(1, int(grace)),
        "SendSIGKILL=yes",
        "Restart=no",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=1048576",
        "LimitCORE=0",
        "StandardOutput=journal",
        "StandardError=journal",
        "SyslogIdentifier=bringup-%s" % document["name"],
        "LogRateLimitIntervalSec=0",
        "",
    ]
    return "\n".join(lines)


def _plain(text):
    """A path for a unit file: `%` would start a specifier."""
    return text.replace("%", "%%")


def quoted(text):
    """A word for a unit file."""
    return '"%s"' % _plain(text).replace("\\", "\\\\").replace('"', '\\"')


def systemctl(*words, **options):
    """Run systemctl: its exit status, output and errors. Raises Failure when it does not answer."""
    timeout = options.get("timeout", 60)
    try:
        done = subprocess.Popen(("systemctl",) + words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)
        out, err = done.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        done.kill()
        raise Failure("systemctl %s did not answer within %d s" % (" ".join(words), timeout),
                      next="systemctl list-jobs")
    except OSError as error:
        raise Failure("cannot run systemctl: %s" % error.strerror)
    return done.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def show(name):
    """The properties of a unit that we look at, as a dict of texts."""
    _, out, _ = systemctl("show", unit_name(name), "--property=" + ",".join(_SHOWN))
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


def more(name, properties):
    """Further properties of a unit, as a dict of texts."""
    return more_of(unit_name(name), properties)


def more_of(unit, properties):
    """Properties of any unit, as a dict of texts."""
    _, out, _ = systemctl("show", unit, "--property=" + ",".join(properties))
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


def ours(name):
    """True when the unit's file is the one that we wrote."""
    return is_ours(os.path.join(UNITS, unit_name(name)))


def is_ours(path):
    """True when a unit's file was written by us."""
    try:
        with open(path) as handle:
            return handle.readline().rstrip("\n") == HEADER
    except OSError:
        return False


def status(place, record):
    """What is known about the process: state (running, exited, stopped, absent), pids, exit."""
    out = {"state": "absent", "pid": None, "pids": [], "leftover": [], "exit": None}
    if not record:
        return out
    seen = show(place.name)
    members = proc.of_cgroup(seen.get("ControlGroup"))
    main = int(seen.get("MainPID") or 0)
    out["pids"] = [{"pid": p["pid"], "ticks": p["ticks"], "comm": p["comm"], "command": proc.command_line(p["pid"])}
                   for p in members]
    if main and seen.get("ActiveState") in ("active", "activating", "reloading"):
        out.update(state="running", pid=main)
        return out
    out["leftover"] = out["pids"]
    if record.get("stopped"):
        out["state"] = "stopped"
        return out
    out["state"] = "exited"
    same = seen.get("InvocationID") == record.get("invocation") or seen.get("InvocationID") == ""
    if seen.get("ExecMainCode") in ("1", "2", "3") and same:
        number = int(seen.get("ExecMainStatus") or 0)
        dead = seen["ExecMainCode"] != "1"
        out["exit"] = {"code": None if dead else number, "signal": number if dead else None,
                       "at": _epoch(seen.get("ExecMainExitTimestampMonotonic"))}
    elif record.get("boot_id") != proc.boot_id():
        out["exit"] = {"code": None, "signal": None, "at": None, "reason": "the host was rebooted"}
    return out


def _epoch(micros):
    try:
        with open("/proc/uptime") as handle:
            uptime = float(handle.read().split()[0])
        return round(time.time() - uptime + int(micros) / 1e6, 3)
    except (OSError, ValueError, TypeError):
        return None


def start(task, place, document, owner, secrets):
    """Write the unit and start it. Returns the record. Raises Failure with systemd's own words."""
    if not available():
        raise Failure("systemd does not run this host (no /run/systemd/system)", next="deployment.manager: detached")
    path = os.path.join(UNITS, unit_name(place.name))
    if os.path.exists(path) and not ours(place.name):
        raise Failure("%s was not written by bringup; it is left alone" % path, next="remove or rename it")
    launches.prepare(place, owner, secrets)
    nonce = "%x" % int(time.time() * 1000)
    text = unit_text(document, place.script(document["release"]), place.work, place.secrets, owner[0] if owner else "",
                     task.args["grace"], "|".join((task.root, place.name, nonce)), launches.home(place, owner))
    proc.write_file(path, text)
    proc.write_file(os.path.join(os.path.dirname(place.launch(document["release"])), unit_name(place.name)), text)
    code, _, err = systemctl("daemon-reload")
    if code == 0:
        systemctl("reset-failed", unit_name(place.name))
        code, _, err = systemctl("start", unit_name(place.name))
    if code != 0:
        raise Failure("systemd did not start %s" % unit_name(place.name), rc=code, stderr=err.strip(),
                      next="journalctl -u %s" % unit_name(place.name))
    seen = show(place.name)
    record = {"name": place.name, "manager": "systemd", "unit": unit_name(place.name), "release": document["release"],
              "replica": document["replica"], "node": document["node"], "node_rank": document["node_rank"],
              "role": document["role"], "ranks": document["ranks"], "world_size": document["world_size"],
              "ports": document["ports"], "addresses": document.get("addresses") or [],
              "boot_id": proc.boot_id(), "run": task.run_id, "stopped": False,
              "invocation": seen.get("InvocationID", ""), "pid": int(seen.get("MainPID") or 0), "started": proc.now()}
    member = proc.stat(record["pid"]) if record["pid"] else None
    record["ticks"] = member["ticks"] if member else None
    proc.write_json(place.record, record)
    return record


def stop(place, record, grace):
    """Stop the unit; systemd ends the whole control group. Returns the processes that are left."""
    if not ours(place.name):
        raise Failure("the unit %s is not the one that bringup wrote; it is left alone" % unit_name(place.name))
    group = show(place.name).get("ControlGroup")
    code, _, err = systemctl("stop", unit_name(place.name), timeout=grace + 60)
    end = time.time() + 5
    left = proc.of_cgroup(group)
    while left and time.time() < end:
        time.sleep(0.05)
        left = proc.of_cgroup(group)
    if code != 0 and not left:
        raise Failure("systemctl stop failed", rc=code, stderr=err.strip())
    record["stopped"] = True
    record["stopped_at"] = proc.now()
    proc.write_json(place.record, record)
    return [{"pid": p["pid"], "ticks": p["ticks"], "comm": p["comm"], "command": proc.command_line(p["pid"])}
            for p in left]


def _journal(record, *words):
    argv = ["journalctl", "--output=json", "--no-pager", "--all", "_SYSTEMD_INVOCATION_ID=" + record["invocation"]]
    try:
        done = subprocess.Popen(argv + list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)
        out, _ = done.communicate(timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return [], None
    lines, cursor = [], None
    for raw in out.decode("utf-8", "replace").splitlines():
        try:
            entry = json.loads(raw)
        except ValueError:
            continue
        cursor = entry.get("__CURSOR")
        message = entry.get("MESSAGE")
        if isinstance(message, list):
            message = bytes(bytearray(message)).decode("utf-8", "replace")
        lines.append([int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6, message or ""])
    return lines, cursor


def read_log(place, record, after, limit):
    """Lines behind a journal cursor: ([[time, text], ...], next cursor)."""
    if not record.get("invocation"):
        return [], after
    lines, cursor = _journal(record, *(["--after-cursor=" + after] if after else []))
    return lines, cursor or after or ""


def tail(place, record, count):
    """The last lines of this start, and the cursor behind them."""
    if not record.get("invocation"):
        return [], ""
    lines, cursor = _journal(record, "--lines=%d" % count)
    return lines, cursor or ""
