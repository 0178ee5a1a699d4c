"""Verbs of the gates: hold what runs against them, compare two endpoints, record sessions, write a nightly timer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bringup.base.errors import ExitStatus
from bringup.cli.options import COMMON, FORMAT, READING, Option, Options, verb

GATES = Option("gates", "gates/default.yml", "file of gates, relative to the project")


@verb((*COMMON, GATES, Option("only", help="only these gates; may be given again", many=True),
       Option("skip", help="leave these gates out; may be given again", many=True),
       Option("cycles", help="how often all of it must pass (1)"),
       Option("again", False, "begin anew instead of behind the gates that passed for this release"),
       Option("approve", False, "make the scorecard the one that later gates are held against"),
       Option("compare", help="another endpoint, http://HOST:PORT: the same tasks side by side, nothing else"),
       Option("compare-model", help="the model's name there (default: the first that it lists)"),
       Option("slice", help="with --compare: only so many tasks")), name="gate.run")
def gate(options: Options) -> ExitStatus:
    """Hold what runs against the gates in order: load, traces, parsers, chaos, rollback rehearsal, scorecard."""
    from bringup.cli.preflight import words
    from bringup.gates.definition import load_definition
    from bringup.gates.playbook import lines

    project, reports, pages = _project(options)
    definition = load_definition(project / options.gates)
    only, skip = list(words(options.only)), list(words(options.skip))
    _known(definition, (*only, *skip))
    if options.compare:
        return _compare(options)
    cycles = options.number("cycles", least=1) or 1
    options = Options({**options.values, "report": reports})
    names = [line.name for line in definition.lines if (not only or line.name in only) and line.name not in skip]
    status = ExitStatus.DONE
    for cycle in range(1, cycles + 1):
        # the first line of all begins anew, the others then find what it left
        given = {"gate_file": options.gates, "gate_cycle": cycle, "gate_last": cycle == cycles,
                 "gate_approve": bool(options.approve), "gate_again": names[0] if options.again and cycle == 1 else ""}
        status = _run(options, lines(names), given, f"cycle {cycle} of {cycles}" if cycles > 1 else "")
        if status is not ExitStatus.DONE:
            break
    _write(options, project, definition, pages)
    return status


def _project(options: Options) -> tuple[Path, list[str], list[str]]:
    """The project's folder, the reports that the run writes, and the pages that are written here. Raises InputError
    for one that could not be written."""
    from bringup.base.paths import Project
    from bringup.ui.report import check_reports

    reports = [str(file) for file in options.report]
    check_reports(reports)
    return (Project.find().root, [file for file in reports if not file.endswith(".html")],
            [file for file in reports if file.endswith(".html")])


def _known(definition: Any, names: tuple[str, ...]) -> None:
    from bringup.base.errors import InputError
    from bringup.base.text import nearest

    have = [line.name for line in definition.lines]
    for name in names:
        if name not in have:
            near = nearest(name, have)
            raise InputError(f"no gate is called `{name}`", where=str(definition.path), expected=", ".join(have),
                             next=f"nearest: {near}" if near else None)


def _run(options: Options, text: str, given: dict[str, Any], words: str) -> ExitStatus:
    """Run the gates' playbook. Raises InputError when --limit cuts a replica."""
    from bringup.base.paths import Project
    from bringup.cli.running import Reading, run_reading
    from bringup.cli.serve import headline, plan_of
    from bringup.releases.planned import refuse_cut

    reading = Reading(options, Project.find().root / "playbooks" / "gate.yml", given, text=text)
    if reading.limit is not None:
        refuse_cut(plan_of(reading).replicas, reading.limit, "gate")
    told = headline(reading)
    return run_reading(reading, verb="gate", headline=f"{words} · {told}" if words else told)


def _compare(options: Options) -> ExitStatus:
    from bringup.base.errors import InputError
    from bringup.gates.playbook import comparison

    if "://" not in options.compare:
        raise InputError("--compare takes an address", found=options.compare, expected="http://HOST:PORT")
    for name in ("only", "skip", "cycles", "approve", "again"):
        if options.values.get(name):
            raise InputError(f"--{name} belongs to the gates, --compare runs none of them")
    given: dict[str, Any] = {"gate_url": options.compare, "gate_file": options.gates}
    number = options.number("slice", least=1)
    if number is not None:
        given["gate_slice"] = number
    if options.compare_model:
        given["gate_model"] = options.compare_model
    from bringup.cli.inventory import load_for
    from bringup.gates.action import name_of
    from bringup.gates.versus import path_of

    project, reports, pages = _project(options)
    kept = path_of(project, name_of(load_for(options)))
    if not options.check:
        kept.unlink(missing_ok=True)  # what is written below is of this run
    status = _run(Options({**options.values, "report": reports}), comparison(), given, "")
    if not options.check:
        _write_comparison(kept, [file for file in reports if file.endswith(".json")], pages)
    return status


def _write_comparison(kept: Path, reports: list[str], pages: list[str]) -> None:
    """The pages of a comparison, and its data under `compare` in the JSON reports. Raises StepError."""
    import json

    from bringup.base.errors import StepError
    from bringup.base.secrets import SCRUBBER
    from bringup.gates.versus import load, page

    data = load(kept)
    if data is None:
        return
    try:
        for file in pages:
            Path(file).write_text(SCRUBBER.text(page(data)), encoding="utf-8")
        for file in reports:
            tree = {**json.loads(Path(file).read_text(encoding="utf-8")), "compare": SCRUBBER.tree(data)}
            Path(file).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StepError(f"the report cannot be written: {error.strerror or error}", where=error.filename) from None


def _write(options: Options, project: Path, definition: Any, pages: list[str]) -> None:
    """The HTML pages, from what the gate kept. Raises StepError."""
    if not pages:
        return
    from bringup.base.errors import StepError
    from bringup.base.secrets import SCRUBBER
    from bringup.cli.inventory import load_for
    from bringup.gates import approved
    from bringup.gates.action import name_of, state_path
    from bringup.gates.page import page
    from bringup.gates.state import read

    name = name_of(load_for(options))
    text = page(f"gates of {name}", definition, read(state_path(project, name)),
                approved.load(approved.path_of(definition, name)))
    for file in pages:
        try:
            Path(file).write_text(SCRUBBER.text(text), encoding="utf-8")
        except OSError as error:
            raise StepError(f"the report cannot be written: {error.strerror or error}", where=file) from None


@verb((Option("log", help="FILE.jsonl that grows by a line for each attempt"),
       Option("url", help="the endpoint, http://HOST:PORT"), Option("listen", "127.0.0.1:8900", "where clients ask"),
       Option("from-log", help="make traces of this recorded traffic instead: only what kept the contract"),
       Option("to", help="with --from-log: the trace's file, gates/traces/NAME.jsonl"), FORMAT), name="gate.record")
def record(options: Options) -> ExitStatus:
    """Record real sessions: a proxy in front of the endpoint that writes each attempt down, until interrupted."""
    from bringup.base.errors import InputError

    if options.from_log:
        return _trace(options)
    if not options.log or not options.url or "://" not in options.url:
        raise InputError("gate.record takes --url http://HOST:PORT and --log FILE.jsonl",
                         found=f"--url {options.url or '(none)'} --log {options.log or '(none)'}",
                         next="invoke gate.record --url http://HEAD:8000 --log session.jsonl")
    from bringup.base.text import plural
    from bringup.cli.serve import say
    from bringup.gates.recorder import Recorder

    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit():
        raise InputError("--listen takes ADDRESS:PORT", found=options.listen)
    try:
        server = Recorder((host, int(port)), options.url, Path(options.log))
    except OSError as error:
        raise InputError(f"cannot listen on {options.listen}: {error.strerror}",
                         next="--listen 127.0.0.1:PORT") from None
    say(f"recording {options.url} into {options.log}: clients ask http://{options.listen}/v1; Ctrl-C ends it")
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        # a client has the end of its answer before the line is written
        left = server.settle(seconds=3.0)
        if left:
            say(f"{plural(left, 'request')} had no answer yet: not recorded")
        say(f"{server.count} requests recorded in {options.log}")
        say(f"next     invoke verify --log {options.log} · invoke gate.record --from-log {options.log} "
            "--to gates/traces/NAME.jsonl")
    finally:
        server.server_close()
    return ExitStatus.DONE


def _trace(options: Options) -> ExitStatus:
    """Write the attempts of a session as a trace."""
    from bringup.base.errors import InputError, StepError
    from bringup.cli.serve import say
    from bringup.serving.contract.traffic import broken, read_traffic

    if not options.to:
        raise InputError("--from-log needs --to FILE", next="--to gates/traces/NAME.jsonl")
    try:
        lines = [line for line in Path(options.from_log).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}",
                         where=options.from_log) from None
    attempts = read_traffic(lines, options.from_log)
    malformed = sum(broken(attempt, {}) is not None for attempt in attempts)
    try:
        Path(options.to).parent.mkdir(parents=True, exist_ok=True)
        Path(options.to).write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise StepError("the trace cannot be written", where=options.to, found=error.strerror or str(error)) from None
    say(f"{options.to}: {len(attempts)} steps, {malformed} of them malformed when they were recorded "
        f"(they are asked again and must be well now)")
    return ExitStatus.DONE


@verb((*READING, GATES, Option("at", "02:30", "time of the day, HH:MM"),
       Option("skip", help="gates that the night leaves out; may be given again", many=True),
       Option("to", help="folder of the units (default: ~/.config/systemd/user)")), name="gate.schedule")
def schedule(options: Options) -> ExitStatus:
    """Write a systemd timer that runs the gates each night, as this user; says how it is switched on."""
    from bringup.base.errors import StepError
    from bringup.base.paths import Project
    from bringup.cli.inventory import load_for
    from bringup.cli.preflight import words
    from bringup.cli.serve import say
    from bringup.gates.action import name_of
    from bringup.gates.definition import load_definition
    from bringup.gates.schedule import units

    project = Project.find().root
    definition = load_definition(project / options.gates)
    skip = words(options.skip)
    _known(definition, skip)
    name = name_of(load_for(options))
    made = units(name, project, options.inventory, options.at, skip, options.gates, options.limit)
    folder = Path(options.to).expanduser() if options.to else Path.home() / ".config/systemd/user"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in made.items():
            (folder / file).write_text(text, encoding="utf-8")
            say(f"wrote    {folder / file}")
    except OSError as error:
        raise StepError("the timer cannot be written", where=str(folder), found=error.strerror or str(error)) from None
    timer = next(file for file in made if file.endswith(".timer"))
    say(f"next     systemctl --user daemon-reload && systemctl --user enable --now {timer}")
    say("look     loginctl enable-linger keeps it running when nobody is logged in; "
        f"journalctl --user -u {timer.replace('.timer', '.service')} shows a night")
    return ExitStatus.DONE
