"""A tree of files from one host to others: from agent to agent over the cluster network, else through the controller.

The hosts stand in a tree below the one that has the files (or fetches them). Every host gives what it has whole while
it takes the rest, so a tree of any depth takes little longer than one copy. One key is made for each transfer; it
reaches the hosts inside frames only. The copying goes on when the controller is gone; the next run finds it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import secrets
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from bringup.agent import bootstrap
from bringup.base.events import Note
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.run.actions import Blob, Call, Fleet

PIECE = 4 << 20
"""Bytes of a file that go through the controller at a time."""

WAIT = 2.0
"""Seconds that a host waits for news before it answers."""

_PARTS = ("__init__", "wire", "tree", "serve", "take", "hub", "node")
_MAIN = "import sys\nfrom bringup.agent.transfer.node import main\nsys.exit(main(sys.argv[1]))\n"


@dataclass(frozen=True)
class Spread:
    """What goes where. `name` names the transfer (letters, digits, dashes): a run that comes back finds it by that.

    `path` is the tree's folder on every host, or host -> folder. `upstream` makes `source` fetch the tree itself:
    {"kind": "hub", "endpoints", "repo", "revision", "token"} or {"kind": "folder", "path"}. `entries` is the list of
    its files where it is known already. `again` names files per host that are to be taken though their size fits.
    `rate` is bytes a second for each host, in and out. `fan_out` is how many hosts each one gives to. `follow` takes
    links to files as files. `direct` False goes through the controller at once.
    """

    name: str
    path: str | Mapping[str, str]
    source: str
    takers: Sequence[str]
    entries: Sequence[Mapping[str, Any]] | None = None
    upstream: Mapping[str, Any] | None = None
    again: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rate: int | None = None
    fan_out: int = 2
    follow: bool = False
    direct: bool = True
    patience: float = 60.0
    streams: int = 4

    def folder(self, host: str) -> str:
        """Where the tree lies on a host."""
        return self.path if isinstance(self.path, str) else self.path[host]


Told = Callable[[str, Mapping[str, Any]], None]
"""Called with a host and what is known of its part: bytes, of, files, files_of, source, seconds, complete."""


@lru_cache(maxsize=1)
def transfer_program() -> Blob:
    """The program that hosts run, packed: the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        texts = {"__main__.py": _MAIN, "bringup/__init__.py": "", "bringup/agent/__init__.py": ""}
        texts |= {f"bringup/agent/transfer/{name}.py": bootstrap.source(f"transfer.{name}") for name in _PARTS}
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    data = packed.getvalue()
    return Blob(hashlib.sha256(data).hexdigest(), len(data), data)


def spread(fleet: Fleet, wanted: Spread, told: Told | None = None) -> dict[str, Result]:
    """Bring the tree to every taker; a result for the source (where it fetches) and each taker.

    A result is ok where all was there, changed where something came; its data has bytes, of, files, source and
    seconds. A host that cannot take directly takes through the controller. Failed results say what was in the way.
    In check mode nothing is started: a host's data has `missing`, the number of files that would come.
    """
    return _Spreading(fleet, wanted, told or (lambda host, state: None)).run()


def tree_levels(source: str, takers: Sequence[str], fan_out: int) -> list[list[tuple[str, list[str]]]]:
    """The tree, level by level: (host, those above it, nearest first). The source is the last of those above."""
    levels: list[list[tuple[str, list[str]]]] = []
    above: dict[str, list[str]] = {source: []}
    row, left = [source], list(takers)
    while left:
        level: list[tuple[str, list[str]]] = []
        for _ in range(max(1, fan_out)):
            for parent in row:
                if left:
                    host = left.pop(0)
                    above[host] = [parent, *above[parent]]
                    level.append((host, above[host]))
        levels.append(level)
        row = [host for host, _ in level]
    return levels


def reached_by(fleet: Fleet, host: str) -> str:
    """What the other hosts reach a host by: `cluster_address`, else where it is connected to, else its name."""
    variables = fleet.variables(host)
    return str(variables.get("cluster_address") or variables.get("ansible_host") or host)


def become_of(variables: Mapping[str, Any]) -> str | None:
    """The account that works under `bringup_root`: root, or the connecting one where `bringup_privileged` is false."""
    value = str(variables.get("bringup_privileged", True)).strip().lower()
    return None if value in ("false", "no", "off", "0") else "root"


class _Spreading:
    """One transfer, from the list of files to the last host."""

    def __init__(self, fleet: Fleet, wanted: Spread, told: Told) -> None:
        self.fleet = fleet
        self.wanted = wanted
        self.told = told
        self.key = ""
        self.mark = ""
        self.entries: list[Mapping[str, Any]] = []
        self.ports: dict[str, tuple[str, int]] = {}
        self.deaf: dict[str, str] = {}
        self.results: dict[str, Result] = {}
        self.attached: set[str] = set()
        self.went_on: set[str] = set()
        self.begun = time.monotonic()

    def run(self) -> dict[str, Result]:
        source = self.wanted.source
        if self.wanted.entries is None:
            upstream = {"upstream": dict(self.wanted.upstream)} if self.wanted.upstream else {}
            listing = self.ask({source: {"action": "list", "follow": self.wanted.follow, **upstream}})[source]
            if listing.bad:
                return {host: replace(listing, host=host) if host == source else self.without(host, listing)
                        for host in (source, *self.wanted.takers)}
            self.entries = list(listing.data["entries"])
        else:
            self.entries = list(self.wanted.entries)
        if self.fleet.check:
            return self.planned()
        if not self.wanted.direct and not self.wanted.upstream:
            return {host: self.through_here(host) for host in self.wanted.takers}
        found = self.attach() or self.begin()
        if not self.follow(found):
            found = self.begin()
            self.follow(found)
        self.close(found)
        # where hosts do not reach each other, the source's files come through here
        if self.whole_at_source():
            for host in self.wanted.takers:
                result = self.results.get(host)
                if result is not None and result.bad and result.data.get("kind") in ("unreachable", "network"):
                    why = result.found or result.message
                    self.fleet.emit(Note(f"takes through the controller: {why}", host=host))
                    self.results[host] = self.through_here(host)
        return self.results

    def planned(self) -> dict[str, Result]:
        hosts = [*([self.wanted.source] if self.wanted.upstream else []), *self.wanted.takers]
        done = self.ask({host: self.start_args(host, []) for host in hosts}, program=True)
        return {host: result if result.bad else replace(
            result, status=Status.CHANGED if result.data.get("missing") else Status.OK)
            for host, result in done.items()}

    # starting: level by level, for a host must know the ports of those above it

    def attach(self) -> list[str]:
        """The hosts, where all of them still work for one earlier beginning that wanted the same; else none."""
        hosts = [self.wanted.source, *self.wanted.takers]
        states = self.ask({host: {"action": "status"} for host in hosts})
        marks = {str(result.data.get("mark")) for result in states.values()}
        if any(result.bad or result.data.get("job") != "running" or result.data.get("error")
               for result in states.values()) or len(marks) != 1 or marks.pop().partition("-")[2] != self.wish():
            return []
        self.attached, self.went_on = set(hosts), set(hosts)
        self.fleet.emit(Note("an earlier run's copying goes on here and is followed", host=fold_hosts(hosts)))
        return hosts

    def wish(self) -> str:
        """A digest of what this transfer is to do: one that was begun for something else is not followed."""
        wanted = self.wanted
        upstream = {key: value for key, value in (wanted.upstream or {}).items() if key != "token"}
        text = json.dumps([list(map(dict, self.entries)), wanted.source, list(wanted.takers), wanted.rate, upstream,
                           wanted.fan_out, wanted.streams, {host: list(names) for host, names in wanted.again.items()
                                                            if names}], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def begin(self) -> list[str]:
        """Start every host's part with a new key; the hosts that work. What an earlier run left is ended first."""
        self.key = secrets.token_hex(32)
        self.mark = f"{secrets.token_hex(8)}-{self.wish()}"
        self.attached, self.ports, self.results, self.deaf = set(), {}, {}, {}
        source = self.wanted.source
        before = self.ask({host: {"action": "status"} for host in [source, *self.wanted.takers]})
        running = {host for host, result in before.items()
                   if not result.bad and result.data.get("job") in ("running", "starting")}
        if running:
            # the key of those that run is lost with the run that made it
            self.ask({host: {"action": "end"} for host in running})
        working = []
        root: list[tuple[str, list[str]]] = [(source, [])]
        for level in [root, *tree_levels(source, self.wanted.takers, self.wanted.fan_out)]:
            calls: dict[str, dict[str, Any]] = {}
            for host, above in level:
                parents = [list(self.ports[parent]) for parent in above if parent in self.ports]
                if host != source and not parents:
                    self.results[host] = self.failed(host, "no host above it gives the files", kind="unreachable",
                                                     found=self.deaf.get(source))
                    continue
                calls[host] = self.start_args(host, parents)
            for host, result in self.ask(calls, program=True).items():
                if result.bad:
                    self.results[host] = result
                    continue
                working.append(host)
                if result.data.get("deaf"):
                    self.deaf[host] = str(result.data["deaf"])
                if result.data.get("port"):
                    self.ports[host] = (str(result.data["listen"]), int(result.data["port"]))
        return working

    def start_args(self, host: str, parents: Sequence[Sequence[Any]]) -> dict[str, Any]:
        others = [other for other in (self.wanted.source, *self.wanted.takers) if other != host]
        own = self.fleet.variables(host).get("cluster_address")
        args: dict[str, Any] = {
            "action": "start", "entries": self.entries, "again": list(self.wanted.again.get(host, ())),
            "key": self.key, "mark": self.mark, "parents": [list(parent) for parent in parents],
            "streams": self.wanted.streams,
            "towards": [reached_by(self.fleet, other) for other in others[:4]], "patience": self.wanted.patience,
        }
        if own:
            args["address"] = str(own)
        if self.wanted.rate:
            args["rate"] = self.wanted.rate
        if host == self.wanted.source and self.wanted.upstream:
            args["upstream"] = dict(self.wanted.upstream)
        return args

    # following

    def follow(self, hosts: Sequence[str]) -> bool:
        """Until every host has all of it or has failed. False as soon as what an earlier run began has broken off:
        its processes may have ended with that run, and a new beginning tells what is really in the way."""
        waiting = list(hosts)
        while waiting:
            states = self.ask({host: {"action": "status", "wait": WAIT} for host in waiting})
            for host, result in states.items():
                if result.bad:
                    self.results[host] = result
                    waiting.remove(host)
                    continue
                state = result.data
                self.told(host, state)
                if state.get("error") and self.attached:
                    self.fleet.emit(Note(f"the earlier run's copying broke off ({state['error'].get('message')}); "
                                         "begun again with what came", host=host))
                    return False
                if state.get("error"):
                    self.results[host] = self.failed(host, **_error(state["error"]))
                    waiting.remove(host)
                elif state.get("complete"):
                    came = bool(state.get("received")) or (host in self.went_on and bool(state.get("bytes")))
                    self.results[host] = Result(host, "tree_transfer", Status.CHANGED if came else Status.OK,
                                                data=dict(state), module="tree_transfer")
                    waiting.remove(host)
        return True

    def close(self, hosts: Sequence[str]) -> None:
        """Nobody needs more: all processes may go."""
        self.ask({host: {"action": "end"} for host in hosts
                  if self.results.get(host) is None or self.results[host].status not in (
                      Status.LOST, Status.UNREACHABLE)})

    def whole_at_source(self) -> bool:
        result = self.results.get(self.wanted.source)
        return result is not None and not result.bad

    # through the controller

    def through_here(self, host: str) -> Result:
        """Every missing file in pieces: read at the source, written at the host, resumed where it was cut."""
        started = time.monotonic()
        moved = 0
        common = {"entries": self.entries, "again": list(self.wanted.again.get(host, ()))}
        total = sum(int(entry.get("size", 0)) for entry in self.entries)
        before = self.ask({host: {"action": "left", **common}})[host]
        if before.bad:
            return before
        for name, there in before.data["left"].items():
            entry = next(one for one in self.entries if one["path"] == name)
            offset = int(there)
            while True:
                piece = self.piece(entry, offset)
                if isinstance(piece, Result):
                    return self.without(host, piece)
                blob, sha256 = piece
                result = self.ask({host: {"action": "write", "name": name, "offset": offset, "blob": blob.digest,
                                          "sha256": sha256, "entries": [entry], "again": common["again"]}},
                                  blobs=(blob,))[host]
                if result.bad:
                    return result
                moved += blob.size
                offset += blob.size
                self.told(host, {"bytes": moved, "of": total, "source": "the controller", "complete": False})
                if offset >= int(entry["size"]):
                    break
        done = self.ask({host: {"action": "finish", **common}})[host]
        if done.bad:
            return done
        return Result(host, "tree_transfer", Status.CHANGED if moved else Status.OK, module="tree_transfer",
                      data={"bytes": total, "of": total, "received": moved, "source": "the controller",
                            "complete": True, "seconds": round(time.monotonic() - started, 3)})

    def piece(self, entry: Mapping[str, Any], offset: int) -> tuple[Blob, str | None] | Result:
        """The next piece of a file at the source, and the whole file's SHA-256 with the last one."""
        source = self.wanted.source
        last = offset + PIECE >= int(entry["size"])
        result = self.ask({source: {"action": "read", "name": entry["path"], "offset": offset, "length": PIECE,
                                    "whole": last}})[source]
        if result.bad:
            return result
        data = base64.b64decode(result.data["data"])
        if len(data) < min(PIECE, int(entry["size"]) - offset):
            return self.failed(source, f"{entry['path']} became shorter meanwhile")
        return Blob(hashlib.sha256(data).hexdigest(), len(data), data), result.data.get("sha256")

    # asking hosts

    def ask(self, calls: Mapping[str, Mapping[str, Any]], *, program: bool = False, blobs: Sequence[Blob] = ()
            ) -> dict[str, Result]:
        sent: dict[str, Call] = {}
        for host, args in calls.items():
            full = {"path": self.wanted.folder(host), "transfer": self.wanted.name, **args}
            own: tuple[Blob, ...] = tuple(blobs)
            if program:
                full["program"] = transfer_program().digest
                own = (*own, transfer_program())
            sent[host] = Call("tree_transfer", full, become=become_of(self.fleet.variables(host)), timeout=600.0,
                              changes=args["action"] not in ("list", "status", "read", "left"),
                              blobs=own)
        return self.fleet.call(sent) if sent else {}

    def failed(self, host: str, message: str, **fields: Any) -> Result:
        return Result(host, "tree_transfer", Status.FAILED, message=message, module="tree_transfer", data=fields,
                      expected=_text(fields.get("expected")), found=_text(fields.get("found")),
                      next=_text(fields.get("next")))

    def without(self, host: str, source: Result) -> Result:
        return self.failed(host, f"{self.wanted.source} does not give the files: {source.message}", kind="source")


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in error.items() if key != "host"},
            "message": str(error.get("message") or "the transfer failed")}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)

