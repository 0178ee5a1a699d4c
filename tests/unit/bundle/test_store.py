"""Bundles on the controller: unpacked once, an update with its base, what the other rooms find of it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.bundle.archive import write_bundle
from bringup.bundle.manifest import Carried, Entry, Manifest, without
from bringup.bundle.store import Store, newest, open_bundles
from bringup.environments.locks import parse_lock
from bringup.environments.supplies import lock_digest, supplies_of

LOCK = parse_lock("# python: 3.11 3.12\n\nalpha==1.0 \\\n    --hash=sha256:" + "a" * 64 + "\n", "lock.txt")


class Maker:
    """Makes bundles of small files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self.entries: list[Entry] = []

    def add(self, path: str, kind: str, data: bytes, **about: str) -> str:
        file = self.folder / f"content{len(self.files)}"
        file.write_bytes(data)
        self.files[path] = file
        self.entries.append(Entry(path, kind, len(data), hashlib.sha256(data).hexdigest(), True, about))
        return self.entries[-1].sha256

    def manifest(self, name: str, *wheels: str) -> Manifest:
        carried = Carried("lab", "linux", "x86_64", "2.28", "cpu", lock_digest(LOCK), {"3.12": wheels})
        return Manifest(name, "2026-11-30T00:00:00Z", {"bringup": "0"}, (carried,), tuple(self.entries))

    def write(self, manifest: Manifest) -> Path:
        return write_bundle(manifest, self.files, self.folder / manifest.name)[0]


def tar(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            if text.startswith("->"):
                member.type, member.linkname = tarfile.SYMTYPE, text[2:]
                archive.addfile(member)
            else:
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "bundles")


def test_environments_find_wheels_uv_and_interpreters(maker: Maker, store: Store) -> None:
    digest = maker.add("wheels/alpha-1.0-py3-none-any.whl", "wheel", b"wheel")
    maker.add("uv/uv-0.13.9-aarch64", "uv", b"uv", machine="aarch64", version="0.13.9")
    maker.add("pythons/p.tar.gz", "python", b"python", machine="aarch64", version="3.12.4",
              soabi="cpython-312-aarch64-linux-gnu")
    opened = open_bundles([maker.write(maker.manifest("b.tar.zst", digest))], store)
    found = supplies_of({"bringup_bundle": str(opened.supplies)})
    assert found is not None and found.pythons_of(LOCK) == ("3.12",)
    wheels = found.wheels_for(LOCK, "3.12.9")
    assert [(name, blob.digest) for name, blob in wheels.items()] == [("alpha-1.0-py3-none-any.whl", digest)]
    assert Path(str(wheels["alpha-1.0-py3-none-any.whl"].source)).read_bytes() == b"wheel"
    assert found.uv["aarch64"][0] == "0.13.9"
    assert found.interpreter(["3.13", "3.12"], "aarch64") is found.pythons[0]
    assert found.interpreter(["3.12"], "x86_64") is None and found.interpreter(["3.11"], "aarch64") is None
    assert supplies_of({}) is None


def test_another_lock_finds_nothing(maker: Maker, store: Store) -> None:
    opened = open_bundles([maker.write(maker.manifest("b.tar.zst"))], store)
    found = supplies_of({"bringup_bundle": str(opened.supplies)})
    other = parse_lock(LOCK.text.replace("1.0", "1.1"), "lock.txt")
    assert found is not None
    with pytest.raises(Exception, match="has nothing for this lock"):
        found.pythons_of(other)


def test_supplies_that_are_gone_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read") as caught:
        supplies_of({"bringup_bundle": str(tmp_path / "gone.json")})
    assert "--bundle FILE" in str(caught.value)


def test_an_update_of_an_update_needs_all_that_it_builds_on(maker: Maker, store: Store) -> None:
    maker.add("wheels/a.whl", "wheel", b"a")
    first = maker.manifest("1.tar.zst")
    paths = [maker.write(first)]
    maker.add("wheels/b.whl", "wheel", b"b")
    second = without(maker.manifest("2.tar.zst"), first)
    paths.append(maker.write(second))
    maker.add("wheels/c.whl", "wheel", b"c")
    third = without(maker.manifest("3.tar.zst"), second)
    paths.append(maker.write(third))
    assert [entry.packed for entry in third.entries] == [False, False, True]
    with pytest.raises(InputError, match=r"update of 2\.tar\.zst, which is not here") as caught:
        open_bundles(paths[2:], store)
    assert "2 of 3 files are missing" in str(caught.value)
    with pytest.raises(InputError, match="1 of 3 files are missing"):
        open_bundles(paths[1:], store)
    assert open_bundles(paths[:1], store).manifest == first
    assert open_bundles(paths[2:], store).manifest == third, "what was unpacked before counts"


def test_the_order_of_the_files_does_not_matter_and_strangers_are_refused(maker: Maker, store: Store) -> None:
    maker.add("wheels/a.whl", "wheel", b"a")
    first = maker.manifest("1.tar.zst")
    one = maker.write(first)
    maker.add("wheels/b.whl", "wheel", b"b")
    second = without(maker.manifest("2.tar.zst"), first)
    assert newest([second, first]) == newest([first, second]) == second
    assert open_bundles([maker.write(second), one], store).manifest == second
    with pytest.raises(InputError, match="do not build on each other"):
        newest([first, replace(first, name="other")])


def test_a_file_that_was_lost_is_unpacked_again(maker: Maker, store: Store) -> None:
    maker.add("wheels/a.whl", "wheel", b"abc")
    bundle = maker.write(maker.manifest("b.tar.zst"))
    place = store.object(open_bundles([bundle], store).manifest.entries[0])
    place.write_bytes(b"a")
    open_bundles([bundle], store)
    assert place.read_bytes() == b"abc"


def test_sources_lie_as_they_did_and_kernels_where_a_build_looks(maker: Maker, store: Store) -> None:
    maker.add("sources/k.tar", "source", tar(csrc__a="text", link="->csrc/a"), name="k", form="folder")
    maker.add("sources/note.txt", "source", b"note", name="note.txt", form="file")
    maker.add("kernels/deep_gemm-54e2261-00.tar", "kernel", b"tar", recipe="deep_gemm", revision="54e2261")
    opened = open_bundles([maker.write(maker.manifest("b.tar.zst"))], store)
    assert (opened.sources / "k/csrc/a").read_text() == (opened.sources / "k/link").read_text() == "text"
    assert (opened.sources / "note.txt").read_text() == "note"
    assert (store.root.parent / "kernels/deep_gemm-54e2261-00.tar").read_bytes() == b"tar"


@pytest.mark.parametrize("files", [
    {"..__evil": "x"}, {"link": "->..", "link__evil": "x"}, {"link": "->/etc", "link__passwd": "x"}])
def test_a_source_that_would_lie_outside_is_refused(maker: Maker, store: Store, files: dict[str, str]) -> None:
    maker.add("sources/k.tar", "source", tar(**files), name="k", form="folder")
    with pytest.raises(InputError, match="outside"):
        open_bundles([maker.write(maker.manifest("b.tar.zst"))], store)
    assert not list(store.root.rglob("evil"))


def test_what_hosts_get_is_told_in_the_same_file(maker: Maker, store: Store) -> None:
    maker.add("debs/bookworm-amd64/n.deb", "deb", b"deb", release="bookworm", architecture="amd64", machine="x86_64")
    maker.add("debs/bookworm-amd64/Packages", "debs", b"index", release="bookworm", architecture="amd64",
              machine="x86_64", names="numactl")
    maker.add("images/a.tar", "image", b"image", tags="a:1", id="sha256:0")
    opened = open_bundles([maker.write(maker.manifest("b.tar.zst"))], store)
    assert [item["kind"] for item in json.loads(opened.supplies.read_text())["others"]] == ["deb", "debs", "image"]
