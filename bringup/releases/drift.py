"""Approved against running, for one host, and what two groups of hosts have differently. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import StepError
from bringup.base.text import fold_hosts
from bringup.base.verdicts import Finding, Verdict
from bringup.releases.document import Release, differences, flag_differences, short
from bringup.releases.history import HostStore
from bringup.serving.plan_digest import ProcessTemplate, fill, host_variables

_OURS = frozenset({
    "PATH", "LANG", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "BRINGUP_PROCESS", "BRINGUP_RUN",
    "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "LC_CTYPE"})
_OF_SYSTEMD = re.compile(r"^(MEMORY_PRESSURE_|LISTEN_|WATCHDOG_|STATE_|CACHE_|LOGS_|RUNTIME_)")
_SECRET = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
_BACK = "invoke restart starts it as approved; invoke provision approves what the inventory says"

Labels = Mapping[str, str]
"""Digest -> number of a release, for what a person reads."""


def judge(host: str, seen: Mapping[str, Any], store: HostStore, packages: Mapping[str, Mapping[str, Any]],
          labels: Labels) -> list[Finding]:
    """Every finding of one host: `seen` is what `live_process` looked at, `packages` what it says of environments
    (path -> reason, changed). A host as approved has passes alone."""
    out = _link(host, seen, labels) + _files(host, seen, store, labels)
    for name, process in sorted(seen["processes"].items()):
        if process["state"] != "running":
            continue
        out += _process(host, name, process, store, labels)
        out += _packages(host, process, packages)
    return out + _machine(host, seen, store, labels)


def _pass(check: str, host: str, text: str) -> Finding:
    return Finding(check, host, Verdict.PASS, text)


def _label(labels: Labels, digest: str | None) -> str:
    return labels.get(digest or "", short(digest)) if digest else "none"


def _running(seen: Mapping[str, Any]) -> list[str]:
    return sorted({str(p["release"]) for p in seen["processes"].values() if p["state"] == "running"})


def _link(host: str, seen: Mapping[str, Any], labels: Labels) -> list[Finding]:
    current, running = seen["current"], _running(seen)
    if current == "no link":
        return [Finding("drift.link", host, Verdict.FAIL, "`current` is no symbolic link: bringup did not make it",
                        mend="move it away, then invoke provision")]
    if seen["link_broken"]:
        return [Finding("drift.link", host, Verdict.FAIL,
                        f"`current` names {_label(labels, current)}, which is not here", mend="invoke provision")]
    wrong = [digest for digest in running if digest != current]
    if wrong:
        return [Finding("drift.link", host, Verdict.FAIL,
                        f"`current` names {_label(labels, current)}, {_label(labels, wrong[0])} runs",
                        mend="invoke provision, or invoke rollback")]
    if current is None:
        return [Finding("drift.link", host, Verdict.NOTE, "no release is in use here")]
    return [_pass("drift.link", host, "`current` is what runs" if running else "`current` is whole")]


def _files(host: str, seen: Mapping[str, Any], store: HostStore, labels: Labels) -> list[Finding]:
    current = seen["current"]
    out = [Finding("drift.files", host, Verdict.FAIL, why, mend="invoke provision makes it anew")
           for why in store.broken.values()]
    for name, process in sorted(seen["processes"].items()):
        concerns = process["state"] == "running" or process["release"] == current
        for what, path, how in process["files"] if concerns else ():
            out.append(Finding("drift.files", host, Verdict.FAIL, f"the {what} of {name} is {how}", (str(path),),
                               mend=_BACK))
        edited = _edited(name, process, store)
        if edited:
            out.append(Finding("drift.files", host, Verdict.FAIL,
                               f"the launch file of {name} is not what {_label(labels, process['release'])} makes",
                               tuple(edited[:8]), mend=_BACK))
    return out or [_pass("drift.files", host, "release and launch files as written")]


def _edited(name: str, process: Mapping[str, Any], store: HostStore) -> list[str]:
    """How a launch file on the host differs from the release with this host's values filled in."""
    release = store.releases.get(str(process["release"]))
    document = store.launches.get(str(process["release"]), {}).get(name)
    if release is None or not document:
        return []
    for shape in release.identity["replicas"]:
        for template in shape:
            same = template["node_rank"] == document.get("node_rank") and template["role"] == document.get("role")
            if same and template["ranks"] == document.get("ranks"):
                try:
                    argv, env = fill(ProcessTemplate.read(template), document["values"], str(document["node"]))
                except StepError as error:
                    return [error.what]
                env = {**_caches(document), **env}
                return flag_differences(argv, document["argv"]) + _variables(env, document["env"])
    return []


def _caches(document: Mapping[str, Any]) -> dict[str, str]:
    """The variables of the host that a launch file may have beside the release's: caches, the CUDA toolkit."""
    expected = host_variables(document["values"], str(document.get("hardware") or ""), document.get("container"))
    return {name: value for name, value in expected.items() if name in document["env"]}


def _process(host: str, name: str, process: Mapping[str, Any], store: HostStore, labels: Labels) -> list[Finding]:
    launch = process.get("launch")
    if launch is None:
        return []
    out = _unit(host, process)
    if process["argv"] is None:
        return [*out, Finding("drift.flags", host, Verdict.UNKNOWN, f"the command line of {name} cannot be read",
                              found=f"process {process['pid']}", mend="read it as root (bringup_privileged)")]
    flags = flag_differences(launch["argv"], engine_words(process["argv"], launch["argv"]))
    if flags:
        out.append(Finding("drift.flags", host, Verdict.FAIL,
                           f"{name} (pid {process['pid']}) runs with other flags than approved", tuple(flags[:8]),
                           mend=_BACK))
    # an image brings variables of its own
    ours = process["manager"] in ("systemd", "detached")
    known = launch["env"] if ours else {**(process["env"] or {}), **launch["env"]}
    variables = _variables(known, process["env"] or {}, live=True)
    if variables:
        out.append(Finding("drift.variables", host, Verdict.FAIL,
                           f"{name} (pid {process['pid']}) has other variables than approved", tuple(variables[:8]),
                           mend=_BACK))
    if not flags and not variables:
        out.append(_pass("drift.flags", host, "flags and variables of the live process as approved"))
    return out


def engine_words(live: Sequence[str], approved: Sequence[str]) -> list[str]:
    """The words of a live command line as the approved one has them: a program that is a script shows as its
    interpreter and what that was given, which is no other command."""
    own, given = list(approved[1:]), list(live)
    if own and given[-len(own):] == own:
        return list(approved)
    for at, word in enumerate(given):
        if own and word == own[0]:
            return [approved[0], *given[at:]]
    return given


def _variables(approved: Mapping[str, Any], found: Mapping[str, Any], *, live: bool = False) -> list[str]:
    out = [f"{name} {_value(name, approved[name])} -> {_value(name, found[name]) if name in found else 'not set'}"
           for name in sorted(approved) if str(found.get(name)) != str(approved[name])]
    for name in sorted(set(found) - set(approved)):
        if not live or not (name in _OURS or _OF_SYSTEMD.match(name) or str(found[name]).startswith("sha256:")):
            out.append(f"{name} {_value(name, found[name])} (not in the release)")
    return out


def _value(name: str, value: object) -> str:
    """A value as it may be shown: what may be a secret is not."""
    text = str(value)
    if _SECRET.search(name) and not text.startswith("sha256:"):
        return "(hidden)"
    return text if len(text) <= 80 else text[:77] + "..."


def _unit(host: str, process: Mapping[str, Any]) -> list[Finding]:
    unit = process.get("unit")
    if unit is None:
        return []
    out = []
    if unit["state"] != "same":
        out.append(Finding("drift.unit", host, Verdict.FAIL, f"the unit {unit['name']} is {unit['state']}",
                           tuple(unit["lines"]), mend=_BACK))
    if unit["drop_ins"]:
        out.append(Finding("drift.unit", host, Verdict.FAIL, f"drop-ins change the unit {unit['name']}",
                           tuple(unit["drop_ins"]), mend="remove them, then systemctl daemon-reload"))
    if unit["reload"] and not out:
        out.append(Finding("drift.unit", host, Verdict.WARN,
                           f"{unit['name']} changed on disk after systemd read it", mend="systemctl daemon-reload"))
    return out or [_pass("drift.unit", host, "the unit is the one that was written")]


def _packages(host: str, process: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    path = str((process.get("launch") or {}).get("env_path") or "")
    found = packages.get(path)
    if found is None:
        return []
    if found["reason"] is None:
        return [_pass("drift.packages", host, "the environment is as it was built")]
    details = tuple(f"{name}: {what}" for name, what in found["changed"][:8])
    return [Finding("drift.packages", host, Verdict.FAIL, f"the environment is not as it was built: {found['reason']}",
                    details or (path,), mend="invoke provision builds it anew; never install into it by hand")]


def _machine(host: str, seen: Mapping[str, Any], store: HostStore, labels: Labels) -> list[Finding]:
    """Kernel, drivers and driver packages since the release was last good here."""
    current = str(seen["current"] or "")
    then = store.approved.get(current)
    if not then:
        return [Finding("drift.host", host, Verdict.SKIP,
                        f"{_label(labels, current)} was never good here: no driver and kernel to compare with")
                ] if current else []
    out = []
    if seen["kernel"] != then.get("kernel"):
        out.append(Finding("drift.kernel", host, Verdict.FAIL, f"kernel {then.get('kernel')} -> {seen['kernel']} since "
                           f"{_label(labels, current)} was approved", mend=_APPROVE))
    for what in ("drivers", "packages"):
        for line in changes(then.get(what) or {}, seen[what]):
            out.append(Finding("drift.driver", host, Verdict.FAIL,
                               f"{line} since {_label(labels, current)} was approved", mend=_APPROVE))
    return out or [_pass("drift.host", host, "kernel and drivers as approved")]


_APPROVE = "invoke provision proves the release again and approves this; or put the old one back"


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """`nvidia 580.1 -> 590.2`, a line for each name that differs."""
    return [f"{name} {then.get(name, 'none')} -> {now.get(name, 'none')}"
            for name in sorted({*then, *now}) if then.get(name) != now.get(name)]


def between(left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]], names: tuple[str, str]
            ) -> list[Finding]:
    """What two groups of hosts have differently. Each side maps a host to its facts: release (document or None),
    label, kernel, drivers, packages, versions (of the environment). A value of one side that the other has too is
    no difference; one that hosts of one side do not share is told once."""
    out = []
    subject = f"{names[0]} > {names[1]}"
    releases = [_release_of(side) for side in (left, right)]
    if releases[0] is not None and releases[1] is not None:
        lines = differences(releases[0], releases[1])
        out.append(Finding("drift.release", subject, Verdict.FAIL if lines else Verdict.PASS,
                           "the releases in use differ" if lines else "the same in what reaches the processes",
                           tuple(lines[:12])))
    else:
        missing = [name for name, release in zip(names, releases, strict=True) if release is None]
        out.append(Finding("drift.release", subject, Verdict.UNKNOWN,
                           f"no release is in use in {' and '.join(missing)}"))
    for title, key in (("kernel", "kernel"), ("driver", "drivers"), ("package", "packages"), ("python", "versions")):
        lines = _by_value(left, right, key, names)
        out.append(Finding(f"drift.{title}", subject, Verdict.FAIL if lines else Verdict.PASS,
                           f"{len(lines)} of them differ" if lines else "the same", tuple(lines[:20])))
    return out


def _release_of(side: Mapping[str, Mapping[str, Any]]) -> Release | None:
    for facts in side.values():
        if facts.get("release"):
            return Release.read(facts["release"])
    return None


def _by_value(left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]], key: str,
              names: tuple[str, str]) -> list[str]:
    tables = [{host: _named(facts.get(key), key) for host, facts in side.items()} for side in (left, right)]
    every = sorted({name for table in tables for values in table.values() for name in values})
    out = []
    for name in every:
        sides = [{str(values.get(name, "none")) for values in table.values()} for table in tables]
        if sides[0] != sides[1]:
            told = [f"{title} {_groups(table, name)}" for title, table in zip(names, tables, strict=True)]
            out.append(f"{name}: {'; '.join(told)}")
    return out


def _named(value: Any, key: str) -> Mapping[str, str]:
    return value if isinstance(value, Mapping) else {key: str(value)}


def _groups(table: Mapping[str, Mapping[str, str]], name: str) -> str:
    groups: dict[str, list[str]] = {}
    for host, values in table.items():
        groups.setdefault(str(values.get(name, "none")), []).append(host)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{value} on {fold_hosts(hosts)}" for value, hosts in groups.items())
