"""All verbs in one Invoke collection. A verb's module is imported here; what it needs to run is imported inside it."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys

from invoke import Collection

import bringup.cli
from bringup.base.streams import end_quietly_without_reader
from bringup.cli.options import Verb
from bringup.cli.words import refuse_unreadable


def namespace() -> Collection:
    """The collection of every verb found in the modules of this room.

    A verb named `group.verb` goes into the collection `group`; `group.run` is what `invoke group` does.
    Raises Exit (status 2) where Invoke loads it for a command line that cannot be read.
    """
    # a verb makes many objects that last and few circles: the usual 700 has Python look for them all the time
    gc.set_threshold(50_000, 20, 100)
    end_quietly_without_reader()
    root = Collection()
    groups: dict[str, Collection] = {}
    for verb in sorted(_verbs(), key=lambda v: str(v.name)):
        group, dot, short = str(verb.name).rpartition(".")
        if not dot:
            root.add_task(verb)
            continue
        if group not in groups:
            groups[group] = Collection(group)
        groups[group].add_task(verb, name=short, default=short == "run")
    for collection in groups.values():
        root.add_collection(collection)
    refuse_unreadable(root, sys.argv)
    return root


def _verbs() -> list[Verb]:
    found: dict[str, Verb] = {}
    for module in pkgutil.iter_modules(bringup.cli.__path__):
        loaded = importlib.import_module(f"bringup.cli.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, Verb):
                found[str(value.name)] = value
    return list(found.values())
