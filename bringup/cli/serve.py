"""Verbs of what runs: start, stop, restart, status, logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError
from bringup.base.secrets import SCRUBBER
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


@verb(CHANGING)
def restart(options: Options) -> ExitStatus:
    """Stop and start whole replicas, one after the other; asks first."""
    return run_stages(options, "restart")


@verb([*COMMON, Option("run", help="show a run instead: its id, or `last`")])
def status(options: Options) -> ExitStatus | int:
    """Show every replica and node: state, pid, ranks, release, and whether a token comes (exit 4 when not)."""
    if options.run:
        return _show_run(options)
    from bringup.cli.status import StatusPage

    return run_data(read_stages(options, "status", whole=False), "status", StatusPage(options))


@verb([*COMMON, Option("lines", "50", "last lines of each node", short="n"),
       Option("follow", False, "go on until interrupted", short="F")])
def logs(options: Options) -> ExitStatus:
    """Show what the engines print, each line behind its host."""
    lines = options.number("lines", least=1)
    reading = read_stages(options, "logs", {"log_lines": lines or 50, "log_follow": bool(options.follow)}, whole=False)
    from bringup.base.events import Line

    def show(event: Event) -> bool:
        if not isinstance(event, Line):
            return False
        from bringup.base.text import printable

        if options.format == "json":
            say(json.dumps({"host": event.host, "text": event.text}, ensure_ascii=False))
        else:
            say(f"{event.host}  {printable(event.text)}")
        return True

    return run_data(reading, "logs", show)


def run_stages(options: Options, name: str, extra_vars: Mapping[str, Any] | None = None) -> ExitStatus:
    """Run a playbook of ours whose plays are stages, over whole replicas."""
    from bringup.cli.running import run_reading

    reading = read_stages(options, name, extra_vars)
    return run_reading(reading, verb=name, headline=headline(reading))


def read_stages(options: Options, name: str, extra_vars: Mapping[str, Any] | None = None, *, whole: bool = True
                ) -> Reading:
    """Read and check everything of such a playbook. With `whole`, raises InputError when --limit cuts a replica."""
    from bringup.base.paths import Project
    from bringup.cli.running import Reading
    from bringup.releases.planned import refuse_cut

    reading = Reading(options, Project.find().root / "playbooks" / f"{name}.yml", extra_vars)
    if whole and reading.limit is not None:
        refuse_cut(plan_of(reading).replicas, reading.limit, name)
    return reading


def plan_of(reading: Reading) -> LaunchPlan:
    """The plan of what was read, without a host. Raises InputError."""
    from bringup.cli.plan import _of_lab
    from bringup.serving.planner import api_key_of, make_plan
    from bringup.serving.planning.variables import rendered

    inventory = reading.inventory
    lab = any(str(inventory.variables(host).get("bringup_lab", "")).lower() in ("true", "yes", "1")
              for host in inventory.hosts)
    variables = rendered(inventory, _of_lab(reading.project, list(inventory.hosts)) if lab else None)
    api_key_of(inventory, variables)
    return make_plan(inventory, reading.project, variables, lab=lab)


def headline(reading: Reading) -> str:
    """`16 hosts, 8 replicas of 2 · glm-5.1 bf16 on vllm, multi_node_tp`."""
    from bringup.base.text import plural

    plan = plan_of(reading)
    hosts = sum(len(replica.hosts) for replica in plan.replicas)
    nodes = len(plan.replicas[0].hosts)
    model = plan.recipe.rpartition("/")[2].lower()
    precision = str(plan.facts.get("precision") or plan.variant)
    replicas = f"{plural(len(plan.replicas), 'replica')} of {nodes}" if len(plan.replicas) > 1 else \
        f"one replica of {nodes}"
    spare = f", {len(plan.spare)} spare" if plan.spare else ""
    return f"{plural(hosts, 'host')}, {replicas}{spare} · {model} {precision} on {plan.engine}, {plan.strategy}"


def say(text: str) -> None:
    """A line of data on standard output, scrubbed, at once."""
    sys.stdout.write(SCRUBBER.text(text) + "\n")
    sys.stdout.flush()


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


def _show_run(options: Options) -> int:
    """The record of a run on this machine: what is kept in `.bringup/runs/ID`."""
    from bringup.base.paths import Project

    project = Project.find()
    runs = project.state / "runs"
    folders = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    known = [path.name for path in sorted(folders, key=lambda path: path.stat().st_mtime)]
    name = known[-1] if options.run == "last" and known else options.run
    if name not in known:
        raise InputError(f"no run `{options.run}` is kept here", expected=", ".join(known[-8:]) or "none yet",
                         found=str(runs), next="a run of another machine: invoke status shows who holds the hosts")
    for line in run_record(runs / name):
        say(line)
    return 0


def run_record(folder: Path) -> list[str]:
    """What is kept of a run, as lines: its journal's events and the files of its diagnosis."""
    lines = [f"run {folder.name}"]
    journal = folder / "journal.jsonl"
    if journal.is_file():
        for raw in journal.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]:
            text = _event_line(raw)
            if text:
                lines.append(f"  {text}")
    kept = [path for path in folder.rglob("*") if path.is_file() and path != journal]
    for path in sorted(kept):
        lines.append(f"  kept  {path.relative_to(folder)}  {path.stat().st_size:,} B")
    return lines


def _event_line(raw: str) -> str:
    try:
        event = json.loads(raw)
    except ValueError:
        return ""
    kind = str(event.pop("event", event.pop("type", "")))
    at = event.pop("at", None)
    event.pop("time", None)
    told = "  ".join(f"{name}={_short(value)}" for name, value in event.items() if value not in (None, "", [], {}))
    moment = f"{at:8.1f} s  " if isinstance(at, (int, float)) else ""
    return f"{moment}{kind}  {told}"[:300]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
