"""The host under the accelerators: memory, processors, limits, settings, account, container runtime."""

from __future__ import annotations

import re

from bringup.base.text import duration, plural, size
from bringup.preflight.parsers.host import unit_limit
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

_VARIANTS = {
    "AMX": ("amx_tile", "amx_int8", "avx512f"),
    "AVX512": ("avx512f", "avx512bw", "avx512vl"),
    "AVX512_BF16": ("avx512f", "avx512bw", "avx512vl", "avx512_bf16"),
    "AVX2": ("avx2",),
}
"""CPU flags that each build of the CPU kernels needs."""


@check("host.reached", "the host answers", source="the inventory", remedy="look at its address, key and account")
def reached(view: View) -> Outcome:
    # a host that does not answer has no facts: its finding is made where the hosts are asked
    return passed(f"{len(view.facts.answers.items)} probes")


@check("host.sudo", "what needs root can be asked as root", source="bringup_privileged",
       remedy="a sudo rule for the connecting account, or bringup_privileged: false")
def sudo(view: View) -> Outcome:
    for text in view.facts.answers.notes:
        return failed(text) if view.need.privileged else noted(text)
    return passed("asked" if view.need.privileged else "not wanted here (bringup_privileged: false)")


@check("host.memory", "memory for loading, or for the experts on the CPU", reads=("host.meminfo",),
       source="the recipe's weights", remedy="a host with more memory", absent="unknown")
def memory(view: View) -> Outcome:
    total = view.facts.memory["MemTotal"]
    need = view.need
    if need.engine == "sglang-kt" and need.weights_bytes and total < need.weights_bytes:
        return failed(f"{size(total)}; the experts stay in memory: {size(need.weights_bytes)}",
                      required=size(need.weights_bytes), source="recipe: KT-Kernel holds all expert weights in memory")
    ratio = limits()["host_memory_ratio"]
    share = (need.weights_bytes or 0) / max(1, len(need.nodes))
    if not need.recorded and total < share * ratio.number:
        return warned(f"{size(total)} for weights of {size(need.weights_bytes or 0)}", source=ratio.source)
    return passed(size(total))


@check("host.swap", "swap is off", reads=("host.swaps",), source="Azure, imbue: none",
       remedy="sudo swapoff -a   (role host_tuning keeps it)")
def swap(view: View) -> Outcome:
    total = sum(amount for _, amount in view.facts.swaps)
    if total:
        return warned(f"{size(total)} on {view.facts.swaps[0][0]}: pinned memory and swapping do not go together")
    return passed("off")


@check("host.governor", "the CPU governor is `performance`", reads=("host.governor",), source="gcm, msprechecker",
       remedy="sudo cpupower frequency-set -g performance   (role host_tuning keeps it)")
def governor(view: View) -> Outcome:
    seen: dict[str, int] = {}
    for text in view.facts.answers.files("host.governor").values():
        seen[text.strip()] = seen.get(text.strip(), 0) + 1
    odd = {name: count for name, count in seen.items() if name != "performance"}
    if odd:
        return warned(", ".join(f"{name} on {count} CPUs" for name, count in odd.items()))
    return passed("performance")


def _setting(view: View, path: str, known: str) -> str:
    """A setting of the kernel; `known` is a pattern of what may stand there. Raises Unread."""
    text = view.facts.answers.file("host.settings", path).strip()
    if not re.fullmatch(known, text):
        raise Unread(f"{path} holds `{text[:40]}`")
    return text


@check("host.numa-balancing", "the kernel does not move pages between NUMA nodes", reads=("host.settings",),
       source="pages of pinned buffers and experts must stay", remedy="sudo sysctl kernel.numa_balancing=0")
def numa_balancing(view: View) -> Outcome:
    if _setting(view, "kernel/numa_balancing", "[0-3]") != "0":
        return warned("on")
    return passed("off")


@check("host.overcommit", "memory may be promised freely", reads=("host.settings",), source="engines map whole shards",
       remedy="sudo sysctl vm.overcommit_memory=0")
def overcommit(view: View) -> Outcome:
    value = _setting(view, "vm/overcommit_memory", "[012]")
    return warned("vm.overcommit_memory is 2: large mappings are refused") if value == "2" else passed(value)


@check("host.huge-pages", "transparent huge pages are not off", reads=("host.settings",), source="msprechecker: always",
       remedy="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
def huge_pages(view: View) -> Outcome:
    text = _setting(view, "transparent_hugepage/enabled", r"(\w+ )*\[\w+\]( \w+)*")
    return noted("off: loading takes longer") if "[never]" in text else passed(text.partition("[")[2].partition("]")[0])


@check("host.clocksource", "the kernel's clock source is fast", reads=("host.clocksource",), source="gcm: tsc",
       remedy="clocksource=tsc on the kernel's line")
def clocksource(view: View) -> Outcome:
    name = view.facts.answers.file("host.clocksource").strip()
    if not name.replace("-", "").replace("_", "").isalnum():
        raise Unread("the kernel names no clock source")
    if name in ("hpet", "acpi_pm", "jiffies"):
        return warned(f"{name}: each look at the clock is a slow one")
    return passed(name)


@check("host.uptime", "the host is up long enough", reads=("host.uptime",), source="gcm: 10 minutes", remedy="wait")
def uptime(view: View) -> Outcome:
    seconds = view.facts.uptime
    if seconds < limits()["uptime_warn"].number:
        return noted(f"booted {duration(seconds)} ago: services may still be starting")
    return passed(duration(seconds))


@check("host.memlock", "the process that serves may lock memory without limit", reads=("host.limits", "host.units"),
       source="RDMA registers memory in locked pages", remedy="LimitMEMLOCK=infinity in the unit; role host_limits for "
       "sessions (open sessions keep the old limit)")
def memlock(view: View) -> Outcome:
    line = limits()["memlock"].number
    soft, hard = view.facts.limits.memlock
    login_small = soft is not None and soft < line
    login = "unlimited" if soft is None else f"{soft // 1024} KiB"
    manager = view.need.manager
    if manager in ("docker", "podman"):
        return skipped("the container's own limit counts (--ulimit memlock=-1)")
    if manager != "detached":
        for unit in _units(view):
            value = unit_limit(unit.get("LimitMEMLOCK", ""))
            if isinstance(value, int) and value < line:
                return failed(f"{unit.get('Id')} may lock {value // 1024} KiB (a session: {login})",
                              required="unlimited", found=f"{value // 1024} KiB",
                              mend="LimitMEMLOCK=infinity in the unit, then restart it")
            if value is None and login_small:
                return warned(f"a session may lock {login}; the unit is unlimited and only the unit counts")
        return passed(f"a session: {login}; the units that are written here say unlimited")
    if hard is not None and hard < line and not view.need.privileged:
        text = f"a session may lock {login}, at most {hard // 1024} KiB: the detached process inherits that"
        return failed(text) if view.need.multi_node and not view.need.recorded else noted(text)
    return passed(login)


def _units(view: View) -> list[dict[str, str]]:
    try:
        # a job of ours builds or copies: it serves nothing
        return [dict(unit) for unit in view.facts.units if not unit["Id"].startswith("bringup-job-")]
    except Unread as error:
        if not error.absent:
            raise
        return []


@check("host.nofile", "enough open files", reads=("host.limits",), source="a socket for each request and each rank",
       remedy="role host_limits, or LimitNOFILE in the unit")
def nofile(view: View) -> Outcome:
    least = limits()["nofile"]
    soft, hard = view.facts.limits.nofile
    if hard is not None and hard < least.number and view.need.manager == "detached" and not view.need.recorded:
        return warned(f"at most {hard} in a session: the detached process inherits that", required=str(least))
    return passed(f"{'unlimited' if hard is None else hard} (a session starts with {soft})")


@check("host.shm", "shared memory for the ranks of one host", reads=("disk.room",),
       source="NCCL and the engines' queues",
       remedy="sudo mount -o remount,size=50% /dev/shm")
def shm(view: View) -> Outcome:
    disk = view.facts.disks.get("/dev/shm")
    if disk is None or disk.get("mount") != "/dev/shm":
        return skipped("/dev/shm is no mount of its own")
    least = limits()["shm_bytes"]
    total, free = int(disk.get("size", 0)), int(disk.get("free", 0))
    if view.need.recorded:
        return skipped("nothing of that size runs on a recording")
    if view.need.deployed and total < least.number:
        return failed(f"{size(total)}", required=size(least.number), source=least.source)
    if total and free < total * 0.1:
        return warned(f"{size(free)} free of {size(total)}")
    return passed(size(total))


@check("host.cpu-variant", "the CPU has the instructions of the kernel build that is asked for", reads=("host.cpu",),
       source="KT-Kernel builds", remedy="ask for a variant that every host has")
def cpu_variant(view: View) -> Outcome:
    asked = view.need.cpu_variant.upper()
    if not asked:
        return skipped("the plan asks for none")
    flags = view.facts.cpu.flags
    wanted = _VARIANTS.get(asked)
    if wanted is None:
        return skipped(f"no table for `{asked}`")
    gone = [flag for flag in wanted if flag not in flags]
    if gone:
        has = [name for name, need in _VARIANTS.items() if all(flag in flags for flag in need)]
        return failed(f"{asked} needs {', '.join(gone)}, which this CPU has not ({view.facts.cpu.model})",
                      mend=f"this host can run {', '.join(has)}" if has else None)
    return passed(asked)


@check("host.account", "the account that runs the engine exists", reads=("proc.account",), source="the plan",
       remedy="provision makes it with the role that writes the units")
def account(view: View) -> Outcome:
    if not view.need.account:
        return skipped("the plan names none")
    found = view.facts.account
    if not found.get("exists"):
        return noted(f"{view.need.account} is not there yet")
    return passed(f"{view.need.account}, uid {found.get('uid')}")


@check("host.logind", "logind keeps the shared memory of the account that runs the engine", reads=("host.logind",),
       source="RemoveIPC at logout; system accounts are spared", remedy="run the engine as a system account")
def logind(view: View) -> Outcome:
    if not view.need.account:
        return skipped("the plan names no account")
    found = view.facts.account
    if not found.get("exists") or int(found.get("uid") or 0) < 1000:
        return passed("a system account")
    text = "\n".join(view.facts.answers.files("host.logind").values())
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("RemoveIPC")]
    if lines and lines[-1].replace(" ", "") == "RemoveIPC=no":
        return passed("RemoveIPC=no")
    return warned(f"{view.need.account} is an ordinary account: its shared memory goes when its last session ends")


@check("container.runtime", "Docker answers and knows the accelerators", reads=("host.docker",), absent="skip",
       source="imbue, GPUStack", remedy="install the vendor's container toolkit, then restart docker")
def container(view: View) -> Outcome:
    if view.need.manager != "docker":
        return skipped(f"the manager is {view.need.manager or 'not docker'}")
    if view.facts.answers.get("host.docker").missing:
        return failed("docker is not there")
    docker = view.facts.docker
    # NPUs and AMD's devices are given to the container by name; `--gpus` wants the vendor's runtime
    wanted = "nvidia" if view.platform == "nvidia" else ""
    if wanted and wanted not in docker.runtimes:
        return failed(f"no runtime `{wanted}` (there: {', '.join(docker.runtimes) or 'none'})")
    return passed(f"{docker.version}, {plural(len(docker.runtimes), 'runtime')}")


_INSTALLS = re.compile(r"^(?:\S*python3? )?(?:\S*/)?(?:unattended-upgrade|apt-get|apt|dpkg|dnf|yum)(?: |$)")
"""Commands that hold the lock of the packages; the updater's waiting half (unattended-upgrade-shutdown) holds none."""


@check("host.packages", "the package database is whole, and nobody installs just now",
       reads=("host.packages", "proc.processes"),
       source="the first package step waits for the lock, or fails on what is half done",
       remedy="sudo dpkg --configure -a")
def packages(view: View) -> list[Outcome]:
    out: list[Outcome] = []
    busy = [one for one in view.facts.processes.values() if _INSTALLS.match(one.command)]
    if busy:
        first = min(busy, key=lambda one: one.pid)
        out.append(noted(f"pid {first.pid} of {first.user} installs packages: {first.command[:60]}",
                         mend="wait for it; never remove its lock"))
    try:
        text = view.facts.answers.text("host.packages", any_status=True).strip()
    except Unread as error:
        if not error.absent:
            raise
        return out or [skipped("no dpkg here")]
    if view.facts.answers.get("host.packages").rc:
        raise Unread(f"dpkg --audit: {text.splitlines()[0][:120] if text else 'it printed nothing'}")
    if text and not busy:
        out.append(warned(f"packages are half installed: {text.splitlines()[0][:120]}"))
    return out or [passed("whole")]
