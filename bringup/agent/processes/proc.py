"""What /proc says about processes and ports, and whether a process is provably ours. Python 3.6."""

import json
import os
import re
import time

MARK = "BRINGUP_PROCESS"
"""Environment variable that every engine process of ours carries: `root|name|nonce`."""


def boot_id():
    """The kernel's id of this boot: a pid means nothing beyond it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def _boot_time():
    with open("/proc/stat") as handle:
        for line in handle:
            if line.startswith("btime "):
                return int(line.split()[1])
    return 0


def stat(pid):
    """A process as a dict (pid, comm, state, ppid, group, session, ticks), or None when there is none.

    `ticks` is its start in clock ticks since boot: with the boot id it tells two holders of one pid apart.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as handle:
            text = handle.read().decode("utf-8", "replace")
    except OSError:
        return None
    left, right = text.find("("), text.rfind(")")
    rest = text[right + 2:].split()
    if left < 0 or len(rest) < 20:
        return None
    return {"pid": pid, "comm": text[left + 1:right], "state": rest[0], "ppid": int(rest[1]), "group": int(rest[2]),
            "session": int(rest[3]), "ticks": int(rest[19])}


def started_at(ticks):
    """Seconds since the epoch of a start given in ticks."""
    return _boot_time() + ticks / float(os.sysconf("SC_CLK_TCK"))


def alive(pid, ticks):
    """True while the process with this pid and this start lives (a zombie does not)."""
    seen = stat(pid)
    return seen is not None and seen["ticks"] == ticks and seen["state"] not in ("Z", "X")


def command_line(pid):
    """The words of a process's command, shortened; its name in brackets where it shows none."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as handle:
            words = handle.read().decode("utf-8", "replace").split("\0")
    except OSError:
        words = []
    text = " ".join(word for word in words if word).strip()
    if not text:
        seen = stat(pid)
        return "[%s]" % (seen["comm"] if seen else "?")
    return text if len(text) <= 160 else text[:157] + "..."


def marked(pid, mark):
    """True when the process was started with our mark in its environment."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as handle:
            data = handle.read()
    except OSError:
        return False
    return ("%s=%s" % (MARK, mark)).encode("utf-8") in data.split(b"\0")


def processes():
    """Every living process (no zombies), as `stat` gives it."""
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            seen = stat(int(name))
            if seen is not None and seen["state"] not in ("Z", "X"):
                out.append(seen)
    return out


def of_session(record):
    """The living processes that the record proves to be ours, the keeper left out.

    Proof is the mark in the environment; or the recorded session, while its leader still has the recorded start or
    another member of it carries the mark (the kernel gives a session's number to nobody else while members live).
    """
    if record.get("boot_id") != boot_id():
        return []
    session, keeper, ticks = record.get("session"), record.get("keeper"), record.get("keeper_ticks")
    everyone = processes()
    proven = set(p["pid"] for p in everyone if marked(p["pid"], record.get("mark", "")))
    members = [p for p in everyone if p["session"] == session]
    if session and (alive(keeper, ticks) or (not stat(keeper) and any(p["pid"] in proven for p in members))):
        proven.update(p["pid"] for p in members)
    proven.discard(keeper)
    return [p for p in everyone if p["pid"] in proven]


def of_cgroup(path):
    """The living processes of a control group and those below it; `path` as systemd's ControlGroup names it."""
    if not path or path == "/":
        return []
    out = []
    for seen in processes():
        try:
            with open("/proc/%d/cgroup" % seen["pid"]) as handle:
                groups = [line.rstrip("\n").split(":", 2)[-1] for line in handle]
        except OSError:
            continue
        if any(group == path or group.startswith(path + "/") for group in groups):
            out.append(seen)
    return out


def listeners(ports):
    """Who listens on these TCP ports: dicts of port, address, inode, pid and command (None where it cannot be seen)."""
    wanted = set(int(port) for port in ports)
    found = []
    for family, name in ((4, "/proc/net/tcp"), (6, "/proc/net/tcp6")):
        try:
            with open(name) as handle:
                lines = handle.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 10 or words[3] != "0A":
                continue
            host, port = words[1].rsplit(":", 1)
            if int(port, 16) in wanted:
                found.append({"port": int(port, 16), "address": _address(host, family), "inode": words[9],
                              "pid": None, "command": None})
    if found:
        _owners(found)
    return sorted(found, key=lambda item: (item["port"], item["address"]))


def _address(text, family):
    import socket
    import struct

    packed = b"".join(struct.pack("=I", int(text[at:at + 8], 16)) for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if family == 4 else socket.AF_INET6, packed)


def _owners(found):
    inodes = dict(("socket:[%s]" % item["inode"], item) for item in found)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            descriptors = os.listdir("/proc/%s/fd" % name)
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                item = inodes.get(os.readlink("/proc/%s/fd/%s" % (name, descriptor)))
            except OSError:
                continue
            if item is not None and item["pid"] is None:
                item["pid"] = int(name)
                item["command"] = command_line(int(name))


def clashes(ports, addresses):
    """Listeners that keep a process from binding one of these ports on one of these addresses (empty: on any)."""
    wide = ("0.0.0.0", "::")
    out = []
    for item in listeners(ports):
        plain = re.sub(r"^::ffff:", "", item["address"])
        if not addresses or plain in wide or plain in addresses or any(one in wide for one in addresses):
            out.append(item)
    return out


def read_json(path):
    """The document in a file, or None when there is none or it is not whole."""
    try:
        with open(path, "rb") as handle:
            return json.loads(handle.read().decode("utf-8"))
    except (OSError, ValueError):
        return None


def write_file(path, data, mode=0o644):
    """Write a file so that it appears under its name only when whole."""
    staged = "%s.%d.new" % (path, os.getpid())
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data if isinstance(data, bytes) else data.encode("utf-8"))
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(staged, mode)
        os.rename(staged, path)
    except BaseException:
        if os.path.exists(staged):
            os.unlink(staged)
        raise


def write_json(path, document, mode=0o644):
    """The same for a JSON document."""
    write_file(path, json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", mode)


def make_folder(path, mode=0o755):
    """A folder and its parents, made when missing."""
    if not os.path.isdir(path):
        os.makedirs(path, mode)


def now():
    """Seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)
