"""Verbs of what runs: start, stop, restart, status, logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError, StepError
from bringup.base.secrets import SCRUBBER
from bringup.base.streams import interrupted_without_reader, silence
from bringup.cli.options import COMMON, Option, Options, verb

if TYPE_CHECKING:
    from bringup.base.events import Event
    from bringup.cli.running import Reading
    from bringup.serving.plan import LaunchPlan
    from bringup.ui.screen import Screen

TAKE_OVER = Option("take-over", help="ask this living run to stop at the end of its task, then take its hosts")
CHANGING = (*COMMON, TAKE_OVER)
"""Flags of verbs that change what runs."""


@verb(CHANGING)
def start(options: Options) -> ExitStatus:
    """Start the release in use on every replica that does not serve it, head first, and wait for a token."""
    return run_stages(options, "start")


@verb(CHANGING)
def stop(options: Options) -> ExitStatus:
    """Stop whole replicas: every process of them, and prove that nothing is left."""
    return run_stages(options, "stop")


@verb((*CHANGING, Option("rolling", False, "stop a replica only while another serves; its contract before the next")))
def restart(options: Options) -> ExitStatus:
    """Stop and start whole replicas, one after the other; asks first."""
    if not options.rolling:
        return run_stages(options, "restart")
    from bringup.cli.running import run_reading

    reading = read_stages(options, "restart", {"restart_rolling": True})
    if len(plan_of(reading).replicas) < 2:
        raise InputError("--rolling needs a second replica that serves meanwhile", found="one replica",
                         next="invoke restart: clients will see it")
    return run_reading(reading, verb="restart", headline=headline(reading))


@verb([*COMMON, Option("run", help="show a run instead, to its end if it is under way: its id, or `last`")])
def status(options: Options) -> ExitStatus:
    """Show every replica and node: state, pid, ranks, release, and whether a token comes (exit 4 when not)."""
    if options.run:
        from bringup.cli.runs import ask_hosts, kept_here, run_folder, show_run

        if options.inventory and not kept_here(options.run):
            return ask_hosts(options)
        return show_run(run_folder(options.run), say, as_json=options.format == "json", verbose=options.verbose)
    from bringup.cli.status import StatusPage

    return run_data(read_stages(options, "status", whole=False), "status", StatusPage(options))


@verb([*COMMON, Option("lines", help="last lines of each process (50; with --since all of that time)", short="n"),
       Option("rank", help="of the processes alone that hold these ranks: 3, 0-7 or 0,8-15"),
       Option("since", help="how far back: 90s, 15m, 12h, 2d, or a day, 2026-11-30 or 2026-11-30T14:00"),
       Option("follow", False, "go on until interrupted", short="F")])
def logs(options: Options) -> ExitStatus:
    """Show what the engines print, each line behind its host."""
    lines = options.number("lines", least=1)
    from bringup.base.events import Line
    from bringup.cli.history import since_seconds
    from bringup.releases.reading_logs import ranks_of

    ranks_of(str(options.rank or ""))
    since = max(0.001, since_seconds(options.since, time.time())) if options.since else ""
    reading = read_stages(options, "logs", {
        "log_lines": lines or "", "log_follow": bool(options.follow), "log_ranks": str(options.rank or ""),
        "log_since": since}, whole=False)

    def show(event: Event) -> bool:
        if not isinstance(event, Line):
            return False
        from bringup.base.text import printable

        if options.format == "json":
            say(json.dumps({"host": event.host, "text": event.text}, ensure_ascii=False))
        else:
            say(f"{event.host}  {printable(event.text)}")
        return True

    if not options.follow:
        return run_data(reading, "logs", show)
    with interrupted_without_reader(sys.stdout) as left:
        try:
            status = run_data(reading, "logs", show)
        except KeyboardInterrupt:
            if not left.is_set():
                raise
            silence(sys.stdout)
    return ExitStatus.DONE if left.is_set() else status


def run_stages(options: Options, name: str, extra_vars: Mapping[str, Any] | None = None) -> ExitStatus:
    """Run a playbook of ours whose plays are stages, over whole replicas."""
    from bringup.cli.running import run_reading

    reading = read_stages(options, name, extra_vars)
    return run_reading(reading, verb=name, headline=headline(reading))


def read_stages(options: Options, name: str, extra_vars: Mapping[str, Any] | None = None, *, whole: bool = True,
                leave_out: Sequence[str] = ()) -> Reading:
    """Read and check everything of such a playbook. With `whole`, raises InputError when --limit cuts a replica.
    Hosts in `leave_out` are not contacted."""
    from bringup.base.paths import Project
    from bringup.cli.running import Reading
    from bringup.releases.planned import refuse_cut

    reading = Reading(options, Project.find().root / "playbooks" / f"{name}.yml", extra_vars)
    if leave_out:
        hosts = reading.inventory.hosts if reading.limit is None else reading.limit
        reading.limit = tuple(host for host in hosts if host not in leave_out)
    if whole:
        plan = plan_of(reading)
        if reading.limit is not None:
            refuse_cut(plan.replicas, reading.limit, name)
        from bringup.serving.traffic import check_hooks

        check_hooks(reading.inventory, plan.replicas, variables_of(reading))
    return reading


def plan_of(reading: Reading) -> LaunchPlan:
    """The plan of what was read, without a host. Raises InputError."""
    from bringup.serving.planner import api_key_of, make_plan

    variables = variables_of(reading)
    api_key_of(reading.inventory, variables)
    return make_plan(reading.inventory, reading.project, variables, lab=_is_lab(reading))


def variables_of(reading: Reading) -> Callable[[str], Mapping[str, Any]]:
    """Each host's variables, rendered without a host."""
    from bringup.cli.plan import _of_lab
    from bringup.serving.planning.variables import rendered

    inventory = reading.inventory
    return rendered(inventory, _of_lab(reading.project, list(inventory.hosts)) if _is_lab(reading) else None)


def _is_lab(reading: Reading) -> bool:
    inventory = reading.inventory
    return any(str(inventory.variables(host).get("bringup_lab", "")).lower() in ("true", "yes", "1")
               for host in inventory.hosts)


def headline(reading: Reading) -> str:
    """`16 hosts, 8 replicas of 2 · glm-5.1 bf16 on vllm, multi_node_tp`."""
    from bringup.base.text import plural

    plan = plan_of(reading)
    hosts = len({host for replica in plan.replicas for host in replica.hosts})
    nodes = int(plan.facts["nodes"])
    model = plan.recipe.rpartition("/")[2].lower()
    precision = str(plan.facts.get("precision") or plan.variant)
    replicas = f"{plural(len(plan.wholes), 'replica')} of {nodes}" if len(plan.wholes) > 1 else \
        f"one replica of {nodes}"
    spare = f", {len(plan.spare)} spare" if plan.spare else ""
    return f"{plural(hosts, 'host')}, {replicas}{spare} · {model} {precision} on {plan.engine}, {plan.strategy}"


def say(text: str) -> None:
    """A line of data on standard output, scrubbed, at once. Raises StepError when it cannot be written; a reader that
    left is a BrokenPipeError, which ends the verb."""
    try:
        sys.stdout.write(SCRUBBER.text(text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise StepError(f"the output cannot be written: {error.strerror}") from None


def run_data(reading: Reading, name: str, show: Any) -> ExitStatus:
    """Run a playbook whose events are data: `show(event)` prints what it knows, trouble goes to standard error."""
    from bringup.cli.running import run_reading

    return run_reading(reading, verb=name, screen=_data_screen(reading.options, show))


def _data_screen(options: Options, show: Any) -> Screen:
    from bringup.ui.layout import Layout
    from bringup.ui.plain import Plain
    from bringup.ui.report import Collector
    from bringup.ui.screen import Screen

    return Screen(_Data(Plain(Layout("stages"), sys.stderr, colour=False), show), Collector(),
                  list(options.values.get("report") or ()), as_json=False)


class _Data:
    """Prints data where `show` takes an event; failures and notes go to standard error."""

    def __init__(self, trouble: Any, show: Any) -> None:
        self.trouble = trouble
        self.show = show

    def __call__(self, event: Event, /) -> None:
        from bringup.base.events import Note, TaskEnded

        if self.show(event):
            return
        if isinstance(event, Note) or (isinstance(event, TaskEnded) and event.result.bad):
            self.trouble(event)

    def pause(self) -> None:
        self.trouble.pause()

    def resume(self) -> None:
        self.trouble.resume()

    def close(self) -> None:
        self.trouble.close()
