"""Bundles through the verbs: fetched from an index on loopback, cut off, gone on with, carried, used, refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_office import OTHER, Office, names_of
from site_project import MACHINE, PLATFORM, endpoint_of, wait_for
from small_wheels import wheel

SECRET = "grosser-Hammer-4711"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_a_bundle_holds_what_the_lock_names_and_says_so(office: Office) -> None:
    out = office.bundle()
    assert "wheels        2 files" in out and "bundle.verify b.tar.zst" in out
    assert all(len(line) <= 80 for line in out.splitlines() if "provision" not in line), out
    uv = [entry["path"] for entry in office.manifest()["entries"] if entry["kind"] == "uv"]
    assert names_of(office.folder / "b.tar.zst") == [
        "bundle.json", "wheels/alpha-1.0-py3-none-any.whl", "wheels/beta-1.5-py3-none-any.whl", *uv]
    assert uv[0].endswith(MACHINE)
    shown = office.good("bundle.show", "b.tar.zst", "--files")
    assert f"tiny on {PLATFORM}" in shown and "wheels/alpha-1.0-py3-none-any.whl" in shown
    assert "good     b.tar.zst" in office.good("bundle.verify", "b.tar.zst")


def test_a_cut_download_goes_on_where_it_was(office: Office) -> None:
    office.lock("alpha")
    office.index.cut, office.index.cuts = 1_000_000, 1
    office.bundle()
    assert [asked for _, asked in office.index.ranges] == [None, "bytes=1000000-"]


def test_a_connection_that_stays_cut_fails_and_the_next_run_goes_on(office: Office) -> None:
    office.lock("alpha")
    office.index.cut, office.index.cuts = 200_000, 99
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert done.returncode == 1 and "cannot be fetched" in done.stdout and "are kept" in done.stdout, done.stdout
    assert not (office.folder / "b.tar.zst").exists()
    office.index.cuts = 0
    office.index.ranges.clear()
    office.bundle()
    assert [asked for name, asked in office.index.ranges if name.startswith("alpha")] == ["bytes=800000-"]
    office.good("bundle.verify", "b.tar.zst")
    office.index.ranges.clear()
    assert "1 were here" in office.bundle("again.tar.zst")
    assert office.index.ranges == [], "what is here is not fetched again"


def test_ctrl_c_in_a_download_ends_at_once_and_keeps_it(office: Office) -> None:
    office.lock("alpha")
    office.index.cut, office.index.cuts, office.index.slow = 1_500_000, 99, 60
    run = office.start("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert office.index.sending.wait(60)
    parts = office.folder / ".bringup/cache/bundle/wheels"
    assert wait_for(lambda: any(path.stat().st_size for path in parts.glob("*/*.part")), 30)
    run.send_signal(signal.SIGINT)
    office.index.cuts = 0
    office.index.go_on.set()
    out = run.communicate(timeout=60)[0]
    assert run.returncode == 130, out
    assert "Traceback" not in out and list(office.folder.glob("*b.tar.zst*")) == []
    office.index.ranges.clear()
    office.bundle()
    assert re.fullmatch(r"bytes=\d{6,}-", str(office.index.ranges[0][1]))


def test_an_index_that_serves_another_file_is_refused(office: Office) -> None:
    wheel(office.index.folder, "beta", "1.5", {"beta.py": "VALUE = 6\n"})
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert done.returncode == 1 and "no wheel of beta==1.5 that the lock names" in done.stdout, done.stdout


def test_no_index_is_told_with_the_way_out(office: Office) -> None:
    done = subprocess.run([shutil.which("invoke") or "invoke", "bundle", "-i", "lab", "-o", "b.tar.zst"],
                          cwd=office.folder, env={**office.environment(), "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"},
                          text=True, capture_output=True, timeout=120)
    assert done.returncode == 1 and "UV_DEFAULT_INDEX" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.full
def test_provision_takes_all_from_the_bundle_and_refuses_what_does_not_hold(office: Office) -> None:
    office.bundle("b.tar.zst", "--split", "1MiB")
    office.good("env.build", "--bundle", "b.tar.zst")
    office.index.folder.rename(office.index.folder.with_name("gone"))
    out = office.good("provision", "--yes", "--bundle", "b.tar.zst")
    assert endpoint_of(out)
    for host in ("lab-head", "lab-w1", "lab-w2"):
        assert sorted(path.name for path in (office.root(host) / "cache/wheels").glob("*.whl")) == [
            "alpha-1.0-py3-none-any.whl", "beta-1.5-py3-none-any.whl"]
    flip(office.folder / "b.tar.zst.002", 99)
    office.good("provision", "--yes", "--bundle", "b.tar.zst")  # unpacked and proven before: not read again
    shutil.rmtree(office.folder / ".bringup/cache/bundles")
    done = office.run("provision", "--yes", "--bundle", "b.tar.zst")
    assert done.returncode == 2 and "nothing was contacted" in done.stdout, done.stdout
    assert "damaged" in done.stdout and "b.tar.zst" in done.stdout
    verified = office.run("bundle.verify", "b.tar.zst")
    assert verified.returncode == 4 and "b.tar.zst.002  this part is damaged" in verified.stdout, verified.stdout
    (office.folder / "b.tar.zst.003").unlink()
    done = office.run("provision", "--yes", "--bundle", "b.tar.zst")
    assert done.returncode == 2 and "b.tar.zst.003  a part of the bundle is missing" in done.stdout, done.stdout


def test_a_lock_that_was_changed_since_is_refused_before_anything_is_contacted(office: Office) -> None:
    office.bundle()
    office.lock("beta")
    done = office.run("provision", "--yes", "--bundle", "b.tar.zst")
    assert done.returncode == 2 and "nothing was contacted" in done.stdout
    assert f"envs/tiny/locks/{PLATFORM}.txt" in done.stdout and "the lock of tiny is not the one" in done.stdout


@pytest.mark.full
def test_an_update_carries_what_is_new_and_needs_its_base(office: Office) -> None:
    office.lock("beta")
    office.bundle("old.tar.zst")
    office.lock("alpha", "beta")
    out = office.bundle("new.tar.zst", "--since", "old.tar.zst.json")
    assert "an update of old.tar.zst" in out
    assert "--bundle old.tar.zst --bundle new.tar.zst" in " ".join(out.split())
    assert names_of(office.folder / "new.tar.zst") == ["bundle.json", "wheels/alpha-1.0-py3-none-any.whl"]
    shown = office.good("bundle.show", "new.tar.zst")
    assert "update        of old.tar.zst" in shown and "1 new of 3 files" in shown
    differs = office.good("bundle.diff", "old.tar.zst.json", "new.tar.zst", "--files")
    assert "wheels        alpha: new, 1.0" in differs and "same          2 files" in differs, differs
    assert "environment   tiny on" in differs and "packed alone by invoke bundle --since old.tar.zst.json" in differs
    assert [line.split()[-1] for line in differs.splitlines() if line[:2] in ("+ ", "- ")] == [
        "wheels/alpha-1.0-py3-none-any.whl"]
    back = json.loads(office.good("bundle.diff", "new.tar.zst", "old.tar.zst", "--format", "json"))
    assert back["to_carry"] == 0 and [one["path"] for one in back["removed"]] == ["wheels/alpha-1.0-py3-none-any.whl"]
    wrong = office.run("bundle.diff", "old.tar.zst", "none.tar.zst")
    assert wrong.returncode == 2 and "none.tar.zst" in wrong.stdout
    done = office.run("provision", "--yes", "--bundle", "new.tar.zst")
    assert done.returncode == 2 and "this is an update of old.tar.zst, which is not here" in done.stdout, done.stdout
    assert "nothing was contacted" in done.stdout
    office.good("provision", "--yes", "--bundle", "new.tar.zst", "--bundle", "old.tar.zst")
    office.good("provision", "--yes", "--bundle", "new.tar.zst")  # the base was unpacked here


def test_a_bundle_without_the_environment_is_refused(office: Office) -> None:
    office.bundle()
    shutil.copytree(office.folder / "envs/tiny", office.folder / "envs/other")
    office.write(environment="other")
    done = office.run("provision", "--yes", "--bundle", "b.tar.zst")
    assert done.returncode == 2 and "has no environment other" in done.stdout, done.stdout


def test_a_bundle_for_another_machine_fails_on_the_hosts_by_name(office: Office) -> None:
    definition = office.folder / "envs/tiny/env.yml"
    definition.write_text(definition.read_text().replace(
        "overlay:", f'  linux-{OTHER}: {{machine: {OTHER}, glibc: "2.17"}}\noverlay:'))
    text = (office.folder / f"envs/tiny/locks/{PLATFORM}.txt").read_text()
    (office.folder / f"envs/tiny/locks/linux-{OTHER}.txt").write_text(text.replace(PLATFORM, f"linux-{OTHER}"))
    # uv for the other machine would come from the index, which has none here
    place = office.folder / f".bringup/cache/uv-{_uv()}-{OTHER}/bin"
    place.mkdir(parents=True)
    (place / "uv").write_bytes(b"a program of the other machine")
    office.bundle("b.tar.zst", "--platform", f"linux-{OTHER}")
    done = office.run("provision", "--yes", "--bundle", "b.tar.zst")
    assert done.returncode == 1, done.stdout
    assert "the bundle b.tar.zst has nothing for this lock" in done.stdout and "platform" in done.stdout


def _uv() -> str:
    from bringup.environments.uv import uv_version

    return uv_version()


@pytest.mark.root
def test_a_full_disk_while_a_bundle_is_unpacked(office: Office) -> None:
    office.bundle()
    place = office.folder / ".bringup/cache/bundles"
    place.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "bringup-test", str(place)]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        done = office.run("provision", "--yes", "--bundle", "b.tar.zst")
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.returncode == 1 and "no room for the unpacked bundle" in done.stdout, done.stdout


def test_the_output_is_never_replaced_unasked(office: Office) -> None:
    office.bundle()
    before = (office.folder / "b.tar.zst").read_bytes()
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert done.returncode == 2 and "is there already" in done.stdout
    assert (office.folder / "b.tar.zst").read_bytes() == before
    office.bundle("b.tar.zst", "--overwrite")
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst", "--overwrite", "--split", "1MiB")
    assert done.returncode == 2 and "is there as one file" in done.stdout


def test_two_at_once_in_one_project_do_not_meet(office: Office) -> None:
    office.lock("alpha")
    office.index.cut, office.index.cuts, office.index.slow = 1_500_000, 1, 60
    first = office.start("bundle", "--inventory", "lab", "--output", "1.tar.zst")
    assert office.index.sending.wait(60)
    second = office.run("bundle", "--inventory", "lab", "--output", "2.tar.zst")
    office.index.go_on.set()
    out = first.communicate(timeout=120)[0]
    assert first.returncode == 0, out
    assert second.returncode == 5 and f"process {first.pid}" in second.stdout, second.stdout


def test_a_folder_of_wheels_is_an_index_too(office: Office) -> None:
    environment = {**office.environment(), "UV_OFFLINE": "1", "UV_FIND_LINKS": str(office.index.folder)}
    done = subprocess.run([str(Path(sys.executable).parent / "invoke"), "bundle", "-i", "lab", "-o", "b.tar.zst"],
                          cwd=office.folder, env=environment, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert office.index.ranges == [] and "wheels/alpha-1.0-py3-none-any.whl" in names_of(office.folder / "b.tar.zst")


@pytest.mark.parametrize(("words", "said"), [
    (["--output", "b.tar.zst", "--split", "four"], "--split takes a size"),
    (["--output", "b.tar.zst", "--split", "10k"], "at least 1 MiB"),
    (["--output", "b.tar.zst", "--platform", "linux-sparc"], "no platform"),
    (["--output", "b.tar.zst", "--python", "2.7"], "does not run on Python 2.7"),
    (["--output", "nowhere/b.tar.zst"], "is not there"),
    (["--output", "b.tar.zst.001"], "names no bundle"),
    (["--output", "b.tar.zst", "--since", "nothing.tar.zst"], "no such bundle"),
    ([], "--output is missing"),
])
def test_wrong_flags_are_told_before_anything_is_fetched(office: Office, words: list[str], said: str) -> None:
    done = office.run("bundle", "--inventory", "lab", *words)
    assert done.returncode == 2 and said in done.stdout, done.stdout
    assert office.index.ranges == []


@pytest.mark.parametrize(("section", "said"), [
    ({"imges": []}, "nearest: images"),
    ({"python": 3.11}, "is no list of texts"),
    ({"interpreters": "mine"}, "`interpreters` is not understood"),
    ({"images": ["gone.tar"]}, "names a file that is not there"),
    ({"sources": ["gone"]}, "names a file that is not there"),
    ({"system_packages": {"names": ["numactl"]}}, "names no release"),
    ({"system_packages": {"release": "bookworm", "names": ["numa ctl; rm"]}}, "is no name of a system package"),
    ({"system_packages": {"release": "sid-of-old", "names": ["numactl"]}}, "where its packages come from"),
])
def test_a_wrong_bundle_section_is_told_with_its_place(office: Office, section: dict[str, Any], said: str) -> None:
    office.write(bundle=section)
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert done.returncode == 2 and said in done.stdout, done.stdout
    assert not (office.folder / "b.tar.zst").exists()


def test_the_password_of_the_index_and_the_inventory_stay_at_home(office: Office) -> None:
    office.index.password = SECRET
    office.write(variables={"ansible_password": "another-Secret-12"}, bundle={"controller": False})
    office.bundle()
    import zstandard

    with (office.folder / "b.tar.zst").open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file).read()
    for word in (SECRET, "another-Secret-12", "ansible_password"):
        assert word.encode() not in data and word not in (office.folder / "b.tar.zst.json").read_text()


@pytest.mark.parametrize(("name", "text", "said"), [
    ("key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\n", "a private key"),
    ("vars.yml", "token: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n", "a vaulted text"),
    ("note.txt", "the sudo password there is another-Secret-12, do not tell\n", "a value that is secret"),
    (".git/config", "[remote \"origin\"]\n\turl = https://ops:hunter2@git.example.org/x.git\n", "an address with"),
])
def test_a_secret_in_what_is_carried_is_refused(office: Office, name: str, text: str, said: str) -> None:
    file = office.folder / "kernels" / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    office.write(variables={"ansible_become_password": "another-Secret-12"}, bundle={"sources": ["kernels"]})
    done = office.run("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    assert done.returncode == 2 and said in done.stdout and f"kernels/{name}" in done.stdout, done.stdout
    assert "hunter2" not in done.stdout and "another-Secret-12" not in done.stdout
    assert not (office.folder / "b.tar.zst").exists()


def test_a_vaulted_value_never_goes_along_even_opened(office: Office, tmp_path: Path) -> None:
    ansible = Path(sys.executable).parent / "ansible-vault"
    if not ansible.exists():
        pytest.skip("ansible-vault is needed to make a vaulted value")
    (tmp_path / "vault").write_text("open sesame\n")
    vaulted = subprocess.run([ansible, "encrypt_string", "--vault-password-file", str(tmp_path / "vault"), SECRET],
                             capture_output=True, text=True, check=True).stdout
    office.write(bundle={"sources": ["kernels"]})
    (office.folder / "kernels").mkdir()
    (office.folder / "kernels/build.sh").write_text(f"export TOKEN={SECRET}\n")
    (office.folder / "inventory/group_vars").mkdir()
    (office.folder / "inventory/group_vars/all.yml").write_text("token: " + vaulted)
    words = ("bundle", "--inventory", "lab", "--output", "b.tar.zst")
    done = office.run(*words, "--vault-password-file", str(tmp_path / "vault"))
    assert done.returncode == 2 and "kernels/build.sh" in done.stdout and SECRET not in done.stdout, done.stdout


def test_check_asks_the_index_and_writes_nothing(office: Office) -> None:
    out = office.good("bundle", "--inventory", "lab", "--check")
    assert "2 files" in out and "nothing was fetched" in out
    assert office.index.ranges == [] and not (office.folder / ".bringup/cache/bundle").exists()


def test_json_is_one_document(office: Office) -> None:
    done = subprocess.run([str(Path(sys.executable).parent / "invoke"), "bundle", "--inventory", "lab", "--output",
                           "b.tar.zst", "--format", "json"], cwd=office.folder, env=office.environment(),
                          capture_output=True, text=True, timeout=120)
    document = json.loads(done.stdout)
    assert document["files"] == ["b.tar.zst"] and document["environments"][0]["name"] == "tiny"
    assert json.loads(office.good("bundle.verify", "b.tar.zst", "--format", "json"))["good"] is True
