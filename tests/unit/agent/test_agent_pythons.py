"""The agent under every Python that is here: pyenv's, uv's and the system's, 3.6 to 3.14."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from driven_session import Driven

from bringup.agent import bootstrap
from bringup.connection.messages import Finished, NotRun, Output, Target
from bringup.run.actions import Blob

VERSIONS = ["3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


@functools.lru_cache
def pythons() -> dict[str, str]:
    """`3.6` -> a Python of that version, whoever brought it."""
    found: dict[str, str] = {}
    places = [*Path("~/.pyenv/versions").expanduser().glob("*/bin/python3"),
              *Path("~/.local/share/uv/python").expanduser().glob("cpython-*/bin/python3"),
              *Path("/usr/bin").glob("python3.*"), *Path("/usr/local/bin").glob("python3.*")]
    for path in places:
        if path.name.endswith("config"):
            continue
        done = subprocess.run([str(path), "-SIEc", "import sys; print('%d.%d' % sys.version_info[:2])"],
                              capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), str(path))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_agent_runs_under(version: str, tmp_path: Path) -> None:
    python = pythons().get(version)
    if python is None:
        pytest.skip(f"no Python {version} here: uv python install {version} brings it")
    target = Target(host="here", connection="local", root=str(tmp_path / "root"), python=python)
    with Driven(target) as agent:
        info = agent.connected().info
        assert info["version"].startswith(version + ".")
        lock, failed, dropped, after = agent.answers(
            agent.request("lock", {"verb": "playbook"}), agent.request("shell", {"cmd": "echo caf\\351; exit 3"}),
            agent.request("ping"), agent.request("ping", segment=9))
        assert isinstance(lock, Finished) and lock.result["state"] == "locked"
        assert isinstance(failed, Finished) and failed.result["rc"] == 3
        assert isinstance(dropped, NotRun) and isinstance(after, Finished)
        assert [item for item in agent.seen if isinstance(item, Output)]
        data = os.urandom(200_000)
        digest = hashlib.sha256(data).hexdigest()
        args = {"dest": str(tmp_path / "größe"), "_source": "x", "mode": "0644",
                "_file": {"name": "x", "digest": digest, "sha1": None, "md5": None, "size": len(data), "mode": "0644"}}
        told = agent.call("copy", args, blobs=[Blob(digest, len(data), data)])
        assert told.get("changed"), told
        assert (tmp_path / "größe").read_bytes() == data
        timed = agent.answers(
            agent.request("command", {"cmd": "sleep 9"}, timeout=0.2, segment=1000))[0]
        assert isinstance(timed, Finished) and timed.result["timed_out"]
        started = agent.call("job", {"id": "j", "cmd": "echo one; exit 4"})
        assert started["changed"]
        followed = agent.call("job", {"action": "follow", "id": "j", "wait": 5})
        while followed["state"] == "running":
            followed = agent.call("job", {"action": "follow", "id": "j", "wait": 5})
        assert (followed["text"], followed["rc"]) == ("one\n", 4)
        tasks = agent.call("journal", {"run": "r1"})["tasks"]
        assert tasks == {}
        assert agent.call("unlock")["state"] == "unlocked"


def test_a_python_that_is_too_old_is_refused_by_its_own_word() -> None:
    line = bootstrap.line("m").replace("(3,6)", "(4,0)")
    done = subprocess.run(["python3", "-SIE", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is older than 3.6" in done.stderr
