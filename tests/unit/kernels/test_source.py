"""Sources become one tar, the same bytes every time, from git revisions with their submodules."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from bringup.base.errors import StepError
from bringup.environments.kernels.recipe import load_recipe
from bringup.environments.kernels.source import source_blob


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.test", "-C", str(folder), *words],
                          capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, files: dict[str, str]) -> str:
    """A repository with one commit; its revision."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "link").symlink_to(next(iter(files)))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return git(folder, "rev-parse", "HEAD")


def project(base: Path, main: str, sub: str, *, keep: str = "include", patches: str = "") -> Path:
    place = base / "kernels" / "one"
    place.mkdir(parents=True, exist_ok=True)
    (place / "proof.py").write_text("")
    (place / "fix.patch").write_text("--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-int a;\n+int b;\n")
    (place / "kernel.yml").write_text(f"""\
purpose: test
source:
  git: https://example.test/main.git
  revision: "{main}"
  submodules:
    third/sub: {{git: "https://example.test/sub.git", revision: "{sub}", keep: [{keep}]}}
{patches}
commands: [{{build: "true"}}]
proof: {{script: proof.py}}
""")
    return base / "kernels"


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def test_the_same_bytes_from_two_controllers(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"a.c": "int a;\n"})
    sub = repository(tmp_path / "sub", {"include/x.h": "\n", "src/big.c": "int big;\n"})
    recipe = load_recipe(project(tmp_path, main, sub, patches="patches: [fix.patch]"), "one")
    mirrors = {"https://example.test/main.git": str(tmp_path / "main"),
               "https://example.test/sub.git": str(tmp_path / "sub")}
    first = source_blob(recipe, tmp_path / "cache1", mirrors)
    second = source_blob(recipe, tmp_path / "cache2", mirrors)
    assert isinstance(first.source, Path) and isinstance(second.source, Path)
    assert first.digest == second.digest
    assert names(first.source.read_bytes()) == [".bringup-patches/00", "a.c", "link", "third/sub/include/x.h"]
    # what was packed once is used without any repository
    assert source_blob(recipe, tmp_path / "cache1", {}).digest == first.digest


def test_a_mirror_is_fetched_from_by_revision(tmp_path: Path) -> None:
    main = repository(tmp_path / "git/main.git", {"a.c": "int a;\n"})
    sub = repository(tmp_path / "git/sub.git", {"include/x.h": "\n"})
    for name in ("main.git", "sub.git"):
        git(tmp_path / "git" / name, "config", "uploadpack.allowAnySHA1InWant", "true")
    recipe = load_recipe(project(tmp_path, main, sub), "one")
    blob = source_blob(recipe, tmp_path / "cache", {"https://example.test/": f"file://{tmp_path}/git/"})
    assert isinstance(blob.source, Path)
    assert "third/sub/include/x.h" in names(blob.source.read_bytes())


def test_an_empty_submodule_and_a_missing_revision_are_told(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", {"a.c": "int a;\n"})
    sub = repository(tmp_path / "sub", {"include/x.h": "\n"})
    mirrors = {"https://example.test/main.git": str(tmp_path / "main"),
               "https://example.test/sub.git": str(tmp_path / "sub")}
    with pytest.raises(StepError) as caught:
        source_blob(load_recipe(project(tmp_path, main, sub, keep="headers"), "one"), tmp_path / "c", mirrors)
    assert "headers" in str(caught.value) and "https://example.test/sub.git" in str(caught.value)
    missing = load_recipe(project(tmp_path, "0" * 40, sub), "one")
    with pytest.raises(StepError) as caught:
        source_blob(missing, tmp_path / "c", {**mirrors, "https://example.test/": f"file://{tmp_path}/none/"})
    assert "cannot be fetched" in str(caught.value) and "bringup_kernel_mirrors" in str(caught.value)


def test_a_folder_beside_the_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(Path(__file__).resolve().parents[3] / "kernels", "smoke")
    first, second = source_blob(recipe, tmp_path, {}), source_blob(recipe, tmp_path, {})
    assert first.digest == second.digest and isinstance(first.source, bytes)
    assert names(first.source) == ["smoke.cpp"]
