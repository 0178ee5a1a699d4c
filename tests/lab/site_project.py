"""A project folder of a site for tests: its own lab, inventory and a small environment; verbs run as a person does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
INVOKE = Path(sys.executable).parent / "invoke"
MACHINE = os.uname().machine
PLATFORM = f"linux-{MACHINE}"
ENV_YML = f"""\
purpose: the lab engine alone
python: ["3.13", "3.12", "3.11", "3.10"]
platforms:
  {PLATFORM}: {{machine: {MACHINE}, glibc: "2.17"}}
overlay: bringup/lab/engine/overlay
"""
LOCK = f"# bringup lock\n# platform: {PLATFORM}\n# python: 3.10 3.11 3.12 3.13\n\n"
DEPLOYMENT = {"recipe": "zai-org/GLM-5.1", "engine": "vllm", "hardware": "h200", "strategy": "multi_node_tp_pp",
              "tensor_parallel": 8, "pipeline_parallel": 3, "environment": "tiny", "manager": "detached",
              "features": ["tool_calling", "reasoning"], "model_path": "{{ lab_models }}/GLM-5.1"}
HOSTS = ("lab-head", "lab-w1", "lab-w2")


class Site:
    """A project folder; `run` types a verb in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.environ.pop("BRINGUP_LAB", None)  # its lab lies in its own folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tasks.py", "bringup", "playbooks", "roles"):
            (folder / name).symlink_to(REPOSITORY / name)
        (folder / "envs/tiny/locks").mkdir(parents=True)
        (folder / "envs/tiny/env.yml").write_text(ENV_YML)
        (folder / "envs/tiny/requirements.in").write_text("")
        (folder / f"envs/tiny/locks/{PLATFORM}.txt").write_text(LOCK)
        (folder / "inventory").mkdir()
        self.write()

    def write(self, *, load_seconds: float = 0.3, fault: str = "", variables: dict[str, Any] | None = None,
              **deployment: Any) -> None:
        """Write inventory/lab.yml: the lab, with these values of the deployment changed."""
        env = {"LAB_ENGINE_LOAD_SECONDS": str(load_seconds), **({"LAB_ENGINE_FAULT": fault} if fault else {})}
        tree = {"all": {
            "vars": {"bringup_lab": True, "bringup_privileged": False, **(variables or {}),
                     "deployment": {**DEPLOYMENT, "env": env, **deployment}},
            "children": {"head": {"hosts": {HOSTS[0]: {}}},
                         "workers": {"hosts": {host: {} for host in HOSTS[1:]}}}}}
        (self.folder / "inventory/lab.yml").write_text(json.dumps(tree, indent=1))

    def environment(self) -> dict[str, str]:
        return {**os.environ, "BRINGUP_PROJECT": str(self.folder), "COLUMNS": "160"}

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Type `invoke WORDS` without a terminal."""
        return subprocess.run([str(INVOKE), *words], cwd=self.folder, env=self.environment(), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout)

    def data(self, *words: str) -> Any:
        """The JSON that a verb prints on standard output."""
        done = subprocess.run([str(INVOKE), *words, "--format", "json"], cwd=self.folder, env=self.environment(),
                              text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        return json.loads(done.stdout)

    def good(self, *words: str, timeout: float = 120) -> str:
        """The same; the verb must end with 0."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, f"invoke {' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Type a verb and go on."""
        return subprocess.Popen([str(INVOKE), *words], cwd=self.folder, env=self.environment(), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """host -> its line of `invoke status`."""
        return {node["node"]: node for node in self.data("status")["nodes"]}

    def pids(self) -> dict[str, str]:
        return {host: node["pid"] for host, node in self.nodes().items()}

    def models(self) -> Path:
        return self.folder / ".bringup/lab/models/GLM-5.1"

    def root(self, host: str) -> Path:
        """The folder that stands for a machine's bringup_root."""
        from bringup.base.paths import Project
        from bringup.lab.state import lab_variables

        return Path(lab_variables(Project(self.folder))[host]["bringup_root"])

    def down(self) -> None:
        self.run("lab.down", "--purge")


def endpoint_of(output: str) -> str:
    """The endpoint that a `ready` line names."""
    found = re.search(r"^ready +(\S+)/v1", output, re.M)
    assert found, output
    return found.group(1)


def answer(endpoint: str, path: str = "/v1/chat/completions") -> Any:
    """What the endpoint says to one fixed question, without what changes from call to call."""
    body = {"model": "zai-org/GLM-5.1", "temperature": 0, "messages": [{"role": "user", "content": "Say pong."}]}
    request = urllib.request.Request(endpoint + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as got:
        document = json.loads(got.read())
    return [choice["message"] for choice in document["choices"]]


def children_of(pid: str) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C, then what it printed."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)[0]


def wait_for(check: Any, seconds: float = 20) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.1)
