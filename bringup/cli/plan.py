"""Verbs of what is to be served: `plan` and `recipe.render`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.cli.options import COMMON, Option, Options, verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bringup.serving.plan import LaunchPlan

_RENDER = (
    Option("batch", help="FILE.jsonl of rows {recipe, variant, strategy, hardware, features, nodes}; - reads stdin"),
    Option("recipes", help="folder of recipes in the upstream schema (default: our own)"),
    Option("recipe", help="one recipe instead of a batch, as zai-org/GLM-5.1"),
    Option("variant", help="its variant (default)"),
    Option("strategy", help="how it is spread, as multi_node_tp"),
    Option("hardware", help="the node's hardware, as h200"),
    Option("features", help="its features with commas; none for no feature (default: the recipe's own)"),
    Option("nodes", help="number of nodes"),
    Option("engine", help="the server (vllm)"),
    Option("engine-version", help="its version, for what depends on it"),
)


@verb((*COMMON, Option("options", False, "instead: which variants, strategies and node counts fit these hosts"),
       Option("running", False, "also what differs from what runs now; asks the hosts, changes nothing")))
def plan(options: Options) -> int:
    """Show what would be served: nodes, ranks, memory, ports, every command and variable with its reason."""
    from bringup.base.paths import Project
    from bringup.base.secrets import SCRUBBER
    from bringup.serving.planning.show import as_document, as_lines, width_of_screen

    if options.options:
        _show_options(options, Project.find())
        return 0
    made = _plan_of(options, Project.find())
    tree = as_document(made)
    text = options.format != "json"
    if text:
        for line in as_lines(made, width_of_screen()):
            print(SCRUBBER.text(line))
    status = 0
    if options.running:
        status, tree["running"] = _compare(options, text)
    document = json.dumps(SCRUBBER.tree(tree), indent=2, ensure_ascii=False)
    if not text:
        print(document)
    for file in () if options.running else options.report:
        _report(file, document)
    return status


def _compare(options: Options, text: bool) -> tuple[int, dict[str, Any]]:
    """The plan against the release in use, asked on the hosts: exit status and what differs."""
    from bringup.base.events import Event, Findings, StageSummary
    from bringup.cli.serve import read_stages, run_data, say

    found: dict[str, Any] = {"in_use": None, "differences": [], "values": [], "caches": []}

    def show(event: Event) -> bool:
        if isinstance(event, Findings) and "differs" in event.tables:
            for where, line in event.tables["differs"]:
                found["differences" if where == "plan" else "values"].append(
                    line if where == "plan" else {"hosts": where, "text": line})
            return True
        if isinstance(event, Findings) and "caches" in event.tables:
            found["caches"] = [{"hosts": hosts, "folder": folder, "holds": holds}
                               for hosts, folder, holds in event.tables["caches"]]
            return True
        if isinstance(event, StageSummary):
            found.update(in_use=event.subject, summary=event.text)
            return True
        return False

    sys.stdout.flush()
    status = int(run_data(read_stages(options, "plan"), "plan", show))
    if text and found.get("summary"):
        say("")
        say(f"running  {found['in_use']}: {found['summary']}")
        for line in found["differences"]:
            say(f"         {line}")
        for value in found["values"]:
            say(f"         {value['hosts']}: {value['text']}")
        for cache in found["caches"]:
            say(f"caches   {cache['hosts']}: {cache['holds']}")
            say(f"         {cache['folder']}")
    return status, found


def _show_options(options: Options, project: Any) -> None:
    from dataclasses import asdict

    from bringup.serving.planning.choices import as_lines, options_of
    from bringup.serving.planning.show import width_of_screen
    from bringup.serving.recipes.load import load_library

    inventory, variables, _ = planned_inventory(options, project)
    folder = _recipes_of(inventory, variables, project)
    found = options_of(inventory, variables, load_library(folder))
    if options.format == "json":
        print(json.dumps([asdict(option) for option in found], indent=1))
        return
    for line in as_lines(found, width_of_screen()):
        print(line)


def _recipes_of(inventory: Any, variables: Any, project: Any) -> Path | None:
    from bringup.serving.planner import deployment_of

    folder = deployment_of(inventory, variables).recipes
    return project.root / folder if folder else None


def planned_inventory(options: Options, project: Any) -> tuple[Any, Any, bool]:
    """The inventory, its rendered variables, and whether it is the lab."""
    from bringup.cli.inventory import load_for
    from bringup.serving.planning.variables import rendered

    inventory = load_for(options)
    lab = any(str(inventory.variables(host).get("bringup_lab", "")).lower() in ("true", "yes", "1")
              for host in inventory.hosts)
    return inventory, rendered(inventory, _of_lab(project, list(inventory.hosts)) if lab else None), lab


def _plan_of(options: Options, project: Any) -> LaunchPlan:
    from bringup.base.errors import InputError
    from bringup.base.text import fold_hosts
    from bringup.serving.planner import api_key_of, make_plan

    inventory, variables, lab = planned_inventory(options, project)
    api_key_of(inventory, variables)
    made = make_plan(inventory, project, variables, lab=lab, pools=not options.running)
    if options.limit:
        chosen = set(inventory.select(options.limit))
        for name, parts in made.wholes.items():
            hosts = list(dict.fromkeys(host for part in parts for host in part.hosts))
            inside = [host for host in hosts if host in chosen]
            if inside and len(inside) < len(hosts):
                raise InputError(f"--limit cuts the replica {name}", expected=fold_hosts(hosts),
                                 found=fold_hosts(inside))
        from dataclasses import replace

        made = replace(made, replicas=tuple(r for r in made.replicas if r.hosts[0] in chosen))
    return made


def _of_lab(project: Any, hosts: list[str]) -> dict[str, dict[str, Any]]:
    """What the running lab fills in; of a lab that is not up only where its models lie."""
    from bringup.base.errors import FindingError
    from bringup.lab.machines import LabFolder
    from bringup.lab.state import lab_variables

    try:
        return lab_variables(project)
    except FindingError:
        return {host: {"lab_models": str(LabFolder.of(project).models)} for host in hosts}


def _report(file: str, document: str) -> None:
    from bringup.base.errors import InputError

    if not file.endswith(".json"):
        raise InputError("a plan is reported as .json only", found=file)
    try:
        Path(file).write_text(document + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report {file} cannot be written: {error.strerror or error}") from None


@verb(_RENDER, name="recipe.render")
def recipe_render(options: Options) -> None:
    """Render recipes to command lines as upstream does: one, or a batch of rows as JSONL."""
    from bringup.base.errors import InputError
    from bringup.serving.recipes.load import load_library
    from bringup.serving.recipes.rows import render_rows

    library = load_library(Path(options.recipes) if options.recipes else None)
    if bool(options.batch) == bool(options.recipe):
        raise InputError("recipe.render takes --batch FILE or --recipe NAME", next="invoke recipe.render --help")
    lines, name = _rows(options)
    write = sys.stdout.write
    for row in render_rows(library, lines, name):
        write(json.dumps(row, ensure_ascii=False) + "\n")


def _rows(options: Options) -> tuple[Iterator[str] | list[str], str]:
    from bringup.base.errors import InputError

    if options.batch == "-":
        return list(sys.stdin), "standard input"
    if options.batch:
        try:
            return Path(options.batch).read_text(encoding="utf-8").splitlines(), options.batch
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}",
                             where=options.batch) from None
    row: dict[str, Any] = {"recipe": options.recipe, "variant": options.variant or "default",
                           "nodes": options.number("nodes", least=1) or 1}
    for key, value in (("strategy", options.strategy), ("hardware", options.hardware), ("engine", options.engine),
                       ("version", options.engine_version)):
        if value:
            row[key] = value
    if options.features:
        row["features"] = [] if options.features == "none" else options.features.split(",")
    return [json.dumps(row)], "the command line"
