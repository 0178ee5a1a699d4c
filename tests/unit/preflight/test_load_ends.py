"""What loads a host ends with whoever asked for it: a killed agent, a cut session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driven_session import Driven

from bringup.agent.pids import start_time
from bringup.connection.messages import Started, Target

ROOT = Path(__file__).parents[3]
LOAD = """
import sys
sys.path.insert(0, {root!r})
from bringup.agent import questions_load
from bringup.agent.modules import probe
import bringup.agent.questions as questions

def heavy(given):
    # two processes in sessions of their own, as ranks of a collective
    script = "import os, time; open({mark!r} + '.%d' % os.getpid(), 'w').close(); time.sleep(120)"
    questions_load._outputs([[sys.executable, "-c", script]] * 2, 100)
    return {{"rc": 0}}

questions._QUESTIONS["heavy"] = heavy

class Task:
    args = {{"probes": [{{"id": "load.heavy", "ask": "heavy", "deadline": 110}}], "parallel": 1}}
    run_id = "test"
    def line(self, text): print(text, flush=True)
    def command_environment(self, more): return more

import os
if os.fork() == 0:
    probe.run(Task())
    os._exit(0)
os.wait()
"""


def marked(folder: Path) -> list[int]:
    return sorted(int(path.suffix[1:]) for path in folder.glob("mark.*"))


def wait(condition: object, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.05)


@pytest.fixture
def agent(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that stands for the agent: it forks the worker that runs the module, which starts the load."""
    made = subprocess.Popen([sys.executable, "-c", LOAD.format(root=str(ROOT), mark=str(tmp_path / "mark"))],
                            stdout=subprocess.DEVNULL)
    wait(lambda: len(marked(tmp_path)) == 2)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children with their parents on Linux only")
def test_the_load_ends_when_the_agent_is_killed(agent: subprocess.Popen[bytes], tmp_path: Path) -> None:
    ranks = marked(tmp_path)
    assert len(ranks) == 2 and all(start_time(pid) is not None for pid in ranks)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    wait(lambda: not [pid for pid in ranks if start_time(pid) is not None])
    assert [pid for pid in ranks if start_time(pid) is not None] == []


def test_a_probe_under_way_ends_at_once_when_the_session_is_cut(tmp_path: Path) -> None:
    """The grace that a change has does not hold for what only looks: nobody waits for its answer."""
    mark = tmp_path / "mark"
    driven = Driven(Target(host="here", connection="local", root=str(tmp_path / "root")))
    driven.session.start()
    probe = {"id": "load.slow", "argv": ["sh", "-c", f"touch {mark}.$$; exec sleep 300"], "deadline": 300}
    driven.submit(driven.request("probe", {"probes": [probe]}))
    driven.until(lambda item: isinstance(item, Started))
    wait(lambda: marked(tmp_path))
    pids = marked(tmp_path)
    assert len(pids) == 1 and start_time(pids[0]) is not None
    assert driven.session._pipe is not None
    driven.session._pipe._in.close()  # type: ignore[attr-defined]
    begun = time.monotonic()
    wait(lambda: start_time(pids[0]) is None)
    assert start_time(pids[0]) is None
    assert time.monotonic() - begun < 30
