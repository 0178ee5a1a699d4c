"""Situations of builds from the field through `invoke kernel.build`: hosts whose CPU, compilers, assembler and CUDA
toolkit are others, each a Python that sees another /proc/cpuinfo or PATH."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INVOKE = Path(sys.executable).parent / "invoke"
CASES = ROOT / "tests" / "unit" / "kernels" / "cases"
RECIPE = """\
purpose: test
uses: [compiler%(uses)s]
source: {folder: source}
memory_per_job: 100 MiB
%(more)s
commands:
  - compile: |
      mkdir -p "$OUT/lib"
      env | grep -E '^(CXX|CC|CUDA|NVCC|PATH|WANTED)' | sort > "$OUT/taken"
      "$CXX" -shared -fPIC -o "$OUT/lib/lib.so" lib.cpp
yields: [lib/lib.so, taken]
proof: {script: proof.py, seconds: 60}
"""
PROOF = 'print(\'{"proof": "there"}\')\n'
pytestmark = pytest.mark.skipif(shutil.which("g++", path="/usr/bin") is None, reason="no /usr/bin/g++")
NAMESPACES = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
    reason="another /proc/cpuinfo, or no compiler, takes a mount namespace")


def case_hosts(case: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((CASES / case / "host.yml").read_text())["hosts"]
    return found


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def says(path: Path, version: str, real: str, banner: str) -> None:
    """A tool of another version in front of the machine's own."""
    program(path, f'for word in "$@"; do case "$word" in -dumpfullversion) echo {version}; exit 0;; '
                  f'--version) echo "{banner} {version}"; exit 0;; esac; done\nexec {real} "$@"\n')


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "site"
        self.project.mkdir()
        for name in ("tasks.py", "playbooks", "roles", "envs"):
            (self.project / name).symlink_to(ROOT / name)
        self.hosts: dict[str, dict[str, Any]] = {}

    def recipe(self, *, uses: str = "", more: str = "", proof: str = PROOF) -> None:
        folder = self.project / "kernels" / "one"
        (folder / "source").mkdir(parents=True, exist_ok=True)
        (folder / "source" / "lib.cpp").write_text("int x;\n")
        (folder / "kernel.yml").write_text(RECIPE % {"uses": uses, "more": more})
        (folder / "proof.py").write_text(proof)

    def host(self, name: str, before: str) -> Path:
        """A host whose agent starts behind some lines of shell; its own folder."""
        own = self.folder / name
        python = program(own / "python", f'{before}\nexec {sys.executable} "$@"\n')
        self.hosts[name] = {"ansible_connection": "local", "ansible_python_interpreter": str(python),
                            "bringup_root": str(own / "root"), "bringup_privileged": False}
        return own

    def build(self, *, check: bool = False, **asked: Any) -> subprocess.CompletedProcess[str]:
        inventory = self.folder / "here.yml"
        inventory.write_text(json.dumps({"all": {"hosts": self.hosts, "vars": {
            "deployment": {"kernels": [{"name": "one", **asked}]}}}}))
        words = [str(INVOKE), "kernel.build", "--inventory", str(inventory), *(["--check"] if check else [])]
        env = {**os.environ, "BRINGUP_PROJECT": str(self.project), "COLUMNS": "200"}
        done = subprocess.run(words, cwd=self.project, text=True, env=env, check=False, timeout=300,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert "Traceback" not in done.stdout, done.stdout
        return done

    def made(self, name: str) -> list[Path]:
        return sorted((self.folder / name / "root" / "builds").glob("[0-9a-f]*"))

    def taken(self, name: str) -> Mapping[str, str]:
        """The variables that the one build of a host ran with."""
        (build,) = self.made(name)
        return dict(line.split("=", 1) for line in (build / "taken").read_text().splitlines())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def variants() -> str:
    """The CPU variants of kt_kernel, their variables left out."""
    rows = yaml.safe_load((ROOT / "kernels" / "kt_kernel" / "kernel.yml").read_text())["cpu"]
    return "cpu: " + json.dumps({name: {"flags": row["flags"], "environment": {"WANTED": name}}
                                 for name, row in rows.items()})


@NAMESPACES
def test_c081_amx_is_refused_by_name_and_each_kind_of_cpu_gets_its_own(site: Site) -> None:
    for name, row in case_hosts("C081").items():
        more = ["fma", "f16c", *(["avx512dq"] if "avx512f" in row["flags"] else []),
                *(["avx512vbmi"] if "amx_tile" in row["flags"] else [])]
        more += ["amx_bf16"] if "amx_tile" in row["flags"] else []
        cpuinfo = site.folder / f"{name}.cpuinfo"
        cpuinfo.write_text(f"model name\t: CPU of {name}\nflags\t\t: {' '.join(row['flags'] + more)}\n")
        site.host(name, f'if [ -z "$INSIDE" ]; then INSIDE=1 exec unshare -m sh -c \'mount --bind {cpuinfo} '
                        f'/proc/cpuinfo && exec "$0" "$@"\' "$0" "$@"; fi')
    site.recipe(uses=", cpu", more=variants())
    refused = site.build(cpu="amx")
    assert refused.returncode == 4, refused.stdout
    assert "which not every CPU here can run" in refused.stdout and "amx_tile" in refused.stdout
    for name in ("cascade-01", "desktop-03"):
        assert f"{name}: CPU of {name}" in refused.stdout, refused.stdout
    assert "cpu: avx2, which all of them run" in " ".join(refused.stdout.split()), refused.stdout
    assert not any(site.made(name) for name in site.hosts)
    done = site.build()
    assert done.returncode == 0, done.stdout
    assert {name: site.taken(name)["WANTED"] for name in site.hosts} == {
        "cascade-01": "avx512_vnni", "sapphire-02": "amx", "desktop-03": "avx2"}
    assert len({site.made(name)[0].name for name in site.hosts}) == 3  # none is taken for another
    site.recipe(uses=", cpu", more=variants(), proof="import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    (site.project / "kernels" / "one" / "source" / "lib.cpp").write_text("int y;\n")
    dead = site.build()
    assert dead.returncode == 4, dead.stdout
    assert "an instruction that this CPU does not have" in dead.stdout and "cascade-01" in dead.stdout


@NAMESPACES
def test_a_host_without_a_compiler_gets_one_before_the_build_is_named(site: Site) -> None:
    real = os.path.realpath("/usr/bin/g++")
    own = site.folder / "bare-01"
    hidden = own / "hidden"
    hidden.parent.mkdir()
    hidden.write_text("")
    program(own / "bin" / "apt-get", f'echo "$@" >> {own}/asked\ncase "$*" in *install*) umount {real};; esac\n')
    site.host("bare-01", f'if [ -z "$INSIDE" ]; then INSIDE=1 PATH={own}/bin:/usr/bin:/bin exec unshare -m sh -c '
                         f"'mount --bind {hidden} {real} && exec \"$0\" \"$@\"' \"$0\" \"$@\"; fi")
    needs = "system: {apt: [compiler-of-this-test]}\nneeds: {programs: [g++]}\n"
    site.recipe(more=needs)
    refused = site.build()
    said = " ".join(refused.stdout.split())
    assert refused.returncode == 1 and "sudo apt-get install compiler-of-this-test" in said, said
    assert not (own / "asked").exists()
    site.hosts["bare-01"]["bringup_privileged"] = True
    checked = site.build(check=True)
    assert checked.returncode == 0 and "one would be installed first" in checked.stdout, checked.stdout
    assert not (own / "asked").exists()
    done = site.build()
    assert done.returncode == 0 and "built on bare-01" in done.stdout, done.stdout
    assert "compiler-of-this-test" in (own / "asked").read_text()


def cuda(folder: Path, version: str, gcc: int) -> Path:
    """A CUDA toolkit as far as it is looked at: nvcc's word, headers, the newest gcc that it accepts."""
    program(folder / "bin" / "nvcc", f'echo "Cuda compilation tools, release {version[:4]}, V{version}"\n')
    (folder / "include" / "crt").mkdir(parents=True)
    (folder / "include" / "cuda_runtime.h").write_text("")
    (folder / "include" / "crt" / "host_config.h").write_text(f"#if __GNUC__ > {gcc}\n#error\n#endif\n")
    return folder


def test_c083_a_compiler_that_fits_is_taken_and_no_check_is_switched_off(site: Site) -> None:
    row = case_hosts("C083")["toonew-01"]
    own = site.folder / "toonew-01"
    home = cuda(own / "cuda", f"{row['toolkit']}.131", 13)
    says(own / "bin" / "g++", f"{row['gcc']}.0", "/usr/bin/g++", "g++")
    site.host("toonew-01", f"export PATH={own}/bin:/usr/bin:/bin")
    site.hosts["toonew-01"]["bringup_cuda_home"] = str(home)
    site.recipe(uses=", cuda")
    done = site.build()
    assert done.returncode == 0, done.stdout
    said = " ".join(done.stdout.split())
    assert f"not taken: {own}/bin/g++ 14.2.0 is newer than gcc 13, the newest for CUDA 12.4.131" in said, said
    taken = site.taken("toonew-01")
    assert taken["CXX"] == taken["NVCC_CCBIN"] == "/usr/bin/g++" and taken["CUDA_HOME"] == str(home)
    assert not any("allow-unsupported" in value for value in taken.values())
    site.recipe(uses=", cuda", more='compiler: {least: "14"}')
    none = site.build()
    assert none.returncode == 4, none.stdout  # what the host has, not what the build did
    said = " ".join(none.stdout.split())
    assert "no C++ compiler of this host can build one" in said and "up to gcc 13" in said and "install g++-13" in said


@NAMESPACES
def test_c083_an_assembler_that_is_too_old_is_named_before_and_after(site: Site) -> None:
    row = case_hosts("C083")["oldas-02"]
    own = site.folder / "oldas-02"
    for name in ("g++", "gcc"):
        says(own / "bin" / name, f"{row['gcc']}.0", f"/usr/bin/{name}", name)
    real, kept = os.path.realpath("/usr/bin/as"), own / "as"
    shutil.copy2(real, kept)
    says(own / "old" / "as", str(row["binutils"]), str(kept), "GNU assembler (GNU Binutils)")
    site.host("oldas-02", f'if [ -z "$INSIDE" ]; then INSIDE=1 PATH={own}/bin:/usr/bin:/bin exec unshare -m sh -c '
                          f"'mount --bind {own}/old/as {real} && exec \"$0\" \"$@\"' \"$0\" \"$@\"; fi")
    # what the old assembler would say of an instruction that it does not know
    site.recipe(uses=", cpu", more='compiler: {least: "13"}\ncpu: {plain: {flags: []}}')
    (site.project / "kernels" / "one" / "source" / "lib.cpp").write_text('void f() { asm("vfantasy %xmm0"); }\n')
    done = site.build()
    assert done.returncode == 4, done.stdout
    said = " ".join(done.stdout.split())
    assert "the assembler 2.38 is older than this compiler (2.40 came with it)" in said, said
    assert "the assembler is older than the compiler: it does not know vfantasy" in said and "oldas-02" in said


def test_c083_what_lies_first_on_path_is_told_and_the_systems_own_is_taken(site: Site) -> None:
    own = site.folder / "conda-03"
    says(own / "conda" / "bin" / "g++", "15.1.0", "/usr/bin/g++", "x86_64-conda-linux-gnu-g++")
    says(own / "conda" / "bin" / "cmake", "4.1.0", "/bin/true", "cmake version")
    site.host("conda-03", f"export PATH={own}/conda/bin:/usr/bin:/bin")
    site.recipe(more="needs: {programs: [make]}")
    says(own / "conda" / "bin" / "make", "9.9", "/usr/bin/make", "GNU Make")
    done = site.build()
    assert done.returncode == 0, done.stdout
    said = " ".join(done.stdout.split())
    assert f"not taken: {own}/conda/bin/g++ is first on PATH" in said and "compiler /usr/bin/g++" in said, said
    assert " of /usr/bin/as" in said and re.search(r"make [\d.]+ of /usr/bin/make", said) and "9.9" not in said, said
    taken = site.taken("conda-03")
    assert taken["CXX"] == "/usr/bin/g++" and "conda/bin" not in taken["PATH"]


def test_the_toolkit_that_the_inventory_names_is_the_only_one_that_counts(site: Site) -> None:
    own = site.folder / "two-01"
    fits, named = cuda(own / "cuda-99.0", "99.0.88", 99), cuda(own / "cuda-11.4", "11.4.48", 12)
    site.host("two-01", f"export PATH=/usr/bin:/bin CUDA_HOME={fits}")
    site.recipe(uses=", cuda", more='cuda: {least: "12.3"}')
    assert site.build().returncode == 0 and site.taken("two-01")["CUDA_HOME"] == str(fits)
    site.hosts["two-01"]["bringup_cuda_home"] = str(named)
    refused = site.build()
    said = " ".join(refused.stdout.split())
    assert refused.returncode == 1 and "the CUDA toolkit of bringup_cuda_home does not fit one" in said, said
    assert f"{named} 11.4.48 (bringup_cuda_home)" in said and "at least 12.3" in said, said
    site.hosts["two-01"]["bringup_cuda_home"] = str(own / "nothing")
    said = " ".join(site.build().stdout.split())
    assert f"{own}/nothing has no nvcc (bringup_cuda_home)" in said, said
