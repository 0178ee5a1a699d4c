"""What the whole suite shares: what needs root is left out and counted, a slice of the long tests by a printed seed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

ROOT_MARKS = ("root", "machines")
SLICE = 0.25  # the part of the tests marked `full` that a plain run takes


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a job in the background of a shell ignores it, and so would every program that the tests interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # in the environment, so that the workers of a run with -n take the same slice
    os.environ["BRINGUP_SEED"] = os.environ.get("BRINGUP_SEED") or str(random.SystemRandom().randrange(10**6))
    config.stash[SEED] = int(os.environ["BRINGUP_SEED"])
    config.stash[LEFT_ROOT] = 0
    config.stash[LEFT_SLICE] = []


SEED = pytest.StashKey[int]()
LEFT_ROOT = pytest.StashKey[int]()
LEFT_SLICE = pytest.StashKey[list[str]]()


@pytest.fixture(autouse=True)
def secrets_of_one_test() -> Iterator[None]:
    """What one test taught the scrubber must not mask words of the next."""
    yield
    from bringup.base.secrets import SCRUBBER

    SCRUBBER.forget()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        config.stash[LEFT_ROOT] = _deselect(config, items, [item for item in items if _needs_root(item)])
    if os.environ.get("BRINGUP_FULL") != "1":
        long = [item for item in items if item.get_closest_marker("full")]
        taken = set(random.Random(config.stash[SEED]).sample(range(len(long)), round(len(long) * SLICE)))
        left = [item for number, item in enumerate(long) if number not in taken]
        config.stash[LEFT_SLICE] = [item.nodeid for item in left]
        _deselect(config, items, left)


def _needs_root(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ROOT_MARKS)


def _deselect(config: pytest.Config, items: list[pytest.Item], left: Sequence[pytest.Item]) -> int:
    if left:
        gone = set(left)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=list(left))
    return len(left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left"] = [session.config.stash[LEFT_ROOT], session.config.stash[LEFT_SLICE]]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    left = getattr(node, "workeroutput", {}).get("left")
    if left:
        node.config.stash[LEFT_ROOT], node.config.stash[LEFT_SLICE] = left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[LEFT_ROOT]:
        terminalreporter.write_line(f"{config.stash[LEFT_ROOT]} tests need root and were left out (.ci/run runs them)")
    left = config.stash[LEFT_SLICE]
    if left:
        terminalreporter.write_line(
            f"{len(left)} long tests were left out by seed {config.stash[SEED]} "
            f"(the same slice: BRINGUP_SEED={config.stash[SEED]}; all: BRINGUP_FULL=1):")
        for name in left:
            terminalreporter.write_line(f"  left out {name}")
