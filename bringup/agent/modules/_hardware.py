"""Facts of the machine: processors, memory, mounts, firmware, whether it is virtual."""

import os
import re

from bringup.agent.modules._facts import text_of
from bringup.agent.task import Failure

_PSEUDO = ("none", "proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "overlay")
_NETWORK_FILES = ("nfs", "nfs4", "cifs", "lustre", "ceph", "glusterfs", "gpfs", "beegfs", "wekafs")


def processor(task):
    out = {"processor": []}
    physical, cores, threads = set(), {}, 0
    siblings = {}
    current, flags = {}, None
    for line in text_of("/proc/cpuinfo").splitlines() + [""]:
        key, sign, value = (part.strip() for part in line.partition(":"))
        if sign:
            current[key] = value
            continue
        if "processor" not in current:
            current = {}
            continue
        threads += 1
        out["processor"] += [current[name] for name in ("processor", "vendor_id", "model name") if name in current]
        package = current.get("physical id", "0")
        physical.add(package)
        cores[package] = int(current.get("cpu cores", 0) or 0)
        siblings[package] = int(current.get("siblings", 0) or 0)
        flags = flags or current.get("flags") or current.get("Features")
        current = {}
    count = max(len(physical), 1)
    each = max(list(cores.values()) + [0]) or max(threads // count, 1)
    per_core = max((max(list(siblings.values()) + [0]) or each) // each, 1)
    out.update(processor_count=count, processor_cores=each, processor_threads_per_core=per_core,
               processor_vcpus=each * per_core * count, processor_nproc=_usable(), flags=(flags or "").split())
    return out


def _usable():
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def memory(task):
    sizes = {}
    for line in text_of("/proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            sizes[key] = int(words[0]) // 1024
    total, free = sizes.get("MemTotal", 0), sizes.get("MemFree", 0)
    swap, swap_free = sizes.get("SwapTotal", 0), sizes.get("SwapFree", 0)
    cached = sizes.get("Cached", 0) + sizes.get("Buffers", 0)
    return {"memtotal_mb": total, "memfree_mb": free, "swaptotal_mb": swap, "swapfree_mb": swap_free,
            "memory_mb": {"real": {"total": total, "used": total - free, "free": free},
                          "nocache": {"free": free + cached, "used": total - free - cached},
                          "swap": {"total": swap, "free": swap_free, "used": swap - swap_free,
                                   "cached": sizes.get("SwapCached", 0)}}}


def mounts(task):
    """File systems of disks and of the network. Sizes are asked in a child, since a dead server hangs the question."""
    out, seen = [], set()
    for line in text_of("/proc/self/mounts").splitlines():
        fields = [_unescaped(field) for field in line.split(" ")]
        if len(fields) < 4:
            continue
        device, point, kind, options = fields[:4]
        if not (device.startswith("/") or ":" in device or kind in _NETWORK_FILES) or kind in _PSEUDO or point in seen:
            continue
        seen.add(point)
        entry = {"device": device, "mount": point, "fstype": kind, "options": options, "dump": 0, "passno": 0}
        entry.update(_sizes(task, point))
        out.append(entry)
    return {"mounts": out}


def _unescaped(text):
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _sizes(task, point):
    form = "%S %b %a %c %d"
    try:
        done = task.command(["stat", "-f", "-c", form, point], timeout=task.args.get("gather_timeout") or 10)
        if done.timed_out:
            return {"note": "the file system does not answer"}
        size, total, available, inodes, inodes_free = (int(word) for word in done.stdout.split())
    except (Failure, ValueError):
        return {}
    return {"block_size": size, "block_total": total, "block_available": available,
            "block_used": total - available, "size_total": size * total, "size_available": size * available,
            "inode_total": inodes, "inode_available": inodes_free, "inode_used": inodes - inodes_free}


def firmware(task):
    names = {"bios_date": "bios_date", "bios_vendor": "bios_vendor", "bios_version": "bios_version",
             "board_name": "board_name", "board_vendor": "board_vendor", "product_name": "product_name",
             "product_serial": "product_serial", "product_uuid": "product_uuid", "product_version": "product_version",
             "system_vendor": "sys_vendor", "chassis_serial": "chassis_serial"}
    return {name: text_of("/sys/class/dmi/id/" + entry) or "NA" for name, entry in names.items()}


def virtualization(task):
    kind = ""
    try:
        done = task.command(["systemd-detect-virt"], timeout=5)
        kind = done.stdout.strip()
    except Failure:
        for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
            if os.path.exists(path):
                kind = name
    if kind in ("", "none"):
        return {"virtualization_type": "NA", "virtualization_role": "NA"}
    return {"virtualization_type": kind, "virtualization_role": "guest"}
