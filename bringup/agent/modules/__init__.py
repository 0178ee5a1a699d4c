"""The host halves of the modules, one file each.

A module file holds

    ARGUMENTS  a dict: name -> {"type": "str|path|bool|int|float|list|dict|raw|mode", "required": True,
               "default": ..., "choices": [...], "aliases": [...], "no_log": True}
               (checked on the controller before any host is contacted, by bringup.playbook)
    FREE_FORM  optional: the name of the argument that a free text fills (command, shell)
    run(task)  called on the host with a `bringup.agent.task.Task`; returns the result as a dict of JSON values
               ("changed" is expected; "diff" is a list of {"before": text, "after": text, "before_header",
               "after_header"}), or raises bringup.agent.task.Failure.

Nothing here may use what Python 3.6 lacks: no dataclasses, no `from __future__ import annotations`, no walrus,
no `capture_output=` or `text=` in subprocess.
"""
