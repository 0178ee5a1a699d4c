"""From the flags of a verb to a run of a playbook: what every verb that meets hosts goes through."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError
from bringup.cli.options import Options

if TYPE_CHECKING:
    from bringup.base.paths import Project
    from bringup.cli.credentials import Credentials
    from bringup.inventory.model import Inventory
    from bringup.playbook.loading import Loaded
    from bringup.playbook.model import Play
    from bringup.playbook.templating import Engine
    from bringup.ui.screen import Screen


def operator() -> str:
    """Who runs this, as `user@machine`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname().split('.')[0]}"


class Reading:
    """A verb's input, read and checked; nothing was contacted yet. `text` is a playbook that is no file."""

    def __init__(self, options: Options, playbook: Path, extra_vars: Mapping[str, Any] | None = None, *,
                 text: str | None = None) -> None:
        from bringup.base.paths import Project
        from bringup.cli.credentials import extra_vars_of, read_credentials
        from bringup.cli.modules import module_table
        from bringup.inventory.load import load_inventory
        from bringup.playbook.loading import load_playbook
        from bringup.playbook.selection import Selection
        from bringup.playbook.templating import Engine

        given = options.values
        self.options = options
        self.project: Project = Project.find()
        if text is None and not playbook.is_file():
            raise InputError(f"there is no playbook `{playbook}`", next=_nearest_playbook(playbook))
        self.credentials: Credentials = read_credentials(options)
        vault = self.credentials.vault
        self.extra_vars = {**(extra_vars or {}), **extra_vars_of(options, vault)}
        self.inventory: Inventory = load_inventory(given.get("inventory") or (), self.project, vault=vault,
                                                   extra_vars=self.extra_vars, playbook_dir=playbook.resolve().parent)
        self.templates: Engine = Engine(vault)
        selection = Selection.of(given.get("tags") or (), given.get("skip_tags") or ())
        self.modules = module_table()
        self.loaded: Loaded = load_playbook(playbook, self.modules, self.templates,
                                            roles_paths=(self.project.root / "roles",), extra_vars=self.extra_vars,
                                            selection=selection, text=text)
        self.limit = self._limit()

    def _limit(self) -> tuple[str, ...] | None:
        pattern = self.options.values.get("limit")
        return tuple(self.inventory.select(pattern)) if pattern else None

    def plan(self) -> list[tuple[Play, list[str]]]:
        """The hosts of each play. Raises InputError."""
        from bringup.run.plays import plan_of

        return plan_of(self.loaded, self.inventory, self.limit)


def run_playbook(options: Options, playbook: Path, *, verb: str, extra_vars: Mapping[str, Any] | None = None,
                 headline: str = "") -> ExitStatus:
    """Read and check everything that `playbook` and the flags name, run it, show it, write the reports.

    `extra_vars` go below those of --extra-vars. Raises InputError before anything was contacted, LockedError when
    another run holds a host.
    """
    reading = Reading(options, playbook, extra_vars)
    return run_reading(reading, verb=verb, headline=headline)


def run_reading(reading: Reading, *, verb: str, headline: str = "", screen: Screen | None = None) -> ExitStatus:
    """Run what was read. `screen` takes the events instead of the one that the verb's flags ask for."""
    from bringup.base.events import Note
    from bringup.cli.lab import join_lab
    from bringup.connection.target import target_of
    from bringup.run.fleet import About
    from bringup.run.journal import Journal, new_run_id, prune
    from bringup.run.plays import Run, RunOptions, RunParts
    from bringup.ui.screen import open_screen

    given = reading.options.values
    run_id = new_run_id()
    take_over = given.get("take_over") or None
    if take_over and not re.fullmatch("[0-9a-f]{6}", take_over):
        raise InputError("--take-over takes a run, six hex digits", found=take_over,
                         next="the message of the refused run names it")
    forks = reading.options.number("forks", least=1)
    who = operator()
    plan = reading.plan()
    lab = join_lab(reading.inventory, reading.project)
    screen = screen or open_screen(reading.options, verb)
    about = About(project=reading.project, inventory=reading.inventory, run_id=run_id, operator=who, verb=verb,
                  yes=bool(given.get("yes")), ask=screen.ask)
    journal = Journal(reading.project.run_folder(run_id))
    credentials = reading.credentials
    parts = RunParts(
        inventory=reading.inventory, loaded=reading.loaded, templates=reading.templates,
        extra_vars=reading.extra_vars, modules=reading.modules, about=about, journal=journal, emit=screen,
        linker_of=lambda inbox, target: _linker(inbox, target, who, run_id, verb),
        target_of=lambda host, variables: target_of(host, variables, become_password=credentials.become_password,
                                                    ssh_password=credentials.ssh_password),
        plan=plan,
    )
    run_options = RunOptions(
        verb=verb, check=bool(given.get("check")), diff=bool(given.get("diff")),
        verbosity=1 if given.get("verbose") else 0, forks=forks,
        limit=reading.limit, take_over=take_over, yes=about.yes, headline=headline)
    run = Run(parts, run_options)
    run.check_targets()
    try:
        if lab:
            screen(Note(lab))
        return run.go()
    finally:
        screen.close()
        journal.close()
        prune(reading.project.state / "runs")


def _linker(inbox: Any, target: Callable[[str], Any], who: str, run_id: str, verb: str) -> Callable[[str], Any]:
    from bringup.connection.gate import Gate
    from bringup.connection.session import Session

    gate = Gate()
    return lambda host: Session(target(host), inbox, operator=who, run_id=run_id, gate=gate, verb=verb)


def _nearest_playbook(playbook: Path) -> str | None:
    from bringup.base.text import nearest

    folder = playbook.parent
    names = [path.name for path in folder.iterdir() if path.suffix in (".yml", ".yaml")] if folder.is_dir() else []
    near = nearest(playbook.name, names)
    return f"nearest: {folder / near}" if near else None
