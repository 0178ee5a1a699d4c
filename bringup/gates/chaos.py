"""Chaos restarts: a worker, the head, the link between them; how long until the replica serves again."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Sequence

from bringup.agent.processes.container_words import container_name
from bringup.base.errors import FindingError, InputError
from bringup.base.events import Note, Progress
from bringup.base.text import nearest
from bringup.base.verdicts import Finding, Verdict
from bringup.gates.definition import Line
from bringup.gates.ground import Came, Ground, setting
from bringup.releases.choosing import choose_release
from bringup.releases.starting import start_replicas
from bringup.releases.survey import Node, look
from bringup.run.actions import Call
from bringup.serving import engine_calls as calls

FAULTS = ("worker", "head", "link")
NOTICE = 60.0
"""Seconds within which status must see the fault."""


def chaos(ground: Ground, line: Line) -> Came:
    """Make each fault on one replica, see it, restart, and take the time. Asks first: the replica stops each time."""
    wanted = [str(name) for name in setting(line, "faults", FAULTS)]
    for name in wanted:
        if name not in FAULTS:
            near = nearest(name, FAULTS)
            raise InputError(f"the gate {line.name} knows no fault `{name}`", expected=", ".join(FAULTS),
                             next=f"nearest: {near}" if near else None)
    replica = str(setting(line, "replica", ground.replica))
    if replica not in ground.documents:
        raise InputError(f"the gate {line.name}: no replica `{replica}` runs", expected=", ".join(ground.documents))
    hosts = ground.members[replica]
    question = f"{replica} is broken {len(wanted)} times ({', '.join(wanted)}) and restarted each time. Go on?"
    answer = ground.fleet.ask(question)
    if not answer:
        raise FindingError("nothing was broken", found="no terminal to ask at" if answer is None else "the answer was "
                           "no", next="the same command with --yes, or --skip chaos")
    measures: dict[str, float | None] = {}
    found: list[Finding] = []
    told = []
    for name in wanted:
        if name != "head" and len(hosts) < 2:
            found.append(Finding(f"gate.{line.name}", name, Verdict.SKIP, f"{replica} has one node"))
            continue
        ground.fleet.emit(Progress(line.name, f"{name}: breaking it", hosts[-1 if name != "head" else 0]))
        seconds, seen, how = _once(ground, replica, hosts, name, line)
        measures[f"recovery_{name}"] = seconds
        measures[f"noticed_{name}"] = seen
        told.append(f"{name} {seconds:.1f} s")
        ground.fleet.emit(Note(f"{name}: {how}; noticed after {seen:.1f} s, serves again after {seconds:.1f} s"))
    times = [seconds for name, seconds in measures.items() if name.startswith("recovery_") and seconds is not None]
    measures["recovery"] = max(times) if times else None
    return Came(measures, "recovered: " + ", ".join(told) if told else "nothing to break", found)


def _once(ground: Ground, replica: str, hosts: Sequence[str], name: str, line: Line) -> tuple[float, float, str]:
    """(seconds until it served again, until status saw it, what was done)."""
    survey = look(ground.fleet, {replica: hosts}, ground.plan.manager, ask=False)
    host = hosts[0] if name == "head" else hosts[-1]
    node = survey.replicas[replica].nodes[host]
    began = time.monotonic()
    silence = line.number("silence", 20)
    how = _cut(ground, hosts, node, silence) if name == "link" else _kill(ground, node)
    seen = _noticed(ground, replica, hosts, began, asked=name == "link")
    if name == "link" and "stopped" in how:
        _signal(ground, node, "CONT")
    choose_release(ground.fleet, {"to": "current"})
    start_replicas(ground.fleet, {"asked": True})
    after = look(ground.fleet, {replica: hosts}, ground.plan.manager, key=ground.key)
    if not (after.replicas[replica].serves and after.replicas[replica].whole):
        raise FindingError(f"{replica} does not serve again after the fault `{name}`", host=host, next="invoke status")
    return round(time.monotonic() - began, 2), round(seen, 2), how


def _kill(ground: Ground, node: Node) -> str:
    if node.pid is None:
        raise FindingError("there is no process to kill", host=node.host, found=node.state, next="invoke status")
    _signal(ground, node, "KILL")
    return f"every process of {node.host} was killed"


def _signal(ground: Ground, node: Node, name: str) -> None:
    """A signal to the unit, to the container, or to the process group that the host's record proves to be ours."""
    if node.manager in ("docker", "podman"):
        command = f"{node.manager} kill --signal={name} {shlex.quote(container_name(node.name))}"
    elif node.unit:
        command = f"systemctl kill --signal={name} {shlex.quote(node.unit)}"
    else:
        command = f"kill -{int(getattr(signal, f'SIG{name}'))} -{node.pid}"  # dash takes no `--` here
    _do(ground, node.host, command, "the fault could not be made")


def _cut(ground: Ground, hosts: Sequence[str], node: Node, seconds: int) -> str:
    """Cut the worker off for some seconds: its way to the others becomes a black hole that ends by itself. Without
    root, or where root may not change routes (a container), its processes are stopped instead: to the others that is
    the same silence."""
    if not calls.privileged(ground.fleet.variables(node.host)):
        return _silenced(ground, node, "no root there to cut the link")
    addresses = ground.plan.facts.get("addresses", {})
    ways = [str(addresses.get(host, host)) for host in hosts if host != node.host]
    on = " && ".join(f"ip route replace blackhole {shlex.quote(way)}" for way in ways)
    off = "; ".join(f"ip route del blackhole {shlex.quote(way)}" for way in ways)
    try:
        _do(ground, node.host, f"{on} && (setsid sh -c {shlex.quote(f'sleep {seconds}; {off}')} >/dev/null 2>&1 &)",
            "the link could not be cut")
    except FindingError as error:
        if not any("not permitted" in line for line in error.details):
            raise
        return _silenced(ground, node, "routes may not be changed there")
    return f"the way from {node.host} to {', '.join(ways)} was cut for {seconds} s"


def _silenced(ground: Ground, node: Node, why: str) -> str:
    _signal(ground, node, "STOP")
    return f"{node.host} was stopped ({why}): silent to the others"


def _do(ground: Ground, host: str, command: str, what: str) -> None:
    become = calls.become_of(ground.fleet, host)
    result = ground.fleet.call({host: Call("shell", {"cmd": command}, become=become, timeout=30)})[host]
    if result.bad:
        raise FindingError(what, host=host, found=calls.first_line(result),
                           details=[*result.output[-2:]], next="invoke status")


def _noticed(ground: Ground, replica: str, hosts: Sequence[str], began: float, *, asked: bool) -> float:
    """Seconds until a look at the replica shows that it is not whole, or that no token comes. Raises FindingError."""
    while time.monotonic() - began < NOTICE:
        view = look(ground.fleet, {replica: hosts}, ground.plan.manager, key=ground.key, ask=asked).replicas[replica]
        if not view.whole or (asked and not view.serves):
            return time.monotonic() - began
        time.sleep(0.2)
    raise FindingError(f"the fault was not seen within {NOTICE:g} s", host=replica, next="invoke status")
