"""The host half of bundles, run here: images by a client, packages for another release, interpreters unpacked."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in_docker import StandIn

from bringup.agent.modules import bundle_content, python_env_bring, python_env_probe
from bringup.agent.task import Failure, Task
from bringup.base.errors import StepError
from bringup.bundle.download import Wanted, fetch

IMAGE = "local/glm:2"
LAYERS = hashlib.sha256(b"sha256:cc").hexdigest()


def task(tmp_path: Path, check: bool = False, **args: Any) -> Task:
    given = {name: spec.get("default") for name, spec in bundle_content.ARGUMENTS.items()}
    return Task({**given, **args}, check=check, root=str(tmp_path / "root"),
                blob=lambda digest: str(tmp_path / digest))


def docker(tmp_path: Path, *, layers: tuple[str, ...] = ("sha256:cc",), archive: bool = True) -> StandIn:
    made = StandIn(tmp_path / "client")
    made.image(IMAGE, digest=None, archive=archive, layers=layers)
    (tmp_path / "archive").write_text(IMAGE)
    return made


def images(client: StandIn) -> dict[str, Any]:
    return {"client": str(client.client), "images": [{"tags": [IMAGE], "layers": LAYERS, "digest": "archive"}]}


def loads(client: StandIn) -> int:
    return sum(words[0] == "load" for words in client.calls)


def test_an_image_is_loaded_once(tmp_path: Path) -> None:
    client = docker(tmp_path)
    assert bundle_content.run(task(tmp_path, check=True, **images(client)))["changed"] is True
    assert loads(client) == 0, "a check changes nothing"
    assert bundle_content.run(task(tmp_path, **images(client)))["images"] == [IMAGE]
    assert bundle_content.run(task(tmp_path, **images(client)))["changed"] is False
    assert loads(client) == 1


def test_another_image_under_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    client = docker(tmp_path, layers=("sha256:old",), archive=False)
    with pytest.raises(Failure, match="did not bring the image"):
        bundle_content.run(task(tmp_path, **images(client)))
    assert loads(client) == 1


def test_a_host_without_the_client_is_told(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="is not on this host"):
        bundle_content.run(task(tmp_path, client="no-such-docker", images=[{"tags": [IMAGE], "layers": LAYERS,
                                                                           "digest": "archive"}]))


def test_packages_for_another_release_are_refused_before_anything_is_installed(tmp_path: Path) -> None:
    wanted = {"release": "sarge", "architecture": "amd64", "names": ["numactl"], "index": "i", "files": {}}
    with pytest.raises(Failure) as caught:
        bundle_content.run(task(tmp_path, packages=[wanted]))
    assert caught.value.message == "no system packages were carried for this host"
    assert caught.value.fields["expected"] == "sarge amd64"
    assert bundle_content.codename() in caught.value.fields["found"]


def archive(path: Path, *members: tuple[str, bytes | str]) -> None:
    with tarfile.open(path, "w:gz") as packed:
        for name, data in members:
            member = tarfile.TarInfo(name)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                packed.addfile(member)
            else:
                member.size, member.mode = len(data), 0o755
                packed.addfile(member, io.BytesIO(data))


SCRIPT = b"#!/bin/sh\necho 'CPython|3.12.4|cpython-312|cpython-312-x86_64-linux-gnu'\necho \"$0\"\n"


def bring(tmp_path: Path, check: bool = False, version: str = "3.12.4") -> dict[str, Any]:
    one = Task({"archive": {"digest": "python", "name": "cpython-3.12.4-x86_64-abc", "version": version}}, check=check,
               root=str(tmp_path / "root"), blob=lambda digest: str(tmp_path / digest))
    (tmp_path / "root/pythons").mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = python_env_bring.run(one)
    return found


def test_an_interpreter_is_unpacked_once_and_found_by_the_next_probe(tmp_path: Path) -> None:
    archive(tmp_path / "python", ("python/bin/python3.12", SCRIPT), ("python/bin/python3", "python3.12"))
    assert bring(tmp_path, check=True) == {"changed": True, "interpreter": None}
    assert list((tmp_path / "root/pythons").iterdir()) == []
    brought = bring(tmp_path)
    place = tmp_path / "root/pythons/cpython-3.12.4-x86_64-abc"
    assert brought["changed"] and brought["interpreter"]["path"] == str(place / "bin/python3.12")
    assert bring(tmp_path)["changed"] is False
    assert [path.name for path in (tmp_path / "root/pythons").iterdir()] == [place.name], "nothing half is left"
    seen = python_env_probe.interpreters(["3.12"], None, str(tmp_path / "root"))
    assert str(place / "bin/python3.12") in [one["path"] for one in seen] or seen[0]["version"].startswith("3.12")
    (place / "bin/python3.12").write_text("#!/bin/sh\nexit 1\n")
    assert bring(tmp_path)["changed"] is True, "one that does not answer is unpacked anew"


@pytest.mark.parametrize("members", [
    (("python/bin/python3.12", SCRIPT), ("python/../evil", b"x")),
    (("python/bin/python3.12", SCRIPT), ("evil", b"x")),
    (("python/bin/python3.12", SCRIPT), ("python/lib", "../../..")),
    (("python/bin/python3.12", SCRIPT), ("python/lib", "/etc")),
])
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, members: Any) -> None:
    archive(tmp_path / "python", *members)
    with pytest.raises(Failure, match="outside of it"):
        bring(tmp_path)
    assert list((tmp_path / "root/pythons").iterdir()) == []


@pytest.mark.parametrize(("data", "said"), [
    (b"#!/bin/sh\nexit 1\n", "does not run here"), (SCRIPT.replace(b"3.12.4", b"3.12.1"), "does not run here"),
])
def test_an_interpreter_that_does_not_run_leaves_nothing(tmp_path: Path, data: bytes, said: str) -> None:
    archive(tmp_path / "python", ("python/bin/python3.12", data))
    with pytest.raises(Failure, match=said) as caught:
        bring(tmp_path)
    assert "another machine" in caught.value.fields["next"]
    assert list((tmp_path / "root/pythons").iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "bringup-test", str(place)]).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
def test_a_disk_that_is_full_in_a_download(tmp_path: Path, tiny_disk: Path) -> None:
    data = b"x" * 3_000_000
    (tmp_path / "big").write_bytes(data)
    wanted = Wanted("big", (tmp_path / "big").as_uri(), hashlib.sha256(data).hexdigest())
    with pytest.raises(StepError, match="the disk is full") as caught:
        fetch(wanted, tiny_disk / "folder/big", {})
    assert "run again" in str(caught.value)
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
    fetch(wanted, tiny_disk / "folder/big", {})
    assert (tiny_disk / "folder/big").read_bytes() == data
