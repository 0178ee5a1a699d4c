"""The fleet's weights brought: by one host from a hub, a mirror or a folder, from there to the others in a tree.

A folder that holds another revision is never written to: the one that is wanted comes beside it. What is broken is
brought again and the old file kept under another name. Nothing is deleted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bringup.base.errors import InputError
from bringup.base.events import Note, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, size
from bringup.run.actions import Call, Fleet
from bringup.run.spreading import Spread, become_of, spread
from bringup.weights.checking import look, paths_of
from bringup.weights.judging import broken_files, same_revision
from bringup.weights.wanted import Weights, read_weights

FETCH_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "full": {"type": "bool", "default": False}, "named": {"type": "bool", "default": False},
}
"""`full`: hash what is there first, so that files with the right size and other bytes are found too. `named`: a
deployment that names no weights to be fetched is an error."""

TASK = "fetch_weights"


@dataclass
class _Target:
    """Where the weights of a host are to lie, and what is there."""

    host: str
    path: str
    beside: bool = False
    there: bool = False
    whole: bool = False
    again: tuple[str, ...] = ()
    have: int = 0
    shared_with: list[str] = field(default_factory=list)


def fetch_weights(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `fetch_weights`: bring what is missing of the weights that the deployment names.

    Where it names none nothing is done. A host's result has path, bytes, source, seconds; it fails when its model_path
    holds another revision, with the folder beside it as what to name.
    """
    wanted = {host: read_weights(fleet.variables(host)) for host in fleet.hosts}
    groups: dict[Weights, list[str]] = {}
    for host, one in wanted.items():
        if one is not None and one.fetched:
            groups.setdefault(one, []).append(host)
    if not groups:
        if _true(args.get("named")):
            raise InputError("the deployment names no weights to be fetched",
                             expected="weights: {repo: OWNER/NAME, revision: 40 hex digits}, or {path: FOLDER}",
                             next="see docs/weights.md")
        fleet.emit(StageSummary("weights", "the deployment names none to be fetched; model_path is used as it is"))
        return {}
    results: dict[str, Result] = {}
    for weights, hosts in groups.items():
        results |= _Fetch(fleet, weights, hosts, full=_true(args.get("full"))).run()
    return results


class _Fetch:
    """One model for the hosts that want it."""

    def __init__(self, fleet: Fleet, weights: Weights, hosts: Sequence[str], *, full: bool) -> None:
        self.fleet = fleet
        self.weights = weights
        self.hosts = list(hosts)
        self.full = full
        self.results: dict[str, Result] = {}
        self.entries: list[Mapping[str, Any]] = []
        self.targets: dict[str, _Target] = {}
        paths = paths_of(fleet)
        self.paths = {host: paths[host] for host in hosts}
        if weights.fetch_on is not None and weights.fetch_on not in hosts:
            raise InputError(f"`fetch_on` names {weights.fetch_on}, which is no host of this run",
                             expected=", ".join(hosts))

    def run(self) -> dict[str, Result]:
        bad, manifests = look(self.fleet, self.paths, full=self.full)
        self.results |= {host: replace(result, task=TASK) for host, result in bad.items()}
        if not manifests:
            return self.results
        first = self.weights.fetch_on or next(iter(manifests))
        if first not in manifests:
            return self.all_failed(list(manifests), f"{first}, which fetches, does not answer", None)
        if not self.list_files(first, manifests):
            return self.results
        for host, manifest in manifests.items():
            target = self.target(host, manifest)
            if target is not None:
                self.targets[host] = target
        beside = {host: target.path for host, target in self.targets.items() if target.beside}
        if beside:
            self.look_beside(beside)
        if not all(target.whole for target in self.targets.values()):
            self.bring(first if first in self.targets else next(iter(self.targets)))
        self.finish()
        return self.results

    def list_files(self, first: str, manifests: Mapping[str, Mapping[str, Any]]) -> bool:
        """What the revision consists of, asked on the host that fetches; a complete copy answers where it cannot."""
        call = Call("tree_transfer", {"action": "list", "follow": True, "upstream": self.weights.upstream(),
                                      "path": self.paths[first]},
                    become=become_of(self.fleet.variables(first)), timeout=300.0, changes=False, no_log=False)
        result = self.fleet.call({first: call})[first]
        if not result.bad and not result.data.get("there"):
            result = replace(result, status=Status.FAILED, message=f"{self.weights.path} is not there on {first}",
                             next="correct weights.path, or weights.fetch_on")
        if not result.bad:
            self.entries = [entry for entry in result.data["entries"] if not _hidden(str(entry["path"]))]
            commit = result.data.get("commit")
            if commit and commit != self.weights.revision:
                self.all_failed(list(manifests), "the hub answers with another commit",
                                Result(first, TASK, Status.FAILED, expected=self.weights.revision, found=str(commit)))
                return False
            result = self.judged_list(first, result)
            if not result.bad:
                return True
        # the hub is away: hosts that have all of the revision, as recorded when it came, can give it
        for host, manifest in manifests.items():
            if self.weights.revision and manifest.get("revision") == self.weights.revision and manifest.get(
                    "exists") and (manifest.get("record") or {}).get("digests") and not broken_files(manifest):
                self.fleet.emit(Note(f"{self.weights.endpoints[0]} does not answer on {first} ({result.message}); "
                                     f"{host} has the revision and gives it", host=first))
                self.entries = [{"path": name, "kind": "file", "size": one["size"], "mode": 0o644,
                                 **({"sha256": one["sha256"]} if one.get("sha256") else {})}
                                for name, one in manifest["files"].items()]
                return True
        self.all_failed(list(manifests), f"what is wanted cannot be listed: {result.message}", result)
        return False

    def judged_list(self, first: str, result: Result) -> Result:
        """The listing's result, failed when a folder that is the source is not whole itself."""
        if not any(entry["kind"] == "file" for entry in self.entries):
            return replace(result, message=f"{self.weights.shown()} holds no files", status=Status.FAILED)
        if not self.weights.path:
            return result
        bad, manifests = look(self.fleet, {first: self.weights.path})
        broken = broken_files(manifests[first]) if first in manifests else {}
        if bad or broken:
            text = bad[first].message if bad else "; ".join(f"{name} {text}" for name, text in broken.items())[:300]
            return replace(result, status=Status.FAILED, message=f"{self.weights.path} on {first} is not whole",
                           found=text, next="weights.path is a folder with all files of a model")
        self.entries = [entry for entry in self.entries if entry["kind"] == "file"]
        return result

    def target(self, host: str, manifest: Mapping[str, Any]) -> _Target | None:
        """The folder of the host: its model_path, or one beside it where that holds another revision.

        None, with a failed result, where files of the very revision were changed here: nothing is written over them.
        """
        path = self.paths[host]
        if not manifest.get("exists") or not manifest.get("files"):
            return _Target(host, path)
        broken = broken_files(manifest)
        odd = same_revision(manifest, self.entries, broken)
        recorded = manifest.get("revision")
        other = recorded is not None and self.weights.revision is not None and recorded != self.weights.revision
        hashed = self.full and not other and [name for name in odd if name in (
            manifest.get("record") or {}).get("digests", {})]
        if odd and not hashed and recorded is not None and recorded == self.weights.revision:
            self.results[host] = Result(
                host, TASK, Status.FAILED, module=TASK, message=f"{odd[0]} in {path} is not as it came: nothing is "
                "written over it", expected=f"the files of {recorded}", found=", ".join(odd[:6]),
                next="move what was changed here away, then invoke weights.fetch")
            return None
        if other or (odd and not hashed):
            return _Target(host, f"{path}@{self.mark()}", beside=True)
        return self.filled(_Target(host, path), manifest, {**broken, **dict.fromkeys(hashed or (), "differs")})

    def filled(self, target: _Target, manifest: Mapping[str, Any], broken: Mapping[str, str]) -> _Target:
        """With what is there of the files that are wanted."""
        files = manifest.get("files", {})
        wanted = {str(entry["path"]): entry for entry in self.entries if entry["kind"] == "file"}
        target.there = True
        target.again = tuple(name for name in broken if name in wanted and name in files)
        sound = [name for name in wanted if name in files and name not in broken
                 and files[name].get("size") == wanted[name]["size"]]
        target.have = sum(int(wanted[name]["size"]) for name in sound)
        target.whole = len(sound) == len(wanted)
        return target

    def look_beside(self, paths: Mapping[str, str]) -> None:
        """What an earlier fetch brought beside the folder."""
        bad, manifests = look(self.fleet, paths)
        self.results |= {host: replace(result, task=TASK) for host, result in bad.items()}
        for host, manifest in manifests.items():
            if manifest.get("exists"):
                self.filled(self.targets[host], manifest, broken_files(manifest))

    def bring(self, first: str) -> None:
        """Fetch where no host has all of it, then spread."""
        takers = [host for host in self.targets if host not in self.results]
        self.find_shared([host for host in takers if not self.targets[host].whole])
        alone = {other for target in self.targets.values() for other in target.shared_with}
        takers = [host for host in takers if host not in alone]
        whole = [host for host in takers if self.targets[host].whole]
        upstream = None
        if whole:
            source = first if first in whole else whole[0]
        else:
            source = self.weights.fetch_on or max(takers, key=lambda host: self.targets[host].have)
            source = next((host for host in takers if source in (host, *self.targets[host].shared_with)), source)
            upstream = self.weights.upstream()
        lacking = [host for host in takers if host != source and not self.targets[host].whole]
        began = f"{source} fetches from {self.weights.shown()}" if upstream else f"{source} has them"
        self.fleet.emit(Progress("weights", began + (
            f", {len(lacking)} {'takes' if len(lacking) == 1 else 'take'} them from it" if lacking else "")))
        done = spread(self.fleet, Spread(
            name=f"weights-{self.mark()}", path={host: self.targets[host].path for host in (source, *lacking)},
            source=source, takers=lacking, entries=self.entries, upstream=upstream,
            again={host: self.targets[host].again for host in (source, *lacking)}, rate=self.weights.rate,
            fan_out=self.weights.fan_out, streams=self.weights.streams, follow=True), self.told)
        for host, result in done.items():
            if result.bad:
                self.results[host] = _explained(replace(result, task=TASK), self.targets[host].path)
            elif host in self.targets:
                self.results[host] = replace(result, task=TASK, data={
                    **{key: result.data.get(key) for key in ("bytes", "received", "source", "seconds", "missing")},
                    "path": self.targets[host].path})

    def told(self, host: str, state: Mapping[str, Any]) -> None:
        if state.get("complete") and not state.get("received"):
            return  # it only gives
        have, of = int(state.get("bytes") or 0), int(state.get("of") or 0)
        seconds = float(state.get("seconds") or 0)
        speed = f", {size(int(state.get('received') or 0) / seconds)}/s" if seconds > 1 else ""
        source = f" from {state['source']}" if state.get("source") else ""
        self.fleet.emit(Progress(host, f"{size(have)} of {size(of)}{source}{speed}", host=host,
                                 done=bool(state.get("complete"))))

    def find_shared(self, hosts: Sequence[str]) -> None:
        """Hosts that see each other's file in the place of the folder share it: one of them does the work."""
        if len(hosts) < 2 or self.fleet.check:
            return
        nonces = {host: secrets.token_hex(6) for host in hosts}
        placed = self.ask_nonces("nonce", nonces)
        seen = self.ask_nonces("nonces", {host: nonces[host] for host in placed})
        self.ask_nonces("clear", {host: nonces[host] for host in placed})
        for host in hosts:
            if host not in placed:
                continue  # a place that cannot be written is told by the transfer itself, with what to do
            if any(host in target.shared_with for target in self.targets.values()):
                continue
            same = [other for other in seen if other != host and nonces[other] in seen.get(host, ())
                    and self.targets[other].path == self.targets[host].path]
            self.targets[host].shared_with = same

    def ask_nonces(self, action: str, nonces: Mapping[str, str]) -> dict[str, list[str]]:
        done = self.fleet.call({host: Call(
            "model_weights", {"action": action, "path": self.targets[host].path, "nonce": nonce},
            become=become_of(self.fleet.variables(host)), timeout=120.0, changes=action != "nonces")
            for host, nonce in nonces.items()})
        return {host: list(result.data.get("seen") or ()) for host, result in done.items() if not result.bad}

    def finish(self) -> None:
        """Record what came, answer for hosts that share a folder, tell where another revision is in the way."""
        good = [host for host in self.targets if host not in self.results or not self.results[host].bad]
        if not self.fleet.check:
            self.record([host for host in good if not any(
                host in target.shared_with for target in self.targets.values())])
        for host, target in self.targets.items():
            for other in target.shared_with:
                if host in self.results:
                    self.results[other] = replace(self.results[host], host=other)
        for host, target in self.targets.items():
            self.results.setdefault(host, Result(host, TASK, Status.OK, module=TASK, data={"path": target.path}))
            if target.beside and not self.results[host].bad:
                self.results[host] = self.beside(host, target)
        self.fleet.emit(Progress("weights", "done", done=True))
        self.fleet.emit(StageSummary("weights", self.summary()))

    def record(self, hosts: Sequence[str]) -> None:
        digests = {str(entry["path"]): str(entry["sha256"]) for entry in self.entries if entry.get("sha256")}
        done = self.fleet.call({host: Call("model_weights", {
            "action": "record", "path": self.targets[host].path, "revision": self.weights.revision,
            "repo": self.weights.repo, "source": self.weights.path or self.weights.endpoints[0], "digests": digests},
            become=become_of(self.fleet.variables(host)), timeout=120.0) for host in hosts
            if self.weights.revision})
        for host, result in done.items():
            if result.bad:
                self.results[host] = replace(result, task=TASK)

    def beside(self, host: str, target: _Target) -> Result:
        path = self.paths[host]
        word = "would be brought" if self.fleet.check else "is here"
        return Result(host, TASK, Status.FAILED, module=TASK, message=f"{path} holds another revision; the one that "
                      f"is wanted {word} beside it", expected=self.weights.revision or self.weights.path,
                      found=f"other files in {path}", next=f"model_path: {target.path}",
                      data={"path": target.path, "kind": "beside"})

    def all_failed(self, hosts: Sequence[str], message: str, cause: Result | None) -> dict[str, Result]:
        for host in hosts:
            self.results[host] = Result(
                host, TASK, Status.FAILED, message=message, module=TASK,
                expected=cause.expected if cause else None, found=cause.found if cause else None,
                next=(cause.next if cause else None) or "correct `weights` of the deployment, or name a mirror: "
                "weights.endpoint")
        return self.results

    def summary(self) -> str:
        brought = [host for host, one in self.results.items() if one.status is Status.CHANGED]
        bad = [host for host, one in self.results.items() if one.bad]
        kept = [host for host, one in self.results.items() if one.status is Status.OK]
        total = sum(int(entry.get("size", 0)) for entry in self.entries)
        parts = []
        if brought and self.fleet.check:
            parts.append(f"{size(total)} would be brought to {fold_hosts(brought)}")
        elif brought:
            slowest = max(float(self.results[host].data.get("seconds") or 0) for host in brought)
            parts.append(f"{size(total)} brought to {fold_hosts(brought)} in {duration(slowest)}")
        if kept:
            parts.append(f"there already on {fold_hosts(kept)}")
        shared = max((len(target.shared_with) + 1 for target in self.targets.values()), default=1)
        if shared > 1:
            parts.append(f"one folder, seen by {shared}")
        if bad:
            parts.append(f"FAILED on {fold_hosts(bad)}")
        return "; ".join(parts)

    def mark(self) -> str:
        """What tells this content from another one: the commit, or a digest of the list."""
        if self.weights.revision:
            return self.weights.revision[:12]
        listing = "\n".join(f"{entry['path']} {entry.get('size')}" for entry in self.entries)
        return hashlib.sha256(listing.encode()).hexdigest()[:12]


def _explained(result: Result, path: str) -> Result:
    """A failure of the transfer with what to do next."""
    kind = result.data.get("kind")
    needed, free = result.data.get("needed"), result.data.get("free")
    expected, found, after = result.expected, result.found, result.next
    if kind == "space" and free is not None:
        found = f"{size(int(free))} free ({int(free):,} bytes)"
        expected = f"{size(int(needed))} free ({int(needed):,} bytes)" if needed else expected
    if after is None:
        after = {"space": f"free some for {path}, or name another model_path; then invoke weights.fetch goes on",
                 "digest": "the source gives other bytes than it lists: name another mirror",
                 "unreachable": "invoke preflight says which hosts do not reach each other",
                 "source": "see the other host's failure"}.get(str(kind), "invoke weights.fetch goes on where it ended")
    return replace(result, expected=expected, found=found, next=after)


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "yes", "1", "on")

