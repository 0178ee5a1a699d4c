"""Writing on a host: whole or not at all, attributes kept, no trace of a failure."""

import os
import subprocess
from pathlib import Path

import pytest
from module_calls import call, send

from bringup.agent.modules import _files
from bringup.agent.task import Failure, Task
from bringup.base.errors import StepError
from bringup.run.actions import HostContext
from bringup.run.modules.copy import copy_action
from bringup.run.modules.template import template_action


def _context(folder):
    return HostContext("h1", {}, [folder], lambda text, path: text, False, False)


def _write(path, data, **args):
    _files.replace(Task({}), str(path), data, args)


def test_mode_and_attributes_of_the_replaced_file_stay(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o640)
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("the file system of the tests keeps no attributes of users")
    _write(path, b"new")
    assert (path.read_text(), oct(path.stat().st_mode & 0o7777)) == ("new", "0o640")
    assert os.getxattr(path, "user.note") == b"kept"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(Failure, match="look up user"):
        _write(path, b"new", owner="no_such_account_here")
    with pytest.raises(Failure, match="failed to validate"):
        _files.replace(Task({}), str(path), b"new", {}, "grep -q never %s")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_content_is_never_readable_by_others_before_its_mode_is_set(tmp_path, monkeypatch):
    seen = []
    chmod = os.chmod

    def watch(path, mode, **options):
        seen.append(oct(os.stat(path).st_mode & 0o777))
        chmod(path, mode, **options)

    monkeypatch.setattr(os, "chmod", watch)
    _write(tmp_path / "secret", b"x", mode="0600")
    assert seen[0] == "0o600"
    assert oct((tmp_path / "secret").stat().st_mode & 0o777) == "0o600"


@pytest.mark.root
def test_a_full_disk_is_told_as_a_full_disk(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        path = tmp_path / "x"
        path.write_text("old")
        with pytest.raises(Failure, match=r"the disk is full: No space left on device \(\d+ bytes free") as caught:
            _write(path, b"y" * 200_000)
        assert caught.value.fields["path"] == str(path)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["x"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.root
def test_no_inodes_left_is_told_as_such(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=4", "none", tmp_path], check=True)
    try:
        for number in range(3):
            (tmp_path / str(number)).write_text("")
        with pytest.raises(Failure, match="no inodes left"):
            call("file", path=str(tmp_path / "one/more"), state="directory")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_home_is_that_of_the_account_on_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source = tmp_path / "source"
    source.write_text("x")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    send(copy_action, _context(tmp_path), blobs, src=str(source), dest="~/x")
    assert (tmp_path / "x").read_text() == "x"
    assert not Path("~").exists()


def test_a_missing_source_names_the_places_and_the_nearest_name(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "engine.conf").write_text("")
    with pytest.raises(StepError) as caught:
        copy_action({"src": "engin.conf", "dest": "/x"}, _context(tmp_path))
    assert str(tmp_path / "files") in str(caught.value)
    assert "did you mean engine.conf?" in str(caught.value)


def test_a_blob_is_asked_for_only_when_the_content_differs(tmp_path):
    (tmp_path / "x").write_text("same")
    made = copy_action({"content": "same", "dest": str(tmp_path / "x")}, _context(tmp_path))
    result = call("copy", **made.args)
    assert result["changed"] is False
    assert result["checksum"] == _files.digest(str(tmp_path / "x"))


def test_a_template_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "x.j2").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StepError, match="not UTF-8"):
        template_action({"src": "x.j2", "dest": "/x"}, _context(tmp_path))


def test_recursion_through_a_loop_of_links_ends(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "x").write_text("")
    result = call("file", path=str(tmp_path), state="directory", recurse=True, mode="u=rwX,go=")
    assert result["changed"] is True
    assert oct((tmp_path / "a" / "x").stat().st_mode & 0o777) == "0o600"


def test_check_mode_changes_nothing_and_says_the_same(tmp_path):
    (tmp_path / "x").write_text("one\n")
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    calls = (("file", {"path": str(tmp_path / "d"), "state": "directory"}),
             ("file", {"path": str(tmp_path / "x"), "state": "absent"}),
             ("lineinfile", {"path": str(tmp_path / "x"), "line": "two"}),
             ("replace", {"path": str(tmp_path / "x"), "regexp": "one", "replace": "1"}),
             ("blockinfile", {"path": str(tmp_path / "x"), "block": "b"}))
    for module, args in calls:
        assert call(module, check=True, **args)["changed"] is True, module
    assert {path: path.stat() for path in tmp_path.rglob("*")} == before
