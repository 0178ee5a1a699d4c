"""Starts of a real vLLM on two nodes that fail: the first cause is named, and nothing is left running."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_site import EngineSite
from site_project import wait_for

pytestmark = [pytest.mark.full, pytest.mark.machines]
SOON = 60
"""Seconds that a collective waits here: long enough for two imports of torch on a loaded machine."""


@pytest.fixture
def stopped(site: EngineSite) -> Iterator[EngineSite]:
    """Nothing runs before and after."""
    site.write()
    site.good("stop", "--yes")
    yield site
    site.write()
    site.good("stop", "--yes")


def cause_of(out: str) -> str:
    """The lines of `cause`, its evidence and what follows it."""
    assert "| cause " in out, out
    return out.split("| cause ", 1)[1].split("| kept ", 1)[0]


def fails(site: EngineSite, meanwhile: Callable[[], Any] | None = None, **deployment: Any) -> str:
    """A provision that must fail; `meanwhile` is done once it runs. Returns the cause as told."""
    site.write(**deployment)
    run = site.start("provision", "--yes")
    if meanwhile is not None:
        meanwhile()
    out = run.communicate(timeout=900)[0]
    assert run.returncode == 1, out
    nothing_left(site)
    return cause_of(out)


def nothing_left(site: EngineSite) -> None:
    for machine in site.cluster.machines:
        left = machine.run("pgrep -u bringup -fa . || true").stdout
        assert not left.strip(), f"{machine.name}: {left}"


def frozen(site: EngineSite, number: int) -> Callable[[], None]:
    """Freeze a node's engine as soon as its unit runs: it is there and takes no part."""
    machine = site.cluster.machines[number]

    def freeze() -> None:
        main = f"systemctl show bringup-r1-{machine.name} -p MainPID --value"
        assert wait_for(lambda: machine.run(main).stdout.strip() not in ("", "0"), 120)
        machine.run(f"sudo kill -STOP $({main})")

    return freeze


@pytest.mark.parametrize("port", [8000, 29501], ids=["http", "meeting"])
def test_a_port_that_is_taken_is_named_before_anything_starts(stopped: EngineSite, port: int) -> None:
    head = stopped.cluster.machines[0]
    holder = f"import socket,time;s=socket.socket();s.bind(('0.0.0.0',{port}));s.listen();time.sleep(600)"
    head.run(f'sudo systemd-run --unit=holder{port} python3 -c "{holder}"')
    try:
        assert wait_for(lambda: f":{port}" in head.run("ss -ltn").stdout, 20)
        done = stopped.run("provision", "--yes")
    finally:
        head.run(f"sudo systemctl stop holder{port}")
    assert done.returncode == 4, done.stdout
    told = done.stdout.split("process.ports", 1)[1]
    assert str(port) in told and "python3" in told
    nothing_left(stopped)


def test_an_interface_that_is_not_there_is_named_before_anything_starts(stopped: EngineSite) -> None:
    stopped.write(env={"GLOO_SOCKET_IFNAME": "nosuch0"})
    done = stopped.run("provision", "--yes")
    assert done.returncode == 4, done.stdout
    assert "GLOO_SOCKET_IFNAME=nosuch0: no interface `nosuch0`" in done.stdout
    nothing_left(stopped)


def test_on_a_wrong_interface_the_nodes_offer_each_other_loopback(stopped: EngineSite) -> None:
    told = fails(stopped, env={"GLOO_SOCKET_IFNAME": "lo"}, distributed_timeout=SOON)
    assert "nodes offer each other loopback addresses" in told
    assert "127.0.0.1" in told


def test_an_absent_worker_is_named(stopped: EngineSite) -> None:
    told = fails(stopped, frozen(stopped, 1), distributed_timeout=SOON)
    assert "e2" in told.splitlines()[0], told
    assert "1/2 clients joined" in told or "never joined" in told


def test_an_absent_head_is_named(stopped: EngineSite) -> None:
    told = fails(stopped, frozen(stopped, 0), distributed_timeout=SOON)
    assert "e1" in told.splitlines()[0], told


def test_a_name_on_loopback_is_named_where_the_interface_is_left_out(stopped: EngineSite) -> None:
    """Without a named interface ranks offer what their own name is, which Debian's installer puts on 127.0.1.1."""
    worker = stopped.cluster.machines[1]
    hosts = worker.root / "etc/hosts"
    before = hosts.read_text()
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {worker.name}\n{before}")
    try:
        told = fails(stopped, env={"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": ""}, distributed_timeout=SOON)
    finally:
        hosts.write_text(before)
    assert "nodes offer each other loopback addresses" in told, told
    assert "127.0.1.1" in told and "role host_names" in told


@pytest.fixture
def edited(stopped: EngineSite) -> Iterator[Callable[[str], None]]:
    """Edit the worker's command behind our back: a drop-in of its unit that puts a sed script over it."""
    worker = stopped.cluster.machines[1]
    folder = f"/etc/systemd/system/bringup-r1-{worker.name}.service.d"

    def edit(script: str) -> None:
        launch = f"/opt/bringup/current/launch/r1-{worker.name}.sh"
        (worker.root / "usr/local/bin/edited").write_text(f'#!/bin/sh\neval "$(sed "$1" {launch})"\n')
        worker.run(f"sudo chmod 755 /usr/local/bin/edited && sudo mkdir -p {folder}")
        (worker.root / folder[1:] / "edit.conf").write_text(
            f'[Service]\nExecStart=\nExecStart=/usr/local/bin/edited "{script}"\n')
        worker.run("sudo systemctl daemon-reload")

    yield edit
    worker.run(f"sudo rm -rf {folder}; sudo systemctl daemon-reload")


def test_sizes_that_differ_are_named_before_the_ranks_hang(stopped: EngineSite, edited: Callable[[str], None]) -> None:
    edited("s/--tensor-parallel-size 2/--tensor-parallel-size 4/")
    told = fails(stopped, distributed_timeout=SOON)
    assert "e2: was started for 4 ranks, the replica has 2" in told, told
    assert "world_size=4" in told, "the line that says so"
    assert "invoke drift" in told


def test_a_rank_that_is_there_twice_is_named(stopped: EngineSite, edited: Callable[[str], None]) -> None:
    """The worker takes itself for the first node too; it waits for a head on its own loopback without a word."""
    edited("s/--node-rank 1/--node-rank 0/")
    told = fails(stopped, distributed_timeout=SOON)
    assert "e2: took rank 0, meant for it: 1" in told, told
    assert "127.0.0.1" in told


def test_a_worker_that_is_not_ours_stops_a_provision_before_anything_starts(stopped: EngineSite) -> None:
    """It would take the place of a rank, and ours would hang."""
    head, worker = stopped.cluster.machines
    stray = f"exec -a 'vllm serve /m --nnodes 2 --node-rank 1 --master-addr {head.address}' sleep 600"
    worker.run(f'sudo systemd-run --unit=stray --uid=bringup bash -c "{stray}"')
    try:
        done = stopped.run("provision", "--yes")
    finally:
        worker.run("sudo systemctl stop stray")
    assert done.returncode == 4, done.stdout
    assert "process.ours" in done.stdout and "another's worker is at the meeting point" in done.stdout
    nothing_left(stopped)


def test_a_stop_while_it_loads_leaves_nothing(stopped: EngineSite) -> None:
    head = stopped.cluster.machines[0]
    stopped.write(distributed_timeout=62)
    run = stopped.start("provision", "--yes")
    assert wait_for(lambda: "EngineCore" in head.run("pgrep -fa [E]ngineCore || true").stdout, 300)
    run.send_signal(2)
    assert run.wait(timeout=120) == 130, run.communicate()[0]
    began = time.monotonic()
    stopped.good("stop", "--yes")
    assert time.monotonic() - began < 120
    nothing_left(stopped)
