"""What is in the way: processes on devices, used memory, taken ports, shared memory. What our release holds is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bringup.base.text import duration, plural, size
from bringup.preflight.checks.devices import by_bus, gpus
from bringup.preflight.checks.driver import DRIVER
from bringup.preflight.checks.network import is_loopback
from bringup.preflight.parsers.processes import Process
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, unknown, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

_DAEMONS = ("nvidia-persiste", "dcgm", "nv-hostengine", "nvidia-smi", "npu-smi", "nvitop", "fabricmanage")
_SEGMENTS = ("nccl", "psm_", "vllm", "sgl", "torch_", "shm_", "hccl")
"""Parts of the names that engines give their segments in /dev/shm."""
SETTLED = 60
"""Seconds after which a segment that nobody holds is nobody's: its maker may still be on its way to map it."""
RUNNING, LEFTOVER, STRANGE = "running", "leftover", "strange"


class Owners:
    """Who a process belongs to: the running release, an earlier start of ours, or somebody else.

    Proof is the mark in its environment together with the record of the process, or the record's pid and start time;
    children belong to their parents. A name proves nothing.
    """

    def __init__(self, view: View) -> None:
        self.table: Mapping[int, Process] = {}
        try:
            self.table = view.facts.processes
        except Unread:
            pass
        self.root = view.need.root
        self.records = []
        try:
            self.records = list(view.facts.records)
        except Unread:
            pass
        self.live = {str(record.get("mark")) for record in self.records if self._alive(record)}
        self.pids = {int(record["pid"]) for record in self.records if self._alive(record)}

    def _alive(self, record: Mapping[str, object]) -> bool:
        pid = record.get("pid")
        process = self.table.get(pid) if isinstance(pid, int) else None
        return process is not None and not record.get("stopped") and record.get("ticks") in (process.start, None)

    def of(self, pid: int) -> str:
        """running, leftover or strange."""
        seen: set[int] = set()
        found = STRANGE
        while pid in self.table and pid not in seen:
            seen.add(pid)
            process = self.table[pid]
            if pid in self.pids or process.unit.startswith("bringup"):
                return RUNNING
            if process.mark:
                if process.mark in self.live:
                    return RUNNING
                if process.mark.split("|")[0] == self.root:
                    found = LEFTOVER
            # a record that is no longer kept names its engine by pid and start: what it left behind is ours too
            elif any(record.get("pid") == pid and record.get("ticks") == process.start for record in self.records):
                found = LEFTOVER
            pid = process.parent
        return found

    def shown(self, pid: int, name: str = "") -> str:
        """`77638 of alice, 11 m 09 s: demo`."""
        process = self.table.get(pid)
        if process is None:
            return f"{pid} (not in this process table: another container's){f': {name}' if name else ''}"
        age = f", {duration(process.age)}" if process.age is not None else ""
        return f"{pid} of {process.user}{age}: {process.command[:80]}"


@check("process.devices", "no process but the running release's is on a device", reads=("nvidia.apps", "proc.holders"),
       source="gcm; the port and the memory of a dead server", platform="nvidia", after=DRIVER,
       remedy="ask its owner; ours: invoke stop")
def devices(view: View) -> list[Outcome]:
    owners = Owners(view)
    held: dict[int, set[str]] = {}
    names: dict[int, str] = {}
    used: dict[int, int] = {}
    for app in view.facts.apps:
        held.setdefault(app.pid, set()).add(by_bus(view, app.bus))
        names[app.pid] = app.name
        used[app.pid] = used.get(app.pid, 0) + (app.used or 0)
    out = []
    mine = 0
    for pid, where in sorted(held.items()):
        kind = owners.of(pid)
        amount = f", {used[pid]:,} MiB" if used.get(pid) else ""
        what = f"{', '.join(sorted(where))}{amount}: pid {owners.shown(pid, names.get(pid, ''))}"
        if kind == RUNNING:
            mine += 1
        elif kind == LEFTOVER:
            process = owners.table[pid]
            stuck = process.state[:1] in ("D", "Z")
            out.append(failed(f"left by an earlier start of ours: {what}",
                              mend="needs reboot: it does not take signals" if stuck else
                              f"invoke stop stops it (ours by pid and start time); needs reboot when {pid} survives"))
        else:
            out.append(failed(what, mend="ask its owner to end it; it is not ours to end"))
    out += _hidden(view, owners, set(held))
    if out:
        return out
    return [passed(f"{mine} of the running release" if mine else "none")]


def _hidden(view: View, owners: Owners, listed: set[int]) -> Iterable[Outcome]:
    """Processes that hold a device file though nvidia-smi does not list them, where memory is in use."""
    try:
        holders = view.facts.holders
    except Unread:
        return
    idle = limits()["idle_memory"].number
    busy = [gpu for gpu in view.facts.smi.gpus if (gpu.memory_used or 0) > idle]
    for holder in holders:
        numbers = [path for path in holder.devices if path.removeprefix("/dev/nvidia").isdecimal()]
        process = owners.table.get(holder.pid)
        words = f"{holder.name} {process.command if process else ''}"
        # the probes' own tools look at the devices at the same moment
        daemon = any(name in words for name in _DAEMONS)
        if busy and numbers and holder.pid not in listed and not daemon and owners.of(holder.pid) != RUNNING:
            yield warned(f"{', '.join(numbers)} open, not listed by nvidia-smi: pid "
                         f"{owners.shown(holder.pid, holder.name)}", mend="ask its owner")


@check("process.memory", "no device memory is used but by the running release", platform="nvidia", reads=("nvidia.q",),
       source="an idle H200 shows 0-1 MiB", after=DRIVER, remedy="find the holder: fuser -v /dev/nvidia*")
def used_memory(view: View) -> Outcome:
    idle = limits()["idle_memory"]
    owners = Owners(view)
    owned = {}
    listed: dict[str, int] = {}
    try:
        for app in view.facts.apps:
            listed[app.bus] = listed.get(app.bus, 0) + (app.used or 0)
            if owners.of(app.pid) == RUNNING:
                owned[app.bus] = True
    except Unread:
        pass
    full = [gpu for gpu in view.facts.smi.gpus if gpu.memory_used is not None and gpu.memory_used > idle.number
            and gpu.bus not in owned]
    orphan = [gpu for gpu in full if (gpu.memory_used or 0) - listed.get(gpu.bus, 0) > idle.number]
    if orphan:
        worst = max(orphan, key=lambda gpu: gpu.memory_used or 0)
        hidden = listed.get(worst.bus) is None
        used = worst.memory_used or 0
        return failed(f"{gpus(gpu.index for gpu in orphan)}: {used:,} MiB ({size(used * 1048576)}) in use"
                      + (" by no listed process" if hidden else ""),
                      required=f"at most {idle} before a start", source=idle.source,
                      details=("a process in a container may hold it: it is not listed here",) if hidden else ())
    if full:
        return skipped("what is used is named by process.devices")
    return passed(f"at most {max((gpu.memory_used or 0) for gpu in view.facts.smi.gpus)} MiB"
                  if not owned else "the running release's")


@check("process.ports", "the ports that the plan binds are free", reads=("net.listeners",),
       source="the plan", remedy="end what listens there, or name another port in the inventory")
def ports(view: View) -> Outcome | list[Outcome]:
    if not view.need.ports:
        return skipped("the plan names no port")
    owners = Owners(view)
    own_ports: set[int] = set()
    for record in owners.records:
        if str(record.get("mark")) in owners.live:
            own_ports.update(int(port) for port in record.get("ports", []) if str(port).isdecimal())
    out = []
    mine = 0
    for port, what in sorted(view.need.ports.items()):
        for one in [listener for listener in view.facts.listeners if listener.port == port]:
            kinds = {owners.of(pid) for pid in one.pids}
            # without rights the holder is not shown: the running release's own record then says whose it is
            if kinds == {RUNNING} or (not one.pids and port in own_ports):
                mine += 1
                continue
            if not _clash(view, one.address):
                continue
            who = "; ".join(f"pid {owners.shown(pid)}" for pid in one.pids) or one.name or "a process not shown to us"
            ours = "left by an earlier start of ours, " if LEFTOVER in kinds else ""
            out.append(failed(f"{port} ({what}) is held on {one.address} by {ours}{who}",
                              mend="invoke stop" if ours else "end it, or name another port in the inventory"))
            break
    if out:
        return out
    shown = ", ".join(str(port) for port in sorted(view.need.ports))
    return passed(f"{shown} held by the running release" if mine else f"{shown} free")


def _clash(view: View, address: str) -> bool:
    """Whether a listener on this address is in the way. In the lab all machines share one network stack."""
    own = view.need.addresses.get(view.host, "")
    wide = address in ("0.0.0.0", "::", "*")
    return wide or not own.startswith("127.") or address == own


@check("process.shm", "no shared memory is left by a dead process of ours", reads=("proc.shm", "proc.processes"),
       source="engines leave segments in /dev/shm when they are killed", remedy="remove the segments that it names")
def shared_memory(view: View) -> list[Outcome]:
    owners = Owners(view)
    table = view.facts.processes
    left: list[tuple[str, int, str]] = []
    held: list[tuple[str, int]] = []
    for segment in view.facts.shm:
        name = str(segment.get("name", ""))
        if not any(word in name for word in _SEGMENTS):
            continue
        users = segment.get("holders")
        # the name of a segment is mostly a random word: a number in it is a pid only where it stands alone
        named = [int(part) for part in re.findall(r"(?<![0-9A-Za-z])[0-9]{3,7}(?![0-9A-Za-z])", name)]
        alive = [int(pid) for pid in users] if users is not None else [pid for pid in named if pid in table]
        ours = [pid for pid in alive if owners.of(pid) == LEFTOVER]
        if ours:
            held.append((name, ours[0]))
        elif not alive and (users is not None or named) and int(segment.get("age") or 0) >= SETTLED:
            left.append((name, int(segment.get("size", 0)), str(segment.get("user", "?"))))
    out = []
    if left:
        total = sum(bytes_ for _, bytes_, _ in left)
        out.append(noted(f"{plural(len(left), 'segment')} of dead processes ({size(total)}): {left[0][0]} of "
                         f"{left[0][2]}", mend=f"rm /dev/shm/{left[0][0]}" + (" and the others" if left[1:] else "")))
    for name, pid in held[:4]:
        out.append(noted(f"{name} is held by pid {owners.shown(pid)}, left by an earlier start of ours",
                         mend=f"invoke stop ends it; then rm /dev/shm/{name} where it stays"))
    return out or [passed("none")]


@check("process.stuck", "no process is stuck in the kernel", reads=("proc.processes", "host.kernel_log"),
       source="gpud: tasks in state D", remedy="sudo reboot, when it holds a device")
def stuck(view: View) -> Outcome:
    # a tool of seconds that waits in the kernel since a minute does not come back; engines wait there for a moment
    waiting = [p for p in view.facts.processes.values() if p.state.startswith("D") and (p.age or 0) >= 60
               and any(tool in p.command for tool in ("nvidia-smi", "npu-smi", "rocm-smi", "dcgmi"))]
    if waiting:
        first = waiting[0]
        return warned(f"{len(waiting)} tools wait in the kernel, one since {duration(first.age or 0)}: pid {first.pid} "
                      f"{first.command[:60]}")
    try:
        hung = [line for line in view.facts.kernel_log.hung if "nvidia" in line or "python" in line or "nv_" in line]
    except Unread:
        hung = []
    if hung:
        return warned(f"{len(hung)} tasks were blocked for minutes", details=(hung[-1],))
    return passed("none")


@check("process.ours", "what runs of ours is named", reads=("proc.records", "proc.processes"),
       source="records of started processes", remedy="invoke status")
def ours(view: View) -> Outcome:
    try:
        records = view.facts.records
    except Unread as error:
        return unknown(f"the records of our processes cannot be read: {error.reason}")
    owners = Owners(view)
    running = [str(record.get("name")) for record in records if str(record.get("mark")) in owners.live]
    left = [pid for pid in owners.table if owners.table[pid].mark and owners.of(pid) == LEFTOVER]
    if left:
        return warned(f"{len(left)} processes of an earlier start live on: pid {owners.shown(left[0])}",
                      mend="invoke stop")
    strange = _rivals(view, owners)
    if strange:
        return failed(f"another's worker is at the meeting point of this replica: pid {owners.shown(strange[0])}",
                      found=f"{plural(len(strange), 'process')} for {_meeting(view)}",
                      mend="end it (it is none of ours); a rank that is there twice hangs without a word")
    if running:
        return passed(f"serving: {', '.join(running)}")
    return passed("nothing of ours runs")


def _meeting(view: View) -> str:
    """The address where the ranks of this host's replica meet: its head's."""
    return view.need.addresses.get(view.need.nodes[0], "") if view.need.nodes else ""


_MEETS = re.compile(r"(?:vllm|sglang)\b.* (?:--master-addr|--dist-init-addr|--data-parallel-address)[ =]([^\s:]+)")


def _rivals(view: View, owners: Owners) -> list[int]:
    """Engines that we did not start and that go to the same meeting point: they would take the place of a rank."""
    address = _meeting(view)
    if not view.need.multi_node or not address or is_loopback(address):
        return []  # the lab's machines are one: a neighbour's lab is no rival
    met = {pid: _MEETS.search(process.command) for pid, process in owners.table.items()}
    return [pid for pid, match in met.items() if match and match[1] == address and owners.of(pid) == STRANGE]
