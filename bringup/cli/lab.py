"""Verbs of the embedded lab: loopback machines with replayed GPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bringup.cli.options import FORMAT, Option, Options, verb

if TYPE_CHECKING:
    from bringup.base.paths import Project
    from bringup.inventory.model import Inventory
    from bringup.lab.control import LabStatus

REPLAYED = "the GPUs are replayed from a recorded host; SSH, agent, environments and processes are real"


@verb([FORMAT], name="lab.up")
def up(options: Options) -> int:
    """Start the embedded lab: three SSH servers on loopback, without root; the GPUs are replayed."""
    from bringup.base.paths import Project
    from bringup.lab import control

    project = Project.find()
    state, started = control.up(project)
    if options.format == "json":
        print(json.dumps(as_data(control.status(project))))
        return 0
    print(f"lab {'up' if started else 'is up already'}: {len(state.machines)} machines (pid {state.pid})")
    for machine in state.machines:
        print(f"  {machine.name:<10} {machine.address}:{machine.port}   {machine.root}")
    print(REPLAYED)
    print("next     invoke provision · invoke lab.status · invoke lab.down")
    return 0


@verb([Option("purge", False, "remove the lab's folder too"), FORMAT], name="lab.down")
def down(options: Options) -> int:
    """Stop the lab: the processes that are provably its own, then its servers."""
    from bringup.base.errors import ExitStatus
    from bringup.base.paths import Project
    from bringup.base.text import plural
    from bringup.lab import control

    done = control.down(Project.find(), purge=options.purge)
    if options.format == "json":
        print(json.dumps({"ran": done.ran, "purged": done.purged, "ended": [p.pid for p in done.ended],
                          "left": [p.pid for p in done.left]}))
    else:
        print("lab down" if done.ran else "the lab was not up")
        if done.ended:
            print(f"  {plural(len(done.ended), 'process', 'processes')} of it ended")
        for process in done.left:
            print(f"  {process.pid} would not end: {process.command[:100]}")
        if done.purged:
            print("  its folder is removed")
    return int(ExitStatus.STEP) if done.left else 0


@verb([FORMAT], name="lab.status")
def status(options: Options) -> int:
    """Show the lab: addresses, pids, uptime and what runs on its machines (exit 4 when it is not up)."""
    from bringup.base.errors import ExitStatus
    from bringup.base.paths import Project
    from bringup.base.text import duration
    from bringup.lab import control

    found = control.status(Project.find())
    if options.format == "json":
        print(json.dumps(as_data(found)))
        return 0 if found.running else int(ExitStatus.FINDING)
    if found.running:
        print(f"lab up for {duration(found.uptime or 0)}, pid {found.pid}, in {found.folder.root}")
    else:
        print("the lab is not up" + (" (its supervisor is gone)" if found.stale else ""))
    for item in found.machines:
        if found.running or item.processes:
            print(f"  {item.machine.name:<10} {item.machine.address}:{item.machine.port}")
        for process in item.processes:
            shown = " ".join(process.command.replace(f"{item.machine.root}/", "").split())
            print(f"    {process.pid:>7}  {duration(process.age):>10}  {shown[:100]}")
    print(REPLAYED if found.running else "next     invoke lab.up")
    return 0 if found.running else int(ExitStatus.FINDING)


def join_lab(inventory: Inventory, project: Project) -> str | None:
    """Where an inventory asks for the lab (`bringup_lab` true): start it unless it is up, and give its hosts what it
    fills in (address, port, keys, folders), below what the inventory itself says of them.

    Returns what the person should read about it, None for another inventory. Raises InputError for a host that the
    lab has not, StepError when the lab cannot be started.
    """
    from bringup.base.errors import InputError
    from bringup.base.text import nearest

    asking = [name for name in inventory.hosts if _is_true(inventory.variables(name).get("bringup_lab"))]
    if not asking:
        return None
    from bringup.lab import control
    from bringup.lab.machines import NAMES
    from bringup.lab.state import lab_variables

    for name in asking:
        if name not in NAMES:
            near = nearest(name, NAMES)
            raise InputError(f"the lab has no machine `{name}`", where=inventory.hosts[name].origin,
                             expected=", ".join(NAMES), next=f"nearest: {near}" if near else None)
    _, started = control.up(project)
    variables = lab_variables(project)
    for name in asking:
        host = inventory.hosts[name]
        for key, value in variables[name].items():
            if key not in host.vars:
                host.vars[key] = value
    return f"embedded lab{' (started now)' if started else ''}: {REPLAYED}"


def _is_true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "yes", "on", "1")


def as_data(status: LabStatus) -> dict[str, object]:
    """A lab's status as JSON values; times in seconds."""
    return {
        "running": status.running, "stale": status.stale, "folder": str(status.folder.root), "pid": status.pid,
        "uptime": status.uptime, "gpus": "replayed",
        "machines": [
            {
                "name": item.machine.name, "address": item.machine.address, "port": item.machine.port,
                "root": str(item.machine.root),
                "processes": [{"pid": p.pid, "age": p.age, "command": p.command} for p in item.processes],
            }
            for item in status.machines
        ],
    }
