"""A bundle's bytes: written and read, split and joined, damaged, cut short, on a disk that is full."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bringup.base.errors import BringupError, InputError, StepError
from bringup.bundle.archive import BundleReader, read_manifest, verify_bundle, write_bundle
from bringup.bundle.manifest import Carried, Entry, Manifest, parse_manifest, without
from bringup.bundle.parts import list_of

FILES = {"wheels/alpha-1.0-py3-none-any.whl": 3_000_000, "uv/uv-0.13.9-x86_64": 10, "sources/nothing.txt": 0}


def made(folder: Path, *, seed: int = 0, files: dict[str, int] | None = None) -> tuple[Manifest, dict[str, Path]]:
    """Files of random bytes (nothing compresses them) and the manifest that names them."""
    chance = random.Random(seed)
    sources, entries = {}, []
    for number, (path, size) in enumerate((files or FILES).items()):
        file = folder / f"source{seed}-{number}"
        file.write_bytes(chance.randbytes(size))
        sources[path] = file
        entries.append(Entry(path, path.split("/")[0].rstrip("s").replace("uv/", "uv") if not path.startswith("uv")
                             else "uv", size, hashlib.sha256(file.read_bytes()).hexdigest()))
    carried = Carried("lab", "linux", "x86_64", "2.28", "cpu", "0" * 64, {"3.12": (entries[0].sha256,)})
    return Manifest("b.tar.zst", "2026-11-30T00:00:00Z", {"bringup": "0.1.0"}, (carried,), tuple(entries)), sources


def content(bundle: Path) -> dict[str, str]:
    with BundleReader(bundle) as reader:
        return {entry.path: hashlib.sha256(b"".join(pieces)).hexdigest() for entry, pieces in reader.files()}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    written = write_bundle(manifest, sources, tmp_path / "b.tar.zst")
    assert written == [tmp_path / "b.tar.zst"]
    assert content(written[0]) == {entry.path: entry.sha256 for entry in manifest.entries}
    assert read_manifest(written[0]) == manifest
    assert verify_bundle(written[0]) == (manifest, [])


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    first = write_bundle(manifest, sources, tmp_path / "one")[0].read_bytes()
    os.utime(sources["uv/uv-0.13.9-x86_64"], (1, 1))
    assert write_bundle(manifest, sources, tmp_path / "two")[0].read_bytes() == first


@pytest.mark.parametrize("given", ["b.tar.zst", "b.tar.zst.parts", "b.tar.zst.001", "b.tar.zst.003"])
def test_parts_are_joined_whichever_is_named(tmp_path: Path, given: str) -> None:
    manifest, sources = made(tmp_path)
    written = write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    assert [path.name for path in written] == ["b.tar.zst.001", "b.tar.zst.002", "b.tar.zst.003", "b.tar.zst.parts"]
    assert all(path.stat().st_size <= 1 << 20 for path in written[:3])
    assert content(tmp_path / given) == {entry.path: entry.sha256 for entry in manifest.entries}


def test_a_smaller_bundle_of_the_same_name_leaves_no_part_behind(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    smaller, others = made(tmp_path, seed=1, files={"wheels/a-1-py3-none-any.whl": 1_500_000})
    write_bundle(smaller, others, tmp_path / "b.tar.zst", split=1 << 20)
    assert sorted(path.name for path in tmp_path.glob("b.tar.zst*")) == [
        "b.tar.zst.001", "b.tar.zst.002", "b.tar.zst.parts"]
    list_of(tmp_path / "b.tar.zst").unlink()
    assert verify_bundle(tmp_path / "b.tar.zst") == (smaller, [])


def test_sha256sum_checks_the_parts_too(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    done = subprocess.run(["sha256sum", "-c", "b.tar.zst.parts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == 3
    flip(tmp_path / "b.tar.zst.002", 7)
    assert subprocess.run(["sha256sum", "-c", "b.tar.zst.parts"], cwd=tmp_path, capture_output=True).returncode == 1


def test_every_damaged_part_is_named(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    flip(tmp_path / "b.tar.zst.001", 700_000)
    flip(tmp_path / "b.tar.zst.003", 5)
    found, wrong = verify_bundle(tmp_path / "b.tar.zst")
    assert found is None
    assert [str(one.where) for one in wrong] == [str(tmp_path / "b.tar.zst.001"), str(tmp_path / "b.tar.zst.003")]
    assert "copy this part again" in str(wrong[0])


def test_reading_stops_at_the_damaged_part(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    flip(tmp_path / "b.tar.zst.002", 100)
    with pytest.raises(InputError, match="damaged") as caught:
        content(tmp_path / "b.tar.zst")
    assert "b.tar.zst.002" in str(caught.value) or "wheels/alpha" in str(caught.value)


@pytest.mark.parametrize("gone", ["b.tar.zst.001", "b.tar.zst.002", "b.tar.zst.003"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_missing_part_is_named(tmp_path: Path, gone: str, listed: bool) -> None:
    manifest, sources = made(tmp_path)
    write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    (tmp_path / gone).unlink()
    if not listed:
        list_of(tmp_path / "b.tar.zst").unlink()
    if not listed and gone.endswith("3"):  # nothing says that there was a third one but the content itself
        _, wrong = verify_bundle(tmp_path / "b.tar.zst")
        assert len(wrong) == 1 and "damaged" in str(wrong[0])
        return
    with pytest.raises(InputError, match="a part of the bundle is missing") as caught:
        verify_bundle(tmp_path / "b.tar.zst")
    assert str(caught.value).startswith(str(tmp_path / gone))


def test_without_the_list_the_content_proves_the_parts(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    write_bundle(manifest, sources, tmp_path / "b.tar.zst", split=1 << 20)
    list_of(tmp_path / "b.tar.zst").unlink()
    assert verify_bundle(tmp_path / "b.tar.zst") == (manifest, [])
    flip(tmp_path / "b.tar.zst.002", 9)
    assert len(verify_bundle(tmp_path / "b.tar.zst")[1]) == 1


@pytest.mark.parametrize("at", [0.02, 0.3, 0.7, 0.999])
def test_a_flipped_byte_anywhere_is_found(tmp_path: Path, at: float) -> None:
    manifest, sources = made(tmp_path)
    bundle = write_bundle(manifest, sources, tmp_path / "b.tar.zst")[0]
    flip(bundle, int(bundle.stat().st_size * at))
    _, wrong = verify_bundle(bundle)
    assert len(wrong) == 1 and wrong[0].status == 2


@pytest.mark.parametrize("left", [0.001, 0.4, 0.9, -1])
def test_a_file_that_was_not_copied_to_its_end(tmp_path: Path, left: float) -> None:
    manifest, sources = made(tmp_path)
    bundle = write_bundle(manifest, sources, tmp_path / "b.tar.zst")[0]
    size = bundle.stat().st_size
    os.truncate(bundle, size - 1 if left < 0 else int(size * left))
    _, wrong = verify_bundle(bundle)
    assert len(wrong) == 1, "a bundle cut short passed"


@pytest.mark.parametrize(("data", "said"), [
    (b"", "this is no bundle"), (b"hello", "this is no bundle"), (b"# readme\n" * 900, "this is no bundle"),
    (b"\x28\xb5\x2f\xfd", "damaged"),
])
def test_something_else_is_no_bundle(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.tar.zst").write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_manifest(tmp_path / "x.tar.zst")


def test_a_tar_in_zstd_of_somebody_else_is_no_bundle(tmp_path: Path) -> None:
    import tarfile

    import zstandard

    with (tmp_path / "x").open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed, \
            tarfile.open(fileobj=packed, mode="w|") as archive:
        archive.add(__file__, "test.py")
    with pytest.raises(InputError, match="this is no bundle"):
        read_manifest(tmp_path / "x")


def test_there_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such bundle"):
        read_manifest(tmp_path / "nothing.tar.zst")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "bringup-test", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("split", [None, 1 << 20])
def test_a_disk_that_is_full_in_the_middle_leaves_nothing(tmp_path: Path, tiny_disk: Path, split: int | None) -> None:
    manifest, sources = made(tmp_path)
    with pytest.raises(StepError, match="the disk is full: the bundle was not finished") as caught:
        write_bundle(manifest, sources, tiny_disk / "b.tar.zst", split=split)
    assert "what was fetched is kept" in str(caught.value)
    assert list(tiny_disk.iterdir()) == []


@pytest.mark.parametrize("split", [None, 1 << 20])
def test_an_interrupt_in_the_middle_leaves_nothing(tmp_path: Path, split: int | None) -> None:
    manifest, sources = made(tmp_path)
    (tmp_path / "out").mkdir()

    def told(entry: Entry, done: int) -> None:
        if done > 2_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bundle(manifest, sources, tmp_path / "out/b.tar.zst", split=split, told=told)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_source_that_changes_meanwhile_is_no_bundle(tmp_path: Path) -> None:
    manifest, sources = made(tmp_path)
    sources["uv/uv-0.13.9-x86_64"].write_bytes(b"0123456789")
    with pytest.raises(StepError, match="is not what it was"):
        write_bundle(manifest, sources, tmp_path / "b.tar.zst")
    assert not (tmp_path / "b.tar.zst").exists()


def test_an_update_packs_only_what_is_new(tmp_path: Path) -> None:
    old, _ = made(tmp_path)
    new, sources = made(tmp_path, files={**FILES, "wheels/beta-2.0-py3-none-any.whl": 5000})
    update = without(new, old)
    bundle = write_bundle(update, sources, tmp_path / "u.tar.zst")[0]
    assert list(content(bundle)) == ["wheels/beta-2.0-py3-none-any.whl"]
    assert read_manifest(bundle).base is not None
    assert bundle.stat().st_size < 20_000


@pytest.mark.parametrize(("change", "said"), [
    (lambda d: d.update(format=2), "format 2"),
    (lambda d: d["entries"][0].update(path="../../etc/passwd"), "not understood"),
    (lambda d: d["entries"][0].update(path="/etc/passwd"), "not understood"),
    (lambda d: d["entries"][0].update(sha256="short"), "not understood"),
    (lambda d: d["entries"].append(d["entries"][0]), "twice"),
    (lambda d: d.pop("environments"), "not understood"),
    (lambda d: d.pop("format"), "no format"),
])
def test_a_manifest_that_is_none(tmp_path: Path, change: object, said: str) -> None:
    document = json.loads(made(tmp_path)[0].text())
    change(document)  # type: ignore[operator]
    with pytest.raises(BringupError, match=said):
        parse_manifest(json.dumps(document), "bundle.json")
