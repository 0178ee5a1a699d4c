"""Real Debian machines for tests: systemd, sshd and a network namespace each, on a bridge of their own, in seconds.

Several clusters may run side by side. What a killed run left behind is taken away by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import cgroups
from base_image import PASSWORD, USER, base
from network import Bridge, namespace, take_away, take_subnet

CACHE = Path(os.environ.get("BRINGUP_MACHINES", "/var/cache/bringup-tests"))
TOOLS = ("systemd-nspawn", "debootstrap", "ip", "tc", "ssh", "ssh-keygen", "nsenter", "chroot")
BOOT_DEADLINE = 60.0
"""Seconds until sshd of every machine answers: two on a quiet machine, far more on a loaded one."""


def why_not() -> str | None:
    """Why no machine can be booted here, or None."""
    if os.geteuid() != 0:
        return "real machines need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"real machines need {', '.join(missing)}" if missing else None


@dataclass
class Machine:
    """One machine. `index` counts from 1; `name` is its host name, `address` its address on the bridge."""

    cluster: Cluster
    index: int
    name: str
    address: str
    host_key: str = ""
    process: subprocess.Popen[bytes] | None = None
    cut_off: bool = False

    @property
    def folder(self) -> Path:
        return self.cluster.folder / self.name

    @property
    def root(self) -> Path:
        """The machine's file system as seen from outside."""
        return self.folder / "root"

    def run(self, command: str, *, user: str = USER, check: bool = True, timeout: float = 60,
            input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell command over SSH (not through the code under test). Raises RuntimeError when it fails."""
        done = subprocess.run([*self.cluster.ssh(), f"{user}@{self.address}", command], capture_output=True, text=True,
                              timeout=timeout, input=input, stdin=subprocess.DEVNULL if input is None else None)
        return _checked(self.name, command, done, check)

    def inside(self, command: str, *, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command as root without the network: also on a machine that is cut off."""
        done = subprocess.run(["nsenter", "-t", str(self.leader()), "-a", "sh", "-c", command], capture_output=True,
                              text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        return _checked(self.name, command, done, check)

    def leader(self) -> int:
        """Process id, outside, of the machine's own process 1."""
        assert self.process is not None, f"{self.name} is not up"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        raise RuntimeError(f"{self.name} has no process 1")

    def cut(self) -> None:
        """Pull the cable: packets vanish both ways."""
        self.cluster.bridge.cut(self.index)
        self.cut_off = True

    def mend(self) -> None:
        """Put the cable back."""
        self.cluster.bridge.mend(self.index)
        self.cut_off = False

    def delay(self, milliseconds: float) -> None:
        """Make each round trip to the machine longer by that much; 0 ends it."""
        self.cluster.bridge.delay(self.index, milliseconds)

    def stop(self) -> None:
        """Power off hard: kill the machine and everything in it."""
        if self.process is not None:
            _end(self.process)
            self.process = None
            cgroups.end(self.cluster.group(self.index))

    def start(self) -> None:
        """Boot, or boot again with the same disk. `Cluster.wait` says when sshd answers."""
        log = (self.folder / "log").open("ab")
        joins = "; ".join(f"echo $$ > {path}" for path in cgroups.make(self.cluster.group(self.index)))
        command = ["sh", "-c", f'set -e; {joins}; exec "$@"', "sh", "systemd-nspawn", "--quiet",
                   f"--directory={self.root}", "--register=no", "--keep-unit", "--boot",
                   f"--machine={self.name}", "--console=pipe", "--link-journal=no", "--resolv-conf=off",
                   "--timezone=off",
                   f"--network-namespace-path=/run/netns/{self.cluster.bridge.namespace(self.index)}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        start_new_session=True)
        log.close()
        (self.folder / "pid").write_text(f"{self.process.pid} {_started(self.process.pid)}")


@dataclass
class Cluster:
    """`size` machines on a bridge. `sudo` is `nopasswd` or `password` (it is `password`). A context manager."""

    size: int = 3
    sudo: str = "nopasswd"
    prefix: str = "m"
    password: str = PASSWORD
    user: str = USER
    identity: str = field(default_factory=lambda: secrets.token_hex(3))
    machines: list[Machine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = CACHE / "runs" / self.identity
        self.key = self.folder / "key"
        self.known_hosts = self.folder / "known_hosts"
        self.boot_seconds = 0.0
        self._lock: IO[str] | None = None

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.down()

    def group(self, index: int) -> str:
        """The control group of a machine."""
        return namespace(self.identity, index)

    def __getitem__(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)

    def up(self) -> None:
        """Boot all machines and wait for them; nothing stays when that fails."""
        reason = why_not()
        if reason:
            raise RuntimeError(reason)
        system = base(CACHE)
        sweep()
        begun = time.monotonic()
        self.folder.mkdir(parents=True, mode=0o700)
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.bridge = Bridge(self.identity, take_subnet())
        (self.folder / "size").write_text(str(self.size))
        try:
            self._prepare(system)
            for machine in self.machines:
                machine.start()
            self.wait()
        except BaseException:
            self.down()
            raise
        self.boot_seconds = time.monotonic() - begun

    def down(self) -> None:
        """Stop the machines and take away processes, mounts, namespaces, links, the bridge and the folder."""
        self.bridge.end_wires()
        for machine in self.machines:
            machine.stop()
        _clear(self.folder, self.identity, self.size)
        self.bridge.subnet.release()
        if self._lock is not None:
            self._lock.close()

    def wait(self, machines: Sequence[Machine] | None = None, deadline: float = BOOT_DEADLINE) -> None:
        """Wait until sshd of the machines answers. Raises RuntimeError with the machine's last lines."""
        end = time.monotonic() + deadline
        for machine in machines or self.machines:
            while machine.run("true", check=False, timeout=30).returncode:
                ended = machine.process is None or machine.process.poll() is not None
                if ended or time.monotonic() > end:
                    log = (machine.folder / "log").read_text(errors="replace").splitlines()[-15:]
                    raise RuntimeError("\n".join([f"{machine.name} did not come up:", *log]))
                time.sleep(0.05)

    def ssh(self) -> list[str]:
        """The ssh command line for these machines: own key, own known hosts, no configuration, no agent."""
        options = {"BatchMode": "yes", "UserKnownHostsFile": str(self.known_hosts), "StrictHostKeyChecking": "yes",
                   "IdentitiesOnly": "yes", "IdentityAgent": "none", "LogLevel": "ERROR", "ConnectTimeout": "5"}
        return ["ssh", "-F", "none", "-i", str(self.key), *(f"-o{name}={value}" for name, value in options.items())]

    def inventory(self, path: Path, variables: Mapping[str, Any] | None = None, *, keys: str = "pinned",
                  groups: Mapping[str, Sequence[str]] | None = None) -> Path:
        """Write an inventory that bringup and Ansible read: the first machine is `head`, the others `workers`.

        `keys` is `pinned` (known_hosts and each host's key), `accept-new` (an empty file of known hosts beside the
        inventory), or `none` (nothing is said about keys).
        """
        names = [machine.name for machine in self.machines]
        hosts = {machine.name: self._host_variables(machine, keys) for machine in self.machines}
        chosen = groups or {"head": names[:1], "workers": names[1:]}
        own: dict[str, Any] = {"ansible_user": self.user, "ansible_ssh_private_key_file": str(self.key),
                               "ansible_python_interpreter": "/usr/bin/python3"}
        if keys == "pinned":
            own["ansible_ssh_common_args"] = _ssh_arguments(self.known_hosts, "yes")
        elif keys == "accept-new":
            known = path.with_suffix(".known_hosts")
            own["ansible_ssh_common_args"] = _ssh_arguments(known, "accept-new")
            own |= {"bringup_known_hosts": str(known), "bringup_host_key_checking": "accept-new"}
        children = {group: _members(names) for group, names in chosen.items()}
        tree = {"all": {"vars": {**own, **(variables or {})}, "hosts": hosts, "children": children}}
        path.write_text(json.dumps(tree, indent=2) + "\n")
        return path

    def testinfra(self, machine: Machine, *, sudo: bool = False) -> Any:
        """A testinfra host over an SSH connection of its own, as the user or with sudo."""
        import testinfra  # type: ignore[import-untyped]

        arguments = " ".join(shlex.quote(part) for part in self.ssh()[5:])
        return testinfra.get_host(f"ssh://{self.user}@{machine.address}", ssh_identity_file=str(self.key),
                                  ssh_extra_args=f"-F none {arguments}", sudo=sudo, controlpersist=0)

    def _host_variables(self, machine: Machine, keys: str) -> dict[str, str]:
        own = {"ansible_host": machine.address}
        if keys == "pinned":
            own["bringup_host_key"] = machine.host_key
        return own

    def _prepare(self, system: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bringup-tests", "-f", str(self.key)],
                       check=True)
        self.bridge.up()
        for index in range(1, self.size + 1):
            machine = Machine(self, index, f"{self.prefix}{index}", self.bridge.subnet.address(index))
            self.machines.append(machine)
            for part in ("up", "work", "root"):
                (machine.folder / part).mkdir(parents=True)
            self.bridge.plug(index)
            _mount(system, machine.folder)
        names = "".join(f"{machine.address} {machine.name}\n" for machine in self.machines)
        for machine in self.machines:
            self._furnish(machine, f"127.0.0.1 localhost\n::1 localhost\n{names}")
        self.known_hosts.write_text("".join(f"{m.address} {m.host_key}\n" for m in self.machines))

    def _furnish(self, machine: Machine, hosts: str) -> None:
        etc = machine.root / "etc"
        public = self.key.with_suffix(".pub").read_text()
        (etc / "hostname").write_text(f"{machine.name}\n")
        (etc / "hosts").write_text(hosts)
        # nobody answers there: a name that is not in hosts is unknown at once, not after ten seconds
        (etc / "resolv.conf").unlink(missing_ok=True)
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        (etc / "machine-id").write_text(f"{secrets.token_hex(16)}\n")
        host_key = etc / "ssh/ssh_host_ed25519_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", machine.name, "-f", str(host_key)],
                       check=True)
        machine.host_key = " ".join(host_key.with_suffix(".pub").read_text().split()[:2])
        rule = "NOPASSWD:ALL" if self.sudo == "nopasswd" else "ALL"
        sudoers = etc / "sudoers.d" / self.user
        sudoers.write_text(f"{self.user} ALL=(ALL) {rule}\n")
        sudoers.chmod(0o440)
        owner = (machine.root / f"home/{self.user}").stat()
        for home, uid, gid in ((f"home/{self.user}", owner.st_uid, owner.st_gid), ("root", 0, 0)):
            keys = machine.root / home / ".ssh/authorized_keys"
            keys.write_text(public)
            keys.chmod(0o600)
            os.chown(keys, uid, gid)


def sweep() -> None:
    """Take away what runs left behind whose process is gone: their lock is free."""
    runs = CACHE / "runs"
    for folder in runs.iterdir() if runs.is_dir() else ():
        with contextlib.suppress(OSError), (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = (folder / "size").read_text() if (folder / "size").exists() else "0"
            for record in folder.glob("*/pid"):
                pid, started = record.read_text().split()
                if _started(int(pid)) == started:
                    _kill_group(int(pid))
            _clear(folder, folder.name, int(size))


def _clear(folder: Path, identity: str, size: int) -> None:
    for index in range(1, size + 1):
        cgroups.end(namespace(identity, index))
    for mount in sorted(_mounts_below(folder), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    take_away(identity, size)
    shutil.rmtree(folder, ignore_errors=True)


def _mounts_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        where = line.split()[1]
        if where.startswith(f"{folder}/"):
            yield where


def _mount(system: Path, folder: Path) -> None:
    options = f"lowerdir={system},upperdir={folder / 'up'},workdir={folder / 'work'}"
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(folder / "root")],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"an overlay cannot be mounted below {folder}: {done.stderr.strip()}; "
                           "BRINGUP_MACHINES names another folder")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a machine: nspawn kills what is inside when it is killed; asked politely first."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    _kill_group(process.pid)
    process.wait(10)


def _kill_group(pid: int) -> None:
    leaders = []
    with contextlib.suppress(OSError):
        leaders = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for victim in (*leaders, pid):
        # killing process 1 of a pid namespace ends every process in it
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot: with the pid it names one process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _members(names: Sequence[str]) -> dict[str, Any]:
    return {"hosts": {name: {} for name in names}}


def _ssh_arguments(known_hosts: Path, checking: str) -> str:
    return f"-o UserKnownHostsFile={known_hosts} -o StrictHostKeyChecking={checking}"


def _checked(name: str, command: str, done: subprocess.CompletedProcess[str],
             check: bool) -> subprocess.CompletedProcess[str]:
    if check and done.returncode:
        raise RuntimeError(f"{name}: `{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done
