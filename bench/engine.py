"""Measure engines side by side on real machines: `python bench/engine.py --help`. Root only.

Each engine does the same fifty tasks on 2 and 10 machines, first on empty ones, then again with nothing to change, and
on 2 machines behind 50 ms. Afterwards every engine must have left the same file tree. Prints a Markdown table and
writes JSON.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
sys.path[:0] = [str(HERE), str(PROJECT / "tests/machines")]

import peers  # noqa: E402
import tasks50  # noqa: E402
from cluster import Cluster, why_not  # noqa: E402

TREE = (f"cd {tasks50.ROOT} && find . -printf '%P %y %m %U:%G %l\\n' | sort && "
        "find . -type f -print0 | sort -z | xargs -0 sha256sum")
TIMES = f"find {tasks50.ROOT} -printf '%P %C@\\n' | sort"
DELAY = 50.0
"""Milliseconds that each round trip takes longer in the last setting."""


@dataclass
class Place:
    """Machines, the folder with the tasks, and an inventory per engine."""

    cluster: Cluster
    folder: Path
    label: str

    @property
    def addresses(self) -> list[str]:
        return [machine.address for machine in self.cluster.machines]

    def write(self) -> None:
        tasks50.write(self.folder)
        self.cluster.inventory(self.folder / "hosts.yml", {"bringup_root": "/home/ops/.bringup"})
        data = {"ssh_user": self.cluster.user, "ssh_key": str(self.cluster.key),
                "ssh_known_hosts_file": str(self.cluster.known_hosts), "ssh_strict_host_key_checking": "yes",
                "ssh_look_for_keys": False, "ssh_allow_agent": False}
        hosts = [(machine.address, {**data, "machine": machine.name}) for machine in self.cluster.machines]
        (self.folder / "pyinfra/inventory.py").write_text(f"hosts = {hosts!r}\n")

    def clean(self) -> None:
        # moved aside, not deleted: ext4 takes no inode again for a minute and searches past it, which no new host does
        for machine in self.cluster.machines:
            machine.run(f'aside=$(mktemp -d ~/aside-XXXXXX); for each in {tasks50.ROOT} ~/.ansible ~/.bringup; do '
                        '[ ! -e "$each" ] || mv "$each" "$aside"; done')

    def shell(self, command: str) -> str:
        """What the machines answer to a command."""
        return "".join(f"[{machine.name}]\n{machine.run(command).stdout}" for machine in self.cluster.machines)


@dataclass(frozen=True)
class Engine:
    """A name with its versions, and how its command line and environment are made. `slow` runs once."""

    name: str
    command: Callable[[Place], tuple[list[str], Path, dict[str, str]]]
    slow: bool = False
    makes_tree: bool = True


@dataclass
class Row:
    """Seconds of one engine in one setting."""

    engine: str
    setting: str
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)


def _ansible(peer: peers.Peer, place: Place, lines: list[str]) -> tuple[list[str], Path, dict[str, str]]:
    # a fresh folder for control sockets: no run finds the connection of the one before
    sockets = tempfile.mkdtemp(prefix="cp", dir=place.folder)
    config = place.folder / "ansible.cfg"
    config.write_text("\n".join([
        "[defaults]", f"forks = {len(place.addresses)}", "interpreter_python = /usr/bin/python3", *lines,
        "[ssh_connection]", "pipelining = True", f"control_path_dir = {sockets}", ""]))
    return [peer.tool("ansible-playbook"), "-i", "hosts.yml", "play.yml"], place.folder, {"ANSIBLE_CONFIG": str(config)}


def _mitogen(peer: peers.Peer, place: Place) -> tuple[list[str], Path, dict[str, str]]:
    strategies = peers.mitogen_strategies(peer)
    return _ansible(peer, place, [f"strategy_plugins = {strategies}", "strategy = mitogen_linear"])


def _pyinfra(peer: peers.Peer, place: Place) -> tuple[list[str], Path, dict[str, str]]:
    return [peer.tool("pyinfra"), "-y", "--parallel", str(len(place.addresses)), "inventory.py", "deploy.py"], \
        place.folder / "pyinfra", {}


def _bringup(place: Place) -> tuple[list[str], Path, dict[str, str]]:
    invoke = str(Path(sys.executable).parent / "invoke")
    return [invoke, "-r", str(PROJECT), "playbook", "play.yml", "--inventory", "./hosts.yml"], place.folder, \
        {"BRINGUP_PROJECT": str(place.folder)}


def _floor(place: Place) -> tuple[list[str], Path, dict[str, str]]:
    cluster = place.cluster
    return [sys.executable, str(HERE / "floor.py"), str(cluster.key), str(cluster.known_hosts), cluster.user,
            *place.addresses], place.folder, {}


def engines(wanted: list[str]) -> Iterator[Engine]:
    """The engines that can be had, with a line for each that cannot."""
    makers: dict[str, Callable[[], Engine | str]] = {
        "floor": lambda: Engine("floor (paramiko + one Python)", _floor, makes_tree=False),
        "bringup": lambda: Engine("bringup", _bringup),
        "pyinfra": lambda: _of(peers.pyinfra(), "pyinfra", "pyinfra", lambda p: lambda place: _pyinfra(p, place)),
        "mitogen": lambda: _of(peers.mitogen(), "Ansible with Mitogen", "mitogen",
                               lambda p: lambda place: _mitogen(p, place), slow=True),
        "ansible": lambda: _of(peers.ansible(), "ansible-core", "ansible-core",
                               lambda p: lambda place: _ansible(p, place, []), slow=True),
    }
    for name in wanted:
        engine = makers[name]()
        if isinstance(engine, str):
            print(f"left out: {engine}", flush=True)
        else:
            yield engine


def _of(peer: peers.Peer, name: str, package: str, make: Callable[[peers.Peer], Any],
        slow: bool = False) -> Engine | str:
    if peer.why_not:
        return f"{name}: {peer.why_not}"
    return Engine(f"{name} {peer.versions[package]}", make(peer), slow)


def timed(engine: Engine, place: Place) -> tuple[float, str]:
    """Seconds that one run takes, and what it printed. Raises SystemExit with its last lines when it fails."""
    command, folder, environment = engine.command(place)
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith("ANSIBLE_") and name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.monotonic()
    done = subprocess.run(command, cwd=folder, env={**clean, **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    seconds = time.monotonic() - begun
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise SystemExit(f"{engine.name} ended with {done.returncode} on {place.label}:\n{tail}")
    return seconds, done.stdout


def measure(engine: Engine, place: Place, repeats: int, trees: dict[str, str]) -> Row:
    """First and unchanged runs of one engine; the tree that it left goes into `trees`."""
    row = Row(engine.name, place.label)
    for _ in range(1 if engine.slow else repeats):
        place.clean()
        seconds, printed = timed(engine, place)
        row.first.append(seconds)
        if not engine.makes_tree:
            for key, value in json.loads(printed).items():
                row.extra[key] = min(value, row.extra.get(key, value))
            continue
        before = place.shell(TIMES)
        trees[engine.name] = place.shell(TREE)
        row.again.append(timed(engine, place)[0])
        if place.shell(TIMES) != before:
            print(f"NOTE {engine.name} on {place.label}: the unchanged run touched files", flush=True)
    print(f"  {engine.name:32} {place.label:20} first {row.first}  again {row.again} {row.extra or ''}", flush=True)
    return row


def run(wanted: list[str], sizes: list[int], repeats: int, delay: bool) -> tuple[list[Row], list[str]]:
    """All settings; rows and what is wrong."""
    rows: list[Row] = []
    wrong: list[str] = []
    chosen = list(engines(wanted))
    for size in sizes:
        with Cluster(size=size) as cluster, tempfile.TemporaryDirectory() as folder:
            settings = [(f"{size} machines", 0.0)]
            if delay and size == 2:
                settings.append((f"{size} machines, {DELAY:.0f} ms", DELAY))
            for label, milliseconds in settings:
                for machine in cluster.machines:
                    machine.delay(milliseconds)
                place = Place(cluster, Path(folder), label)
                place.write()
                trees: dict[str, str] = {}
                rows += [measure(engine, place, repeats, trees) for engine in chosen]
                wrong += [f"{label}: {line}" for line in differences(trees)]
    return rows, wrong


def differences(trees: dict[str, str]) -> Iterator[str]:
    """Where an engine's tree is another than the first engine's: the first lines of each."""
    names = list(trees)
    for name in names[1:]:
        if trees[name] != trees[names[0]]:
            lines = difflib.unified_diff(trees[names[0]].splitlines(), trees[name].splitlines(), names[0], name, n=0)
            yield "the file trees differ\n" + "\n".join(list(lines)[:20])


def table(rows: list[Row]) -> str:
    """Markdown: seconds, and how often as long as bringup, per setting."""
    out = ["| machines | engine | first, s | unchanged, s | first / bringup | unchanged / bringup |",
           "| --- | --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        own = next((other for other in rows if other.setting == row.setting and other.engine == "bringup"), None)
        ratios = [f"{_best(mine) / _best(ours):.2f}" if own and mine and ours else ""
                  for mine, ours in ((row.first, own.first if own else []), (row.again, own.again if own else []))]
        cells = [row.setting, row.engine, _seconds(row.first), _seconds(row.again), *ratios]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def bars(rows: list[Row]) -> list[str]:
    """The bars of the project and whether they are met."""
    def first(name: str, setting: str) -> float | None:
        return next((_best(r.first) for r in rows if r.setting == setting and r.engine.startswith(name)), None)

    def extra(key: str, setting: str) -> float | None:
        return next((r.extra[key] for r in rows if r.setting == setting and key in r.extra), None)

    out = []
    ours = first("bringup", "10 machines")
    for name, part, text in (("pyinfra", 1 / 8, "an eighth of pyinfra"),
                             ("ansible-core", 1 / 50, "a fiftieth of ansible-core"),
                             ("floor", 2.5, "two and a half times the floor")):
        theirs = first(name, "10 machines")
        if ours and theirs:
            out.append(f"{_met(ours <= theirs * part)} {text}: {ours:.2f} s, bar {theirs * part:.2f} s")
    far, near = first("bringup", f"2 machines, {DELAY:.0f} ms"), first("bringup", "2 machines")
    shaken, shaken_near = extra("handshake", f"2 machines, {DELAY:.0f} ms"), extra("handshake", "2 machines")
    if far and near and shaken and shaken_near:
        more, bar = far - near, shaken - shaken_near + 10 * DELAY / 1000
        out.append(f"{_met(more <= bar)} {DELAY:.0f} ms cost at most the handshake and ten round trips: "
                   f"{more:.2f} s more, bar {bar:.2f} s (whole run {far:.2f} s)")
    return out


def _met(well: bool) -> str:
    return "met   " if well else "MISSED"


def _best(values: list[float]) -> float:
    """The quickest run: what else runs on the machine only ever adds."""
    return min(values)


def _seconds(values: list[float]) -> str:
    return f"{_best(values):.2f}" if values else ""


def main() -> None:
    names = ("floor", "bringup", "pyinfra", "mitogen", "ansible")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--engines", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--machines", default="2,10", help="numbers of machines, one setting each")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the quick engines; the quickest counts")
    parser.add_argument("--no-delay", action="store_true", help="leave out the setting behind 50 ms")
    parser.add_argument("--json", type=Path, help="write every number there")
    chosen = parser.parse_args()
    wanted = chosen.engines.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"unknown engines: {', '.join(sorted(unknown))}")
    if reason := why_not():
        raise SystemExit(reason)
    rows, wrong = run(wanted, [int(size) for size in chosen.machines.split(",")], chosen.repeats, not chosen.no_delay)
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"Python {platform.python_version()}\n\n{table(rows)}\n")
    print("\n".join(bars(rows)))
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": [row.__dict__ for row in rows], "wrong": wrong,
                                           "bars": bars(rows), "cores": os.cpu_count()}, indent=1) + "\n")
    for line in wrong:
        print(f"WRONG {line}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
