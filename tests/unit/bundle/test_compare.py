"""Two bundles held against each other, by their manifests."""

from __future__ import annotations

from typing import Any

from bringup.bundle.compare import as_document, as_lines, compare
from bringup.bundle.manifest import Carried, Entry, Manifest, without


def entry(path: str, kind: str, content: str, size: int = 1_000_000, **about: str) -> Entry:
    return Entry(path, kind, size, (content * 64)[:64], about=about)


def environment(lock: str, *pythons: str) -> Carried:
    return Carried("glm51-vllm", "linux-x86_64-cuda13", "x86_64", "2.35", "cuda13", lock * 64,
                   dict.fromkeys(pythons, ("a" * 64,)))


def manifest(name: str, environments: tuple[Carried, ...], *entries: Entry) -> Manifest:
    return Manifest(name, "2026-11-30T18:00:00Z", {"bringup": "1"}, environments, entries)


OLD = manifest(
    "old.tar.zst", (environment("1", "3.12"),),
    entry("wheels/vllm-0.24.0-cp312-linux.whl", "wheel", "a"),
    entry("wheels/torch-2.11.0-cp312-linux.whl", "wheel", "b"),
    entry("pythons/cpython-3.12.4-x86_64.tar.gz", "python", "c", machine="x86_64", version="3.12.4", soabi="x"),
    entry("debs/numactl_2.0.16-1_amd64.deb", "deb", "d", architecture="amd64"),
    entry("kernels/deep_gemm.tar", "kernel", "e", recipe="deep_gemm", revision="1" * 40))
NEW = manifest(
    "new.tar.zst", (environment("2", "3.12"),),
    entry("wheels/vllm-0.24.1-cp312-linux.whl", "wheel", "f", 2_000_000),
    entry("elsewhere/torch-2.11.0-cp312-linux.whl", "wheel", "b"),
    entry("pythons/cpython-3.12.16-x86_64.tar.gz", "python", "9", machine="x86_64", version="3.12.16", soabi="x"),
    entry("debs/numactl_2.0.16-1_amd64.deb", "deb", "8", architecture="amd64"),
    entry("kernels/deep_gemm.tar", "kernel", "e", recipe="deep_gemm", revision="1" * 40),
    entry("images/glm.tar", "image", "7", tags="glm:1"))


def rows(old: Manifest = OLD, new: Manifest = NEW) -> list[tuple[str, str, Any, Any]]:
    return [(one.kind, one.name, one.before, one.after) for one in compare(old, new).changes]


def test_things_are_compared_by_name_and_version_files_by_content() -> None:
    found = compare(OLD, NEW)
    assert rows() == [
        ("wheel", "vllm", "0.24.0", "0.24.1"), ("python", "python 3.12 x86_64", "3.12.4", "3.12.16"),
        ("deb", "numactl amd64", "2.0.16-1", "2.0.16-1 (other files)"), ("image", "glm:1", None, "7" * 12)]
    assert found.same == (2, 2_000_000)  # torch only moved
    assert found.bytes == 5_000_000 and len(found.gone) == 3
    assert [one.name for one in found.environments] == ["glm51-vllm on linux-x86_64-cuda13"]


def test_an_update_counts_with_what_it_builds_on() -> None:
    assert rows(OLD, without(NEW, OLD)) == rows()
    assert compare(OLD, without(NEW, OLD)).bytes == 5_000_000


def test_the_page_and_the_document() -> None:
    page = as_lines(compare(OLD, NEW), 100, files=True)
    text = "\n".join(page)
    assert "  wheels        vllm: 0.24.0 -> 0.24.1" in page and "  images        glm:1: new, 777777777777" in page
    assert "5.0 MB, packed alone by invoke bundle --since old.tar.zst.json" in text
    assert any(line.startswith("+ ffffffffffff    2.0 MB  wheels/vllm-0.24.1") for line in page)
    assert max(len(line) for line in as_lines(compare(OLD, NEW), 80)) <= 80
    document = as_document(compare(OLD, NEW))
    assert document["to_carry"] == 5_000_000 and document["changes"][0] == {
        "kind": "wheel", "name": "vllm", "before": "0.24.0", "after": "0.24.1"}
    back = "\n".join(as_lines(compare(NEW, OLD), 100))
    assert "glm:1: gone, was 777777777777" in back


def test_nothing_differs() -> None:
    page = as_lines(compare(OLD, OLD), 100)
    assert page[-1] == "  same          all 5 files, 5.0 MB"
