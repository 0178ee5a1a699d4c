"""What runs on this host and what it was started with, against what lies on its disk. Python 3.6; changes nothing.

`action`
    host      kernel, drivers and driver packages
    look      the same, `current`, and for each recorded engine process: its launch document and files, its unit,
              command line and environment of the live process
    packages  whether the packages of the named environments are as they were built (hashes of their records)
A value of a variable that may hold a secret is told as its SHA-256 alone (`sha256:...`), cut to 12 signs.
"""

import base64
import csv
import hashlib
import os
import re

from bringup.agent.modules import _host_state, engine_process, python_env_check, release_store
from bringup.agent.processes import launch, proc, systemd
from bringup.agent.task import Failure

ARGUMENTS = {
    "action": {"type": "str", "required": True, "choices": ["host", "look", "packages"]},
    "secrets": {"type": "list", "default": []},
    "environments": {"type": "dict", "default": {}},
}

_SECRET = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")


def run(task):
    action = task.args["action"]
    if action == "host":
        return dict(_host_state.of_host(), changed=False)
    if action == "packages":
        return {"changed": False, "environments": dict(
            (path, _packages(path, digest)) for path, digest in sorted(task.args["environments"].items()))}
    return dict(_host_state.of_host(), changed=False, current=_current(task), time=proc.now(),
                link_broken=_dangling(task), processes=dict((name, _process(task, name))
                                                            for name in launch.names(task.root)))


def _current(task):
    try:
        return release_store.current(task)
    except Failure:
        return "no link"


def _dangling(task):
    path = os.path.join(task.root, "current")
    return os.path.islink(path) and not os.path.isdir(path)


def _process(task, name):
    place = launch.Place(task.root, name)
    record = place.read()
    release = record.get("release") or ""
    document = proc.read_json(place.launch(release))
    manager = record.get("manager")
    seen = engine_process.state_of(place, record)
    out = {"state": seen["state"], "pid": seen["pid"], "release": record.get("release"), "manager": manager,
           "replica": record.get("replica"), "started": record.get("started"), "files": [], "unit": None, "argv": None,
           "env": None, "launch": None}
    if document is not None:
        out["launch"] = {"argv": document["argv"], "env": _masked(document["env"], task.args["secrets"]),
                         "environment": (document.get("values") or {}).get("environment"),
                         "env_path": (document.get("values") or {}).get("env")}
    out["files"] = _files(place, release, document)
    if manager == "systemd":
        out["unit"] = _unit(place, release)
    if seen["state"] == "running" and seen["pid"]:
        out["argv"], out["env"] = live(seen["pid"], task.args["secrets"], launch.read_secrets(place))
    return out


def live(pid, secrets, kept):
    """(words, variables) of a living process; (None, None) where they cannot be read.

    `secrets` are names of variables, `kept` the variables that the process was given as secrets: a word that holds
    such a value shows `$API_KEY` in its place, as the launch file does.
    """
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as handle:
            words = handle.read().decode("utf-8", "replace").split("\0")[:-1]
        with open("/proc/%d/environ" % pid, "rb") as handle:
            pairs = handle.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return None, None
    for value in kept.values():
        words = [word.replace(value, launch.API_KEY) for word in words] if value else words
    env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return words, _masked(env, list(secrets) + list(kept))


def _masked(env, secrets):
    return dict((name, masked(value) if name in secrets or _SECRET.search(name) else value)
                for name, value in env.items())


def masked(value):
    """A value that nobody may read, so that two of them can be compared."""
    return "sha256:" + hashlib.sha256(str(value).encode("utf-8")).hexdigest()[:12]


def _files(place, release, document):
    """What of the release's files on this host is not as it was written: (what, expected, found)."""
    if document is None:
        return [["launch file", place.launch(release), "missing or not readable"]]
    out = []
    script = _read(place.script(release))
    if script is None:
        out.append(["launch script", place.script(release), "missing"])
    elif script != launch.script_text(document):
        out.append(["launch script", place.script(release), "edited after it was written"])
    return out


def _unit(place, release):
    """The unit on disk against the one that was written at the start: state (same, edited, missing), drop-ins."""
    name = systemd.unit_name(place.name)
    there = _read(os.path.join(systemd.UNITS, name))
    kept = _read(os.path.join(os.path.dirname(place.launch(release)), name))
    state = "missing" if there is None else "same" if kept is None or kept == there else "edited"
    shown = systemd.more(place.name, ("DropInPaths", "NeedDaemonReload"))
    return {"name": name, "state": state, "drop_ins": (shown.get("DropInPaths") or "").split(),
            "reload": shown.get("NeedDaemonReload") == "yes", "lines": _changed_lines(kept, there)}


def _changed_lines(kept, there):
    if kept is None or there is None or kept == there:
        return []
    old, new = kept.splitlines(), there.splitlines()
    return (["- " + line for line in old if line not in new] + ["+ " + line for line in new if line not in old])[:12]


def _read(path):
    try:
        with open(path, "rb") as handle:
            return handle.read(4 * 1024 * 1024).decode("utf-8", "replace")
    except OSError:
        return None


def _packages(path, digest):
    """reason (why it is unsound, None when it is sound); `changed`: [package, what] of those changed in place."""
    reason = python_env_check.unsound(path, digest)
    changed = changed_packages(path) if reason == "files in it were changed" else []
    return {"reason": reason, "changed": changed,
            "versions": (python_env_check.read_marker(path) or {}).get("packages") or {}}


def changed_packages(path):
    """Packages of an environment that are not as the build left them: [name, what], by version, then by file."""
    site = python_env_check.site_folder(path)
    built = (python_env_check.read_marker(path) or {}).get("packages") or {}
    found, out = {}, []
    for entry in sorted(os.listdir(site)):
        if not entry.endswith(".dist-info"):
            continue
        name, _, version = entry[:-len(".dist-info")].rpartition("-")
        name = re.sub(r"[-_.]+", "-", name).lower()
        found[name] = version
        edited = _edited(site, os.path.join(site, entry, "RECORD"))
        if edited:
            more = " and %d more" % (len(edited) - 1) if len(edited) > 1 else ""
            out.append([name, "%s%s edited in place" % (edited[0], more)])
    for name in sorted(set(built) | set(found)):
        was, now = built.get(name), found.get(name)
        if was is None:
            out.append([name, "%s was added" % now])
        elif now is None:
            out.append([name, "%s was removed" % was])
        elif now.replace("_", "-") != was.replace("_", "-"):
            out.append([name, "%s was replaced by %s" % (was, now)])
    return out[:50]


def _edited(site, record):
    """Files of a package whose hash is not the recorded one."""
    text = _read(record)
    out = []
    for row in csv.reader((text or "").splitlines()):
        if len(row) < 2 or not row[1].startswith("sha256="):
            continue
        try:
            with open(os.path.join(site, row[0]), "rb") as handle:
                digest = hashlib.sha256(handle.read()).digest()
        except OSError:
            out.append(row[0])
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii") != row[1][7:].rstrip("="):
            out.append(row[0])
    return out
