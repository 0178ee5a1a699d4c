"""Verbs of environments: locked from any machine, built and proven on hosts, listed, compared, explained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bringup.cli.bundle import BUNDLE
from bringup.cli.options import COMMON, FORMAT, Option, Options, verb

if TYPE_CHECKING:
    from bringup.environments.overview import Overview
    from bringup.environments.resolve import Locking

ENV = Option("env", help="environment, a folder under envs/; may be given again (default: all)", many=True)
PLATFORM = Option("platform", help="platform of env.yml; may be given again (default: all)", many=True)


@verb([ENV, PLATFORM, Option("upgrade", False, "take the newest versions that fit, not those of the lock"),
       Option("check", False, "write nothing; exit 4 when a lock would change", short="C"),
       Option("requirements", help="lock this file instead and print the result; may be given again", many=True),
       FORMAT], name="env.lock")
def lock(options: Options) -> int:
    """Resolve environments to hashed locks, per platform, from any machine."""
    from pathlib import Path

    from bringup.base.errors import ExitStatus, InputError
    from bringup.base.paths import Project
    from bringup.environments.definition import load_environment, names
    from bringup.environments.resolve import lock_environment, write_lock
    from bringup.environments.trial import trial_environment

    root = Project.find().root
    envs = root / "envs"
    if options.requirements:
        base = load_environment(envs, options.env[0]) if options.env else None
        trial = trial_environment([Path(item) for item in options.requirements], base, options.platform)
        done = [lock_environment(trial, platform) for platform in trial.platforms]
        print("\n".join(item.text for item in done), end="")
        return 0
    chosen = options.env or names(envs)
    if not chosen:
        raise InputError("there is no environment to lock", where=str(envs), expected="a folder with an env.yml")
    environments = [load_environment(envs, name) for name in chosen]
    known = {platform.name for one in environments for platform in one.platforms}
    for name in options.platform:
        if name not in known:
            raise InputError(f"no environment has the platform `{name}`", expected=", ".join(sorted(known)))
    done = []
    for one in environments:
        for platform in one.platforms:
            if options.platform and platform.name not in options.platform:
                continue
            if platform.not_locked and not options.platform:
                if options.format == "text":
                    _tell(f"{one.name:<18} {platform.name:<24} ", f"cannot be had: {platform.not_locked}")
                continue
            made = lock_environment(one, platform, upgrade=options.upgrade, base=root)
            if not options.check:
                write_lock(made)
            done.append(made)
            if options.format == "text":
                _show_lock(made, checked=options.check)
    if options.format == "json":
        print(json.dumps([{"environment": item.environment, "platform": item.platform, "packages": item.packages,
                           "file": str(item.file), "moved": [list(move) for move in item.moved]} for item in done]))
    return int(ExitStatus.FINDING) if options.check and any(item.changed for item in done) else 0


@verb([*COMMON, ENV, BUNDLE], name="env.build")
def build(options: Options) -> int:
    """Build the environments on the hosts where they are not sound, each proven before it is seen."""
    from bringup.base.paths import Project
    from bringup.cli.bundle import use_bundle
    from bringup.cli.running import Reading, run_reading

    reading = Reading(options, Project.find().root / "playbooks" / "env_build.yml", _named(options))
    use_bundle(options, reading, options.env)
    return int(run_reading(reading, verb="env.build"))


@verb([*COMMON, ENV], name="env.verify")
def verify(options: Options) -> int:
    """Prove the environments on the hosts again: hashes, owners, configuration, nothing from outside (exit 4)."""
    from bringup.base.paths import Project
    from bringup.cli.running import run_playbook

    playbook = Project.find().root / "playbooks" / "env_verify.yml"
    return int(run_playbook(options, playbook, verb="env.verify", extra_vars=_named(options)))


@verb([ENV, FORMAT], name="env.list")
def list_(options: Options) -> int:
    """List the environments: purpose, Python, platforms, locks, CUDA and overrides."""
    from bringup.base.paths import Project
    from bringup.base.text import plural
    from bringup.environments.overview import overviews

    found = overviews(Project.find().root, options.env)
    if options.format == "json":
        print(json.dumps([_overview_data(item) for item in found]))
        return 0
    for item in found:
        _tell(f"{item.name:<18} ", item.purpose)
        for lock in item.locks:
            state = plural(lock.packages, "package") if lock.packages else \
                f"cannot be had: {lock.reason}" if lock.reason else "NOT LOCKED"
            cuda = f", CUDA {lock.cuda}" if lock.cuda else ""
            stale = ", made from other requirements: invoke env.lock" if lock.stale else ""
            _tell(f"{'':<18}   {lock.platform:<24} ", f"{state}{cuda}{stale}")
        print(f"{'':<18}   python {', '.join(item.pythons)}")
        for override in item.overrides:
            _tell(f"{'':<18}   override ", f"{override.requirement}: {override.reason}")
    return 0


@verb([Option("a", help="environment or lock file", positional=True),
       Option("b", help="environment or lock file", positional=True), PLATFORM, FORMAT], name="env.diff")
def diff(options: Options) -> int:
    """Compare the locked packages of two environments (or lock files)."""
    from bringup.base.paths import Project
    from bringup.environments.overview import lock_named
    from bringup.environments.resolve import moved

    root = Project.find().root
    platform = options.platform[0] if options.platform else None
    first, second = lock_named(root, options.a, platform), lock_named(root, options.b, platform)
    found = moved(first, second)
    if options.format == "json":
        print(json.dumps({name: [before, after] for name, before, after in found}))
        return 0
    print(f"{first.file} -> {second.file}")
    for name, before, after in found:
        print(f"  {name:<32} {before or '-':<20} {after or '-'}")
    print(f"{len(found)} of {len({item.name for item in (*first.packages, *second.packages)})} packages differ")
    return 0


@verb([Option("package", help="a package", positional=True), ENV, FORMAT], name="env.why")
def why(options: Options) -> int:
    """Say which environments hold a package, in which version, and who asked for it."""
    from bringup.base.errors import InputError
    from bringup.base.paths import Project
    from bringup.base.text import nearest
    from bringup.environments.overview import reasons

    found, known = reasons(Project.find().root, options.package, options.env)
    if not found:
        near = nearest(options.package, known)
        raise InputError(f"no lock holds `{options.package}`", next=f"nearest: {near}" if near else None)
    if options.format == "json":
        print(json.dumps([{"environment": item.environment, "platform": item.platform, "version": item.version,
                           "chains": [list(chain) for chain in item.chains]} for item in found]))
        return 0
    for item in found:
        print(f"{item.environment} ({item.platform})  {item.name}=={item.version}"
              + (f"  {item.marker}" if item.marker else ""))
        for chain in item.chains:
            print(f"    {' <- '.join(chain)}")
    return 0


def _tell(head: str, text: str) -> None:
    """A line whose text hangs under itself where the terminal is narrower; piped it stays one line."""
    import shutil
    import sys

    from bringup.ui.wrapping import cut

    width = max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 10_000
    print("\n".join(cut(text, width, head, " " * len(head))))


def _named(options: Options) -> dict[str, Any]:
    """The environments given with --env, checked before anything is contacted."""
    from bringup.base.paths import Project
    from bringup.environments.definition import load_environment

    for name in options.env:
        load_environment(Project.find().root / "envs", name)
    return {"env_names": list(options.env)} if options.env else {}


def _show_lock(made: Locking, *, checked: bool) -> None:
    from bringup.base.text import plural

    done = "would change" if checked else "written"
    state = f"{plural(len(made.moved), 'version')} {'differs' if len(made.moved) == 1 else 'differ'}, {done}" \
        if made.moved else f"same versions, {done}" if made.changed else "unchanged"
    print(f"{made.environment:<18} {made.platform:<24} {plural(made.packages, 'package')}, {state}")
    for name, before, after in made.moved[:12]:
        if before is not None or checked:
            print(f"{'':<20} {name:<30} {before or '-'} -> {after or '-'}")


def _overview_data(item: Overview) -> dict[str, Any]:
    return {
        "name": item.name, "purpose": item.purpose, "python": list(item.pythons),
        "locks": [{"platform": lock.platform, "packages": lock.packages, "cuda": lock.cuda, "stale": lock.stale,
                   "file": lock.file, "reason": lock.reason} for lock in item.locks],
        "overrides": [{"requirement": one.requirement, "reason": one.reason} for one in item.overrides],
    }
