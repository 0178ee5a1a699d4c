"""ssh_config: `ssh -G` is asked what it makes of the same file, host by host."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.base.errors import InputError
from bringup.connection import sshconfig

CORPUS = {
    "first value wins": "Host a*\n Port 2201\n User first\nHost *\n Port 2202\n User second\n",
    "patterns": "Host *.example.com !db.example.com\n Port 1\nHost d? db*\n Port 2\nHost * !alpha\n User other\n",
    "equals and quotes": 'Host=alpha\nPort=7\nUser = "qu oted"\nHost "beta"\n HostName = 198.18.0.9 # note\n',
    "hostname tokens": "Host alpha beta\n HostName %h.example.com\n User u-%%\n",
    "jumps": "Host alpha\n ProxyJump one,two@h2:23\nHost beta\n ProxyJump none\nHost *\n ProxyJump gw\n",
    "command before jump": "Host alpha\n ProxyCommand ssh -W %h:%p gw\nHost *\n ProxyJump gw\n",
    "jump before command": "Host alpha\n ProxyJump gw\nHost *\n ProxyCommand none\n",
    "no command": "Host alpha\n ProxyCommand none\nHost *\n ProxyCommand nc %h %p\n",
    "identities": "Host alpha\n IdentityFile ~/.ssh/%r@%h\n IdentityFile %d/two\nHost *\n IdentityFile /k/%n-%p\n"
                  " IdentityFile %d/two\n IdentitiesOnly yes\n",
    "match host": "Host alpha\n HostName real.example.com\nMatch host real.example.com\n Port 31\n"
                  "Match originalhost alpha\n User orig\nMatch host alpha\n User never\n",
    "match user": "Host alpha\n User lin\nMatch user lin\n Port 41\nMatch localuser ROOTNAME\n ConnectTimeout 4\n",
    "match exec": 'Match host alpha exec "test %h = alpha"\n Port 51\nMatch exec "false"\n Port 52\n'
                  'Match !exec "false" host beta\n Port 53\n',
    "match all": "Match all\n Port 61\nMatch host alpha !user ROOTNAME\n Port 1\nMatch all\n Port 62\n",
    "match final": "Match final host real*\n Port 71\nHost alpha\n HostName real.example.com\n"
                   "Match final\n User late\nHost real*\n ConnectTimeout 9\n",
    "include": "Include more/*.conf\nHost *\n Port 82\n",
    "include in a block": "Host beta\n Include inside.conf\nHost alpha\n Include inside.conf\nHost *\n User after\n",
    "known hosts": "Host *\n UserKnownHostsFile ~/.ssh/kh1 ~/.ssh/kh2\n HostKeyAlias the-alias\n"
                   " StrictHostKeyChecking accept-new\n",
    "upper case": "HOST ALPHA alpha\n PORT 91\n hostNAME 198.18.0.7\n",
    "negated only": "Host !alpha\n Port 5\nHost !alpha *\n Port 6\n",
    "comments and blanks": "# one\n\n   # two\nHost alpha   # not a name\n\tPort\t93\n",
}
HOSTS = ("alpha", "beta", "db", "db.example.com", "www.example.com", "real.example.com")
SINGLE = ("hostname", "port", "user", "connecttimeout", "identitiesonly", "stricthostkeychecking", "hostkeyalias",
          "userknownhostsfile", "proxyjump", "proxycommand")

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed: it is the judge")


def judged(config: Path, host: str) -> dict[str, list[str]]:
    done = subprocess.run(["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True)
    out: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        out.setdefault(key, []).append(value)
    return out


@needs_ssh
@pytest.mark.parametrize("name", CORPUS)
def test_as_ssh_reads_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "10.conf").write_text("Host alpha\n Port 81\n")
    (tmp_path / "more" / "20.conf").write_text("Host beta\n User included\n")
    (tmp_path / "inside.conf").write_text("Port 83\nHost alpha\n ConnectTimeout 8\n")
    text = CORPUS[name].replace("ROOTNAME", getpass.getuser()).replace("Include ", f"Include {tmp_path}/")
    config = tmp_path / "config"
    config.write_text(text)
    for host in HOSTS:
        want = judged(config, host)
        got = sshconfig.resolve(host, str(config))
        defaults = {"port": "22", "user": getpass.getuser(), "hostname": host}
        for key in SINGLE:
            mine = got.get(key)
            if mine is None:
                mine = defaults.get(key)
            if mine is None:
                continue
            theirs = want.get(key, ["none" if key.startswith("proxy") else ""])[0]
            theirs = {"true": "yes", "false": "no"}.get(theirs, theirs)
            if key == "proxycommand":
                continue  # -G shows it before its tokens are filled in
            assert mine == theirs, (host, key)
        said = got.get("proxycommand") or "none"
        raw = want.get("proxycommand", ["none"])[0]
        assert (said == "none") == (raw == "none"), host
        if got.many.get("identityfile"):
            # -G shows them before tokens and the tilde are filled in
            assert len(got.many["identityfile"]) == len(want["identityfile"]), host


@needs_ssh
@pytest.mark.root
def test_short_names_are_made_full_as_ssh_does(tmp_path: Path) -> None:
    """In a mount namespace of its own, whose /etc/hosts knows a name with a domain."""
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n198.18.0.9 gpu01.cluster.test gpu01.cluster.test.\n")
    config = tmp_path / "config"
    config.write_text("CanonicalizeHostname yes\nCanonicalDomains nothing.test cluster.test\n"
                      "Host gpu01\n User short\nHost gpu01.cluster.test\n Port 77\n"
                      "Match canonical\n ConnectTimeout 3\nHost far\n ProxyJump gw\n")
    script = f"""
import subprocess
from bringup.connection import sshconfig
for host in ("gpu01", "GPU01", "unknown", "198.18.0.9", "gpu01.cluster.test", "a.b.c", "far"):
    done = subprocess.run(["ssh", "-G", "-F", "{config}", host], capture_output=True, text=True, check=True)
    want = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    got = sshconfig.resolve(host, "{config}")
    mine = [got.get("hostname"), got.get("user") or want["user"], got.get("port") or "22",
            got.get("connecttimeout") or "none"]
    theirs = [want["hostname"], want["user"], want["port"], want["connecttimeout"]]
    assert mine == theirs, (host, mine, theirs)
print("equal")
"""
    mount = f'mount --bind {tmp_path}/hosts /etc/hosts && exec "$@"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh",
                           sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "equal", done.stderr


def test_tokens_of_paths_and_commands(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host alpha\n HostName real\n User lin\n Port 23\n IdentityFile ~/k/%r@%h-%n:%p\n"
                      " ProxyCommand nc %h %p # %n\n UserKnownHostsFile ${BRINGUP_TEST_KH}/kh\n")
    os.environ["BRINGUP_TEST_KH"] = "/somewhere"
    got = sshconfig.resolve("alpha", str(config))
    assert got.many["identityfile"] == [os.path.expanduser("~/k/lin@real-alpha:23")]
    assert got.get("proxycommand") == "nc real 23 # alpha"
    assert got.get("userknownhostsfile") == "/somewhere/kh"


def test_no_file_at_all_and_what_the_command_line_says() -> None:
    got = sshconfig.resolve("alpha", None, {"port": "9"}, ("/k",))
    assert got.options == {"port": "9", "hostname": "alpha"} and got.many == {"identityfile": ["/k"]}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        sshconfig.resolve("a", str(tmp_path / "none"))
    config = tmp_path / "config"
    config.write_text(f"Include {config}\n")
    with pytest.raises(InputError, match="nested Include"):
        sshconfig.resolve("a", str(config))
    config.write_text("\nMatch localnetwork 198.18.0.0/15\n")
    with pytest.raises(InputError) as caught:
        sshconfig.resolve("a", str(config))
    assert f"{config}:2" in str(caught.value) and "localnetwork" in str(caught.value)
