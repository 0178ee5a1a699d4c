"""The release that a run works with, kept in the run's folder from one stage to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bringup.base.errors import StepError
from bringup.base.secrets import SCRUBBER
from bringup.releases.document import number_text
from bringup.run.actions import Fleet


@dataclass(frozen=True)
class Chosen:
    """A release as this run starts it.

    `launches` maps replica -> host -> launch document (per-host values worked out anew); `left_out` maps a replica to
    the reason why it does not take part; `previous` is the digest in use before, `leaving` marks a rollback away from
    it, `undo` says that a rollback would go back to the one before, `undo_else` what does where a rollback does not;
    `seconds` is how long the release's last start took.
    """

    digest: str
    number: int | None
    manager: str
    launches: Mapping[str, Mapping[str, Mapping[str, Any]]]
    previous: str | None = None
    previous_number: int | None = None
    changes: tuple[str, ...] = ()
    leaving: bool = False
    undo: bool = False
    undo_else: str = ""
    seconds: float | None = None
    deadlines: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    key_variable: str | None = None

    @property
    def label(self) -> str:
        return number_text(self.number)

    @property
    def previous_label(self) -> str | None:
        return number_text(self.previous_number) if self.previous and self.previous != self.digest else None

    @property
    def replicas(self) -> dict[str, tuple[str, ...]]:
        """Replica -> hosts, head first."""
        return {name: tuple(sorted(hosts, key=lambda h: int(hosts[h]["node_rank"])))
                for name, hosts in self.launches.items()}

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts of its replicas."""
        return tuple(dict.fromkeys(host for hosts in self.replicas.values() for host in hosts))


_KEPT: dict[str, Chosen] = {}


def save(fleet: Fleet, chosen: Chosen) -> None:
    """Keep the choice for the stages that follow, and in the run's folder for who looks at it later.

    The stages take it from memory: in the file a password that is a word like `head` masks parts of names and paths.
    """
    _KEPT[str(fleet.project.run_folder(fleet.run_id))] = chosen
    folder = fleet.project.run_folder(fleet.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(SCRUBBER.tree(asdict(chosen)), indent=1, sort_keys=True)
    (folder / "release.json").write_text(text + "\n", encoding="utf-8")


def load(fleet: Fleet) -> Chosen | None:
    """The choice of an earlier stage of this run, or None."""
    folder = fleet.project.run_folder(fleet.run_id)
    if str(folder) in _KEPT:
        return _KEPT[str(folder)]
    path = folder / "release.json"
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    return Chosen(**{**data, "changes": tuple(data["changes"])})


def needed(fleet: Fleet) -> Chosen:
    """The same; raises StepError when no stage chose a release."""
    chosen = load(fleet)
    if chosen is None:
        raise StepError("no release was chosen in this run", expected="make_release or choose_release before this task",
                        next="invoke provision")
    return chosen
