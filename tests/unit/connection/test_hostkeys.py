from __future__ import annotations

import base64
import subprocess
import threading
from pathlib import Path

import pytest

from bringup.base.errors import UnreachableError
from bringup.connection import hostkeys
from bringup.connection.hostkeys import Policy, UnknownHostKey, UnknownKey


def key(name: str) -> tuple[str, bytes]:
    blob = b"\0\0\0\x0bssh-ed25519" + name.encode()
    return base64.b64encode(blob).decode(), blob


def entries(tmp_path: Path, text: str) -> tuple[hostkeys.Entry, ...]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return tuple(hostkeys.load([str(file)]))


def test_which_lines_speak_of_a_host(tmp_path: Path) -> None:
    text, _ = key("k")
    lines = entries(tmp_path, "\n".join([
        "# comment", "", f"gpu01,198.18.0.11 ssh-ed25519 {text} note", f"[gpu01]:2222 ssh-ed25519 {text}",
        f"*.example.com,!db.example.com ssh-ed25519 {text}", "broken line", "gpu01 ssh-ed25519 ***",
        f"@cert-authority *.example.com ssh-ed25519 {text}", f"@strange gpu01 ssh-ed25519 {text}"]))
    assert [item.line for item in lines if item.covers("gpu01")] == [3]
    assert [item.line for item in lines if item.covers("[gpu01]:2222")] == [4]
    assert [item.line for item in lines if item.covers("www.example.com")] == [5, 8]
    assert [item.line for item in lines if item.covers("db.example.com")] == [8]


def test_hashed_names_as_ssh_keygen_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "kh"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "k")], check=True)
    public = (tmp_path / "k.pub").read_text().split()
    file.write_text(f"[gpu01]:2222 {public[0]} {public[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    (line,) = hostkeys.load([str(file)])
    assert line.covers("[gpu01]:2222") and not line.covers("gpu01")
    shown = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "k.pub")], capture_output=True, text=True, check=True)
    assert hostkeys.fingerprint(line.blob) == shown.stdout.split()[1]


def test_known_changed_revoked_and_unknown(tmp_path: Path) -> None:
    old, old_blob = key("old")
    _, new_blob = key("new")
    lines = entries(tmp_path, f"gpu01 ssh-ed25519 {old}\n")
    policy = Policy("gpu01", "gpu01", lines)
    assert policy.check("ssh-ed25519", old_blob) is None
    with pytest.raises(UnreachableError) as caught:
        policy.check("ssh-ed25519", new_blob)
    text = str(caught.value)
    assert hostkeys.fingerprint(old_blob) in text and hostkeys.fingerprint(new_blob) in text
    assert f"{tmp_path}/known_hosts:1" in text and "ssh-keygen -f" in text
    # another kind of key than the known one is no way around it
    with pytest.raises(UnreachableError, match="changed"):
        Policy("gpu01", "gpu01", lines, "accept-new").check("ssh-rsa", new_blob)
    with pytest.raises(UnknownHostKey) as unknown:
        Policy("gpu02", "gpu02", ()).check("ssh-ed25519", new_blob)
    assert unknown.value.key.fingerprint == hostkeys.fingerprint(new_blob)
    accepted = Policy("gpu02", "gpu02", (), "accept-new").check("ssh-ed25519", new_blob)
    assert accepted is not None and accepted.name == "gpu02"
    assert Policy("gpu01", "gpu01", lines, "off").check("ssh-ed25519", new_blob) is None
    revoked = entries(tmp_path, f"@revoked * ssh-ed25519 {old}\ngpu01 ssh-ed25519 {old}\n")
    with pytest.raises(UnreachableError, match="revoked"):
        Policy("gpu01", "gpu01", revoked, "off").check("ssh-ed25519", old_blob)


def test_keys_are_added_in_one_step_and_kept_private(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "known_hosts"
    text, blob = key("a")
    hostkeys.add([UnknownKey("gpu01", "gpu01", "ssh-ed25519", blob, str(file)),
                  UnknownKey("gpu02", "gpu02", "ssh-ed25519", blob, str(file), hashed=True)])
    lines = file.read_text().splitlines()
    assert lines[0] == f"gpu01 ssh-ed25519 {text}" and lines[1].startswith("|1|")
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    file.write_text("kept without an end of line")
    more = [UnknownKey(f"h{n}", f"h{n}", "ssh-ed25519", blob, str(file)) for n in range(20)]
    threads = [threading.Thread(target=hostkeys.add, args=([item],)) for item in more]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = file.read_text().splitlines()
    assert got[0] == "kept without an end of line" and len(got) == 21
    assert not list(file.parent.glob(".known_hosts-*"))
    link = tmp_path / "link"
    link.symlink_to(file)
    hostkeys.add([UnknownKey("h99", "h99", "ssh-ed25519", blob, str(link))])
    assert link.is_symlink() and "h99" in file.read_text()
