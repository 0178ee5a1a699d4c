"""The endpoint's key: from a vault or the terminal to the engine, and with every question that is asked of it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_project import INVOKE, REPOSITORY, Site, endpoint_of, wait_for

from bringup.agent.processes import launch

pytest.importorskip("ansible", reason="the vault is made by ansible-core: pip install -e '.[judges]'")

KEY = "kestrel-$quoted\"-juniper-8812"
NEXT = "walrus-saffron-9913"
ONE: dict[str, Any] = {"strategy": "single_node_tp", "pipeline_parallel": None, "variant": "fp8",
                       "replicas": {"r1": ["lab-head"]}}
VAULT_PASSWORD = "the-password-of-the-vault"


def vaulted(site: Site, text: str) -> None:
    """The file of the group's variables, encrypted by Ansible's own tool."""
    folder = site.folder / "inventory/group_vars/all"
    folder.mkdir(parents=True, exist_ok=True)
    (site.folder / "password").write_text(VAULT_PASSWORD + "\n")
    (folder / "vault.yml").write_text(f"endpoint_key: {json.dumps(text)}\n")
    subprocess.run([str(Path(sys.executable).parent / "ansible-vault"), "encrypt", "--vault-password-file",
                    str(site.folder / "password"), str(folder / "vault.yml")], check=True, capture_output=True,
                   env={"PATH": os.environ["PATH"], "HOME": str(site.folder), "LC_ALL": "C.UTF-8"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("keys") / "site")
    (made.folder / "gates").symlink_to(REPOSITORY / "gates")
    os.environ["ANSIBLE_VAULT_PASSWORD_FILE"] = str(made.folder / "password")
    vaulted(made, KEY)
    made.write(**ONE, api_key="{{ endpoint_key }}", watcher={"port": 7761, "silence": 20})
    try:
        yield made
    finally:
        made.down()
        del os.environ["ANSIBLE_VAULT_PASSWORD_FILE"]


def status_of(endpoint: str, key: str | None) -> int:
    request = urllib.request.Request(endpoint + "/v1/models",
                                     headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        return error.code


def report(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.root("lab-head") / "state/watch/r1-lab-head.json").read_text())["report"]
    return found


@pytest.mark.full
def test_a_key_of_the_vault_goes_with_every_question(site: Site) -> None:
    out = site.good("provision", "--yes")
    endpoint = endpoint_of(out)
    assert status_of(endpoint, None) == 401 and status_of(endpoint, KEY) == 200
    for words in (("status",), ("verify",), ("gate", "--only", "smoke"), ("plan",), ("logs",), ("drift",)):
        done = site.run(*words)
        assert done.returncode == 0, done.stdout
        assert KEY not in done.stdout
    # the watcher asks for a token with it: it would not know that the replica serves without
    assert wait_for(lambda: report(site).get("serves") or report(site).get("phase") == "watching", 60)
    root = site.root("lab-head")
    holding = [path for folder in (root, site.folder / ".bringup") for path in folder.rglob("*")
               if path.is_file() and not path.is_symlink() and "envs" not in path.parts
               and any(form in path.read_bytes() for form in (KEY.encode(), json.dumps(KEY).encode()[1:-1]))]
    assert [path for path in holding if path.suffix != ".env"] == [], holding
    secrets = root / "state/secrets/r1-lab-head.env"
    assert secrets.stat().st_mode & 0o077 == 0 and launch.read_secrets(launch.Place(str(root), "r1-lab-head")) == {
        "VLLM_API_KEY": KEY}
    assert KEY not in subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout


@pytest.mark.full
def test_a_watcher_starts_it_again_with_its_key(site: Site) -> None:
    out = site.good("provision", "--yes")
    endpoint = endpoint_of(out)
    pid = int(site.pids()["lab-head"])
    os.killpg(pid, signal.SIGKILL)
    assert wait_for(lambda: site.pids()["lab-head"] not in (str(pid), "-", "None"), 120)

    def answers() -> bool:
        try:
            return status_of(endpoint, KEY) == 200 and status_of(endpoint, None) == 401
        except OSError:
            return False
    assert wait_for(answers, 60)


@pytest.mark.full
def test_another_key_takes_a_restart_and_is_told(site: Site) -> None:
    endpoint = endpoint_of(site.good("provision", "--yes"))
    vaulted(site, NEXT)
    try:
        seen = site.run("status")
        assert seen.returncode == 4 and "does not take the key of this deployment" in seen.stdout, seen.stdout
        site.good("provision", "--yes")
        assert status_of(endpoint, NEXT) == 200 and status_of(endpoint, KEY) == 401
    finally:
        vaulted(site, KEY)


@pytest.mark.full
def test_an_engine_that_takes_it_as_an_argument_is_named_in_the_plan(site: Site) -> None:
    site.write(**ONE, engine="sglang", api_key="{{ endpoint_key }}")
    plan = site.good("plan")
    assert "takes the API key as an argument only: every user of the head can read it with ps" in plan
    assert "--api-key" in plan and KEY not in plan
    out = site.good("provision", "--yes")
    assert status_of(endpoint_of(out), None) == 401 and status_of(endpoint_of(out), KEY) == 200
    script = next((site.root("lab-head") / "current/launch").glob("*.sh")).read_text()
    assert KEY not in script and '"$API_KEY"' in script


def test_a_key_may_be_typed(site: Site) -> None:
    site.write(**ONE, api_key="{{ bringup_api_key }}")
    missing = site.run("plan")
    assert missing.returncode == 2 and "--ask-api-key asks for it" in missing.stdout, missing.stdout
    unasked = site.run("plan", "--ask-api-key")
    assert unasked.returncode == 2 and "there is no terminal to ask for the API key" in unasked.stdout
    reader, writer = pty.openpty()
    run = subprocess.Popen([str(INVOKE), "plan", "--ask-api-key"], cwd=site.folder, env=site.environment(), text=True,
                           stdin=writer, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                           preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(writer)
    typed = b""
    while b"API key of the endpoint" not in typed:
        typed += os.read(reader, 1000)
    os.write(reader, NEXT.encode() + b"\n")
    out, _ = run.communicate(timeout=60)
    os.close(reader)
    assert run.returncode == 0, out
    assert re.search(r"key +in VLLM_API_KEY", out) and NEXT not in out
