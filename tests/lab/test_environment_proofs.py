"""What proofs say of real packages with odd habits: drivers, siblings that overwrite each other, strays, homes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from folder_fleet import FolderFleet
from small_wheels import wheel

from bringup.base.events import Findings, Note
from bringup.base.results import Status
from bringup.base.verdicts import Verdict
from bringup.environments.build import build_environments, verify_environments
from bringup.environments.definition import load_environment
from bringup.environments.resolve import lock_environment, write_lock
from bringup.environments.uv import uv_program

ROOT = Path(__file__).resolve().parents[2]
INVOKE = Path(sys.executable).parent / "invoke"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
ENV = """\
purpose: test
python: ["%s"]
platforms:
  linux-x86_64: {machine: x86_64, glibc: "2.17"}
  linux-aarch64: {machine: aarch64, glibc: "2.17"}
"""
DRIVER = "/proc/driver/nvidia/version"
ASKS_DRIVER = "import ctypes\nctypes.CDLL('libcuda.so.1')\n"


class Site:
    """A project with one environment, the folder that is its index, and a host that is a folder."""

    def __init__(self, base: Path) -> None:
        self.base, self.root, self.wheels = base, base / "project", base / "wheels"

    def wheel(self, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()) -> None:
        wheel(self.wheels, name, version, files, requires)

    def environment(self, requirements: str, more: str = "") -> None:
        folder = self.root / "envs" / "one"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "env.yml").write_text(ENV % PYTHON + more)
        (folder / "requirements.in").write_text(requirements)
        environment = load_environment(self.root / "envs", "one")
        for platform in environment.platforms:
            write_lock(lock_environment(environment, platform, base=self.root))

    def variables(self) -> dict[str, Any]:
        return {"deployment": {"environments": ["one"]}, "bringup_uv": str(uv_program()),
                "bringup_uv_cache": str(self.base / "cache"), "bringup_environment_python": sys.executable}

    def fleet(self) -> FolderFleet:
        return FolderFleet(self.base / "hosts", self.root, ("a",), self.variables())

    def build(self) -> dict[str, Any]:
        result = build_environments(self.fleet(), {})["a"]
        assert result.status is Status.CHANGED, result
        told: dict[str, Any] = result.data["environments"]["one"]
        return told


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    site = Site(tmp_path)
    monkeypatch.setenv("UV_FIND_LINKS", str(site.wheels))
    monkeypatch.setenv("UV_OFFLINE", "1")
    return site


@pytest.mark.skipif(os.path.exists(DRIVER), reason="this machine has the driver")
def test_what_waits_for_a_driver_is_told_and_stops_nothing(site: Site) -> None:
    site.wheel("kernels", "1.0", {"kernels/__init__.py": ASKS_DRIVER, "kernels/_C.abi3.so": "compiled"})
    site.environment("kernels>=1\n", "verify: {imports: [kernels]}\n")
    fleet = site.fleet()
    built = build_environments(fleet, {})["a"]
    assert built.status is Status.CHANGED
    says = "import of kernels: it needs libcuda.so.1 of the NVIDIA driver, and none is loaded on this host"
    assert built.data["environments"]["one"]["untried"] == [says]
    assert "import kernels" not in built.data["environments"]["one"]["proven"]
    assert [event.text for event in fleet.events if isinstance(event, Note)] == [f"not tried on a: one: {says}"]
    fleet = site.fleet()
    assert verify_environments(fleet, {})["a"].status is Status.OK
    told = next(event for event in fleet.events if isinstance(event, Findings))
    assert [(found.verdict, found.summary) for found in told.findings if found.verdict is not Verdict.PASS] == [
        (Verdict.SKIP, f"one: {says}")]
    assert list(told.tables["untried"]) == [("a", f"one: {says}")]


SIBLINGS = {"lib/__init__.py": "", "lib/core.py": "WHOSE = '%s'\n", "lib/second.py": "WHOSE = '%s'\n"}


def siblings(site: Site) -> None:
    for name in ("lib-base", "lib-cu13"):
        site.wheel(name, "1.0", {path: text.replace("%s", name) for path, text in SIBLINGS.items()})


def test_siblings_that_overwrite_each_other_are_refused_until_one_is_named(site: Site) -> None:
    siblings(site)
    site.environment("lib-base>=1\nlib-cu13>=1\n")
    result = build_environments(site.fleet(), {})["a"]
    # lib/__init__.py is the same in both: that is no clash
    assert result.status is Status.FAILED and "2 files have two owners: lib-base and lib-cu13" in result.message


@pytest.mark.parametrize("winner", ["lib-base", "lib-cu13"])
def test_the_one_named_last_lies_there_whole(site: Site, winner: str) -> None:
    siblings(site)
    site.environment("lib-base>=1\nlib-cu13>=1\n", f"last: {{{winner}: upstream installs it behind its sibling}}\n")
    told = site.build()
    code = "import lib.core, lib.second; print(lib.core.WHOSE, lib.second.WHOSE)"
    out = subprocess.run([f"{told['path']}/bin/python", "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [winner, winner]
    assert verify_environments(site.fleet(), {})["a"].status is Status.OK
    # a mixture is what the race leaves: found, though every byte is of one of the two
    loser = "lib-base" if winner == "lib-cu13" else "lib-cu13"
    mixed = next(Path(told["path"]).glob("lib/python*/site-packages/lib/core.py"))
    mixed.unlink()
    mixed.write_text(f"WHOSE = '{loser}'\n")
    fleet = site.fleet()
    assert verify_environments(fleet, {})["a"].status is Status.FAILED
    found = next(event for event in fleet.events if isinstance(event, Findings)).findings
    assert any(f"{winner}: 1 files are not as installed (lib/core.py)" in one.summary for one in found), found


def test_a_stray_file_of_two_packages_needs_its_reason(site: Site) -> None:
    for name in ("alpha", "beta"):
        site.wheel(name, "1.0", {f"{name}.py": "", "build_backend.py": f"OF = '{name}'\n"})
    site.environment("alpha>=1\nbeta>=1\n")
    result = build_environments(site.fleet(), {})["a"]
    assert "1 file has two owners: alpha and beta" in result.message
    assert "build_backend.py is owned by alpha and beta; 1 of the files differs" in str(result.found)
    shared = "verify: {shared: {build_backend.py: nothing imports it}}\n"
    site.environment("alpha>=1\nbeta>=1\n", shared)
    told = site.build()
    stray = next(Path(told["path"]).glob("lib/python*/site-packages/build_backend.py"))
    stray.unlink()
    stray.write_text("OF = 'nobody'\n")
    assert verify_environments(site.fleet(), {})["a"].status is Status.FAILED


def test_compiled_files_that_are_no_module_of_this_python_are_left_alone(site: Site) -> None:
    other = "cpython-36m-x86_64-linux-gnu"
    site.wheel("odd", "2.0", {"odd/__init__.py": "", f"_odd.{other}.so": "for another Python",
                              "preload_hook.abi3.so": "a library to preload, without an entry for Python"})
    site.environment("odd>=2\n")
    told = site.build()
    assert told["untried"] == [f"compiled for another Python, left alone: _odd.{other}.so (odd 2.0)"]


def test_the_flags_of_a_plan_are_asked_of_the_command_line(site: Site) -> None:
    files = {"tool.py": "def main():\n    print('usage: tool [--tensor-parallel-size N] [--port N]')\n"}
    wheel(site.wheels, "tool", "1.0", files, (), {"tool": "tool:main"})
    proof = "verify: {commands: [{run: [tool, --help], says: [%s]}]}\n"
    site.environment("tool>=1\n", proof % "--port, --tensor-parallel-size")
    assert "`tool --help` knows 2 flags" in site.build()["proven"]
    shutil.rmtree(site.base / "hosts")
    # --tensor-parallel is no flag of it, though its text begins one
    site.environment("tool>=1\n", proof % "--port, --tensor-parallel, --nnodes")
    result = build_environments(site.fleet(), {})["a"]
    assert "`tool --help` does not know --tensor-parallel, --nnodes" in result.message


def test_what_an_import_writes_into_a_home_stays_under_our_cache(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    home = site.base / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    site.wheel("writer", "1.0", {"writer.py": "import os\nos.makedirs(os.path.expanduser('~/.cache/writer'))\n"
                                              "os.makedirs(os.environ['XDG_CACHE_HOME'] + '/also')\n"})
    site.environment("writer>=1\n", "verify: {imports: [writer]}\n")
    assert "import writer" in site.build()["proven"]
    assert not (home / "xdg" / "also").exists() and not (home / ".cache" / "writer").exists()
    assert (site.base / "hosts" / "a" / "cache" / "proof" / ".cache" / "writer").is_dir()


def extension(site: Site, built_for: str) -> None:
    """demo-kernel 0.3: a real extension; built for another torch it names a symbol that the installed one lacks."""
    source = site.base / "demo.c"
    symbol = "_ZN3c1013MessageLoggerC1EPKciib"
    call = f"{symbol}(0);" if built_for == "2.11" else ""
    source.write_text(f"#include <Python.h>\nextern void {symbol}(void *);\n"
                      "static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, \"_C\", 0, -1, 0};\n"
                      f"PyMODINIT_FUNC PyInit__C(void) {{ {call} return PyModule_Create(&def); }}\n")
    include = subprocess.run([sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"],
                             capture_output=True, text=True, check=True).stdout.strip()
    binary = site.base / "_C.abi3.so"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", "-Wl,-z,now", "-o", str(binary), str(source)],
                   check=True)
    version = "0.3" if built_for == "2.11" else "0.2"
    files = {"demo_kernel/__init__.py": "from demo_kernel import _C\n", "demo_kernel/_C.abi3.so": "PLACE"}
    made = wheel(site.wheels, "demo-kernel", version, files, (f"torch=={built_for}",))
    plain = made.with_suffix(".plain")
    made.rename(plain)

    digest = base64.urlsafe_b64encode(hashlib.sha256(binary.read_bytes()).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("_C.abi3.so"):
                data = binary.read_bytes()
            if name.endswith("RECORD"):
                rows = [row if not row.startswith("demo_kernel/_C") else
                        f"demo_kernel/_C.abi3.so,sha256={digest},{binary.stat().st_size}"
                        for row in data.decode().splitlines()]
                data = ("\n".join(rows) + "\n").encode()
            new.writestr(name, data)
    plain.unlink()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_c017_an_extension_for_another_torch_stops_the_build_and_the_one_before_stays(site: Site) -> None:
    for name in ("tasks.py", "playbooks", "roles"):
        site.root.mkdir(exist_ok=True)
        (site.root / name).symlink_to(ROOT / name)
    site.wheel("torch", "2.9.1", {"torch/__init__.py": "__version__ = '2.9.1'\nclass version:\n    cuda = None\n"
                                  "class cuda:\n    is_available = staticmethod(lambda: False)\n"
                                  "    device_count = staticmethod(lambda: 0)\n"})
    extension(site, "2.9.1")
    extension(site, "2.11")
    inventory = site.base / "inventory.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"h200-01": {"ansible_connection": "local"}}, "vars": {
        **site.variables(), "bringup_root": str(site.base / "root"), "bringup_privileged": False}}}))
    environment = {**os.environ, "BRINGUP_PROJECT": str(site.root), "COLUMNS": "160"}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(INVOKE), *words, "--inventory", str(inventory)], cwd=site.root, text=True,
                              env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300)

    site.environment("demo-kernel==0.2\ntorch==2.9.1\n")
    good = typed("env.build")
    assert good.returncode == 0, good.stdout
    before = sorted((site.base / "root" / "envs").glob("[0-9a-f]*"))
    # somebody moves the pin of torch away from what the extension was built for, on purpose
    site.environment("demo-kernel==0.3\ntorch==2.9.1\n",
                     "overrides: [{requirement: torch==2.9.1, reason: the site wants it}]\n")
    bad = typed("env.build")
    assert bad.returncode == 1, bad.stdout
    text = " ".join(bad.stdout.split())
    for part in ("h200-01", "import demo_kernel fails (demo-kernel 0.3)", "torch 2.9.1", "torch==2.11",
                 "_ZN3c1013MessageLoggerC1EPKciib", "the environment in use before is untouched"):
        assert part in text, bad.stdout
    assert sorted((site.base / "root" / "envs").glob("[0-9a-f]*")) == before
    site.environment("demo-kernel==0.2\ntorch==2.9.1\n")
    assert typed("env.verify").returncode == 0
