"""Two real machines with a real engine: environment, model and project folder, kept from run to run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cluster import CACHE, Cluster, Machine
from ideal_engine import MODEL, lessons
from site_project import REPOSITORY, Site

HERE = Path(__file__).parent
ENGINES = CACHE / "engines"
"""Environments and models, found again by the next run. A folder is whole or not there."""
NUMA = Path("/usr/lib/x86_64-linux-gnu/libnuma.so.1")
"""Debian's libnuma1, which vLLM for CPUs is linked with and the machines' base lacks."""
RECORDING = REPOSITORY / "bringup/lab/recordings/h200x8"
SLOW = 900.0
"""Seconds that a verb may take at most: three imports of torch and vllm, on two cores that others use too."""
DEPLOYMENT = {"recipe": "tiny/glm", "recipes": "recipes", "engine": "vllm", "engine_version": "0.32.0",
              "hardware": "h200", "environment": "vllm-cpu", "features": ["tool_calling", "reasoning"],
              "manager": "systemd", "load_deadline": 600, "distributed_timeout": 600}


class EngineCluster(Cluster):
    """Machines that see one folder of environments and one of models, as hosts with a shared file system do."""

    def _prepare(self, system: Path) -> None:
        super()._prepare(system)
        for machine in self.machines:
            for name, target in (("envs", "opt/bringup/envs"), ("models", "models")):
                (ENGINES / name).mkdir(parents=True, exist_ok=True)
                place = machine.root / target
                place.mkdir(parents=True, exist_ok=True)
                subprocess.run(["mount", "--bind", str(ENGINES / name), str(place)], check=True)
            shutil.copy(NUMA, machine.root / NUMA.relative_to("/"))


class EngineSite(Site):
    """A project folder for the two machines; the GPUs of preflight are replayed, all else is real."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.model = ""
        super().__init__(folder)
        (folder / "envs/vllm-cpu").symlink_to(HERE / "envs/vllm-cpu")
        (folder / "tests").symlink_to(REPOSITORY / "tests")
        (folder / "recipes").symlink_to(HERE / "recipes")

    def environment(self) -> dict[str, str]:
        out = super().environment()
        if os.environ.get("PIP_FIND_LINKS"):
            out.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
        return out

    def write(self, *, load_seconds: float = 0, fault: str = "", variables: dict[str, Any] | None = None,
              nodes: int = 2, **deployment: Any) -> None:
        """Write the inventory: both machines as one replica, or the first alone. None takes a key away."""
        names = [machine.name for machine in self.cluster.machines]
        given = {**DEPLOYMENT, "model_path": self.model or "/models/none", "replicas": {"r1": names[:nodes]},
                 "strategy": "multi_node_tp" if nodes > 1 else "single_node_tp", "nodes": nodes, **deployment}
        self.cluster.inventory(self.folder / "inventory/lab.yml", {
            "bringup_replay": str(RECORDING), "bringup_known_hosts": str(self.cluster.known_hosts),
            "bringup_ssh_config": False, **(variables or {}),
            "deployment": {key: value for key, value in given.items() if value is not None}})

    def run(self, *words: str, timeout: float = SLOW) -> subprocess.CompletedProcess[str]:
        return super().run(*words, timeout=timeout)

    def good(self, *words: str, timeout: float = SLOW) -> str:
        return super().good(*words, timeout=timeout)

    def findings(self, *words: str) -> dict[str, dict[str, Any]]:
        """check -> finding of `invoke verify`."""
        report = self.folder / "verify.json"
        self.run("verify", *words, "--report", str(report))
        return {one["check"]: one for one in json.loads(report.read_text())["findings"]}


def python_of(machine: Machine, name: str = "vllm-cpu") -> str:
    """The interpreter of the environment that was built, as the machine sees it."""
    for marker in sorted((ENGINES / "envs").glob("*/bringup-env.json")):
        if json.loads(marker.read_text())["name"] == name:
            return f"/opt/bringup/envs/{marker.parent.name}/bin/python"
    raise RuntimeError(f"{name} is not built on {machine.name}")


def tiny_model(machine: Machine) -> str:
    """The folder of the tiny model as the machines see it; trained on one where no run before did it."""
    given = json.dumps(lessons(), sort_keys=True)
    script = (HERE / "train_tiny.py").read_text()
    name = f"{MODEL}-{hashlib.sha256((given + script).encode()).hexdigest()[:12]}"
    if not (ENGINES / "models" / name).is_dir():
        work = machine.root / "var/tmp"
        (work / "lessons.json").write_text(given)
        (work / "train_tiny.py").write_text(script)
        machine.inside(f"{python_of(machine)} -I /var/tmp/train_tiny.py /var/tmp/lessons.json /models/{name}",
                       timeout=SLOW)
    return f"/models/{name}"


def ask(address: str, text: str, port: int = 8000, *, timeout: float = 120.0, **more: Any) -> tuple[int, Any]:
    """(status, body) of a chat request from here."""
    body = {"model": MODEL, "temperature": 0, "max_tokens": 64, "messages": [{"role": "user", "content": text}], **more}
    request = urllib.request.Request(f"http://{address}:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as got:
            return got.status, json.loads(got.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
