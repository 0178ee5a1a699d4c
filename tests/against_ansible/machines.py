"""The judge on real machines: Ansible over SSH on one, bringup on its twin, the same playbook as root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import judge

HERE = Path(__file__).parent
RUNS: tuple[tuple[str, ...], ...] = ((), (), ("--check", "--diff"))

LOOK = r"""
import grp, hashlib, os, pwd, stat, subprocess
def name(table, number):
    try:
        return table(number)[0]
    except KeyError:
        return str(number)
out = {}
for top in ("/srv", "/tmp/as_engine", "/etc/systemd/system", "/home"):
    paths = [top] + [os.path.join(at, one) for at, folders, files in os.walk(top) for one in folders + files]
    for path in sorted(paths):
        if not os.path.lexists(path) or "/home/ops/" in path:
            continue
        found = os.lstat(path)
        kind = "link" if stat.S_ISLNK(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "file"
        held = os.readlink(path) if kind == "link" else ""
        if kind == "file":
            data = open(path, "rb").read()
            shown = len(data) < 1000 and b"\0" not in data
            held = data.decode("utf-8", "replace") if shown else hashlib.sha256(data).hexdigest()
        out[path] = "%s %04o %s:%s %s" % (kind, stat.S_IMODE(found.st_mode), name(pwd.getpwuid, found.st_uid),
                                          name(grp.getgrgid, found.st_gid), held)
for path in ("/etc/passwd", "/etc/group", "/etc/apt/sources.list"):
    for line in open(path):
        out["%s %s" % (path, line.split(":")[0].strip())] = line.strip()
for line in open("/etc/shadow"):
    out["shadow " + line.split(":")[0]] = line.split(":")[1][:2]
def ask(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode().strip()
for unit in ("judged", "masked-one", "ssh"):
    out["unit " + unit] = ask("systemctl", "is-active", unit) + " " + ask("systemctl", "is-enabled", unit)
out["packages"] = ask("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n", "judged-*")
import json
print(json.dumps(out))
"""


def prepare(folder: Path) -> Path:
    """The playbook with its files and two package repositories: one version of a tool, then two."""
    shutil.copytree(HERE / "machines", folder)
    shutil.copytree(judge.PLAYBOOKS / "files" / "tree", folder / "files" / "tree", symlinks=True)
    first = [_package(folder, "judged-tool", "1.0"), _package(folder, "judged-extra", "1.0")]
    _repository(folder / "files" / "repo", first)
    _repository(folder / "files" / "repo2", [*first, _package(folder, "judged-tool", "2.0")])
    return folder


def _package(folder: Path, name: str, version: str) -> Path:
    build = folder / "build" / f"{name}-{version}"
    (build / "DEBIAN").mkdir(parents=True)
    (build / "usr/share/judged").mkdir(parents=True)
    (build / "usr/share/judged" / name).write_text(f"{version}\n")
    (build / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: tests <tests@localhost>\n"
        f"Description: a package of the tests\n")
    out = build.with_suffix(f"{build.suffix}.deb")
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", build, out], check=True,
                   capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    return out


def _repository(folder: Path, packages: list[Path]) -> None:
    folder.mkdir(parents=True)
    entries = []
    for package in packages:
        shutil.copy(package, folder)
        control = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
        digest = subprocess.run(["sha256sum", package], check=True, capture_output=True, text=True).stdout.split()[0]
        entries.append(f"{control}Filename: ./{package.name}\nSize: {package.stat().st_size}\nSHA256: {digest}\n")
    (folder / "Packages").write_text("\n".join(entries))


def look(ssh: list[str], address: str) -> dict[str, str]:
    """What a machine holds after a run, by path and by name."""
    done = subprocess.run([*ssh, f"root@{address}", "python3 -"], input=LOOK, capture_output=True, text=True,
                          check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def ansible(folder: Path, inventory: Path, host: str, see: Any) -> list[dict[str, Any]]:
    """Ansible's runs on one machine: recap and what the machine holds after each."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": "/nonexistent", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PIPELINING": "1"}
    out = []
    for run in RUNS:
        done = subprocess.run([judge.BIN / "ansible-playbook", "-i", inventory, "--limit", host, *run, "system.yml"],
                              cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=600)
        recap = judge.recap_of(done.stdout)
        if not recap:
            raise RuntimeError(f"ansible-playbook gave no answer:\n{done.stdout}{done.stderr}")
        out.append({"ended": str(done.returncode == 0), "recap": {"it": recap[host]}, "tree": see(),
                    "printed": done.stdout + done.stderr})
    return out


def bringup(folder: Path, inventory: Path, host: str, see: Any) -> list[dict[str, Any]]:
    """The same by us."""
    out = []
    for number, run in enumerate(RUNS):
        report = folder / f"report{number}.json"
        done = subprocess.run([judge.BIN / "bringup", "playbook", "system.yml", "--inventory", str(inventory),
                               "--limit", host, "--report", str(report), *run], cwd=folder,
                              env={**os.environ, "BRINGUP_PROJECT": str(folder), "NO_COLOR": "1"},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
        recap = json.loads(report.read_text())["recap"] if report.exists() else {}
        counts = {name: int(recap.get(host, {}).get(name, 0)) for name in judge.COUNTS}
        out.append({"ended": str(done.returncode == 0), "recap": {"it": counts}, "tree": see(),
                    "printed": done.stdout + done.stderr})
    return out
