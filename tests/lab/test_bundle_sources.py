"""What is no wheel in a bundle: sources that are built on hosts, sources of kernels, folders and images."""


from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from bundle_office import Office, names_of
from site_project import REPOSITORY
from small_wheels import wheel

BACKEND = """
import os, zipfile
import gamma  # what the build requires

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "delta-2.0-py3-none-any.whl"
    info = "delta-2.0.dist-info"
    content = {"delta.py": "BUILT_BY = %r" % gamma.NAME,
               info + "/METADATA": "Metadata-Version: 2.1\\nName: delta\\nVersion: 2.0\\n",
               info + "/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    content[info + "/RECORD"] = "".join(path + ",,\\n" for path in content) + info + "/RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return name
"""


def source(folder: Path) -> Path:
    """delta-2.0.tar.gz, which needs gamma to be built."""
    content = {"pyproject.toml": '[project]\nname = "delta"\nversion = "2.0"\n[build-system]\n'
                                 'requires = ["gamma>=1"]\nbuild-backend = "backend"\nbackend-path = ["."]\n',
               "backend.py": BACKEND, "PKG-INFO": "Metadata-Version: 2.1\nName: delta\nVersion: 2.0\n"}
    target = folder / "delta-2.0.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for path, text in content.items():
            member = tarfile.TarInfo(f"delta-2.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return target


@pytest.mark.full
def test_what_is_built_from_its_source_travels_with_what_the_build_requires(office: Office) -> None:
    wheel(office.index.folder, "gamma", "1.2", {"gamma.py": "NAME = 'gamma'\n"})
    source(office.index.folder)
    definition = office.folder / "envs/tiny/env.yml"
    definition.write_text(definition.read_text() + "sources: [delta]\n")
    office.lock("beta", "delta")
    office.bundle()
    names = names_of(office.folder / "b.tar.zst")
    assert "wheels/delta-2.0.tar.gz" in names and "wheels/gamma-1.2-py3-none-any.whl" in names
    office.index.folder.rename(office.index.folder.with_name("gone"))
    shutil.rmtree(office.folder / "uv", ignore_errors=True)  # the lab's hosts share this cache: they have nothing
    office.good("provision", "--yes", "--bundle", "b.tar.zst")
    found = list(office.root("lab-w1").glob("envs/*/lib/python*/site-packages/delta.py"))
    assert [path.read_text() for path in found] == ["BUILT_BY = 'gamma'"]


def git_source(folder: Path) -> str:
    """A repository as a mirror keeps it; its revision."""
    folder.mkdir(parents=True)
    (folder / "a.cpp").write_text("int answer() { return 42; }\n")
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
        subprocess.run([*command, *words], check=True)
    return subprocess.run([*command, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def test_the_source_of_a_kernel_travels_and_lies_where_a_build_looks(office: Office) -> None:
    revision = git_source(office.folder.parent / "mirror/demo.git")
    shutil.copytree(REPOSITORY / "kernels/smoke", office.folder / "kernels/demo")
    recipe = office.folder / "kernels/demo/kernel.yml"
    source = f"source: {{git: https://git.example.org/demo.git, revision: {revision}}}\nsystem: {{apt: [g++]}}"
    recipe.write_text(recipe.read_text().replace("source: {folder: source}", source))
    office.write(variables={"bringup_kernel_mirrors": {"https://git.example.org/": f"{office.folder.parent}/mirror/"}},
                 kernels=["demo"])
    out = office.bundle()
    assert f"kernels       demo at {revision[:12]}" in out and "these kernels need g++" in out
    assert f"demo at {revision[:12]}" in " ".join(office.good("bundle.show", "b.tar.zst").split())
    shutil.rmtree(office.folder / ".bringup/cache/kernels")
    office.folder.parent.joinpath("mirror").rename(office.folder.parent / "gone")
    office.good("env.build", "--bundle", "b.tar.zst")
    [kept] = (office.folder / ".bringup/cache/kernels").glob("*.tar")
    with tarfile.open(kept) as archive:
        assert archive.getnames() == ["a.cpp"]


def image(path: Path, *, whole: bool = True) -> Path:
    """An archive as `docker save` writes it."""
    config = b'{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:00"]}}'
    name = hashlib.sha256(config).hexdigest() + ".json"
    files = {name: config, "layer.tar": b"x" * 2048, "manifest.json": json.dumps(
        [{"Config": name, "RepoTags": ["vllm/vllm-ascend:v0.24.0"], "Layers": ["layer.tar"]}]).encode()}
    with tarfile.open(path, "w") as archive:
        for inner, data in files.items():
            if whole or inner != "layer.tar":
                member = tarfile.TarInfo(inner)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.full
def test_sources_and_images_travel_and_lie_as_they_did(office: Office) -> None:
    (office.folder / "kernels/csrc").mkdir(parents=True)
    (office.folder / "kernels/csrc/a.cu").write_text("kernel\n")
    (office.folder / "kernels/setup.sh").write_text("#!/bin/sh\n")
    (office.folder / "kernels/setup.sh").chmod(0o755)
    (office.folder / "kernels/link").symlink_to("csrc/a.cu")
    image(office.folder / "ascend.tar")
    office.write(bundle={"sources": ["kernels"], "images": ["ascend.tar"]})
    assert "vllm/vllm-ascend:v0.24.0" in office.bundle()
    shown = office.good("bundle.show", "b.tar.zst")
    assert "images        1 file" in shown and "vllm/vllm-ascend:v0.24.0" in shown and "kernels" in shown
    office.write(bundle={"sources": ["kernels"]})  # the lab has no docker to load an image into
    office.good("provision", "--yes", "--bundle", "b.tar.zst")
    place = next(office.folder.glob(".bringup/cache/bundles/bundles/*/sources/kernels"))
    assert (place / "csrc/a.cu").read_text() == "kernel\n"
    assert os.access(place / "setup.sh", os.X_OK) and os.readlink(place / "link") == "csrc/a.cu"


def test_an_image_that_is_not_complete_is_refused(office: Office) -> None:
    image(office.folder / "ascend.tar", whole=False)
    office.write(bundle={"images": ["ascend.tar"]})
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert done.returncode == 2 and "the archive of the image is not complete" in done.stdout, done.stdout
