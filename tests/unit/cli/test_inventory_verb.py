"""`invoke inventory`, called as a person calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SITE = """
all:
  vars: {ansible_user: ops, ansible_become_password: s3cr3t-sudo}
  children:
    head: {hosts: {gpu01: {ansible_host: 198.18.0.11, ansible_port: 2222}}}
    workers: {hosts: {"gpu[02:03]": {slow: 0777}}}
"""


@pytest.fixture
def invoke(tmp_path: Path):
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/site.yml").write_text(SITE)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "invoke", "-r", str(ROOT), "inventory", *arguments], cwd=tmp_path,
                              env={**os.environ, "BRINGUP_PROJECT": str(tmp_path)}, capture_output=True, text=True)

    return call


def test_table(invoke) -> None:
    done = invoke("--inventory", "site")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["host", "address", "user", "by", "groups"],
        ["gpu01", "198.18.0.11:2222", "ops", "ssh", "head"],
        ["gpu02", "gpu02", "ops", "ssh", "workers"],
        ["gpu03", "gpu03", "ops", "ssh", "workers"],
    ]
    assert "inventory/site.yml:6" in done.stderr
    assert "0777` is read as the number 511" in done.stderr


def test_graph_host_and_limit(invoke) -> None:
    assert "  |--@workers:\n  |  |--gpu02\n" in invoke("-i", "site", "--graph").stdout
    host = invoke("-i", "site", "--host", "gpu01").stdout
    assert "inventory/site.yml:5" in host
    assert "s3cr3t" not in host
    listed = json.loads(invoke("-i", "site", "--format", "json", "-l", "workers[0]").stdout)
    assert list(listed["_meta"]["hostvars"]) == ["gpu02"]
    extra = invoke("-i", "site", "--host", "gpu02", "--format", "json", "--extra-vars", "x=1").stdout
    assert json.loads(extra)["x"] == "1"


def test_report(invoke, tmp_path: Path) -> None:
    assert invoke("-i", "site", "--report", "out.json").returncode == 0
    text = (tmp_path / "out.json").read_text()
    assert json.loads(text)["workers"]["hosts"] == ["gpu02", "gpu03"]
    assert "s3cr3t" not in text


@pytest.mark.parametrize(("arguments", "says"), [
    (["-i", "site", "--limit", "workes"], "nearest: workers"),
    (["-i", "sight"], "--inventory site"),
    (["-i", "site", "--graph", "--host", "gpu01"], "exclude each other"),
    (["-i", "site", "--host", "workers"], "means 2"),
    (["-i", "site", "--format", "yaml"], "text or json"),
    (["-i", "site", "--report", "x.html"], ".json only"),
    (["-i", "site", "--vault-password-file", "/nowhere"], "no file `/nowhere`"),
])
def test_wrong_input_is_exit_2(invoke, arguments: list[str], says: str) -> None:
    done = invoke(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
