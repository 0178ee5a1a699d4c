"""A fleet whose hosts are folders of this machine: real modules in real processes, no network between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from bringup.base.events import Event
from bringup.base.paths import HostPaths, Project
from bringup.base.results import Result, Status
from bringup.inventory.model import Inventory
from bringup.run.actions import Call

PACKAGE = Path(__file__).resolve().parents[2]

RUNNER = """
import importlib, json, sys, threading
from bringup.agent.task import Failure, Task
given = json.load(sys.stdin)
module = importlib.import_module("bringup.agent.modules." + given["module"])
one_at_a_time = threading.Lock()
def say(*words):
    with one_at_a_time:
        print(json.dumps(words), flush=True)
args = {name: spec.get("default") for name, spec in module.ARGUMENTS.items()}
args.update(given["args"])
task = Task(args, check=given["check"], root=given["root"], line=lambda text, stream="stdout": say("line", text),
            blob=lambda digest: given["blobs"][digest])
try:
    say("ok", module.run(task))
except Failure as error:
    say("failed", dict(error.fields, msg=error.message))
"""


class FolderFleet:
    """`variables` are those of every host; each host's root is a folder under `base`."""

    def __init__(self, base: Path, project: Path, hosts: Sequence[str], variables: Mapping[str, Any],
                 check: bool = False) -> None:
        self.base = base
        self.hosts = tuple(hosts)
        self.inventory = Inventory([])
        self.project = Project(project)
        self.check = check
        self.diff = False
        self.yes = True
        self.run_id = "test"
        self.operator = "test"
        self.verb = "test"
        self.events: list[Event] = []
        self.lines: list[tuple[str, str]] = []
        self._variables = {"bringup_privileged": False, **variables}

    def variables(self, host: str) -> Mapping[str, Any]:
        return self._variables

    def paths(self, host: str) -> HostPaths:
        return HostPaths(PurePosixPath(self.base / host))

    def connect(self, hosts: Sequence[str]) -> dict[str, Result]:
        return {host: Result(host, "connect", Status.OK) for host in hosts}

    def ask(self, question: str) -> bool | None:
        return True

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def call(self, calls: Mapping[str, Call], *, on_line: Callable[[str, str], None] | None = None
             ) -> dict[str, Result]:
        with ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
            return dict(zip(calls, pool.map(lambda pair: self._one(*pair, on_line), calls.items()), strict=True))

    def _one(self, host: str, call: Call, on_line: Callable[[str, str], None] | None) -> Result:
        root = self.base / host
        staged = self.base / f"{host}.blobs"
        staged.mkdir(parents=True, exist_ok=True)
        root.mkdir(exist_ok=True)
        blobs = {}
        for blob in call.blobs:
            path = staged / blob.digest
            if isinstance(blob.source, bytes):
                path.write_bytes(blob.source)
            else:
                shutil.copyfile(blob.source, path)
            blobs[blob.digest] = str(path)
        given = {"module": call.module, "args": dict(call.args), "check": self.check and call.changes,
                 "root": str(root), "blobs": blobs}
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(PACKAGE), os.environ.get("PYTHONPATH", "")))}
        process = subprocess.Popen([sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=env)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        kind, value = "failed", {"msg": "the module died"}
        for text in process.stdout:
            kind, value = json.loads(text)
            if kind == "line":
                self.lines.append((host, value))
                if on_line is not None:
                    on_line(host, value)
        process.stdout.close()
        process.wait()
        if kind == "ok":
            return Result(host, call.module, Status.CHANGED if value.get("changed") else Status.OK, data=value)
        return Result(host, call.module, Status.FAILED, message=value["msg"], expected=value.get("expected"),
                      found=value.get("found"), output=tuple(value.get("output") or ()), next=value.get("next"),
                      data=value)
