"""A Fleet whose hosts are folders on this machine: host modules run here, as the agent would run them."""

from __future__ import annotations

import importlib
import shutil
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from bringup.agent.task import Failure, Task
from bringup.base.events import Event
from bringup.base.paths import HostPaths, Project
from bringup.base.results import Result, Status
from bringup.inventory.model import Inventory
from bringup.lab.engine import OVERLAY
from bringup.run.actions import Call


class LocalFleet:
    """Calls run at once in this process; a host named in `dead` is unreachable."""

    def __init__(self, base: Path, hosts: Sequence[str], variables: Mapping[str, Any] | None = None,
                 inventory: Inventory | None = None) -> None:
        self.base = base
        self.hosts = tuple(hosts)
        self.inventory = inventory or Inventory(())
        self.project = Project(base / "project")
        self.check = False
        self.diff = False
        self.yes = False
        self.run_id = "run001"
        self.operator = "ops@here"
        self.verb = "test"
        self.answer: bool | None = None
        self.asked: list[str] = []
        self.events: list[Event] = []
        self.calls: list[tuple[str, str, str]] = []
        self.dead: set[str] = set()
        self._variables = dict(variables or {})

    def variables(self, host: str) -> Mapping[str, Any]:
        own = self.inventory.variables(host) if host in self.inventory.hosts else {}
        return {**own, "bringup_privileged": False, **self._variables}

    def paths(self, host: str) -> HostPaths:
        return HostPaths(PurePosixPath(self.base / "hosts" / host))

    def call(self, calls: Mapping[str, Call], *, on_line: Callable[[str, str], None] | None = None
             ) -> dict[str, Result]:
        if len(calls) == 1:
            return {host: self._one(host, call) for host, call in calls.items()}
        with ThreadPoolExecutor(len(calls) or 1) as pool:
            futures = {host: pool.submit(self._one, host, call) for host, call in calls.items()}
            return {host: future.result() for host, future in futures.items()}

    def _one(self, host: str, call: Call) -> Result:
        self.calls.append((host, call.module, str(call.args.get("action", ""))))
        if host in self.dead:
            return Result(host, call.module, Status.UNREACHABLE, message="no answer on port 22")
        module = importlib.import_module(f"bringup.agent.modules.{call.module}")
        unknown = set(call.args) - set(module.ARGUMENTS)
        assert not unknown, f"{call.module} has no argument {unknown}"
        filled = {name: spec.get("default") for name, spec in module.ARGUMENTS.items()}
        filled.update({name: value for name, value in call.args.items() if value is not None})
        try:
            data = module.run(Task(filled, check=self.check, root=str(self.paths(host).root), run_id=self.run_id,
                                   blob=lambda digest: self._staged(host, call, digest)))
        except Failure as failure:
            return Result(host, call.module, Status.FAILED, message=failure.message, data=failure.fields,
                          found=failure.fields.get("found"), next=failure.fields.get("next"))
        return Result(host, call.module, Status.CHANGED if data.get("changed") else Status.OK, data=data)

    def _staged(self, host: str, call: Call, digest: str) -> str:
        """A file that went along with a call, as the agent stages it."""
        source = next(blob.source for blob in call.blobs if blob.digest == digest)
        path = self.base / "staged" / host / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            shutil.copyfile(source, path)
        return str(path)

    def connect(self, hosts: Sequence[str]) -> dict[str, Result]:
        return {host: Result(host, "connect", Status.OK) for host in hosts}

    def ask(self, question: str) -> bool | None:
        self.asked.append(question)
        return True if self.yes else self.answer

    def emit(self, event: Event) -> None:
        self.events.append(event)


def make_environment(folder: Path) -> Path:
    """A virtual environment without packages but with the lab engine laid in. Returns its folder."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    shutil.copytree(OVERLAY / "site-packages", packages, dirs_exist_ok=True)
    shutil.copytree(OVERLAY / "bin", folder / "bin", dirs_exist_ok=True)
    (folder / "bin" / "vllm").chmod(0o755)
    return folder


def make_model(folder: Path) -> Path:
    """A model folder with as much in it as the lab engine looks at."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "glm_moe_dsa", "num_attention_heads": 64}')
    return folder
