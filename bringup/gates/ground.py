"""What a gate stands on: the fleet, what runs on it, and ways to ask its endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import FindingError
from bringup.base.verdicts import Finding
from bringup.gates.definition import Definition, Line
from bringup.releases.contract import ask
from bringup.releases.planned import key_of, plan_now
from bringup.releases.survey import Survey, look
from bringup.run.actions import Fleet
from bringup.serving.contract.request import Request, Response
from bringup.serving.plan import POOL_ROLES, LaunchPlan
from bringup.serving.probing import where
from bringup.serving.recipes.load import find_recipe, load_library
from bringup.serving.recipes.routes import Route, routes_of

SILENCE = 120.0
"""Seconds of silence after which an answer is given up."""


@dataclass(frozen=True)
class Came:
    """What a line measured: figures by name, findings of its own (what is wrong in words), series for plots."""

    measures: Mapping[str, float | None]
    told: str
    findings: Sequence[Finding] = ()
    series: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ground:
    """The deployment under test. `documents` are the launch documents of the heads, by replica."""

    fleet: Fleet
    plan: LaunchPlan
    members: Mapping[str, Sequence[str]]
    survey: Survey
    documents: Mapping[str, Mapping[str, Any]]
    key: str | None
    definition: Definition

    @property
    def folder(self) -> Path:
        """Where the team's gates lie."""
        return self.definition.path.parent

    @property
    def release(self) -> str:
        """The digest of what is in use."""
        entry = self.survey.history.in_use
        return entry.digest if entry is not None else ""

    @property
    def label(self) -> str:
        entry = self.survey.history.in_use
        return entry.label if entry is not None else "no release"

    @property
    def replica(self) -> str:
        """The replica that is asked: the first."""
        return next(iter(self.documents))

    @property
    def model(self) -> str:
        return str(self.documents[self.replica].get("served_name") or self.plan.served_name)

    def ask(self, requests: Sequence[Request], at_once: int = 4, /) -> list[Response]:
        """Do requests on the first replica's head. Raises StepError, UnreachableError."""
        document = self.documents[self.replica]
        address, port = where(document)
        head = self.members[self.replica][0]
        return ask(self.fleet, head, address, port, requests, key=self.key, timeout=SILENCE, at_once=at_once)

    def routes(self) -> dict[str, Route]:
        """The routes of the recipe that is served."""
        return routes_of(find_recipe(load_library(None), self.plan.recipe)) if self.plan.recipe in load_library(
            None).recipes else {}


def stand(fleet: Fleet, definition: Definition) -> Ground:
    """Look at what runs. Raises FindingError when no whole replica does."""
    planned = plan_now(fleet, facts=False)
    key = key_of(fleet, planned.plan.api_key_variable)
    survey = look(fleet, planned.members, planned.plan.manager, ask=False)
    documents = {}
    for name, hosts in planned.members.items():
        node = survey.replicas[name].nodes[hosts[0]]
        if node.state == "running" and node.release and hosts[0] in survey.stores:
            found = survey.stores[hosts[0]].launches.get(node.release, {}).get(f"{name}-{hosts[0]}")
            if isinstance(found, Mapping) and found.get("role") not in POOL_ROLES:
                documents[name] = found
    if not documents:
        raise FindingError("there is nothing to hold against the gates", found="no replica runs", next="invoke start")
    return Ground(fleet, planned.plan, planned.members, survey, documents, key[1] if key else None, definition)


def setting(line: Line, name: str, default: Any) -> Any:
    """A setting of a line that is no number."""
    value = line.settings.get(name)
    return default if value is None else value
