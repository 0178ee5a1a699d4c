"""What a deployment needs, read from its inventory: platforms, Pythons, images, packages, secrets that stay at home."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bringup.base.errors import BringupError, InputError
from bringup.base.secrets import SCRUBBER
from bringup.bundle.content import read_image, requirements_here, tar_folder
from bringup.bundle.secrets import learn_secrets, refuse_secrets
from bringup.bundle.show import as_lines
from bringup.bundle.wanted import Needs, needs_of
from bringup.environments.interpreters import given_interpreter

LOCK = ("# bringup lock\n# platform: {platform}\n# python: 3.11 3.12\n\n"
        "alpha==1.0 \\\n    --hash=sha256:" + "a" * 64 + "\n")
PLATFORMS = {"x86": ("x86_64", "cuda13"), "arm": ("aarch64", "cuda13"), "cpu": ("x86_64", "cpu"),
             "npu-arm": ("aarch64", "cann9.1"), "npu-x86": ("x86_64", "cann9.1")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "envs/one"
    (folder / "locks").mkdir(parents=True)
    rows = "".join(f'  {name}: {{machine: {machine}, glibc: "2.28", device: {device}}}\n'
                   for name, (machine, device) in PLATFORMS.items())
    (folder / "env.yml").write_text(f'purpose: test\npython: ["3.12", "3.11"]\nplatforms:\n{rows}')
    (folder / "requirements.in").write_text("alpha>=1\n")
    for name in PLATFORMS:
        (folder / f"locks/{name}.txt").write_text(LOCK.format(platform=name))
    return tmp_path


def variables(bundle: Mapping[str, Any] | None = None, **deployment: Any) -> Callable[[str], Mapping[str, Any]]:
    return lambda host: {"deployment": {"environment": "one", "hardware": "h200", **deployment},
                         **({"bundle": bundle} if bundle is not None else {})}


def needs(root: Path, bundle: Mapping[str, Any] | None = None, **deployment: Any) -> Needs:
    return needs_of(root, ["a", "b"], variables(bundle, **deployment))


@pytest.mark.parametrize(("hardware", "platforms"), [
    ("h200", ["x86"]), ("gb200", ["arm"]), ("ascend-a2", ["npu-arm", "npu-x86"]), ("mi300x", ["cpu"]),
])
def test_platforms_are_those_of_the_hardware_and_its_usual_hosts(root: Path, hardware: str,
                                                                 platforms: list[str]) -> None:
    found = needs(root, hardware=hardware)
    assert [item.platform.name for item in found.wheels] == platforms
    assert all(item.pythons == ("3.12",) for item in found.wheels), "the most wanted Python alone"


def test_the_inventory_and_the_flags_have_the_last_word(root: Path) -> None:
    found = needs(root, {"platforms": ["arm"], "python": ["3.11", "3.12"]})
    assert [(item.platform.name, item.pythons) for item in found.wheels] == [("arm", ("3.12", "3.11"))]
    flags = needs_of(root, ["a"], variables({"platforms": ["arm"]}), ["x86"], ["3.11"])
    assert [(item.platform.name, item.pythons) for item in flags.wheels] == [("x86", ("3.11",))]


def test_a_platform_without_a_lock_is_left_out_unless_it_is_named(root: Path) -> None:
    (root / "envs/one/locks/npu-x86.txt").unlink()
    assert [item.platform.name for item in needs(root, hardware="ascend-a2").wheels] == ["npu-arm"]
    with pytest.raises(InputError, match="is not locked for npu-x86"):
        needs(root, {"platforms": ["npu-x86"]}, hardware="ascend-a2")


def test_interpreters_come_along_unless_the_hosts_have_their_own(root: Path) -> None:
    assert needs(root).interpreters == ()
    assert needs(root, {"interpreters": "bring"}).interpreters == ()
    assert needs(root, {"interpreters": "hosts"}).interpreters is None


def saved(path: Path, tag: str | None = "vllm-ascend:v1", layers: int = 2) -> Path:
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{number}" for number in range(layers)]}}).encode()
    name = "blobs/sha256/" + hashlib.sha256(config).hexdigest()
    files = {name: config, **{f"l{number}": b"x" for number in range(layers)}, "manifest.json": json.dumps([{
        "Config": name, "RepoTags": [tag] if tag else None, "Layers": [f"l{n}" for n in range(layers)]}]).encode()}
    with tarfile.open(path, "w") as archive:
        for inner, data in files.items():
            member = tarfile.TarInfo(inner)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_a_deployment_that_runs_an_image_needs_its_archive(root: Path) -> None:
    given = {"environment": None, "manager": "docker", "image": "vllm-ascend:v1"}
    with pytest.raises(InputError, match="which no archive holds") as caught:
        needs(root, **given)
    assert "docker save vllm-ascend:v1" in str(caught.value)
    saved(root / "a.tar")
    found = needs(root, {"images": ["a.tar"]}, **given)
    assert found.images[0].tags == ("vllm-ascend:v1",) and found.wheels == ()
    assert found.images[0].layers == hashlib.sha256(b"sha256:0\nsha256:1").hexdigest()
    with pytest.raises(InputError, match="cannot be carried") as caught:
        needs(root, {"images": ["a.tar"]}, **{**given, "image": "vllm-ascend@sha256:" + "0" * 64})
    assert "image: vllm-ascend, with a tag" in str(caught.value)


def test_archives_that_are_no_image(root: Path, tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no")
    for path, said in ((tmp_path / "text.tar", "no archive of an image"), (saved(tmp_path / "n.tar", None), "no tag")):
        with pytest.raises(InputError, match=said):
            read_image(path, "here")


@pytest.mark.parametrize(("name", "said"), [
    ("python-3.12.tar.gz", "says no version or machine"),
    ("cpython-3.12.4-riscv64.tar.gz", "says no version or machine"),
    ("cpython-3.12.4-x86_64-linux.tar.gz", "holds no interpreter"),
])
def test_an_archive_of_something_else_is_no_interpreter(tmp_path: Path, name: str, said: str) -> None:
    with tarfile.open(tmp_path / name, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("python/readme"))
    with pytest.raises(InputError, match=said):
        given_interpreter(tmp_path / name, "bundle")


def test_an_archive_as_published_is_one(tmp_path: Path) -> None:
    path = tmp_path / "cpython-3.12.4+20260101-aarch64-unknown-linux-gnu-install_only.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("python/bin/python3.12"))
    found = given_interpreter(path, "bundle")
    assert (found.version, found.machine, found.soabi) == ("3.12.4", "aarch64", "cpython-312-aarch64-linux-gnu")


def test_secrets_of_an_inventory_are_known_by_name_and_depth() -> None:
    learn_secrets([{"ansible_password": "hush-hush-1", "nested": {"api_key": "hush-hush-2", "list": [
        {"token": "hush-hush-3"}]}, "password": "{{ from_elsewhere }}", "model_path": "/models/x"}])
    for number in (1, 2, 3):
        assert "hush" not in SCRUBBER.text(f"x hush-hush-{number} y")
    assert SCRUBBER.text("/models/x {{ from_elsewhere }}") == "/models/x {{ from_elsewhere }}"


def test_a_file_that_speaks_of_keys_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "doc.md").write_text("A file with $ANSIBLE_VAULT; or -----BEGIN PRIVATE KEY----- is not read.\n"
                                     "password: yours\n")
    refuse_secrets(tmp_path / "doc.md", "doc.md")


def test_a_controller_gets_all_that_this_package_imports() -> None:
    names = {item.partition("==")[0] for item in requirements_here()}
    assert {"fabric", "invoke", "zstandard", "packaging", "uv", "jinja2", "markupsafe", "cryptography"} <= names
    assert "pytest" not in names and "bringup" not in names


def test_a_folder_is_packed_without_what_is_of_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__/a.pyc").write_text("x")
    (folder / "a.py").write_text("x")
    (folder / "a.pyc").write_text("x")
    tar_folder(folder, tmp_path / "1.tar", left=frozenset({"__pycache__"}))
    (folder / "a.py").touch()
    tar_folder(folder, tmp_path / "2.tar", left=frozenset({"__pycache__"}))
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    with tarfile.open(tmp_path / "1.tar") as archive:
        assert archive.getnames() == ["a.py"]
        assert archive.getmembers()[0].uid == 0 and archive.getmembers()[0].mtime == 0


def test_the_page_of_a_bundle_fits_eighty_columns(root: Path) -> None:
    from bringup.bundle.manifest import Carried, Entry, Manifest

    entries = (Entry("wheels/a.whl", "wheel", 3_000_000_000, "a" * 64),
               Entry("images/i.tar", "image", 20_000_000_000, "b" * 64, True,
                     {"tags": "quay.io/a-long-name/of-an-image/with/many-parts:v1.2.3", "layers": "0"}))
    manifest = Manifest("glm51.tar.zst", "2026-11-30T00:00:00Z", {"bringup": "0.1.0", "uv": "0.13.9"}, (Carried(
        "glm51-vllm-ascend", "linux-aarch64-cann9.1", "aarch64", "2.34", "cann9.1", "c" * 64, {"3.11": ("a" * 64,)}),),
        entries)
    lines = as_lines(manifest, 80)
    assert all(len(line) <= 80 for line in lines)
    assert any("20.0 GB" in line for line in lines) and "  wheels        1 file, 3.0 GB" in lines


def test_wrong_sections_are_input_errors(root: Path) -> None:
    for section in ({"nothing": 1}, {"python": "2.7"}, {"images": ["gone.tar"]}, [1]):
        with pytest.raises(BringupError) as caught:
            needs(root, section)  # type: ignore[arg-type]
        assert caught.value.status == 2
