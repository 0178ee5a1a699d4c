"""Clients are led past a replica before it stops and back to it when its contract holds, by the site's two hooks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bringup.base.errors import BringupError, StepError
from bringup.base.events import Note, Progress
from bringup.base.results import Result
from bringup.base.text import duration
from bringup.inventory.model import LOCALHOST
from bringup.releases import storing
from bringup.releases.history import LED_IN, LED_OUT, led_away
from bringup.releases.survey import Survey
from bringup.run.actions import Call, Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.draining import drain
from bringup.serving.traffic import About, Hook, Hooks, Wish, fill, hooks_of

HYBRID = "--data-parallel-hybrid-lb"
"""With it every node of a replica serves."""

Documents = Mapping[str, Mapping[str, Any]]


def running_documents(survey: Survey, replica: str) -> dict[str, Mapping[str, Any]]:
    """The launch documents of what runs of a replica, host by host."""
    out: dict[str, Mapping[str, Any]] = {}
    for host, node in survey.replicas[replica].nodes.items():
        store = survey.stores.get(host)
        document = store.launches.get(node.release or "", {}).get(f"{replica}-{host}") if store else None
        if document is not None:
            out[host] = document
    return out


class Traffic:
    """The hooks of a run. `out` are replicas that it led clients away from and not back; `serving` is what clients
    reach, replica -> release."""

    def __init__(self, fleet: Fleet, hooks: Hooks | None, key: str | None, survey: Survey) -> None:
        self.fleet = fleet
        self.hooks = hooks
        self.key = key
        self.survey = survey
        labels = {entry.digest: entry.label for entry in survey.history.entries}
        self.labels = labels
        self.out: dict[str, str] = {}
        self.serving = {view.name: ", ".join(labels.get(digest, digest[:12]) for digest in view.releases)
                        for view in survey.replicas.values() if view.serves}

    @classmethod
    def of(cls, fleet: Fleet, survey: Survey, key: str | None) -> Traffic:
        """The hooks that the inventory names. Raises InputError."""
        return cls(fleet, hooks_of(fleet.inventory, fleet.variables), key, survey)

    def was_out(self, replica: str) -> bool:
        """True when an earlier run left clients away from it."""
        head = next(iter(self.survey.replicas[replica].nodes))
        store = self.survey.stores.get(head)
        return self.hooks is not None and store is not None and led_away(store.history, replica) is not None

    def lead_out(self, replica: str, planned: Documents) -> None:
        """Run `traffic_out`, then let requests in flight finish. Raises StepError when the hook fails: nothing of the
        replica was stopped then. `planned` are documents for a replica of which nothing is known."""
        self.serving.pop(replica, None)
        if self.hooks is None:
            return
        documents = running_documents(self.survey, replica) or planned
        view = self.survey.replicas[replica]
        about = self._about(replica, documents, view.releases[0] if view.releases else "")
        digest = view.releases[0] if view.releases else str(documents[about.head]["release"])
        # noted before it is done: whoever looks later finds it, whatever becomes of this run
        storing.mark(self.fleet, digest, [about.head], LED_OUT, replica=replica)
        self.out[replica] = f"{self.hooks.out.name} ran"
        try:
            self._run(self.hooks.out, about, f"{replica} was not stopped")
        except StepError:
            self.out[replica] = f"{self.hooks.out.name} failed: whether clients still reach it is not known"
            raise
        if view.serves:
            self._drain(replica, documents, about.head)

    def lead_in(self, replica: str, documents: Documents, digest: str) -> None:
        """Run `traffic_in`. Raises StepError when it fails: the replica serves, clients do not reach it."""
        label = self.labels.get(digest, "")
        if self.hooks is not None:
            about = self._about(replica, documents, digest)
            self._run(self.hooks.back, about, f"{replica} serves and its traffic did not come back")
            storing.mark(self.fleet, digest, [about.head], LED_IN, replica=replica)
            self.out.pop(replica, None)
        self.serving[replica] = label

    def left(self) -> list[str]:
        """A line for each replica that clients do not reach now, with the command that leads them back."""
        return [f"traffic  {name} is out ({why}); when it serves: {self.command(name)}"
                for name, why in self.out.items()]

    def command(self, replica: str) -> str:
        """What leads clients back to a replica."""
        return f"invoke traffic.in{named_inventory(self.fleet)} --replica {shlex.quote(replica)}"

    def told(self) -> str:
        """What the hooks do, as they are written."""
        assert self.hooks is not None
        return (f"{self.hooks.out.name} ({self.hooks.out.shown}), up to {duration(self.hooks.deadline)} for requests "
                f"in flight; after the contract {self.hooks.back.name} ({self.hooks.back.shown})")

    def still_serving(self) -> str:
        return ", ".join(f"{name} {label}".rstrip() for name, label in self.serving.items()) or "no replica"

    def _about(self, replica: str, documents: Documents, digest: str) -> About:
        hosts = calls.in_rank_order(documents)
        return About(replica, str(documents[hosts[0]].get("endpoint") or ""), hosts[0], tuple(hosts),
                     self.labels.get(digest, digest[:12]))

    def _run(self, wish: Wish, about: About, failed: str) -> None:
        hook = fill(wish, about, self.fleet.inventory, self.fleet.variables(about.head))
        self.fleet.emit(Progress(about.name, wish.name))
        began = time.monotonic()
        result = self.fleet.call({hook.host: call_of(hook, str(self.fleet.project.root))})[hook.host]
        if result.bad:
            raise self._failure(hook, about, result, failed)
        self.fleet.emit(Progress(about.name, f"{wish.name} done in {duration(time.monotonic() - began)}", done=True))

    def _failure(self, hook: Hook, about: About, result: Result, failed: str) -> StepError:
        here = "" if hook.host in LOCALHOST else f" on {hook.host}"
        out = hook.name == (self.hooks.out.name if self.hooks else "")
        again = "" if out else f"mend the hook, then {self.command(about.name)}"
        lines = [str(line) for line in result.output][-8:]
        more = [f"serving  {self.still_serving()}"] if out else []
        if out and self.survey.replicas[about.name].serves:
            others = f"; others: {self.still_serving()}" if self.serving else ""
            more = [f"serving  {about.name} itself goes on{others}"]
        return StepError(f"{failed}: {hook.name}{here} failed", where=hook.where, expected=_wanted(hook),
                         found=_what_came(hook, result), details=[*(f"it said  {line}" for line in lines), *more],
                         next=again or "mend the hook, then the same command again")

    def _drain(self, replica: str, documents: Documents, head: str) -> None:
        assert self.hooks is not None
        asked = {host: document for host, document in documents.items()
                 if host == head or HYBRID in (documents[head].get("argv") or ())}
        done = drain(self.fleet, asked, self.key, self.hooks.deadline,
                     lambda text: self.fleet.emit(Progress(replica, text)))
        if done.left == 0:
            self.fleet.emit(Progress(replica, done.told, done=True))
        else:
            self.fleet.emit(Note(f"{replica}: {done.told}", level="warn"))


def call_of(hook: Hook, folder: str) -> Call:
    """The call that runs a hook: a command in the project's folder here, in the account's own elsewhere; or a request.
    It needs no lock: what it changes is the load balancer."""
    if hook.command is not None:
        args: dict[str, Any] = {"cmd": hook.command}
        if hook.host in LOCALHOST:
            args["chdir"] = folder
        return Call("shell", args, environment=hook.environment, timeout=hook.timeout, changes=False)
    args = {"url": hook.url, "method": hook.method, "headers": dict(hook.headers), "status_code": list(hook.status),
            "timeout": int(hook.timeout), "return_content": True}
    if hook.body is not None:
        args.update(body=hook.body, body_format="raw" if isinstance(hook.body, str) else "json")
    return Call("uri", args, timeout=hook.timeout + 10, changes=False)


def _wanted(hook: Hook) -> str:
    if hook.command is not None:
        return f"exit status 0 within {duration(hook.timeout)}"
    codes = "2xx" if hook.status == tuple(range(200, 300)) else " or ".join(map(str, hook.status))
    return f"{codes} within {duration(hook.timeout)}"


def _what_came(hook: Hook, result: Result) -> str:
    if hook.command is not None and result.data.get("rc") is not None:
        return f"exit status {result.data['rc']}"
    if hook.url is not None and int(result.data.get("status") or -1) > 0:
        return f"status {result.data['status']}"
    return calls.first_line(result)


def named_inventory(fleet: Fleet) -> str:
    """` --inventory X` as it was named; empty for the embedded lab."""
    named = "".join(f" --inventory {shlex.quote(str(source))}" for source in fleet.inventory.shown_as.split(", "))
    return "" if named.strip() in ("--inventory inventory/lab.yml", "--inventory ''", "") else named


def tell_left(fleet: Fleet, lines: Iterable[str]) -> None:
    """Say what an interrupted run leaves."""
    for line in lines:
        fleet.emit(Note(line, level="warn"))


@contextmanager
def left_is_told(fleet: Fleet, traffic: Traffic) -> Iterator[None]:
    """What ends in the middle says which replicas clients were led past: an error as details, Ctrl-C as notes."""
    try:
        yield
    except BringupError as error:
        error.details = (*error.details, *traffic.left())
        raise
    except KeyboardInterrupt:
        tell_left(fleet, traffic.left())
        raise
