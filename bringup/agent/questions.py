"""What no command prints everywhere: asked of /proc, /sys, sockets and the file system. Python 3.6.

Each question returns {"rc", "stdout"}: text in the shape of the tool that usually answers it (lspci -Dn, ps, ss), or
JSON where there is none. A hand-written recording may hold the tool's own text instead.
"""

import errno
import glob
import hashlib
import json
import os
import pwd
import re
import socket
import subprocess
import tempfile
import time

from bringup.agent import questions_load, questions_makers, questions_net, questions_pair, safetensors
from bringup.agent.processes.proc import MARK

_SECRET = re.compile(r"((?:--?|\b)[A-Za-z0-9_-]*(?:api[-_]?key|token|passw(?:or)?d|secret)[A-Za-z0-9_-]*[= ])\S+",
                     re.IGNORECASE)
_DEVICE = re.compile(r"^/dev/(nvidia|davinci|kfd|dri/render)")


def answer(name, given):
    """Answer one question by name; unknown names are an error of the caller."""
    return _QUESTIONS[name](given)


def _text(lines):
    return {"rc": 0, "stdout": "".join(line + "\n" for line in lines)}


def _tree(value):
    return {"rc": 0, "stdout": json.dumps(value, sort_keys=True, indent=1) + "\n"}


def _read(path, default=""):
    try:
        with open(path, "rb") as handle:
            return handle.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return default


def _pci(given):
    lines = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):
        kind = _read(folder + "/class")[2:6]
        vendor, device = _read(folder + "/vendor")[2:], _read(folder + "/device")[2:]
        if not kind or not vendor:
            continue
        driver = os.path.basename(os.path.realpath(folder + "/driver")) if os.path.exists(folder + "/driver") else "-"
        fields = ["driver=" + driver]
        for key, name in (("speed", "current_link_speed"), ("max_speed", "max_link_speed"),
                          ("width", "current_link_width"), ("max_width", "max_link_width"), ("numa", "numa_node")):
            value = _read(folder + "/" + name)
            if value:
                fields.append("%s=%s" % (key, value.split(" ")[0]))
        lines.append("%s %s: %s:%s %s" % (os.path.basename(folder), kind, vendor, device, " ".join(fields)))
    if not lines:
        return {"rc": 1, "missing": True, "stderr": "no PCI bus in /sys"}
    return _text(lines)




def _pids():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _processes(given):
    """pid, parent, account, state, start in ticks after boot, age in seconds, unit, our mark, command of all."""
    ticks = os.sysconf("SC_CLK_TCK")
    uptime = float((_read("/proc/uptime") or "0").split()[0])
    names = {}
    lines = ["PID PPID USER STAT START ELAPSED UNIT MARK COMMAND"]
    for pid in _pids():
        folder = "/proc/%d" % pid
        stat = _read(folder + "/stat")
        head, _, rest = stat.rpartition(")")
        fields = rest.split()
        if len(fields) < 20:
            continue
        try:
            uid = os.stat(folder).st_uid
        except OSError:
            continue
        if uid not in names:
            try:
                names[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                names[uid] = str(uid)
        command = _read(folder + "/cmdline").replace("\0", " ").strip()
        if not command:
            if int(fields[1]) in (0, 2) and pid != 1:
                continue  # a kernel thread
            command = "[%s]" % head.partition("(")[2]
        unit = "-"
        for line in _read(folder + "/cgroup").splitlines():
            for part in line.split("/"):
                if part.endswith((".service", ".scope")):
                    unit = part
        command = _SECRET.sub(r"\1********", " ".join(command.split()))[:1000]  # where an engine meets stands far back
        age = max(0, int(uptime - int(fields[19]) / float(ticks)))
        shown = (pid, fields[1], names[uid], fields[0], fields[19], age, unit, _mark(folder), command)
        lines.append("%d %s %s %s %s %d %s %s %s" % shown)
    return _text(lines)


def _mark(folder):
    """The mark that an engine process of ours carries in its environment (see processes.proc.MARK), `-` without one."""
    start = MARK.encode("ascii") + b"="
    try:
        with open(folder + "/environ", "rb") as handle:
            for word in handle.read(1 << 20).split(b"\0"):
                if word.startswith(start):
                    return word[len(start):].decode("utf-8", "replace").replace(" ", "?") or "-"
    except OSError:
        pass
    return "-"


def _holders(given):
    """`pid device name` for every process that has an accelerator's device file open."""
    lines = []
    for pid in _pids():
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        seen = set()
        for name in names:
            try:
                target = os.readlink(folder + "/" + name)
            except OSError:
                continue
            if _DEVICE.match(target) and target not in seen:
                seen.add(target)
                lines.append("%d %s %s" % (pid, target, _read("/proc/%d/comm" % pid) or "?"))
    return _text(lines)


def _address(text, wide):
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    raw = b"".join(raw[start:start + 4][::-1] for start in range(0, len(raw), 4))
    shown = socket.inet_ntop(socket.AF_INET6 if wide else socket.AF_INET, raw)
    return "[%s]" % shown if wide else shown, int(port, 16)


def _listeners(given):
    """Listening TCP sockets in the shape of `ss -Hltnp`."""
    sockets = {}
    for path, wide in (("/proc/net/tcp", False), ("/proc/net/tcp6", True)):
        for line in _lines(path)[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                sockets[fields[9]] = _address(fields[1], wide)
    owners = {}
    for pid in _pids():
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(folder + "/" + name)
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in sockets:
                owners.setdefault(target[8:-1], []).append(pid)
    lines = []
    for inode, (host, port) in sorted(sockets.items(), key=lambda item: (item[1][1], item[1][0])):
        users = ",".join('("%s",pid=%d,fd=0)' % (_read("/proc/%d/comm" % pid), pid)
                         for pid in sorted(set(owners.get(inode, []))))
        lines.append("LISTEN 0 0 %s:%d 0.0.0.0:* %s" % (host, port, "users:(%s)" % users if users else ""))
    return _text([line.rstrip() for line in lines])


def _lines(path):
    try:
        with open(path) as handle:
            return handle.read().splitlines()
    except OSError:
        return []


def _existing(path):
    path = os.path.abspath(path)
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _disk(given):
    """Room, inodes, file system and mount options of each path's nearest existing folder."""
    mounts = []
    for line in _lines("/proc/self/mounts"):
        fields = line.split(" ")
        if len(fields) > 3:
            mounts.append((fields[1].replace("\\040", " "), fields[0], fields[2], fields[3]))
    out = []
    for path in given.get("paths", []):
        full = os.path.expanduser(path)
        there = _existing(full)
        one = {"path": path, "existing": there, "is_dir": os.path.isdir(full)}
        try:
            stat = os.statvfs(there)
        except OSError as error:
            one["error"] = error.strerror or str(error)
            out.append(one)
            continue
        real = os.path.realpath(there)
        inside = [m for m in mounts if real == m[0] or real.startswith(m[0].rstrip("/") + "/")]
        mount = max(enumerate(inside), key=lambda pair: (len(pair[1][0]), pair[0]))[1] if inside else ("", "", "", "")
        one.update({
            "size": stat.f_blocks * stat.f_frsize, "free": stat.f_bavail * stat.f_frsize,
            "inodes": stat.f_files, "inodes_free": stat.f_favail, "mount": mount[0], "device": mount[1],
            "type": mount[2], "options": mount[3], "writable": os.access(there, os.W_OK),
        })
        out.append(one)
    return _tree(out)


def _execute(given):
    """Whether a file can be run from each folder, found by running one."""
    out = []
    for path in given.get("paths", []):
        there = _existing(path)
        one = {"path": path, "tried": there}
        try:
            handle, name = tempfile.mkstemp(prefix=".bringup-exec-", dir=there)
        except OSError as error:
            one["result"] = "not writable: %s" % (error.strerror or error)
            out.append(one)
            continue
        try:
            with os.fdopen(handle, "wb") as script:
                script.write(b"#!/bin/sh\nexit 0\n")
            os.chmod(name, 0o700)
            try:
                one["result"] = "runs" if subprocess.call([name], stdin=subprocess.DEVNULL) == 0 else "fails"
            except OSError as error:
                one["result"] = "cannot run: %s" % (error.strerror or error)
        except OSError as error:
            one["result"] = "not writable: %s" % (error.strerror or error)
        finally:
            os.unlink(name)
        out.append(one)
    return _tree(out)


def _weights(given):
    """The model's folder: each shard's size against its own header, pointer texts, digests of the small files."""
    folder = str(given.get("path", ""))
    out = {"path": folder, "exists": os.path.isdir(folder), "files": {}, "digests": {}, "partial": []}
    if not out["exists"]:
        return _tree(out)
    names = sorted(os.listdir(folder))
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith((".json", ".jinja", ".txt", ".model", ".py")) and os.path.isfile(path):
            if os.path.getsize(path) <= 64 * 1024 * 1024:
                with open(path, "rb") as handle:
                    out["digests"][name] = hashlib.sha256(handle.read()).hexdigest()
        if name.endswith((".incomplete", ".part", ".tmp", ".aria2")):
            out["partial"].append({"name": name, "size": os.path.getsize(path)})
    for root in glob.glob(os.path.join(folder, ".cache", "huggingface", "download", "*.incomplete")):
        out["partial"].append({"name": os.path.relpath(root, folder), "size": os.path.getsize(root)})
    wanted = set(name for name in names if name.endswith(".safetensors"))
    for name in names:
        if name.endswith(".safetensors.index.json"):
            index = _json(os.path.join(folder, name))
            out["index"] = {"name": name, "total_size": (index.get("metadata") or {}).get("total_size"),
                            "shards": len(set((index.get("weight_map") or {}).values()))}
            if not index:
                out["index"]["error"] = "is not JSON"
            wanted.update(str(shard) for shard in (index.get("weight_map") or {}).values())
    config = _json(os.path.join(folder, "config.json"))
    out["config"] = {key: config.get(key) for key in ("model_type", "architectures", "torch_dtype", "dtype")}
    for name in sorted(wanted):
        out["files"][name] = safetensors.shard(os.path.join(folder, name))
    return _tree(out)


def _json(path):
    try:
        with open(path, "rb") as handle:
            value = json.loads(handle.read().decode("utf-8", "replace"))
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def _shared_memory(given):
    """Segments in /dev/shm: name, size, account, age, and the pids of those that have them open or mapped.

    `holders` is None where none was found and not every process could be looked at: it may still be somebody's.
    """
    out = []
    try:
        names = sorted(os.listdir("/dev/shm"))
    except OSError as error:
        return {"rc": 1, "stderr": error.strerror or str(error)}
    now = time.time()
    holders, whole = _holders_of_shared_memory() if names else ({}, True)
    for name in names[:500]:
        try:
            stat = os.lstat("/dev/shm/" + name)
        except OSError:
            continue
        try:
            user = pwd.getpwuid(stat.st_uid).pw_name
        except KeyError:
            user = str(stat.st_uid)
        out.append({"name": name, "size": stat.st_size, "user": user, "age": int(now - stat.st_mtime),
                    "holders": holders.get(name, [] if whole else None)})
    return _tree(out)


def _holders_of_shared_memory():
    """Segment -> pids that have it open or mapped; and whether every process could be looked at."""
    found, whole = {}, True
    for pid in _pids():
        folder = "/proc/%d" % pid
        try:
            with open(folder + "/maps", "rb") as handle:
                paths = [line.split(None, 5)[5].strip() for line in handle if b" /dev/shm/" in line]
            descriptors = os.listdir(folder + "/fd")
        except OSError as error:
            whole = whole and error.errno not in (errno.EACCES, errno.EPERM)  # others ended meanwhile
            continue
        for name in descriptors:
            try:
                paths.append(os.readlink(folder + "/fd/" + name).encode("utf-8", "surrogateescape"))
            except OSError:
                continue  # closed meanwhile
        for path in set(paths):
            if path.startswith(b"/dev/shm/"):
                name = path[len(b"/dev/shm/"):].decode("utf-8", "replace").split(" (deleted)")[0].split("/")[0]
                found.setdefault(name, []).append(pid)
    return found, whole


def _account(given):
    """An account of the host: its groups, and whether it could open the accelerator's device files."""
    import grp

    name = str(given.get("user", ""))
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return _tree({"user": name, "exists": False})
    groups = sorted(group.gr_name for group in grp.getgrall() if name in group.gr_mem or group.gr_gid == entry.pw_gid)
    return _tree({"user": name, "exists": True, "uid": entry.pw_uid, "groups": groups})


def _plan_files(given):
    """Files that the plan's variables name: whether each is there, its mode, and its text."""
    out = {}
    for path in given.get("paths", []):
        path = str(path)
        try:
            mode = os.stat(path).st_mode
            with open(path, "rb") as handle:
                text = handle.read(1 << 20).decode("utf-8", "replace")
            out[path] = {"exists": True, "mode": "%o" % (mode & 0o7777), "text": text}
        except OSError as error:
            out[path] = {"exists": error.errno != errno.ENOENT, "error": error.strerror or str(error)}
    return _tree(out)


def _libraries(given):
    """The communication library of every environment of ours, and the system's: version, size, digest."""
    out = []
    root = str(given.get("root", ""))
    for path in sorted(glob.glob(root + "/envs/*/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")):
        packages = path.split("/nvidia/nccl/")[0]
        infos = [os.path.basename(info) for info in glob.glob(packages + "/nvidia_nccl*.dist-info")]
        version = infos[0].split("-")[1].replace(".dist", "") if infos else ""
        out.append(_library(path, path[len(root) + len("/envs/"):].split("/")[0], version))
    for path in sorted(glob.glob("/usr/lib/*/libnccl.so.2") + glob.glob("/usr/lib64/libnccl.so.2")):
        out.append(_library(path, "", os.path.basename(os.path.realpath(path)).partition(".so.")[2]))
    return _tree(out)


def _environments(given):
    """Every environment of ours: the name of its folder, its torch, whether the release in use stands on it."""
    root = str(given.get("root", ""))
    told = "".join(_read(path) for path in sorted(glob.glob(root + "/current/*.json")))
    out = []
    for folder in sorted(glob.glob(root + "/envs/*")):
        name = os.path.basename(folder)
        one = {"environment": name, "used": name in told}
        for info in glob.glob(folder + "/lib/python3*/site-packages/torch*-*.dist-info"):
            package, _, version = os.path.basename(info)[:-len(".dist-info")].partition("-")
            if package in ("torch", "torch_npu"):
                one[package] = version
        out.append(one)
    return _tree(out)


def _library(path, environment, version):
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for chunk in iter(lambda: handle.read(1 << 20), b""):
            digest.update(chunk)
    return {"path": path, "environment": environment, "version": version, "sha256": digest.hexdigest()}


def _devices(given):
    """Device files of accelerators, as `ls -l` would name them: mode, owner, group, path."""
    lines = []
    for pattern in ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/davinci*", "/dev/devmm_svm", "/dev/hisi_hdc",
                    "/dev/kfd", "/dev/infiniband/*", "/dev/gdrdrv"):
        for path in sorted(glob.glob(pattern)):
            try:
                stat = os.stat(path)
            except OSError:
                continue
            if not os.path.isdir(path):
                lines.append("%o %d %d %s" % (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, path))
    return _text(lines)


_QUESTIONS = {
    "pci": _pci,
    "processes": _processes,
    "holders": _holders,
    "listeners": _listeners,
    "disk": _disk,
    "execute": _execute,
    "names": questions_net.names,
    "reach": questions_net.reach,
    "meet": questions_net.meet,
    "proxy": questions_net.proxy,
    "fetch": questions_net.fetch,
    "libraries": _libraries,
    "environments": _environments,
    "weights": _weights,
    "shared_memory": _shared_memory,
    "account": _account,
    "plan_files": _plan_files,
    "devices": _devices,
    "collective": questions_load.collective,
    "hccl": questions_makers.hccl,
    "rccl": questions_makers.rccl,
    "copies": questions_load.copies,
    "diagnosis": questions_load.diagnosis,
    "disk_read": questions_load.disk_read,
    "ready": questions_load.ready,
    "replica": questions_load.replica,
    "listen": questions_pair.listen,
    "dial": questions_pair.dial,
    "perftest": questions_pair.perftest,
}
NAMES = tuple(sorted(_QUESTIONS))
