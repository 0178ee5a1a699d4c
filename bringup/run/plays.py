"""A playbook from its first play to its recap."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.errors import BringupError, ExitStatus, InputError, worst
from bringup.base.events import Event, Note, PlayEnded, PlayStarted, RunEnded, RunStarted
from bringup.base.text import fold_hosts
from bringup.connection.messages import Target
from bringup.connection.session import controller_id
from bringup.inventory.model import Inventory
from bringup.playbook.jinja import StillToCome
from bringup.playbook.loading import Loaded
from bringup.playbook.model import Keywords, Play, Task, walk
from bringup.playbook.templating import Engine as Templates
from bringup.playbook.templating import TemplateFailure
from bringup.playbook.values import looks_templated
from bringup.run.actions import ModuleSpec
from bringup.run.batch import Batch, batches
from bringup.run.engine import Engine, Linker
from bringup.run.fleet import About, runner
from bringup.run.flow import LOCAL_NAMES
from bringup.run.hosts import UP, HostState
from bringup.run.journal import Journal
from bringup.run.locking import LockKeeper, Refused
from bringup.run.prepare import Settings, flag, number, privileged, variables_view
from bringup.run.recovery import Recovery
from bringup.run.variables import CONNECTION_NAMES, Variables

CLOSE_WAIT = 3.0
"""Seconds that the end of a run waits for the agents to say goodbye."""

CANCEL_WAIT = 8.0
"""Seconds that an interrupted run waits for what it cancelled: TERM, 5 s, KILL, and the answer."""

_WHOLE = frozenset({"provision", "start", "stop", "restart", "rollback"})
"""Verbs that act on whole replicas and refuse a limit that cuts one."""


@dataclass(frozen=True)
class RunOptions:
    """The flags of a run."""

    verb: str
    check: bool = False
    diff: bool = False
    verbosity: int = 0
    forks: int | None = None
    limit: tuple[str, ...] | None = None
    take_over: str | None = None
    yes: bool = False
    headline: str = ""


@dataclass
class RunParts:
    """What a run is made of. `linker_of` makes the function that opens sessions, given where their messages go."""

    inventory: Inventory
    loaded: Loaded
    templates: Templates
    extra_vars: Mapping[str, Any]
    modules: Mapping[str, ModuleSpec]
    about: About
    journal: Journal
    emit: Callable[[Event], None]
    linker_of: Callable[[Any, Callable[[str], Target]], Linker]
    target_of: Callable[[str, Mapping[str, Any]], Target]
    plan: list[tuple[Play, list[str]]] = field(default_factory=list)


class Run:
    """One run. `go` returns the exit status."""

    def __init__(self, parts: RunParts, options: RunOptions) -> None:
        self.parts = parts
        self.options = options
        self.run_hosts = _union(parts.plan, parts.inventory)
        settings = Settings(check=options.check, diff=options.diff, verbosity=options.verbosity,
                            open_include=parts.loaded.include,
                            variables_file=lambda path: self.engine.variables.variables_file(path))
        self.engine = Engine(parts.templates, settings, self._link, self._emit, self.run_hosts)
        magic = {"ansible_check_mode": options.check, "ansible_diff_mode": options.diff,
                 "ansible_forks": options.forks or len(self.run_hosts), "ansible_verbosity": options.verbosity,
                 "ansible_run_tags": sorted(parts.loaded.reading.selection.tags),
                 "ansible_skip_tags": sorted(parts.loaded.reading.selection.skip)}
        self.engine.variables = Variables(parts.inventory, parts.templates, parts.loaded, parts.extra_vars, magic,
                                          self.engine.state, self._ask_other)
        self.engine.fleet_runner = runner(self.engine, parts.about, parts.templates)
        self.later = _later_names(parts.loaded)
        self._linker = parts.linker_of(self.engine.inbox, self._target)
        self._play: Play | None = None
        self._statuses: set[ExitStatus] = set()
        self._lock()

    # before anything is contacted

    def _lock(self) -> None:
        changing = not self.options.check and any(_may_change(task) for task in _all_tasks(self.parts.loaded))
        local = [name for name in self.run_hosts if name in LOCAL_NAMES]
        hosts = [name for name in self.run_hosts if name not in local] if changing else []
        accounts = {name: self._account(name) for name in hosts}
        self.engine.lock = LockKeeper(self.engine, hosts, verb=self.options.verb, accounts=accounts,
                                      take_over=self.options.take_over,
                                      identity=(self.parts.about.operator, controller_id()),
                                      inventory=self.parts.inventory.shown_as)
        self.engine.recover = Recovery(self.engine, self.engine.lock, self.parts.about.run_id)

    def _account(self, host: str) -> str | None:
        """As whom the lock is taken: root where this run elevates there, else the connecting account."""
        play = next((play for play, names in self.parts.plan if host in names), self.parts.plan[0][0])
        scope = self.engine.variables.scope(self.engine.state(host), play)
        if not privileged(scope):
            return None
        found = scope.find("ansible_become")
        named = isinstance(found, (bool, str)) and flag(self.parts.templates, found, scope)
        uses = any(task.keywords.become not in (None, False) or _elevates(task)
                   for task in _all_tasks(self.parts.loaded))
        return "root" if named or uses else None

    def _target(self, host: str) -> Target:
        play = self._play or (self.parts.plan[0][0] if self.parts.plan else None)
        assert play is not None
        scope = self.engine.variables.scope(self.engine.state(host), play)
        try:
            return self.parts.target_of(host, variables_view(scope))
        except TemplateFailure as error:
            raise InputError(error.what, host=host, where=error.where, details=error.details, found=error.found,
                             next=error.next) from None

    def check_targets(self) -> None:
        """Read how every host is reached. Raises InputError before anything is contacted, also for a play that would
        reach a host in another way than an earlier one: a host has one session a run."""
        first: dict[str, tuple[Target, Play]] = {}
        for play, names in self.parts.plan:
            self._play = play
            for name in names:
                target = self._target(name)
                known, earlier = first.setdefault(name, (target, play))
                if known != target:
                    raise InputError(
                        f"this play reaches {name} in another way than the play before it", where=play.origin,
                        expected=f"as in {earlier.origin}", found=_way_in(target),
                        details=["a host has one session a run"],
                        next="set ansible_user, ansible_port and ansible_connection in the inventory")
        self._play = None

    def _link(self, host: str) -> Any:
        return self._linker(host)

    def _emit(self, event: Event) -> None:
        self.parts.journal(event)
        self.parts.emit(event)

    # the run

    def go(self) -> ExitStatus:
        """Run every play; tell the recap; leave no lock. Raises LockedError when another run holds a host."""
        engine = self.engine
        about = self.parts.about
        engine.emit(RunStarted(self.options.verb, self.parts.inventory.shown_as, about.run_id, about.operator,
                               tuple(self.run_hosts), check=self.options.check, headline=self.options.headline))
        for text in self.parts.loaded.playbook.warnings:
            engine.note(text, level="warn")
        error: BringupError | None = None
        try:
            with _term_as_interrupt():
                self._plays()
        except Refused as refused:
            error = refused.error
            self._statuses.add(error.status)
        except KeyboardInterrupt:
            self._statuses.add(ExitStatus.INTERRUPTED)
            self._interrupt()
        finally:
            self._close()
        status = self._finish(error)
        if error is not None:
            raise error
        return status

    def _plays(self) -> None:
        total = len(self.parts.plan)
        for index, (play, names) in enumerate(self.parts.plan, 1):
            began = time.monotonic()
            hosts = [name for name in names if self.engine.state(name).usable]
            if names and not hosts:
                break
            self._play = play
            self.engine.lock.at(play.name)
            self.engine.emit(PlayStarted(play.name, index, total, tuple(hosts), origin=play.origin))
            if not hosts:
                self.engine.emit(Note(f"the pattern `{play.hosts}` matches no host: nothing was done in this play",
                                      level="warn"))
            goes_on = self._one(play, names)
            self.engine.emit(PlayEnded(play.name, index, time.monotonic() - began))
            if not goes_on:
                break

    def _one(self, play: Play, hosts: Sequence[str]) -> bool:
        """One play, batch by batch. False when the run ends here."""
        engine, templates = self.engine, self.parts.templates
        variables = engine.variables
        variables.begin_play()
        variables.play_hosts_all = tuple(hosts)
        variables.play_hosts = lambda: tuple(name for name in hosts if engine.state(name).usable)
        if not hosts:
            return True
        scope = variables.scope(engine.state(hosts[0]), play)
        serial = templates.render(play.serial, scope) if play.serial is not None else None
        percentage = play.max_fail_percentage
        limit = None if percentage is None else number(templates, percentage, scope, 0)
        fatal = flag(templates, play.any_errors_fatal, scope)
        gather = self._gather(play, scope)
        for names in batches(hosts, serial):
            states = [engine.state(name) for name in names if engine.state(name).usable]
            if not states:
                continue
            variables.play_batch = lambda states=states: tuple(  # type: ignore[misc]
                state.name for state in states if state.usable)
            batch = Batch(engine, play, states, gather=gather, any_errors_fatal=fatal, max_fail_percentage=limit,
                          size=len(names))
            if any(_needs_host(task) for task in play.tasks()) or gather is not None:
                for state in states:
                    engine.connect(state)
            engine.run_batch(batch, self.options.forks)
            if batch.aborted or all(not state.usable for state in states):
                return False
            if batch.end_play:
                break
        return True

    def _gather(self, play: Play, scope: Any) -> Task | None:
        value = play.gather_facts
        try:
            wanted = flag(self.parts.templates, value, scope, True)
        except StillToCome:
            wanted = True
        module = self.parts.modules.get("setup")
        if not wanted or module is None or not self.parts.loaded.reading.selection.wants(frozenset({"always"})):
            return None
        keywords = play.keywords
        subset = {"gather_subset": play.gather_subset} if play.gather_subset else {}
        inherited = Keywords(become=keywords.become, become_user=keywords.become_user,
                             environment=keywords.environment, ignore_errors=keywords.ignore_errors,
                             ignore_unreachable=keywords.ignore_unreachable)
        return Task("Gathering Facts", "setup", play.origin, subset, inherited, (play.folder,), module=module)

    def _ask_other(self, asking: str, other: str, name: str) -> None:
        """Another host's value: wait for that host when a task of this playbook may still give the name."""
        if asking == other or self.engine.batch is None:
            return
        flow = self.engine.batch.flows.get(other)
        own = self.engine.batch.flows.get(asking)
        if flow is None or flow.done or own is None or own.meeting is not None:
            return
        fact = name == "ansible_facts" or (name.startswith("ansible_") and name not in CONNECTION_NAMES)
        if fact or self.later is None or name in self.later:
            raise StillToCome(f"hostvars[{other!r}].{name}")

    # the end

    def _interrupt(self) -> None:
        """Ctrl-C: cancel what runs, wait briefly. A second one ends the wait."""
        engine = self.engine
        running: dict[str, list[str]] = {}
        for host in engine.hosts.values():
            if host.flight and host.state == UP:
                running.setdefault(host.flight[0].name, []).append(host.name)
        for name, hosts in running.items():
            engine.note(f'interrupted in task "{name}": it is ended there', fold_hosts(hosts), "warn")
        try:
            engine.background.clear()
            for host in engine.hosts.values():
                host.outbox.clear()
                if host.link is not None and host.state == UP:
                    host.link.cancel()
            engine.flows = {}
            engine.stopped = True
            engine.pump(lambda: engine.outstanding == 0, time.monotonic() + CANCEL_WAIT)
        except KeyboardInterrupt:
            return

    def _close(self) -> None:
        engine = self.engine
        try:
            known = None if sys.exc_info()[0] else int(worst(self._statuses | engine.statuses))
            engine.lock.release(outcome=known)
        except KeyboardInterrupt:
            self._statuses.add(ExitStatus.INTERRUPTED)
        linked: list[HostState] = [host for host in engine.hosts.values() if host.link is not None]
        for host in linked:
            assert host.link is not None
            host.link.close()
        until = time.monotonic() + CLOSE_WAIT
        for host in linked:
            assert host.link is not None
            host.link.join(max(0.0, until - time.monotonic()))

    def _finish(self, error: BringupError | None) -> ExitStatus:
        hosts = self.engine.hosts
        recap = {name: dict(state.recap) for name, state in hosts.items() if state.recap}
        self._statuses |= self.engine.statuses
        if error is not None:
            self._statuses = {error.status}
        status = worst(self._statuses)
        failed = [name for name, state in hosts.items() if state.failed or state.gone]
        retry = self.parts.journal.write_failed(failed)
        # all of them again is the same command without a limit, and so is a replica, which no limit may cut
        some = retry and len(failed) < len(hosts) and status is not ExitStatus.DONE and \
            self.options.verb not in _WHOLE
        following = (f"try those again: --limit @{retry}",) if some else ()
        self.engine.emit(RunEnded(int(status), time.monotonic() - self.engine.began, recap=recap, next=following))
        return status


@contextlib.contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """TERM ends a run as Ctrl-C does: what runs is cancelled, locks are given up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def plan_of(loaded: Loaded, inventory: Inventory, limit: Sequence[str] | None
            ) -> list[tuple[Play, list[str]]]:
    """The hosts of each play. Raises InputError for a pattern that names nothing in the inventory."""
    out: list[tuple[Play, list[str]]] = []
    kept = None if limit is None else set(limit)
    for play in loaded.playbook.plays:
        names = inventory.select(play.hosts, play.hosts_origin)
        if kept is not None:
            names = [name for name in names if name in kept]
        out.append((play, _ordered(names, play, inventory)))
    if out and kept is None and not any(names for _, names in out):
        first = out[0][0]
        raise InputError(f"`{first.hosts}` matched no hosts" if len(out) == 1 else "no play matches a host",
                         where=first.hosts_origin, details=["nothing would be done"])
    if out and kept is not None and not any(names for _, names in out):
        raise InputError("the limit leaves no host for any play", found=", ".join(sorted(kept)) or "no host",
                         expected=f"hosts of {', '.join(dict.fromkeys(play.hosts for play, _ in out))}")
    return out


def _ordered(names: list[str], play: Play, inventory: Inventory) -> list[str]:
    if play.order == "sorted":
        return sorted(names)
    if play.order == "reverse_sorted":
        return sorted(names, reverse=True)
    return list(reversed(names)) if play.order == "reverse_inventory" else names


def _all_tasks(loaded: Loaded) -> list[Task]:
    out: list[Task] = []
    for play in loaded.playbook.plays:
        out.extend(play.tasks())
        out.extend(walk(play.all_handlers))
    for nodes in loaded.reading.opened.values():
        out.extend(walk(nodes))
    return out


def _way_in(target: Target) -> str:
    port = f" port {target.port}" if target.port else ""
    return f"{target.connection} as {target.user or 'the connecting account'}{port}"


def _elevates(task: Task) -> bool:
    """Our own stages write below bringup_root as root wherever the host allows that."""
    module = task.module
    return isinstance(module, ModuleSpec) and module.fleet_action is not None and not module.reads_only


def _may_change(task: Task) -> bool:
    """True for a task that may change a host: a module that does not only read, or an include of unknown content."""
    if task.include is not None:
        name = task.args.get("file") or task.args.get("name")
        return task.include.what != "vars" and isinstance(name, str) and looks_templated(name)
    return task.selected and isinstance(task.module, ModuleSpec) and not task.module.reads_only


def _needs_host(task: Task) -> bool:
    module = task.module
    return task.include is not None or (isinstance(module, ModuleSpec)
                                        and (module.agent is not None or module.fleet_action is not None))


def _union(plan: Sequence[tuple[Play, list[str]]], inventory: Inventory) -> list[str]:
    """Every host of the run in inventory order, hosts that tasks are delegated to by a literal name among them."""
    names = {name for _, hosts in plan for name in hosts}
    for play, _ in plan:
        for task in play.tasks():
            target = task.keywords.delegate_to
            if isinstance(target, str) and target in inventory.hosts:
                names.add(target)
    return [name for name in inventory.hosts if name in names] + sorted(names - set(inventory.hosts))


def _later_names(loaded: Loaded) -> frozenset[str] | None:
    """Names that tasks of this playbook may still give a host; None when a template makes them."""
    names: set[str] = set()
    for task in _all_tasks(loaded):
        if task.register:
            names.add(task.register)
        if task.action == "set_fact":
            if any(looks_templated(str(name)) for name in task.args):
                return None
            names.update(str(name) for name in task.args)
        if task.include is not None and task.include.what == "vars":
            return None
    return frozenset(names)


