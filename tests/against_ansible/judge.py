"""Runs a playbook by `ansible-playbook` and by `bringup playbook` in folders of their own and tells what came of it.

What is compared: how the run ended, the recap of each host, and the tree below each host's folder (kind, mode, owner,
content, target of a link). Ansible's answers are kept by the digest of what it was asked; BRINGUP_FULL=1 asks anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import answers

PLAYBOOKS = Path(__file__).parent / "playbooks"
# a clone has no empty folders
(PLAYBOOKS / "files/tree/empty").mkdir(exist_ok=True)
BIN = Path(sys.executable).parent
COUNTS = ("ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored")
RUNS: tuple[tuple[str, ...], ...] = (("--check",), (), (), ("--check", "--diff"))
"""Nothing there yet in check mode, then for real, then again, then as a check of what is there."""

_BACKUP = re.compile(r"\.\d+\.\d{4}-\d\d-\d\d@\d\d:\d\d:\d\d~$")


@dataclass(frozen=True)
class Case:
    """A playbook, the hosts it meets (h1, h2 ...), further arguments of all its runs."""

    file: str
    hosts: int = 1
    arguments: tuple[str, ...] = ()
    runs: tuple[tuple[str, ...], ...] = RUNS
    inputs: tuple[str, ...] = field(default=("files", "templates", "roles", "tasks", "group_vars", "host_vars",
                                             "more_vars.yml"))


def ansible(case: Case, tmp: Path) -> list[dict[str, Any]]:
    """What Ansible makes of each run of the case: {"ended", "recap", "tree"}."""
    kept = answers.FOLDER / f"playbook-{_digest(case)[:32]}.json"
    if kept.exists() and os.environ.get("BRINGUP_FULL") != "1":
        loaded: list[dict[str, Any]] = json.loads(kept.read_text())["answer"]
        return loaded
    folder = _prepare(case, tmp / "ansible")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": "/nonexistent", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(tmp / "home"),
                    "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8"}
    answer = []
    for run in case.runs:
        done = subprocess.run([BIN / "ansible-playbook", "-i", "hosts.ini", *case.arguments, *run, case.file],
                              cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=300)
        if not recap_of(done.stdout):
            raise RuntimeError(f"ansible-playbook gave no answer to {case.file}:\n{done.stdout}{done.stderr}")
        answer.append({"ended": _ended(done.returncode, {0: "done", 2: "failed", 4: "unreachable"}),
                       "recap": recap_of(done.stdout), "tree": tree_of(tmp / "ansible" / "hosts")})
    kept.parent.mkdir(exist_ok=True)
    asked = {"playbook": case.file, "arguments": list(case.arguments), "runs": [list(run) for run in case.runs],
             "ansible-core": answers.VERSION, "answer": answer}
    kept.write_text(json.dumps(asked, indent=1, sort_keys=True) + "\n")
    return answer


def bringup(case: Case, tmp: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The same for us, and what each run printed."""
    folder = _prepare(case, tmp / "bringup")
    environment = {**os.environ, "BRINGUP_PROJECT": str(folder), "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    out, printed = [], []
    for number, run in enumerate(case.runs):
        report = folder / f"report{number}.json"
        done = subprocess.run([BIN / "bringup", "playbook", case.file, "--inventory", "hosts.ini", "--report",
                               str(report), *case.arguments, *run], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        printed.append(done.stdout + done.stderr)
        recap = json.loads(report.read_text())["recap"] if report.exists() else {}
        out.append({"ended": _ended(done.returncode, {0: "done", 1: "failed", 3: "unreachable"}),
                    "recap": {host: {name: int(counts.get(name, 0)) for name in COUNTS}
                              for host, counts in recap.items()},
                    "tree": tree_of(tmp / "bringup" / "hosts")})
    return out, printed


def _ended(status: int, words: dict[int, str]) -> str:
    return words.get(status, f"status {status}")


def _prepare(case: Case, place: Path) -> Path:
    """A copy of the playbooks with an inventory: each host is this machine with a folder of its own."""
    folder = place / "play"
    shutil.copytree(PLAYBOOKS, folder, symlinks=True)
    # an empty folder is not kept by git
    (folder / "files" / "tree" / "empty").mkdir(exist_ok=True)
    for path in (folder / "files").rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.name == "run.sh" else 0o644)
    lines = []
    for number in range(1, case.hosts + 1):
        (place / "hosts" / f"h{number}").mkdir(parents=True)
        lines.append(f"h{number} ansible_connection=local ansible_python_interpreter={sys.executable} "
                     f"root={place}/hosts/h{number} bringup_root={place}/state/h{number}")
    if case.hosts > 1:
        lines += ["[pair]", "h1", "h2"]
    (folder / "hosts.ini").write_text("\n".join(lines) + "\n")
    return folder


def _digest(case: Case) -> str:
    whole = hashlib.sha256(json.dumps([answers.VERSION, case.file, case.hosts, case.arguments, case.runs]).encode())
    for name in (case.file, *case.inputs):
        top = PLAYBOOKS / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_symlink():
                whole.update(f"{path.relative_to(PLAYBOOKS)} -> {os.readlink(path)}".encode())
            elif path.is_file():
                whole.update(f"{path.relative_to(PLAYBOOKS)} ".encode() + path.read_bytes())
    return whole.hexdigest()


def recap_of(text: str) -> dict[str, dict[str, int]]:
    """Counts by host from the recap that ansible-playbook prints."""
    out: dict[str, dict[str, int]] = {}
    for line in text.partition("PLAY RECAP")[2].splitlines():
        host, colon, rest = line.partition(" : ")
        counts = dict(re.findall(r"(\w+)=(\d+)", rest))
        if colon and counts:
            out[host.strip()] = {name: int(counts[name]) for name in COUNTS}
    return out


def tree_of(top: Path) -> dict[str, str]:
    """Every path below a folder: kind, mode, owner and what is in it. The folder's own path is named TOP in contents;
    the time in a backup's name is left out."""
    out: dict[str, str] = {}
    place = str(top.parent)
    for path in sorted(top.rglob("*")):
        found = path.lstat()
        name = _BACKUP.sub(".BACKUP~", str(path.relative_to(top)))
        owner = "me" if found.st_uid == os.geteuid() else str(found.st_uid)
        group = "mine" if found.st_gid == os.getegid() else str(found.st_gid)
        if path.is_symlink():
            out[name] = f"link {owner}:{group} -> {os.readlink(path).replace(place, 'TOP')}"
        elif path.is_dir():
            out[name] = f"folder {stat.S_IMODE(found.st_mode):04o} {owner}:{group}"
        else:
            data = path.read_bytes().replace(place.encode(), b"TOP")
            shown = data.decode("utf-8", "replace") if len(data) < 400 else hashlib.sha256(data).hexdigest()
            out[name] = f"file {stat.S_IMODE(found.st_mode):04o} {owner}:{group} x{found.st_nlink} {shown}"
    return out


def differences(ansible_says: Sequence[dict[str, Any]], we_say: Sequence[dict[str, Any]]) -> list[str]:
    """What differs between the two, one line each, runs counted from 1."""
    out = []
    for number, (theirs, ours) in enumerate(zip(ansible_says, we_say, strict=True), 1):
        if theirs["ended"] != ours["ended"]:
            out.append(f"run {number}: ended {theirs['ended']} there, {ours['ended']} here")
        for kind in ("recap", "tree"):
            for key in sorted({*theirs[kind], *ours[kind]}):
                left, right = theirs[kind].get(key), ours[kind].get(key)
                if left != right:
                    out.append(f"run {number} {kind} {key}:\n    ansible {left!r}\n    bringup {right!r}")
    return out
