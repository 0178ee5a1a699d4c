"""The Debian system under every test machine: built once per recipe by debootstrap and kept, read-only, in a cache."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SUITE = "bookworm"
MIRROR = os.environ.get("BRINGUP_DEBIAN_MIRROR")  # None: debootstrap's own
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "python3-venv", "iproute2", "iputils-ping",
    "procps", "curl", "chrony", "ca-certificates",
)
USER = "ops"
PASSWORD = "machine-sudo-4711"
"""Password of `ops`, for sudo and for SSH."""

SETUP = r"""
set -eu
useradd --create-home --shell /bin/bash --password "$(openssl passwd -6 "$PASSWORD")" "$USER_NAME"
install -d -m 700 /root/.ssh
install -d -m 700 -o "$USER_NAME" -g "$USER_NAME" "/home/$USER_NAME/.ssh"
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
sed -i 's/^#\?MaxStartups.*/MaxStartups 100:30:200/; s/^#\?UseDNS.*/UseDNS no/' /etc/ssh/sshd_config
printf 'HostKey /etc/ssh/ssh_host_ed25519_key\n' > /etc/ssh/sshd_config.d/key.conf
systemctl disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer || true
systemctl mask systemd-networkd-wait-online.service console-getty.service getty@tty1.service || true
apt-get clean
"""


def recipe_digest() -> str:
    """Twelve digits over everything that goes into the base."""
    recipe = json.dumps([SUITE, sorted(PACKAGES), USER, PASSWORD, SETUP])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def base(cache: Path) -> Path:
    """The folder of the base, built when it is missing: about a minute, 350 MB. One builder at a time."""
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"base-{recipe_digest()}"
    if folder.is_dir():
        return folder
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    packages = ",".join((*PACKAGES, "openssl"))
    _run(["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(partial),
          *([MIRROR] if MIRROR else [])])
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "USER_NAME": USER, "PASSWORD": PASSWORD, "LC_ALL": "C"}
    _run(["chroot", str(partial), "sh", "-c", SETUP], environment)
    partial.rename(folder)


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"{command[0]} ended with {done.returncode} while the machines' base was built:\n{tail}")
