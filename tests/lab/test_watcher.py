"""Watchers in the embedded lab: nobody's run looks, a process is killed, and the replica comes back by itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from site_project import HOSTS, Site, answer, endpoint_of, wait_for

from bringup.agent.processes import proc

PORT = 7741


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    made.write(watcher={"port": PORT, "silence": 20, "on_alert": f"echo \"$BRINGUP_EVENT $BRINGUP_TEXT\" "
                                                                f">> {made.folder}/alerts"})
    yield made
    made.down()


@pytest.fixture(scope="module")
def endpoint(site: Site) -> str:
    printed = site.good("provision")
    assert "watched on 3 nodes" in printed
    return endpoint_of(printed)


def reports(site: Site) -> dict[str, dict[str, Any]]:
    out = {}
    for host in HOSTS:
        path = site.root(host) / f"state/watch/r1-{host}.json"
        out[host] = json.loads(path.read_text())["report"] if path.exists() else {}
    return out


def phases(site: Site) -> list[str]:
    return [str(report.get("phase")) for report in reports(site).values()]


def alerts(site: Site) -> list[str]:
    path = site.folder / "alerts"
    return path.read_text().splitlines() if path.exists() else []


def serves(endpoint: str) -> bool:
    try:
        return bool(answer(endpoint))
    except OSError:
        return False


def watcher_pids(site: Site) -> list[int]:
    return [json.loads((site.root(host) / f"state/watch/r1-{host}.record.json").read_text())["pid"] for host in HOSTS]


def lives(pid: int) -> bool:
    seen = proc.stat(pid)
    return seen is not None and seen["state"] != "Z"


def test_a_second_provision_leaves_the_watchers_alone(site: Site, endpoint: str) -> None:
    before = watcher_pids(site)
    printed = site.good("provision")
    assert "watched on" not in printed
    assert watcher_pids(site) == before


@pytest.mark.parametrize("victim", [HOSTS[2], HOSTS[0]])
def test_a_killed_process_comes_back_with_all_of_its_replica(site: Site, endpoint: str, victim: str) -> None:
    said, before = answer(endpoint), site.pids()
    told = len(alerts(site))
    os.kill(int(before[victim]), signal.SIGKILL)
    assert wait_for(lambda: len(alerts(site)) >= told + 2, 60), (alerts(site), reports(site))
    assert wait_for(lambda: phases(site) == ["watching"] * 3 and serves(endpoint), 60), reports(site)
    after = site.pids()
    assert all(after[host] != before[host] for host in HOSTS), "ranks of two starts never meet"
    assert answer(endpoint) == said
    first, second = alerts(site)[told:]
    assert first.startswith("restarting r1 starts again") and f"{victim}: the process ended by signal 9" in first
    assert second.startswith("restarted r1 serves again")
    assert "nothing wrong found" in site.good("status")


@pytest.mark.full
def test_after_two_restarts_in_an_hour_it_stays_down_and_status_says_so(site: Site, endpoint: str) -> None:
    for _ in range(3):  # those of the tests before count
        os.kill(int(site.pids()[HOSTS[1]]), signal.SIGKILL)
        assert wait_for(lambda: phases(site) != ["watching"] * 3, 30), reports(site)
        assert wait_for(lambda: phases(site) in (["given up"] * 3, ["watching"] * 3), 90), reports(site)
        if phases(site) == ["given up"] * 3:
            break
    assert phases(site) == ["given up"] * 3, reports(site)
    done = site.run("status")
    assert done.returncode == 4
    assert "its watcher gave up after 2 of 2 restarts this hour" in done.stdout
    assert alerts(site)[-1].startswith("gave up r1 stays down after 2 restarts within an hour")
    assert not serves(endpoint)
    site.good("start")
    assert serves(endpoint) and wait_for(lambda: phases(site) == ["watching"] * 3), reports(site)


@pytest.mark.full
def test_a_watcher_that_is_gone_is_told(site: Site, endpoint: str) -> None:
    os.kill(watcher_pids(site)[1], signal.SIGKILL)
    done = wait_for(lambda: (d := site.run("status")) and "its watcher tells nothing" in d.stdout and d, 90)
    assert done and f"{HOSTS[1]}" in done.stdout
    # the others took the node for gone meanwhile, or will; a start sets all of them up anew
    site.good("start", "--yes")
    assert wait_for(lambda: phases(site) == ["watching"] * 3 and serves(endpoint), 60), reports(site)


def test_stop_takes_the_watchers_away(site: Site, endpoint: str) -> None:
    pids = watcher_pids(site)
    site.good("stop", "--yes")
    assert not any(lives(pid) for pid in pids)
    assert reports(site) == {host: {} for host in HOSTS}
    done = site.run("status")
    assert done.returncode == 4 and "is stopped" in done.stdout and "watcher" not in done.stdout


@pytest.mark.full
def test_an_inventory_without_watchers_takes_them_away(site: Site) -> None:
    site.good("start")
    assert wait_for(lambda: phases(site) == ["watching"] * 3), reports(site)
    pids = watcher_pids(site)
    site.write()
    site.good("provision", "--yes")
    assert not any(lives(pid) for pid in pids)


def test_lab_down_ends_the_watchers(site: Site) -> None:
    site.write(watcher={"port": PORT})
    site.good("provision", "--yes")
    pids = watcher_pids(site)
    site.good("lab.down", "--purge")
    assert not any(lives(pid) for pid in pids)
