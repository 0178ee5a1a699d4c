"""What grows in an engine's processes while it loads: bytes read, CPU time, memory, device memory, compiled files.

Python 3.6; changes nothing. A log may be silent for twenty minutes while kernels compile: these figures are not.
"""

import os
import re
import shutil
import subprocess
import time

from bringup.agent.modules import engine_process
from bringup.agent.modules.probe import PATHS
from bringup.agent.processes import launch, proc

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "devices": {"type": "bool", "default": True},
}
READS_ONLY = True
KFD = "/sys/class/kfd/kfd/proc"
"""Where the AMD driver tells each process's device memory, in bytes."""
_NVIDIA = ("--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits")
_WAIT = 4.0
_FILES, _SECONDS = 50000, 1.0
_NPU = re.compile(r"^\|\s*\d+\s+\d+\s*\|\s*(\d+)\s*\|[^|]*\|\s*(\d+)\s*\|", re.M)


def run(task):
    """Returns processes (pid, command, cpu in seconds, read, memory and device in bytes, device None where it is not
    told), files in the compile caches, source of the device memory (None: none here; "silent": its tool hangs)."""
    place = launch.Place(task.root, task.args["name"])
    seen = engine_process.state_of(place, place.read())
    pids = [p["pid"] for p in seen["pids"]]
    used, source = device_memory(pids) if task.args["devices"] else ({}, None)
    ticks = float(os.sysconf("SC_CLK_TCK"))
    out = []
    for pid in pids:
        figures = of_process(pid, ticks)
        if figures is not None:
            figures["device"] = used.get(pid)
            out.append(figures)
    return {"changed": False, "state": seen["state"], "processes": out, "files": cached_files(task.root),
            "source": source, "at": round(time.time(), 3)}


def of_process(pid, ticks):
    """One process's figures, None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as handle:
            rest = handle.read().decode("utf-8", "replace").rpartition(")")[2].split()
        with open("/proc/%d/statm" % pid) as handle:
            pages = int(handle.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return {"pid": pid, "command": proc.command_line(pid), "cpu": round((int(rest[11]) + int(rest[12])) / ticks, 2),
            "read": _read_bytes(pid), "memory": pages * os.sysconf("SC_PAGE_SIZE")}


def _read_bytes(pid):
    """Bytes that a process read: from its calls, or from the disk where it maps files; 0 where we may not see it."""
    found = {}
    try:
        with open("/proc/%d/io" % pid) as handle:
            for line in handle:
                name, _, value = line.partition(":")
                found[name] = int(value)
    except (OSError, ValueError):
        return 0
    return max(found.get("rchar", 0), found.get("read_bytes", 0))


def device_memory(pids):
    """Bytes on devices by pid, and who told: kfd, nvidia-smi, npu-smi; None where there is none of them."""
    if os.path.isdir(KFD):
        return _of_kfd(pids), "kfd"
    for tool, words, read in (("nvidia-smi", _NVIDIA, of_nvidia), ("npu-smi", ("info",), of_npu)):
        program = shutil.which(tool, path=_path())
        if program:
            text = _output([program] + list(words))
            return ({}, "silent") if text is None else (read(text), tool)
    return {}, None


def _of_kfd(pids):
    out = {}
    for pid in pids:
        folder = os.path.join(KFD, str(pid))
        try:
            names = [name for name in os.listdir(folder) if name.startswith("vram_")]
            out[pid] = sum(int(open(os.path.join(folder, name)).read()) for name in names)
        except (OSError, ValueError):
            continue  # not a process that uses a device
    return out


def of_nvidia(text):
    """`pid, MiB` a line; a process on two devices has two."""
    out = {}
    for line in text.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip().isdigit() and used.strip().isdigit():
            out[int(pid)] = out.get(int(pid), 0) + int(used) * 1024 * 1024
    return out


def of_npu(text):
    """The table of processes of `npu-smi info`, in MB."""
    out = {}
    for pid, used in _NPU.findall(text):
        out[int(pid)] = out.get(int(pid), 0) + int(used) * 1024 * 1024
    return out


def _path():
    have = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    return os.pathsep.join(have + [part for part in PATHS if part not in have])


def _output(argv):
    """What a tool prints; None when it does not end in time: it may hang in the kernel, and is left there then."""
    try:
        done = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                start_new_session=True)
    except OSError:
        return ""
    try:
        out, _ = done.communicate(timeout=_WAIT)
    except subprocess.TimeoutExpired:
        done.kill()
        return None
    return out.decode("utf-8", "replace")


def cached_files(root):
    """Files in the folders where engines keep what they compile, counted for a second at most."""
    count, end = 0, time.time() + _SECONDS
    cache = os.path.join(root, "cache")
    try:
        tops = [os.path.join(cache, name) for name in os.listdir(cache)
                if name == "compiled" or name.startswith("home-")]
    except OSError:
        return 0
    for top in tops:
        for _, _, files in os.walk(top):
            count += len(files)
            if count > _FILES or time.time() > end:
                return count
    return count
