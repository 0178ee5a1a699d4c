"""The fleet's weights looked at: whole on every host, of the revision that is wanted, equal on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bringup.base.errors import ExitStatus, InputError
from bringup.base.events import Findings, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural, size
from bringup.base.verdicts import Finding, Verdict
from bringup.run.actions import Call, Fleet
from bringup.run.spreading import become_of
from bringup.weights.judging import judge_equal, judge_host, weight_files
from bringup.weights.wanted import model_path_of, read_weights

CHECK_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"full": {"type": "bool", "default": False}}
"""`full`: hash every file, in parallel; what is unchanged since the last time is not read again."""

_HASHING = 6 * 3600.0


def check_weights(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `check_weights`: headers, sizes and small files of the model on every host; changes nothing.

    What is found is emitted as Findings; a host with one that blocks has a failed result that ends the run with 4.
    """
    paths = paths_of(fleet)
    full = str(args.get("full")).lower() in ("true", "yes", "1")
    results, manifests = look(fleet, paths, full=full)
    findings: list[Finding] = []
    for host, manifest in manifests.items():
        variables = fleet.variables(host)
        findings += judge_host(host, manifest, read_weights(variables), nothing_is_loaded=_lab(variables))
    models = {host: _model(fleet.variables(host)) for host in manifests}
    for model in dict.fromkeys(models.values()):
        findings += judge_equal({host: one for host, one in manifests.items() if models[host] == model})
    fleet.emit(Findings("weights", tuple(findings)))
    for host in manifests:
        bad = [finding for finding in findings if finding.subject == host and finding.verdict is Verdict.FAIL]
        if bad:
            results[host] = Result(host, "check_weights", Status.FAILED, message=f"{plural(len(bad), 'finding')} "
                                   "in its weights", next=bad[0].mend, module="check_weights",
                                   data={"exit_status": int(ExitStatus.FINDING)})
        else:
            results[host] = Result(host, "check_weights", Status.OK, module="check_weights", data={
                key: manifests[host].get(key) for key in ("digest", "bytes", "revision")})
    fleet.emit(StageSummary("weights", summary_of(manifests, findings)))
    return results


def summary_of(manifests: Mapping[str, Mapping[str, Any]], findings: Sequence[Finding]) -> str:
    """`16 complete and equal (1.49 TB each)`, or on which hosts something is wrong."""
    bad = list(dict.fromkeys(one.subject for one in findings if one.verdict is Verdict.FAIL))
    good = [host for host in manifests if host not in bad]
    parts = []
    if good:
        total = int(manifests[good[0]].get("bytes") or 0)
        none = not weight_files(manifests[good[0]])
        parts.append(f"{len(good)} complete{' and equal' if len(good) > 1 else ''} ({size(total)} each)" if not none
                     else f"{len(good)} without weights")
    if bad:
        parts.append(f"FAILED on {fold_hosts(bad)}")
    return "; ".join(parts) or "nothing was looked at"


def paths_of(fleet: Fleet) -> dict[str, str]:
    """Host -> folder of its model. Raises InputError where none is named."""
    out = {}
    for host in fleet.hosts:
        path = model_path_of(fleet.variables(host))
        if path is None:
            raise InputError(f"no model_path is named for {host}", expected="deployment: {model_path: /models/NAME}")
        out[host] = path
    return out


def look(fleet: Fleet, paths: Mapping[str, str], *, full: bool = False
         ) -> tuple[dict[str, Result], dict[str, dict[str, Any]]]:
    """Ask hosts what is in their folders: results of those that cannot say, manifests of the others."""
    def told(host: str, text: str) -> None:
        fleet.emit(Progress("weights", text, host=host))

    calls = {host: Call("model_weights", {"action": "check", "path": path, "full": full},
                        become=become_of(fleet.variables(host)), timeout=_HASHING if full else 900.0, changes=False)
             for host, path in paths.items()}
    results: dict[str, Result] = {}
    manifests: dict[str, dict[str, Any]] = {}
    for host, result in fleet.call(calls, on_line=told).items():
        if result.bad:
            results[host] = replace(result, task="check_weights")
        else:
            manifests[host] = dict(result.data)
    return results, manifests


def _model(variables: Mapping[str, Any]) -> tuple[str, ...]:
    """What a host serves: hosts of one model must hold the same files, wherever they lie."""
    deployment = variables["deployment"]
    return tuple(str(deployment.get(key)) for key in ("recipe", "variant", "weights"))


def _lab(variables: Mapping[str, Any]) -> bool:
    return str(variables.get("bringup_lab", "")).lower() in ("true", "yes", "1")
