"""Calls of modules in this process: arguments with their defaults, content by digest."""

import importlib

from bringup.agent.task import Task


def call(module, check=False, diff=False, blobs=(), **args):
    """Run a module's host half as the agent does; returns its result or lets Failure through."""
    code = importlib.import_module("bringup.agent.modules." + module)
    full = {name: spec["default"] for name, spec in code.ARGUMENTS.items() if "default" in spec}
    full.update(args)
    return code.run(Task(full, check=check, diff=diff, blob=dict(blobs).__getitem__))


def send(action, context, tmp_path, check=False, diff=False, **args):
    """Run a controller half and then the host half that it calls."""
    made = action(args, context)
    paths = {}
    for number, blob in enumerate(made.blobs):
        path = tmp_path / f"blob{number}"
        path.write_bytes(blob.source if isinstance(blob.source, bytes) else blob.source.read_bytes())
        paths[blob.digest] = str(path)
    return call(made.module, check=check, diff=diff, blobs=paths, **made.args)
