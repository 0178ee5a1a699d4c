"""A site that reaches nothing: machines without a way out, a controller whose index is not there, one bundle."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from network import ip

sys.path.append(str(Path(__file__).parents[1] / "lab"))
from site_project import DEPLOYMENT, REPOSITORY, Site, endpoint_of
from standalone_python import find_python, standalone

HOSTS = ("m1", "m2", "m3")
RECORDING = REPOSITORY / "bringup/lab/recordings/h200x8"
CONFIG = '{"model_type": "glm_moe_dsa", "num_attention_heads": 64}'
PLATFORM = f"linux-{platform.machine()}-cpu"
NOWHERE = "http://127.0.0.1:9"
PACKAGE = "numactl"
BLOCKED = {"UV_DEFAULT_INDEX": f"{NOWHERE}/simple", "UV_OFFLINE": "1", "PIP_INDEX_URL": f"{NOWHERE}/simple",
           "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "ALL_PROXY": NOWHERE,
           "UV_PYTHON_DOWNLOADS_JSON_URL": "/nonexistent.json"}

pytestmark = pytest.mark.full


def debian() -> bool:
    """Whether this machine is of the release of the test machines, so that apt here knows their packages."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME") == "bookworm"


class Place(Site):
    """A project folder with the lab's environments. `more` is added to what verbs see of the environment."""

    def __init__(self, folder: Path, cluster: Cluster, more: dict[str, str]) -> None:
        self.cluster, self.more = cluster, more
        super().__init__(folder)
        for name in ("lab", "lab-legacy"):
            shutil.copytree(REPOSITORY / "envs" / name, folder / "envs" / name)

    def environment(self) -> dict[str, str]:
        # no cache of this machine: what is not in the bundle is not here
        return {**super().environment(), "UV_CACHE_DIR": str(self.folder / "uv-cache"), **self.more}

    def write(self, *, bundle: dict[str, Any] | None = None, **deployment: Any) -> None:
        self.cluster.inventory(self.folder / "inventory/lab.yml", {
            "bringup_replay": str(RECORDING), "bringup_known_hosts": str(self.cluster.known_hosts),
            "bringup_ssh_config": False,
            "bundle": {"platforms": [PLATFORM], **({"system_packages": {"release": "bookworm", "names": [PACKAGE]}}
                                                   if debian() else {}), **(bundle or {})},
            "deployment": {**DEPLOYMENT, "environment": "lab", "environments": ["lab", "lab-legacy"],
                           "manager": "systemd", "model_path": "/models/GLM-5.1",
                           "env": {"LAB_ENGINE_LOAD_SECONDS": "0.3"}, **deployment}})


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where uv finds the Python that the machines do not have: a list of this test's own."""
    python = find_python("3.12")
    if python is None:
        pytest.skip("a Python 3.12 of its own prefix is needed here, to be packed as an interpreter")
    _, listed = standalone(python, tmp_path_factory.mktemp("standalone"))
    return {"UV_PYTHON_DOWNLOADS_JSON_URL": str(listed)}


@pytest.fixture(scope="module")
def away(cluster: Cluster, interpreter: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The site: machines without a route, a controller without an index, and the bundle that was carried there."""
    home = Place(tmp_path_factory.mktemp("home"), cluster, interpreter)
    out = home.good("bundle", "--inventory", "lab", "--output", "lab.tar.zst", "--split", "40M", "--controller",
                    timeout=600)
    assert "interpreters  3.12" in out
    for machine in cluster.machines:
        ip("-n", cluster.bridge.namespace(machine.index), "route", "delete", "default")
        machine.run("sudo mkdir -p /models/GLM-5.1 && "
                    f"echo '{CONFIG}' | sudo tee /models/GLM-5.1/config.json")
    place = Place(tmp_path_factory.mktemp("away"), cluster, BLOCKED)
    for part in home.folder.glob("lab.tar.zst.*"):
        shutil.copy(part, place.folder)
    (place.folder / "home").symlink_to(home.folder)
    yield place


def test_neither_machines_nor_controller_reach_anything(away: Place) -> None:
    for machine in away.cluster.machines:
        assert "default" not in machine.run("ip route").stdout
        tried = machine.run("curl --silent --show-error --max-time 5 http://192.0.2.1/", check=False)
        assert tried.returncode == 7, f"{machine.name} has a way out: {tried.stdout}{tried.stderr}"
        assert machine.run("getent hosts example.org", check=False).returncode != 0
        assert machine.run("command -v uv python3.12", check=False).stdout == ""
    refused = away.run("env.lock", "--env", "lab", "--upgrade", "--check")
    assert refused.returncode in (1, 2) and "network was disabled" in refused.stdout, refused.stdout


def test_without_the_bundle_provision_fails_there(away: Place) -> None:
    done = away.run("provision", "--yes", timeout=300)
    assert done.returncode == 1, done.stdout
    assert "FAILED" in done.stdout


@pytest.fixture(scope="module")
def provisioned(away: Place) -> str:
    """What the first provision from the bundle printed."""
    return away.good("provision", "--yes", "--bundle", "lab.tar.zst", timeout=600)


def test_provision_from_the_bundle_alone(away: Place, provisioned: str) -> None:
    shown = away.good("bundle.verify", "lab.tar.zst")
    assert "good     lab.tar.zst in" in shown
    out = provisioned
    assert "proven; from the bundle lab.tar.zst" in " ".join(out.split())
    assert endpoint_of(out) == f"http://{away.cluster['m1'].address}:8000"
    for name in HOSTS:
        host = away.cluster.testinfra(away.cluster[name], sudo=True)
        environments = json.loads(host.check_output(
            "python3 -c \"import glob,json;print(json.dumps([json.load(open(f)) for f in "
            "glob.glob('/opt/bringup/envs/*/bringup-env.json')]))\""))
        found = {one["name"]: one for one in environments}
        assert set(found) == {"lab", "lab-legacy"}
        for one in found.values():
            assert one["python"]["version"].startswith("3.12.")
            assert one["python"]["path"].startswith("/opt/bringup/pythons/cpython-3.12.")
        assert found["lab"]["packages"]["transformers"] == "5.3.0"
        assert found["lab-legacy"]["packages"]["transformers"].startswith("4.57")
        if debian():
            assert host.package(PACKAGE).is_installed
            assert f"brought {PACKAGE}" in out or "libnuma1" in out
            assert not host.file("/etc/apt/sources.list.d/carried.list").exists, "the host's own sources are as before"


def test_a_second_time_changes_nothing_and_needs_no_unpacking(away: Place, provisioned: str) -> None:
    report = away.folder / "again.json"
    out = away.good("provision", "--yes", "--bundle", "lab.tar.zst.parts", "--report", str(report), timeout=300)
    assert "serves already, nothing was restarted" in out
    recap = json.loads(report.read_text())["recap"]
    assert {host: counts["changed"] for host, counts in recap.items()} == dict.fromkeys(HOSTS, 0)


def test_the_brought_interpreter_is_found_without_the_bundle(away: Place, provisioned: str) -> None:
    away.good("env.verify", timeout=300)


def test_bringup_itself_is_installed_on_a_machine_that_reaches_nothing(away: Place) -> None:
    """The machine becomes a controller: by tar and sh, with its own Python or the packed one."""
    machine = away.cluster["m1"]
    shutil.copy(away.folder / "home/lab.tar.zst.controller.tar", machine.root / "var/tmp/c.tar")
    shutil.copy(away.folder / "lab.tar.zst.001", machine.root / "var/tmp/x.tar.zst.001")
    machine.run("sudo chmod 644 /var/tmp/c.tar && cd /var/tmp && tar -xf c.tar && sh bringup/install.sh /var/tmp/site",
                timeout=300)
    shown = machine.run("cd /var/tmp/site && .venv/bin/invoke env.list").stdout
    assert "lab-legacy" in shown
    done = machine.run("cd /var/tmp/site && .venv/bin/invoke bundle.verify /var/tmp/x.tar.zst.001", check=False)
    assert done.returncode == 4 and "the file ends too early" in done.stdout, done.stdout
    again = machine.run("cd /var/tmp && sh bringup/install.sh /var/tmp/site", check=False)
    assert again.returncode == 1 and "holds a project already" in again.stderr
    machine.run("cd /var/tmp && printf x >> bringup/requirements.txt")
    damaged = machine.run("cd /var/tmp && sh bringup/install.sh /var/tmp/other", check=False)
    assert damaged.returncode == 1 and "damaged: copy it again" in damaged.stderr


def test_a_bundle_for_another_platform_is_refused_by_name(away: Place, interpreter: dict[str, str]) -> None:
    other = "linux-aarch64-cpu" if platform.machine() == "x86_64" else "linux-x86_64-cpu"
    home = Place(away.folder / "other", away.cluster, interpreter)
    home.write(bundle={"interpreters": "hosts", "system_packages": None, "platforms": [other]}, environments=["lab"])
    home.good("bundle", "--inventory", "lab", "--output", "other.tar.zst", timeout=600)
    shutil.copy(home.folder / "other.tar.zst", away.folder)
    done = away.run("provision", "--yes", "--bundle", "other.tar.zst", timeout=300)
    os.unlink(away.folder / "other.tar.zst")
    assert done.returncode in (1, 2), done.stdout
    assert "other.tar.zst" in done.stdout and ("platform" in done.stdout or "lab-legacy" in done.stdout)
